//! One round of attempts at a target's addresses, until a session is up.
//!
//! | stage | ends with |
//! |---|---|
//! | the addresses are looked up, if they are not fixed | a result, or the time limit [`LOOKUP`]; after a failure the addresses of the last lookup are used |
//! | the addresses are tried, in order | the first session, or the end of every attempt |
//!
//! The next address is tried when an attempt fails, or has no outcome after [`PATIENCE`], because an attempt at a host that
//! does not answer takes seconds. A round tries some addresses in turn, and then all others together, so that many silent
//! addresses do not delay a live one. A session that comes up after the end of the round stays up, and can serve the route
//! later.

use super::Routes;
use super::failure::Unreached;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_transport::{Connect, PeerDown, PeerKey, Reach, Transport};
use trunkline_verbs::Time;

/// Maximum time of a lookup.
pub(super) const LOOKUP: Duration = Duration::from_secs(10);
/// Time without an outcome after which the next address is tried.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum time for which attempts continue after the last one has begun. The transport ends attempts after some seconds,
/// unless the device is absent.
const ATTEMPT: Duration = Duration::from_secs(15);

/// One round of attempts.
#[derive(Debug)]
pub(super) struct Round {
    /// Number of the round's lookup.
    number: u64,
    is_looking_up: bool,
    /// Addresses not tried yet.
    left: VecDeque<PeerKey>,
    /// Number of addresses still to be tried in turn. All others are then tried together.
    in_turn: usize,
    /// Attempts in progress.
    open: Vec<PeerKey>,
    tried: Vec<(PeerKey, Unreached)>,
    /// Number of addresses that were paused or whose server drained.
    paused: usize,
    /// Error of the lookup and its sources; empty unless it failed.
    lookup: Vec<String>,
    /// Time of the next step.
    due: Time,
    /// Deadline of the attempts in progress.
    ends: Time,
}

/// The next step of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The round waits until this time.
    Waits(Time),
    /// A session with this node is up. The node's name has not been compared.
    Won(PeerKey),
    /// All addresses have failed.
    Lost,
}

impl Round {
    /// Begins a round with this lookup.
    pub(super) fn looking_up(number: u64, in_turn: usize, now: Time) -> (Self, Step) {
        let due = now + LOOKUP;
        (
            Self { is_looking_up: true, due, ..Self::trying(&[], in_turn, now) }.numbered(number),
            Step::Waits(due),
        )
    }

    /// Begins a round with these addresses, of which the first `in_turn` are tried in turn. The caller continues with
    /// [`Round::advance`].
    pub(super) fn trying(addresses: &[PeerKey], in_turn: usize, now: Time) -> Self {
        Self {
            number: 0,
            is_looking_up: false,
            left: addresses.iter().copied().collect(),
            in_turn,
            open: Vec::new(),
            tried: Vec::new(),
            paused: 0,
            lookup: Vec::new(),
            due: now,
            ends: now,
        }
    }

    fn numbered(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Returns true if the round waits for this lookup.
    pub(super) fn waits_for(&self, number: u64) -> bool {
        self.is_looking_up && self.number == number
    }

    /// Returns true if the round began an attempt at this node, or found the node paused.
    pub(super) fn has_tried(&self, peer: PeerKey) -> bool {
        self.tries(peer) || self.tried.iter().any(|(tried, _)| *tried == peer)
    }

    /// Returns the nodes whose attempts failed.
    pub(super) fn failed_at(&self) -> impl Iterator<Item = PeerKey> {
        self.tried.iter().map(|(peer, _)| *peer)
    }

    /// Returns true if every address was paused, or its server drained.
    pub(super) fn has_only_paused(&self) -> bool {
        self.paused > 0 && self.paused == self.tried.len()
    }

    /// Returns true if the round waits for an attempt at this node.
    pub(super) fn tries(&self, peer: PeerKey) -> bool {
        self.open.contains(&peer)
    }

    /// Returns the addresses that failed, with their causes, and the error of the lookup.
    pub(super) fn what_failed(&self) -> (&[(PeerKey, Unreached)], &[String]) {
        (&self.tried, &self.lookup)
    }

    /// Handles the end of the lookup. If the lookup failed with `error`, `addresses` are the addresses of an earlier lookup.
    pub(super) fn looked_up(&mut self, addresses: &[PeerKey], error: Vec<String>) {
        self.is_looking_up = false;
        self.left = addresses.iter().copied().collect();
        self.lookup = error;
    }

    /// Returns true if the lookup has timed out.
    pub(super) fn is_lookup_late(&self, now: Time) -> bool {
        self.is_looking_up && self.due <= now
    }

    /// Describes a lookup that timed out.
    pub(super) fn late_lookup() -> Vec<String> {
        vec![format!("the lookup has not ended within {LOOKUP:?}")]
    }

    /// Begins the next attempt if its time has come. Returns the next step.
    pub(super) fn advance(&mut self, transport: &mut Transport, routes: &Routes, connect: Connect) -> Step {
        let now = transport.now();
        if self.is_looking_up || (!self.open.is_empty() && self.due > now) {
            return Step::Waits(self.due);
        }
        while let Some(peer) = self.left.pop_front() {
            let is_in_turn = self.in_turn > 0;
            self.in_turn = self.in_turn.saturating_sub(1);
            match transport.reach(peer, connect) {
                Reach::Up if routes.is_draining(peer) => {
                    self.paused += 1;
                    self.failed(peer, Unreached::Draining);
                }
                Reach::Up => return Step::Won(peer),
                Reach::UnderWay => {
                    self.open.push(peer);
                    self.ends = now + ATTEMPT;
                    self.due = if self.left.is_empty() { self.ends } else { now + PATIENCE };
                    if is_in_turn {
                        return Step::Waits(self.due);
                    }
                }
                Reach::Away { cause, due_in } => {
                    self.paused += usize::from(due_in > Duration::ZERO);
                    self.failed(peer, Unreached::Down(cause));
                }
            }
        }
        if self.ends <= now {
            for peer in std::mem::take(&mut self.open) {
                self.failed(peer, Unreached::NoOutcome);
            }
        }
        self.due = self.ends;
        if self.open.is_empty() { Step::Lost } else { Step::Waits(self.due) }
    }

    /// Handles a failed attempt at a node.
    pub(super) fn down(
        &mut self,
        transport: &mut Transport,
        routes: &Routes,
        peer: PeerKey,
        cause: PeerDown,
        connect: Connect,
    ) -> Step {
        let Some(at) = self.open.iter().position(|open| *open == peer) else {
            return Step::Waits(self.due);
        };
        // The event may report the end of an earlier session instead of the attempt.
        if cause.ends_a_session() {
            match transport.reach(peer, connect) {
                Reach::Up => return Step::Won(peer),
                Reach::UnderWay => return Step::Waits(self.due),
                Reach::Away { .. } => {}
            }
        }
        self.open.swap_remove(at);
        self.failed(peer, Unreached::Down(cause));
        self.due = transport.now();
        self.advance_now(transport, routes, connect)
    }

    /// Handles a session with a node whose proved name differs from the expected one.
    pub(super) fn refuse(
        &mut self,
        transport: &mut Transport,
        routes: &Routes,
        peer: PeerKey,
        why: Arc<str>,
        connect: Connect,
    ) -> Step {
        let has_failed = self.tried.iter().any(|(tried, _)| *tried == peer);
        if self.is_looking_up || has_failed || self.left.contains(&peer) {
            // No attempt at the node is in progress.
            return Step::Waits(self.due);
        }
        self.open.retain(|open| *open != peer);
        self.failed(peer, Unreached::OtherName(why));
        self.due = transport.now();
        self.advance_now(transport, routes, connect)
    }

    /// Waits until a session that is up has been reported.
    pub(super) fn await_report(&mut self, peer: PeerKey, now: Time) -> Step {
        if !self.tries(peer) {
            self.open.push(peer);
        }
        self.ends = now + ATTEMPT;
        self.due = self.ends;
        Step::Waits(self.due)
    }

    /// Begins the next attempt without waiting for the attempts in progress.
    fn advance_now(&mut self, transport: &mut Transport, routes: &Routes, connect: Connect) -> Step {
        if self.left.is_empty() && !self.open.is_empty() {
            self.due = self.ends;
        }
        self.advance(transport, routes, connect)
    }

    fn failed(&mut self, peer: PeerKey, why: Unreached) {
        self.tried.push((peer, why));
        if mutant!(only_one_address_is_tried) {
            self.left.clear();
        }
    }
}
