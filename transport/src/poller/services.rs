//! The driver's interface to the transport. No function blocks.
#![forbid(unsafe_code)]

use super::Transport;
use crate::budget::Exhausted;
use crate::trunk::{Cancelling, Outbound, Trunk};
use crate::wire::MOST_ANNOUNCED;
use crate::wire::frame;
use crate::{
    Accepted, Connect, Destination, Message, Outgoing, PeerDown, PeerKey, PollerChoice, PollerIndex, Reach,
    SendError, SessionNumber, Small, Token,
};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use trunkline_verbs::Time;

/// Destination of the last message that was staged without queueing.
#[derive(Debug)]
pub(super) struct LastSent {
    peer: PeerKey,
    session: SessionNumber,
    choice: PollerChoice,
    /// Place of the trunk, and index of its lane.
    slot: usize,
    lane: usize,
    /// True until staged messages are posted.
    is_staged: bool,
    /// True if all messages to [`Destination::Any`] go to this lane.
    is_any: bool,
    /// True if the peer has only one poller.
    is_only: bool,
}

impl LastSent {
    /// Records that all messages are posted.
    pub(super) fn posted(&mut self) {
        self.is_staged = false;
    }
}

impl Default for LastSent {
    fn default() -> Self {
        let peer = PeerKey::new(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let (session, choice) = (SessionNumber(0), PollerChoice::new(0));
        Self {
            peer,
            session,
            choice,
            slot: usize::MAX,
            lane: 0,
            is_staged: false,
            is_any: false,
            is_only: false,
        }
    }
}

impl Transport {
    /// Returns the poller's time, which is read at the beginning of each turn.
    #[must_use]
    pub fn now(&self) -> Time {
        self.res.time.now()
    }

    /// Advances the poller's time to at least `time`.
    ///
    /// A handler may have run for long since the turn began. Without this, later messages would carry too long a
    /// remaining time.
    pub fn advance(&mut self, time: Time) {
        self.res.time.advance(time);
    }

    /// Returns true if messages sent in this turn should not wait for its end. Reads the clock, so call it only every
    /// few handlers. If it returns true, call [`Self::flush`].
    pub fn is_flush_overdue(&mut self) -> bool {
        !self.is_charged() && self.res.is_flush_overdue()
    }

    /// Posts the messages sent so far, so that peers need not wait for the rest of the turn.
    pub fn flush(&mut self) {
        self.flush_marked();
    }

    /// Returns the index of this poller.
    #[must_use]
    pub fn poller(&self) -> PollerIndex {
        self.res.index
    }

    /// Returns true if this node has an identity, so that its peers may have proved names.
    #[must_use]
    pub fn has_identity(&self) -> bool {
        self.res.shared.limits.handshakes
    }

    /// Returns the number of this node's pollers.
    #[must_use]
    pub fn pollers(&self) -> u16 {
        u16::try_from(self.res.shared.pollers.len()).unwrap_or(u16::MAX)
    }

    /// Returns a node's key with this poller's hint, which makes lookups fast. Begins to connect if there is no
    /// session, and retries with backoff while a message waits to be sent.
    pub fn peer(&mut self, node: PeerKey) -> PeerKey {
        self.find(node, Connect::FailFast)
    }

    /// Returns true if this node may keep further large messages for long, because memory for a message of the
    /// maximum size remains.
    #[must_use]
    pub fn has_spare_memory(&self) -> bool {
        self.res.shared.sinks.has_spare(self.res.shared.limits.max_message_bytes)
    }

    /// Returns true if a session with the peer is up, so that a message would be sent through it.
    #[must_use]
    pub fn is_up(&self, peer: PeerKey) -> bool {
        let trunk = self.peers.trunk(peer).and_then(|slot| self.trunks.get(slot));
        trunk.is_some_and(Trunk::is_open)
    }

    /// Begins to connect to a node if there is no session and the backoff allows an attempt. The result of the
    /// attempt is reported by [`Event::Peer`](crate::Event::Peer). The attempt may have begun earlier, and may last
    /// until a removed device is back. With [`Connect::Wait`], a caller waits through pauses, and the next attempt
    /// begins early, so that a request is sent at least once a second. Call this again after each failed attempt
    /// while a caller waits.
    pub fn reach(&mut self, node: PeerKey, connect: Connect) -> Reach {
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

    /// Accepts a message. The requested outcomes are reported by [`Event::Sent`](crate::Event::Sent), at most once,
    /// and never from inside this call. Without a session, the message waits in a bounded queue for an attempt to
    /// connect, which this call begins if necessary.
    ///
    /// # Errors
    /// Returns an error if the message was not accepted. Its outcome is then not reported, and the caller may send it
    /// again.
    pub fn send(&mut self, message: &Outgoing<'_>) -> Result<Accepted, SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
        let limit = self.res.shared.limits.max_message_bytes;
        if bytes > limit {
            return Err(SendError::TooLarge { bytes, limit });
        }
        if message.header.kind < frame::DRIVER {
            return Err(SendError::BadHeader);
        }
        let (own, count) = (u32::from(self.res.index.0), u32::from(self.pollers()));
        let route = self.peers.route(message.peer, message.destination, own, count);
        let Some((choice, slot)) = route else { return Err(SendError::NoPeer) };
        let trunk = slot.and_then(|slot| self.trunks.get_mut(slot));
        let is_over = |session| trunk.as_ref().is_none_or(|trunk| SessionNumber(trunk.number()) != session);
        if message.session.is_some_and(is_over) {
            return Err(SendError::SessionOver);
        }
        self.res.sent_ms = self.res.time.now_ms();
        let has_trunk = trunk.is_some();
        if let Some(trunk) = trunk.filter(|trunk| trunk.is_open()) {
            let session = SessionNumber(trunk.number());
            let has_left = trunk.send(&mut self.res, message, choice)?;
            if let (true, Some(slot), Some(lane)) =
                (has_left, slot, trunk.lane_of(message.destination, choice))
            {
                let pollers = trunk.pollers();
                let is_any = count % pollers == 0 && lane == (own % pollers) as usize;
                let (peer, is_only) = (message.peer, pollers == 1);
                self.last_sent =
                    LastSent { peer, session, choice, slot, lane, is_staged: true, is_any, is_only };
            }
            return Ok(Accepted { choice, left: has_left.then_some(session) });
        }
        self.await_session(message, choice, has_trunk)
    }

    /// Returns true if [`Self::join`] may accept a message, because a message has been sent since messages were last
    /// posted.
    #[must_use]
    #[inline]
    pub fn has_staged(&self) -> bool {
        self.last_sent.is_staged
    }

    /// Adds a small message to the frame of the last message, if that frame is for the same poller and has
    /// space. Otherwise returns `None`, and the caller uses [`Self::send`].
    #[inline]
    pub fn join(
        &mut self,
        peer: PeerKey,
        destination: Destination,
        session: Option<SessionNumber>,
        message: &Small<'_>,
    ) -> Option<Accepted> {
        let last = &self.last_sent;
        let is_there = match destination {
            Destination::Poller(poller) => usize::from(poller.0) == last.lane,
            Destination::Any => last.is_any,
            Destination::Choice(_) => last.is_only,
        };
        let is_of_session = session.is_none_or(|session| session == last.session);
        if !is_there || !is_of_session || last.peer != peer || message.header.kind < frame::DRIVER {
            return None;
        }
        let trunk = self.trunks.get_mut(last.slot)?;
        if SessionNumber(trunk.number()) != last.session || !trunk.join(&mut self.res, last.lane, message) {
            return None;
        }
        self.res.sent_ms = self.res.time.now_ms();
        Some(Accepted { choice: last.choice, left: Some(last.session) })
    }

    /// Cancels the given messages that are still queued, and returns their tokens. They are never sent, and their
    /// outcomes are not reported. Sent messages are not affected. A call searches all queues, so cancel many messages
    /// in one call.
    pub fn cancel(&mut self, tokens: &BTreeSet<Token>) -> BTreeSet<Token> {
        let mut cancelling = Cancelling::new(tokens);
        self.peers.cancel(&mut cancelling, &mut self.res.shares);
        self.trunks.cancel(&mut cancelling, &mut self.res.shares);
        cancelling.cancelled()
    }

    /// Returns true if this session with the peer can carry messages. The end of a session is reported to
    /// the driver only after the outcomes of all messages that were in flight in it.
    #[must_use]
    pub fn has_session(&self, peer: PeerKey, session: SessionNumber) -> bool {
        let trunk = self.peers.trunk(peer).and_then(|slot| self.trunks.get(slot));
        trunk.is_some_and(|trunk| SessionNumber(trunk.number()) == session)
    }

    /// Returns the cause of the last failed attempt to connect to the peer, unless a later attempt succeeded.
    #[must_use]
    pub fn away(&self, peer: PeerKey) -> Option<PeerDown> {
        self.peers.away(peer)
    }

    /// Returns the size of the oldest large message from the peer that waits for memory on this node, among the
    /// messages that `is_it` selects by their received part.
    #[must_use]
    pub fn waiting_bytes(&self, peer: PeerKey, is_it: &dyn Fn(&Message) -> bool) -> Option<usize> {
        self.trunks.get(self.peers.trunk(peer)?)?.waiting_bytes(is_it)
    }

    /// Checks whether a reply to the peer could be queued. If not, the caller refuses the request, for which a part
    /// of the budget is reserved.
    ///
    /// # Errors
    /// Returns the exhausted budget.
    pub fn has_reply_room(&mut self, peer: PeerKey) -> Result<(), Exhausted> {
        self.res.shares.has_reply_room(peer)
    }

    /// Returns the maximum size of a message to any peer, including head and body.
    #[must_use]
    pub fn max_message_bytes(&self) -> usize {
        self.res.shared.limits.max_message_bytes
    }

    /// Returns the maximum size of a message to this peer, head and body together; 0 without a session.
    #[must_use]
    pub fn max_message_to(&self, peer: PeerKey) -> usize {
        let trunk = self.peers.trunk(peer).and_then(|slot| self.trunks.get(slot));
        trunk.map_or(0, Trunk::max_message).min(self.max_message_bytes())
    }
}

impl Transport {
    /// Returns the key of a node. Requests a session from the CM machine if there is none.
    #[inline]
    fn find(&mut self, node: PeerKey, connect: Connect) -> PeerKey {
        let (key, needs_session) = self.peers.name(node);
        if needs_session {
            self.ask(key, connect);
        }
        key
    }

    /// Queues a message until a session is up. If there is no trunk, requests a session from the CM machine.
    #[inline(never)]
    fn await_session(
        &mut self,
        message: &Outgoing<'_>,
        choice: PollerChoice,
        has_trunk: bool,
    ) -> Result<Accepted, SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
        if message.announced > message.head.len().min(MOST_ANNOUNCED) {
            return Err(SendError::BadHeader);
        }
        if message.connect == Connect::FailFast
            && let Some((cause, due_in)) = self.peers.due_in(message.peer, self.res.time.now())
        {
            return Err(SendError::BackingOff { cause, due_in });
        }
        let waiting = self.peers.waiting(message.peer).filter(|_| !self.shutdown.is_ended());
        let Some(waiting) = waiting else { return Err(SendError::NoPeer) };
        self.res.shares.queue(message.peer, bytes, message.leaves).map_err(SendError::QueueFull)?;
        waiting.push(Outbound::new(message, choice, &mut self.res.heads));
        if !has_trunk {
            self.ask(message.peer, message.connect);
        }
        Ok(Accepted { choice, left: None })
    }
}
