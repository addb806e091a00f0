//! The peers as one poller knows them: their trunks, and what waits for a session with them.
#![forbid(unsafe_code)]

use crate::budget::{Counted, Shares};
use crate::command::SessionUp;
use crate::trunk::{MessageQueue, Resources};
use crate::{PeerDown, PeerEvent, PeerKey, SendFailure, SendOutcome, Token};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use trunkline_verbs::Time;

/// A peer as this poller knows it.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    /// The upper half knows the key, by its address.
    named: bool,
    /// Messages for the next session.
    waiting: MessageQueue,
    /// The CM machine was asked for a session.
    asked: bool,
    /// Place of its trunk in the poller's table.
    trunk: Option<usize>,
    /// Trunks of earlier sessions that are being taken down.
    dying: usize,
    /// A session that came up meanwhile.
    pending: Option<Box<SessionUp>>,
    forgotten: bool,
}

impl Peer {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            named: false,
            waiting: MessageQueue::default(),
            asked: false,
            trunk: None,
            dying: 0,
            pending: None,
            forgotten: false,
        }
    }
}

/// What follows when a trunk of a peer was freed.
#[derive(Debug)]
pub(super) enum Next {
    Nothing,
    /// This session came up meanwhile.
    Activate(Box<SessionUp>),
    /// Messages wait for a session.
    Ask,
}

/// All peers that a poller knows.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<PeerKey, Peer>);

impl Peers {
    /// Where a peer listens.
    pub(super) fn address(&self, key: PeerKey) -> Option<SocketAddr> {
        self.0.get(&key).map(|peer| peer.address)
    }

    /// A peer that dialled us, or that we know.
    pub(super) fn add(&mut self, key: PeerKey, address: SocketAddr) {
        self.0.entry(key).or_insert_with(|| Peer::new(address));
    }

    /// The upper half names a peer. Returns whether it needs a session.
    pub(super) fn name(&mut self, key: PeerKey, address: SocketAddr) -> bool {
        let peer = self.0.entry(key).or_insert_with(|| Peer::new(address));
        peer.named = true;
        peer.forgotten = false;
        peer.trunk.is_none() && peer.pending.is_none()
    }

    pub(super) fn knows(&self, key: PeerKey) -> bool {
        self.0.contains_key(&key)
    }

    /// The place of the peer's trunk in the poller's table.
    pub(super) fn trunk(&self, key: PeerKey) -> Option<usize> {
        self.0.get(&key).and_then(|peer| peer.trunk)
    }

    /// What waits for a session with the peer.
    pub(super) fn waiting(&mut self, key: PeerKey) -> Option<&mut MessageQueue> {
        self.0.get_mut(&key).map(|peer| &mut peer.waiting)
    }

    /// Where to ask the CM machine for a session with the peer; `None` when it was asked.
    pub(super) fn ask(&mut self, key: PeerKey) -> Option<SocketAddr> {
        let peer = self.0.get_mut(&key).filter(|peer| !peer.asked)?;
        peer.asked = true;
        Some(peer.address)
    }

    /// A session is up. Returns it if it can be used now, and keeps it while an earlier one is taken down.
    pub(super) fn session_up(&mut self, session: Box<SessionUp>) -> Option<Box<SessionUp>> {
        let peer = self.0.entry(session.peer).or_insert_with(|| Peer::new(session.address));
        peer.asked = false;
        if peer.dying > 0 || peer.trunk.is_some() {
            peer.pending = Some(session);
            return None;
        }
        Some(session)
    }

    /// The peer has a trunk now; returns what has waited for it.
    pub(super) fn trunk_made(&mut self, key: PeerKey, slot: usize) -> MessageQueue {
        let Some(peer) = self.0.get_mut(&key) else { return MessageQueue::default() };
        peer.trunk = Some(slot);
        std::mem::take(&mut peer.waiting)
    }

    /// The trunk is being taken down.
    pub(super) fn trunk_dying(&mut self, key: PeerKey, slot: usize) {
        if let Some(peer) = self.0.get_mut(&key)
            && peer.trunk == Some(slot)
        {
            peer.trunk = None;
            peer.dying += 1;
        }
    }

    /// A trunk that was being taken down is freed.
    pub(super) fn trunk_freed(&mut self, key: PeerKey) -> Next {
        let Some(peer) = self.0.get_mut(&key) else { return Next::Nothing };
        peer.dying -= 1;
        if peer.dying > 0 {
            return Next::Nothing;
        }
        if let Some(session) = peer.pending.take() {
            return Next::Activate(session);
        }
        if !peer.waiting.is_empty() {
            return Next::Ask;
        }
        if peer.forgotten {
            self.0.remove(&key);
        }
        Next::Nothing
    }

    /// Takes out a session that is over before it could be used.
    pub(super) fn take_pending(&mut self, key: PeerKey, number: u32) -> Option<Box<SessionUp>> {
        let peer = self.0.get_mut(&key)?;
        peer.pending.take_if(|session| session.number == number)
    }

    /// Takes out all sessions that could not be used yet.
    pub(super) fn take_all_pending(&mut self) -> Vec<SessionUp> {
        self.0.values_mut().filter_map(|peer| peer.pending.take().map(|session| *session)).collect()
    }

    /// The peer is down, and has no trunk: what waits for a session fails.
    pub(super) fn down(&mut self, key: PeerKey, cause: PeerDown, res: &mut Resources) {
        let Some(peer) = self.0.get_mut(&key) else { return };
        peer.asked = false;
        let outcome = SendOutcome::Failed(SendFailure { may_have_arrived: false, cause });
        peer.waiting.fail(key, outcome, res);
        res.shares.leave(key);
        res.events.peer(key, PeerEvent::Down { cause });
    }

    /// The peer will not come back under this key.
    pub(super) fn forget(&mut self, key: PeerKey) {
        let Some(peer) = self.0.get_mut(&key) else { return };
        if peer.named || !peer.waiting.is_empty() || peer.trunk.is_some() || peer.pending.is_some() {
            return;
        }
        peer.forgotten = true;
        if peer.dying == 0 {
            self.0.remove(&key);
        }
    }

    /// Removes a message that waits for a session; returns whether it was there.
    pub(super) fn cancel(&mut self, token: Token, shares: &mut Shares) -> bool {
        self.0.iter_mut().any(|(&key, peer)| peer.waiting.cancel(key, token, shares))
    }

    /// Fails waiting messages whose deadline has passed.
    pub(super) fn expire(&mut self, res: &mut Resources) {
        for (&key, peer) in &mut self.0 {
            peer.waiting.expire(key, res);
        }
    }

    /// The earliest deadline of a waiting message.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.0.values().filter_map(|peer| peer.waiting.next_deadline()).min()
    }

    /// What waits for sessions.
    pub(super) fn count(&self, counted: &mut Counted) {
        for (&key, peer) in &self.0 {
            counted.queued(key, peer.waiting.size());
        }
    }

    /// Whether no message waits for a session.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.values().all(|peer| peer.waiting.is_empty())
    }
}
