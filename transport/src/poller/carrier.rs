//! Services that a poller offers its upper half.
#![forbid(unsafe_code)]

use super::Core;
use crate::budget::Exhausted;
use crate::trunk::{Cancelling, Outbound, Trunk};
use crate::wire::MOST_ANNOUNCED;
use crate::wire::frame;
use crate::{
    Carrier, Connect, Outgoing, PeerDown, PeerKey, PollerIndex, Reach, SendError, SessionNumber, Taken,
    Token, Turn,
};
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_verbs::Time;

impl Carrier for Core {
    fn now(&self) -> Time {
        self.res.time.now()
    }

    fn advance(&mut self, time: Time) {
        self.res.time.advance(time);
    }

    fn is_flush_overdue(&mut self) -> bool {
        !self.is_charged() && self.res.is_flush_overdue()
    }

    fn flush(&mut self) {
        self.flush_marked();
    }

    fn poller(&self) -> PollerIndex {
        self.res.index
    }

    fn pollers(&self) -> u16 {
        u16::try_from(self.res.shared.pollers.len()).unwrap_or(u16::MAX)
    }

    fn peer(&mut self, node: PeerKey) -> PeerKey {
        self.find(node, Connect::FailFast)
    }

    fn is_up(&self, peer: PeerKey) -> bool {
        let trunk = self.peers.trunk(peer).and_then(|slot| self.trunks.get(slot));
        trunk.is_some_and(Trunk::is_open)
    }

    fn reach(&mut self, node: PeerKey, connect: Connect) -> Reach {
        let peer = self.find(node, connect);
        if self.is_up(peer) {
            return Reach::Up;
        }
        if self.shutdown.is_ended() {
            return Reach::Away { cause: PeerDown::ShuttingDown, due_in: Duration::ZERO };
        }
        match self.peers.due_in(peer, self.res.time.now()) {
            Some((cause, due_in)) => Reach::Away { cause, due_in },
            None => Reach::UnderWay,
        }
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
        let route = self.peers.route(message.peer, message.toward, own);
        let Some((turn, slot)) = route else { return Err(SendError::NoPeer) };
        let trunk = slot.and_then(|slot| self.trunks.get_mut(slot));
        let is_over = |session| trunk.as_ref().is_none_or(|trunk| SessionNumber(trunk.number()) != session);
        if message.session.is_some_and(is_over) {
            return Err(SendError::SessionOver);
        }
        self.res.sent_ms = self.res.time.now_ms();
        let has_trunk = trunk.is_some();
        if let Some(trunk) = trunk.filter(|trunk| trunk.is_open()) {
            let session = SessionNumber(trunk.number());
            let has_left = trunk.send(&mut self.res, message, turn)?;
            return Ok(Taken { turn, left: has_left.then_some(session) });
        }
        self.await_session(message, turn, has_trunk)
    }

    fn cancel(&mut self, tokens: &BTreeSet<Token>) -> BTreeSet<Token> {
        let mut cancelling = Cancelling::new(tokens);
        self.peers.cancel(&mut cancelling, &mut self.res.shares);
        self.trunks.cancel(&mut cancelling, &mut self.res.shares);
        cancelling.cancelled()
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

impl Core {
    /// Returns the key of a node. Asks the CM machine for a session if there is none.
    #[inline]
    fn find(&mut self, node: PeerKey, connect: Connect) -> PeerKey {
        let (key, needs_session) = self.peers.name(node);
        if needs_session {
            self.ask(key, connect);
        }
        key
    }

    /// Queues a message until a session is up. Asks the CM machine for one if there is no trunk.
    #[inline(never)]
    fn await_session(
        &mut self,
        message: &Outgoing<'_>,
        turn: Turn,
        has_trunk: bool,
    ) -> Result<Taken, SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
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
            self.ask(message.peer, message.connect);
        }
        Ok(Taken { turn, left: None })
    }
}
