//! What a poller does for its upper half.
#![forbid(unsafe_code)]

use super::Core;
use crate::budget::Exhausted;
use crate::shared::canonical;
use crate::trunk::Outbound;
use crate::{Carrier, Outgoing, PeerDown, PeerKey, PollerIndex, SendError, SessionNumber, Token};
use std::net::SocketAddr;
use trunkline_verbs::Time;

impl Carrier for Core {
    fn now(&self) -> Time {
        self.res.time.now()
    }

    fn poller(&self) -> PollerIndex {
        self.res.index
    }

    fn pollers(&self) -> u16 {
        u16::try_from(self.res.shared.pollers.len()).unwrap_or(u16::MAX)
    }

    fn peer(&mut self, address: SocketAddr) -> PeerKey {
        let address = canonical(address);
        let key = self.res.shared.peer_key(address);
        if self.peers.name(key, address) {
            self.ask(key);
        }
        key
    }

    fn send(&mut self, message: Outgoing<'_>) -> Result<(), SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
        let limit = self.res.shared.limits.max_message_bytes;
        if bytes > limit {
            return Err(SendError::TooLarge { bytes, limit });
        }
        if !self.peers.knows(message.peer) {
            return Err(SendError::NoPeer);
        }
        let trunk = self.peers.trunk(message.peer).and_then(|slot| self.trunks.get_mut(slot));
        let is_over = |session| trunk.as_ref().is_none_or(|trunk| SessionNumber(trunk.number()) != session);
        if message.session.is_some_and(is_over) {
            self.res.events.never_sent(message.token, PeerDown::Closed);
            return Ok(());
        }
        if let Some(trunk) = trunk {
            return trunk.send(&mut self.res, &message);
        }
        let waiting = self.peers.waiting(message.peer).filter(|_| !self.shutdown.has_begun());
        let Some(waiting) = waiting else { return Err(SendError::NoPeer) };
        self.res.shares.queue(message.peer, bytes).map_err(SendError::QueueFull)?;
        waiting.push(Outbound::new(&message));
        self.ask(message.peer);
        Ok(())
    }

    fn cancel(&mut self, token: Token) {
        let shares = &mut self.res.shares;
        if self.peers.cancel(token, shares) || self.trunks.cancel(token, shares) {
            self.res.events.never_sent(token, PeerDown::Cancelled);
        }
    }

    fn has_reply_room(&mut self, peer: PeerKey) -> Result<(), Exhausted> {
        self.res.shares.has_reply_room(peer)
    }

    fn max_message_bytes(&self) -> usize {
        self.res.shared.limits.max_message_bytes
    }
}
