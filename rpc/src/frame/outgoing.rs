//! A frame that leaves this node.

use super::Header;
use bytes::Bytes;
use std::mem;
use trunkline_transport::{
    Body, Carrier, Connect, Leaves, Outgoing, PeerKey, SendError, SessionNumber, Token, Toward, Turn,
};
use trunkline_verbs::Time;

/// Largest encoded part, in bytes, that is copied to follow the header; a larger one is passed on as the body.
const COPIED: usize = 4096;

/// The token of messages whose outcome nobody waits for.
pub(crate) const NOBODY: Token = Token(u64::MAX);

/// A frame to send, with its destination.
pub(crate) struct Frame {
    pub(crate) peer: PeerKey,
    pub(crate) toward: Toward,
    /// `None`: whichever session is up, or the next one.
    pub(crate) session: Option<SessionNumber>,
    /// Whether it waits when the peer cannot be reached.
    pub(crate) connect: Connect,
    /// Whether it keeps its place among other such frames of this poller to that of the peer.
    pub(crate) ordered: bool,
    pub(crate) header: Header,
    pub(crate) encoded: Vec<u8>,
    pub(crate) body: Body,
    pub(crate) token: Token,
    pub(crate) deadline: Option<Time>,
    /// How much of the queue it leaves free, if it has to wait in it.
    pub(crate) leaves: Leaves,
}

impl Frame {
    /// Hands it to the carrier; returns the turn that it was given, and the buffer of the encoded part if that was
    /// copied.
    ///
    /// # Errors
    /// The carrier did not take it. It still has all its parts.
    pub(crate) fn send(
        &mut self,
        carrier: &mut dyn Carrier,
        scratch: &mut Vec<u8>,
    ) -> Result<(Turn, Option<Vec<u8>>), SendError> {
        let (bytes, limit) =
            (self.encoded.len().saturating_add(self.body.len()), carrier.max_message_bytes());
        let length = u32::try_from(self.encoded.len()).map_err(|_| SendError::TooLarge { bytes, limit })?;
        scratch.clear();
        self.header.emit(length, scratch);
        let announced = scratch.len();
        // The receiver sees head and body as one message, wherever they are divided here.
        let is_copied = !self.body.is_empty() || self.encoded.len() <= COPIED;
        let body = if is_copied {
            scratch.extend_from_slice(&self.encoded);
            mem::take(&mut self.body)
        } else {
            Bytes::from(mem::take(&mut self.encoded)).into()
        };
        let outgoing = Outgoing {
            peer: self.peer,
            toward: self.toward,
            session: self.session,
            connect: self.connect,
            ordered: self.ordered,
            head: scratch,
            announced,
            body,
            token: self.token,
            deadline: self.deadline,
            leaves: self.leaves,
        };
        let sent = carrier.send(&outgoing);
        let Outgoing { body, .. } = outgoing;
        match sent {
            Ok(turn) => Ok((turn, is_copied.then(|| mem::take(&mut self.encoded)))),
            Err(error) => {
                if is_copied {
                    self.body = body;
                } else {
                    let bytes = body.as_bytes().clone();
                    drop(body);
                    // It is the only handle, so the buffer comes back without a copy.
                    self.encoded = bytes.into();
                }
                Err(error)
            }
        }
    }
}
