//! What a poller does for its upper half.
#![forbid(unsafe_code)]

use super::Core;
use crate::budget::Exhausted;
use crate::frame;
use crate::sizes::MOST_ANNOUNCED;
use crate::trunk::Outbound;
use crate::{
    Carrier, Connect, Outgoing, PeerDown, PeerKey, PollerIndex, SendError, SessionNumber, Taken, Token,
};
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
        let (key, needs_session) = self.peers.name(PeerKey::new(address));
        if needs_session {
            self.ask(key);
        }
        key
    }

    fn send(&mut self, message: &Outgoing<'_>) -> Result<Taken, SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
        let limit = self.res.shared.limits.max_message_bytes;
        if bytes > limit {
            return Err(SendError::TooLarge { bytes, limit });
        }
        let is_announced =
            |header| (header..=message.head.len().min(MOST_ANNOUNCED)).contains(&message.announced);
        if !frame::upper_header(message.head).is_some_and(is_announced) {
            return Err(SendError::BadHeader);
        }
        let own = u32::from(self.res.index.0);
        let place = self.peers.place(message.peer);
        let route = place.and_then(|place| self.peers.route(place, message.toward, own));
        let Some((turn, slot)) = route else { return Err(SendError::NoPeer) };
        let trunk = slot.and_then(|slot| self.trunks.get_mut(slot));
        let is_over = |session| trunk.as_ref().is_none_or(|trunk| SessionNumber(trunk.number()) != session);
        if message.session.is_some_and(is_over) {
            return Err(SendError::SessionOver);
        }
        let has_trunk = trunk.is_some();
        if let Some(trunk) = trunk.filter(|trunk| trunk.is_open()) {
            let session = SessionNumber(trunk.number());
            let has_left = trunk.send(&mut self.res, message, turn)?;
            return Ok(Taken { turn, left: has_left.then_some(session) });
        }
        if message.connect == Connect::FailFast
            && let Some((cause, due_in)) = self.peers.due_in(message.peer, self.res.time.now())
        {
            return Err(SendError::BackingOff { cause, due_in });
        }
        let waiting = self.peers.waiting(message.peer).filter(|_| !self.shutdown.is_ended());
        let Some(waiting) = waiting else { return Err(SendError::NoPeer) };
        self.res.shares.queue(message.peer, bytes, message.leaves).map_err(SendError::QueueFull)?;
        waiting.push(Outbound::new(message, turn, &mut self.res.heads));
        if !has_trunk {
            self.ask(message.peer);
        }
        Ok(Taken { turn, left: None })
    }

    fn cancel(&mut self, token: Token) -> bool {
        let shares = &mut self.res.shares;
        self.peers.cancel(token, shares) || self.trunks.cancel(token, shares)
    }

    fn has_session(&self, peer: PeerKey, session: SessionNumber) -> bool {
        let trunk = self.peers.trunk(peer).and_then(|slot| self.trunks.get(slot));
        trunk.is_some_and(|trunk| SessionNumber(trunk.number()) == session)
    }

    fn away(&self, peer: PeerKey) -> Option<PeerDown> {
        self.peers.away(peer)
    }

    fn waiting_bytes(&self, peer: PeerKey, is_it: &dyn Fn(&[u8]) -> bool) -> Option<usize> {
        self.trunks.get(self.peers.trunk(peer)?)?.waiting_bytes(is_it)
    }

    fn has_reply_room(&mut self, peer: PeerKey) -> Result<(), Exhausted> {
        self.res.shares.has_reply_room(peer)
    }

    fn max_message_bytes(&self) -> usize {
        self.res.shared.limits.max_message_bytes
    }
}
