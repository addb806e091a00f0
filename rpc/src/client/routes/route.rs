//! The connection state of a channel's target.
//!
//! Callers, pollers and waiting futures share a route. Only the [`Connector`](super::Connector) of the first poller changes
//! the node of a route. Methods never block.

use super::failure::Failure;
use super::target::{MOST_ADDRESSES, Target};
use crate::call::{Submission, shutting_down};
use crate::client::routes::id::{ExpectedId, RouteId};
use crate::node::fork_lock::Lock;
use crate::status::Status;
use slab::Slab;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;
use trunkline_machine::rings::panics::catch;
use trunkline_transport::{Connect, PeerKey};
use trunkline_verbs::Time;

/// Maximum pause between attempts at an address, even if rounds find the address paused.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A route to a channel's target.
pub(super) struct Route {
    pub(super) id: RouteId,
    pub(super) target: Target,
    pub(super) usage: Usage,
    /// Name that the servers must prove.
    pub(super) expected: ExpectedId,
    /// True if a poller may have the route in its table.
    is_known: AtomicBool,
    /// True if the resolver reports changes of the addresses.
    is_watched: AtomicBool,
    /// Last recorded number of servers beyond the maximum.
    omitted: AtomicUsize,
    state: Lock<RouteState>,
}

struct RouteState {
    phase: Phase,
    /// Number of rounds that have begun.
    round: u64,
    /// Number of calls that wait for the route, in all pollers.
    parked: usize,
    /// Number of these calls that wait through failed rounds.
    patient: usize,
    /// Wakers of futures that wait for the route without a call.
    waiting: Slab<Waker>,
    /// True if the server is kept connected even without calls.
    is_kept: bool,
    /// True if the last attempt failed, or the last session was lost.
    is_lost: bool,
    /// True if the addresses are to be looked up again.
    is_stale: bool,
    /// Addresses of the last lookup; `None` before the first one.
    found: Option<Arc<[PeerKey]>>,
}

/// Use of the addresses of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// Calls go to one address until its session ends.
    Sticky,
    /// Like [`Usage::Sticky`], but only while lookups find the address.
    Current,
    /// Like [`Usage::Current`], but rounds begin at a random address.
    Spread,
}

/// Connection state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// A session is up.
    Up,
    /// A round is in progress, or none has begun.
    Connecting,
    /// The last round has failed, or the node has shut down.
    Failed,
}

/// A future that waits for a route.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingFuture {
    /// Round that the future waits for.
    round: u64,
    /// Key of the waker.
    key: usize,
    began: Time,
}

/// The phase of a route.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// No round has begun, or the session is over.
    Idle,
    /// A round is in progress.
    Seeking,
    /// A session with this node is up.
    Up(PeerKey),
    /// The last round has failed, and the next one begins no earlier than this time.
    Failed(Arc<Failure>, Time),
    /// The node has shut down.
    Closed,
}

impl Route {
    pub(super) fn new(id: RouteId, target: Target, usage: Usage, expected: ExpectedId) -> Self {
        let state = RouteState {
            phase: Phase::Idle,
            round: 0,
            parked: 0,
            patient: 0,
            waiting: Slab::new(),
            is_kept: false,
            is_lost: false,
            is_stale: false,
            found: None,
        };
        Self {
            id,
            target,
            usage,
            expected,
            is_known: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            omitted: AtomicUsize::new(0),
            state: Lock::new(state),
        }
    }

    /// Drops a reference and catches panics, because dropping the last reference may drop the program's resolver.
    pub(super) fn release(self: Arc<Self>) {
        let _dropped = catch(|| drop(self));
    }

    /// Records that a poller is about to add the route to its table.
    pub(super) fn is_looked_at(&self) {
        self.is_known.store(true, Ordering::SeqCst);
    }

    /// Returns true if a poller may have the route in its table.
    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::SeqCst)
    }

    /// Records that the resolver reports changes of the addresses.
    pub(super) fn set_watched(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// Returns true if the addresses are looked up periodically, because the route serves a balanced channel whose resolver
    /// reports no changes. Other channels use one address until its session ends, and then look up the addresses anyway.
    pub(super) fn is_looked_up_periodically(&self) -> bool {
        self.usage != Usage::Sticky && !self.is_watched.load(Ordering::Relaxed)
    }

    /// Records the number of servers beyond the maximum, and logs a changed number.
    pub(super) fn tell_omitted(&self, omitted: usize) {
        if self.omitted.swap(omitted, Ordering::Relaxed) != omitted && omitted > 0 {
            tracing::warn!(
                server = %self.target,
                omitted,
                limit = MOST_ADDRESSES,
                "target has more servers than a channel uses"
            );
        }
    }

    /// Returns the number of servers beyond the maximum.
    pub(super) fn omitted(&self) -> usize {
        self.omitted.load(Ordering::Relaxed)
    }

    /// Returns the phase, and the number of rounds so far.
    pub(super) fn phase(&self) -> (Phase, u64) {
        let state = self.state.lock();
        (state.phase.clone(), state.round)
    }

    /// Returns the connection state of the server, and the number of rounds so far.
    pub(super) fn reached(&self) -> (Reached, u64) {
        let state = self.state.lock();
        let reached = match state.phase {
            Phase::Up(_) => Reached::Up,
            Phase::Idle | Phase::Seeking => Reached::Connecting,
            Phase::Failed(..) | Phase::Closed => Reached::Failed,
        };
        (reached, state.round)
    }

    /// Returns true if the last round failed and its pause is not over.
    pub(super) fn is_paused(&self, now: Time) -> bool {
        matches!(self.state.lock().phase, Phase::Failed(_, due) if due > now)
    }

    /// Returns true if a round is in progress.
    pub(super) fn is_sought(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Seeking)
    }

    /// Returns true if the last attempt failed, or the last session was lost.
    pub(super) fn is_lost(&self) -> bool {
        self.state.lock().is_lost
    }

    /// Records that an attempt failed, or the session was lost.
    pub(super) fn lose(&self) {
        let mut state = self.state.lock();
        state.is_lost |= !matches!(state.phase, Phase::Up(_));
    }

    /// Keeps the server connected, by repeating rounds until a session is up. Returns true for the first call.
    pub(super) fn keep(&self) -> bool {
        !mem::replace(&mut self.state.lock().is_kept, true)
    }

    /// Requests another lookup of the addresses. Returns false if a lookup was already requested.
    pub(super) fn look_again(&self) -> bool {
        !mem::replace(&mut self.state.lock().is_stale, true)
    }

    /// Returns true if the addresses are to be looked up again.
    pub(super) fn is_stale(&self) -> bool {
        self.state.lock().is_stale
    }

    /// Returns true if the addresses are to be looked up again, and clears the request.
    pub(super) fn take_stale(&self) -> bool {
        mem::take(&mut self.state.lock().is_stale)
    }

    /// Records the addresses of a lookup.
    pub(super) fn set_found(&self, addresses: &[PeerKey]) {
        let mut state = self.state.lock();
        if state.found.as_deref() != Some(addresses) {
            state.found = Some(addresses.into());
        }
    }

    /// Returns the addresses of the last lookup.
    pub(super) fn found(&self) -> Option<Arc<[PeerKey]>> {
        self.state.lock().found.clone()
    }

    /// Returns true if a call or a future waits for the route, or the server is kept connected.
    pub(super) fn is_wanted(&self) -> bool {
        let state = self.state.lock();
        state.is_kept || state.parked > 0 || !state.waiting.is_empty()
    }

    /// Sets the server of a call. A call that may use another server keeps its route, to which it returns if the session
    /// ends before the request is sent.
    pub(super) fn lead(&self, call: Submission, server: PeerKey) -> Submission {
        let may_move = call.connect == Connect::Wait || self.usage != Usage::Sticky;
        Submission { server, route: call.route.filter(|_| may_move && call.order.is_none()), ..call }
    }

    /// Records a waiting call. Returns the round that the call waits for.
    ///
    /// # Errors
    /// Returns the status of a call that does not wait for the next round.
    pub(super) fn park(&self, connect: Connect, now: Time) -> Result<u64, Status> {
        let mut state = self.state.lock();
        let round = state.decides(connect, now)?;
        state.parked += 1;
        state.patient += usize::from(connect == Connect::Wait);
        Ok(round)
    }

    /// Returns [`Connect::Wait`] if a call or a future waits through failed rounds.
    pub(super) fn connect(&self) -> Connect {
        let state = self.state.lock();
        let has_future = self.target.has_several() && !state.waiting.is_empty();
        if state.patient > 0 || has_future { Connect::Wait } else { Connect::FailFast }
    }

    /// Records that a call no longer waits for the route.
    pub(super) fn unpark(&self, connect: Connect) {
        let mut state = self.state.lock();
        state.parked = state.parked.saturating_sub(1);
        state.patient = state.patient.saturating_sub(usize::from(connect == Connect::Wait));
    }

    /// Polls the route for a future, whose state is stored in `since`. If the target may have several addresses, the future
    /// also waits during a pause, and waits for up to [`LONGEST_PAUSE`] until a round tries at least one address.
    pub(super) fn wait(
        &self,
        since: &mut Option<WaitingFuture>,
        waker: &Waker,
        now: Time,
    ) -> Option<Result<(), Status>> {
        let waits = self.target.has_several();
        let connect = if waits { Connect::Wait } else { Connect::FailFast };
        let mut state = self.state.lock();
        let outcome = match (&state.phase, *since) {
            (Phase::Up(_), _) => Some(Ok(())),
            (Phase::Failed(failure, _), Some(WaitingFuture { round, began, .. }))
                if state.round >= round
                    && !(waits && failure.has_tried_none() && now < began + LONGEST_PAUSE) =>
            {
                Some(Err(failure.status()))
            }
            (Phase::Closed, _) => Some(Err(shutting_down())),
            (_, Some(_)) => None,
            (_, None) => match state.decides(connect, now) {
                Ok(round) => {
                    let key = state.waiting.insert(waker.clone());
                    *since = Some(WaitingFuture { round, key, began: now });
                    return None;
                }
                Err(status) => Some(Err(status)),
            },
        };
        match (&outcome, *since) {
            (None, Some(WaitingFuture { key, .. })) => {
                let known = state.waiting.get_mut(key);
                let earlier = known.map(|known| mem::replace(known, waker.clone()));
                drop(state);
                // Dropping a waker may run arbitrary code, which may drop futures that wait for this route.
                drop(earlier);
            }
            (Some(_), Some(WaitingFuture { key, .. })) => {
                *since = None;
                let removed = state.waiting.try_remove(key);
                drop(state);
                drop(removed);
            }
            _ => {}
        }
        outcome
    }

    pub(super) fn leave(&self, future: WaitingFuture) {
        let removed = self.state.lock().waiting.try_remove(future.key);
        drop(removed);
    }

    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Seeking;
        state.round += 1;
    }

    /// Changes the phase, and wakes the waiting futures.
    pub(super) fn publish(&self, phase: Phase) {
        let mut state = self.state.lock();
        state.is_lost = matches!(phase, Phase::Failed(..));
        state.phase = phase;
        let wakers = state.waiting.iter().map(|(_, waker)| waker.clone()).collect::<Vec<_>>();
        drop(state);
        for waker in wakers {
            // The waker may belong to any executor, and may panic.
            let _ended = catch(|| waker.wake());
        }
    }

    /// Returns the failure of the last round, if it failed.
    pub(super) fn failure(&self) -> Option<Arc<Failure>> {
        match &self.state.lock().phase {
            Phase::Failed(failure, _) => Some(Arc::clone(failure)),
            _ => None,
        }
    }
}

impl RouteState {
    /// Returns the round that a new call waits for.
    fn decides(&self, connect: Connect, now: Time) -> Result<u64, Status> {
        match &self.phase {
            Phase::Closed => Err(shutting_down()),
            Phase::Failed(failure, due)
                if *due > now && (connect == Connect::FailFast || failure.is_final) =>
            {
                Err(failure.status_while(*due - now))
            }
            Phase::Seeking => Ok(self.round),
            _ => Ok(self.round + 1),
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("target", &self.target)
            .field("phase", &self.state.lock().phase)
            .finish()
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        let left = mem::take(&mut self.state.get_mut().waiting);
        debug_assert!(left.is_empty(), "whoever waits for a route has a link to it");
    }
}
