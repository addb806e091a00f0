//! What the other members of the host send to the card.
//!
//! Owns the hand-over of their messages; datagrams that they hand on come through the link like
//! all others. Called after each batch of packets.

use super::Card;
use super::sharing::KINDS;
use crate::host::MemberMessage;
use trunkline_verbs::Time;

impl Card {
    /// Takes what other members have sent.
    pub(super) fn serve_members(&mut self, now: Time) {
        while let Some(message) = self.members.as_ref().and_then(|members| members.next_message()) {
            match message {
                // Whoever held port 4791 is replaced by the link.
                MemberMessage::Lost(member) => {
                    tracing::debug!(?member, "the connection with a member ended");
                    if let Some(sharing) = &mut self.sharing {
                        sharing.member_disconnected(member, now);
                    }
                }
                MemberMessage::Message { from, kind, bytes } if KINDS.contains(&kind) => {
                    self.handle_shared(from, kind, &bytes, now);
                }
                MemberMessage::Message { from, kind, bytes } => {
                    self.counters.unknown_messages += 1;
                    tracing::debug!(?from, kind, length = bytes.len(), "a message of no known kind");
                }
            }
        }
    }
}
