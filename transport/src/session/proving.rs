//! Stages of the handshakes in progress, and the order of their turns.
//!
//! Flights wait in three classes: renewals, sessions requested by the program or with hosts that have proved a name,
//! and all other sessions. Renewals get an eighth of the turns while other flights wait. Within a class, handshakes
//! in progress come first, and hosts take turns. `handshaking.rs` runs first handshakes, and `renewing.rs` runs
//! renewals.
#![forbid(unsafe_code)]

use crate::identity::binding::Binding;
use crate::identity::exchange::{Exchange, RENEWAL, Role};
use crate::identity::keys::{LaneSecrets, PollerKeys, RenewedKeys};
use crate::identity::{Credentials, HandshakeFailure, Name, Proven};
use crate::{PeerIdentity, PeerKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use trunkline_verbs::{PeerHost, Time};

/// Maximum number of frames from a peer that wait for the turn that begins an exchange, enough for a ClientHello and
/// a FAILURE.
pub(super) const EARLY_FRAMES: usize = 4;

/// Peer, and this node's number for the session.
pub(super) type SessionOfPeer = (PeerKey, u32);

/// Identity of a session's peer, and the settings that the peer's SETTINGS frame must carry.
#[derive(Debug, Clone)]
pub(super) struct PeerProof {
    pub(super) identity: PeerIdentity,
    pub(super) settings: Arc<[u8]>,
}

#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) stage: Stage,
    /// Number of frames passed to poller 0, and number of frames that the peer has acknowledged.
    pub(super) given: u32,
    pub(super) acknowledged: u32,
    /// True if the handshake waits for its turn.
    pub(super) is_queued: bool,
    pub(super) timer: Option<Time>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The session waits for its first pair of connections, or for its turn to begin.
    Begins {
        start: Option<Box<Start>>,
        early: Vec<Box<[u8]>>,
    },
    Runs(Box<Exchange>),
    /// Both nodes have proved their names, and the peer has confirmed this node's proof.
    Proved(Box<Live>),
    /// FAILURE is in flight to the peer.
    Failed(HandshakeFailure),
}

/// A session whose names are proved, with the state of renewals.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) proof: PeerProof,
    pub(super) role: Role,
    pub(super) binding: Binding,
    /// Name that each renewal must prove.
    pub(super) principal: Arc<str>,
    /// Number of the last exchange.
    pub(super) number: u32,
    pub(super) exchange: Option<Box<Exchange>>,
    /// True if the next turn begins an exchange.
    pub(super) begins: bool,
    /// Frames of an exchange begun by the peer.
    pub(super) early: Vec<Box<[u8]>>,
    /// Time at which the last exchange began, or the first one ended.
    pub(super) begun_at: Time,
    /// Time at which the TLS client begins the next exchange, or the TLS server requests one. `serve_at` is the time at
    /// which the TLS server starts an exchange that the peer began.
    pub(super) renew_at: Option<Time>,
    pub(super) serve_at: Option<Time>,
    /// Time at which the session ends, and the cause.
    pub(super) ends_at: Time,
    pub(super) ending: HandshakeFailure,
    /// Number of renewals that failed since the last proof.
    pub(super) failed: u8,
    /// Secrets of the lanes of each poller until the session is up. `renewed` receives the secrets of
    /// renewals.
    pub(super) lanes: Vec<Vec<LaneSecrets>>,
    pub(super) renewed: Vec<RenewedKeys>,
    /// Number of pollers whose lanes have not all switched since the last proof.
    pub(super) switching: usize,
}

/// Parameters of an exchange.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) role: Role,
    pub(super) binding: Binding,
    pub(super) deadline: Time,
}

/// Sessions of a class that wait for a turn. Hosts take turns.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    hosts: VecDeque<PeerHost>,
    sessions: BTreeMap<PeerHost, VecDeque<SessionOfPeer>>,
}

impl FairQueue {
    /// Adds a session. Handshakes in progress come first. Behind new handshakes, they would miss their deadline, and
    /// their first turn would be wasted.
    pub(super) fn push(&mut self, host: PeerHost, session: SessionOfPeer, has_begun: bool) {
        let sessions = self.sessions.entry(host).or_default();
        let is_new = sessions.is_empty();
        if has_begun {
            sessions.push_front(session);
            if !is_new {
                self.hosts.retain(|other| *other != host);
            }
            self.hosts.push_front(host);
        } else {
            sessions.push_back(session);
            if is_new {
                self.hosts.push_back(host);
            }
        }
    }

    pub(super) fn pop(&mut self) -> Option<SessionOfPeer> {
        let host = self.hosts.pop_front()?;
        let sessions = self.sessions.get_mut(&host)?;
        let session = sessions.pop_front();
        if sessions.is_empty() {
            self.sessions.remove(&host);
        } else {
            self.hosts.push_back(host);
        }
        session
    }

    fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }
}

/// All handshakes of a node.
#[derive(Debug)]
pub(crate) struct Proving {
    pub(super) credentials: Option<Arc<Credentials>>,
    pub(super) handshakes: BTreeMap<SessionOfPeer, Handshake>,
    pub(super) timers: BTreeSet<(Time, SessionOfPeer)>,
    /// Sessions with a renewal in progress, or with one that ended since the last timer.
    pub(super) renewals: BTreeSet<SessionOfPeer>,
    /// Sessions that wait for a turn, by class.
    pub(super) queues: [FairQueue; 3],
    turns: usize,
}

/// Number of turns of which renewals get one while other flights wait. Sessions that are up can wait.
const TURNS_OF_RENEWAL: usize = 8;

impl Proving {
    /// Creates an empty table. Handshakes require credentials.
    pub(crate) fn new(credentials: Option<Arc<Credentials>>) -> Self {
        Self {
            credentials,
            handshakes: BTreeMap::new(),
            timers: BTreeSet::new(),
            renewals: BTreeSet::new(),
            queues: Default::default(),
            turns: 0,
        }
    }

    /// Removes a session that is over.
    pub(super) fn forget(&mut self, session: SessionOfPeer) {
        if let Some(handshake) = self.handshakes.remove(&session)
            && let Some(at) = handshake.timer
        {
            self.timers.remove(&(at, session));
        }
    }

    /// Returns the proof of a session, if any.
    pub(super) fn proof(&self, session: SessionOfPeer) -> Option<PeerProof> {
        match &self.handshakes.get(&session)?.stage {
            Stage::Proved(live) => Some(live.proof.clone()),
            _ => None,
        }
    }

    /// Returns the time of the next deadline.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns true if a flight waits for its turn.
    pub(super) fn has_work(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Takes the session that has the next turn.
    pub(super) fn pop(&mut self) -> Option<SessionOfPeer> {
        self.turns = self.turns.wrapping_add(1);
        let (first, second) = if self.turns.is_multiple_of(2) { (1, 2) } else { (2, 1) };
        let is_renewals = self.turns.is_multiple_of(TURNS_OF_RENEWAL);
        let order = if is_renewals { [0, first, second] } else { [first, second, 0] };
        order.into_iter().find_map(|class| self.queues[class].pop())
    }

    /// Returns the keys for each poller of a session that comes up, if its frames are sealed.
    pub(super) fn take_keys(&mut self, session: SessionOfPeer) -> impl Iterator<Item = PollerKeys> {
        let live = self.live(session);
        let (lanes, renewed) =
            live.map(|live| (std::mem::take(&mut live.lanes), live.renewed.clone())).unwrap_or_default();
        lanes.into_iter().zip(renewed).map(|(lanes, renewed)| PollerKeys { lanes, renewed })
    }

    /// Returns a session with a proof.
    pub(super) fn live(&mut self, session: SessionOfPeer) -> Option<&mut Live> {
        match &mut self.handshakes.get_mut(&session)?.stage {
            Stage::Proved(live) => Some(live),
            _ => None,
        }
    }

    pub(super) fn renewing(&self, session: SessionOfPeer) -> Option<&Live> {
        match &self.handshakes.get(&session)?.stage {
            Stage::Proved(live) => Some(live),
            _ => None,
        }
    }

    pub(super) fn prune_renewals(&mut self) {
        let mut renewals = std::mem::take(&mut self.renewals);
        renewals.retain(|session| {
            self.renewing(*session).is_some_and(|live| live.exchange.is_some() || live.begins)
        });
        self.renewals = renewals;
    }

    /// Returns all sessions with a proof.
    pub(super) fn live_sessions(&self) -> Vec<SessionOfPeer> {
        let live = self.handshakes.iter().filter(|(_, one)| matches!(one.stage, Stage::Proved(_)));
        live.map(|(session, _)| *session).collect()
    }

    pub(super) fn set_timer(&mut self, session: SessionOfPeer, timer: Option<Time>) {
        let Some(handshake) = self.handshakes.get_mut(&session) else { return };
        let old = std::mem::replace(&mut handshake.timer, timer);
        if let Some(at) = old {
            self.timers.remove(&(at, session));
        }
        if let Some(at) = timer {
            self.timers.insert((at, session));
        }
    }

    pub(super) fn get(&mut self, session: SessionOfPeer) -> &mut Handshake {
        self.handshakes.entry(session).or_insert_with(|| Handshake {
            stage: Stage::Begins { start: None, early: Vec::new() },
            given: 0,
            acknowledged: 0,
            is_queued: false,
            timer: None,
        })
    }
}

/// Returns the principal of a peer, with its kind.
pub(super) fn principal(proven: &Proven) -> Arc<str> {
    let kind = match proven.principal() {
        Name::Spiffe(_) | Name::Dns(_) => "",
        Name::Ip(_) => "ip:",
    };
    format!("{kind}{}", proven.principal()).into()
}

/// Begins an exchange, or reads a complete flight. Returns true if another flight is complete.
pub(super) fn advance(
    stage: &mut Stage,
    credentials: &Arc<Credentials>,
    now: Time,
) -> Result<bool, HandshakeFailure> {
    match stage {
        Stage::Begins { start, early } => {
            let Some(start) = start.take() else { return Ok(false) };
            let Start { role, binding, deadline } = *start;
            let early = std::mem::take(early);
            let exchange = Box::new(Exchange::new(role, credentials, binding, 0, deadline)?);
            *stage = Stage::Runs(exchange);
            let Stage::Runs(exchange) = stage else { return Ok(false) };
            feed(exchange, early)
        }
        Stage::Proved(live) if live.begins => {
            live.begins = false;
            let (role, binding, deadline) = (live.role, live.binding.clone(), now + RENEWAL);
            let early = std::mem::take(&mut live.early);
            let exchange = Exchange::new(role, credentials, binding, live.number, deadline)?;
            live.begun_at = now;
            feed(live.exchange.insert(Box::new(exchange)), early)
        }
        Stage::Proved(live) => live.exchange.as_mut().map_or(Ok(false), |exchange| exchange.advance()),
        Stage::Runs(exchange) => exchange.advance(),
        Stage::Failed(_) => Ok(false),
    }
}

/// Passes an exchange the frames that arrived before it began. Returns true if a flight is complete.
fn feed(exchange: &mut Exchange, early: Vec<Box<[u8]>>) -> Result<bool, HandshakeFailure> {
    let mut is_whole = false;
    for frame in early {
        is_whole |= exchange.handle(frame)?;
    }
    Ok(is_whole)
}
