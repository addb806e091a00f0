//! Queue of calls whose route has no session.
//!
//! A waiting call is not yet in `Calls` or in the transport, so it has not run. The call ends at its deadline, when its
//! future is dropped, or, unless it uses [`Connect::Wait`], when the round that it waits for fails.

use super::Routes;
use super::route::{Phase, Route};
use crate::call::{AdmissionClass, Submission, shutting_down, too_many};
use crate::client::routes::id::{ExpectedId, RouteId};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use trunkline_transport::{Connect, PeerKey, Transport};
use trunkline_verbs::Time;

/// Maximum number of waiting calls. Beyond it, only calls with [`AdmissionClass::Waits`] are queued.
const MOST: usize = 65_536;

/// The calls of one poller that wait for a route.
#[derive(Debug)]
pub(crate) struct Parked {
    routes: Arc<Routes>,
    here: BTreeMap<RouteId, Here>,
    /// Waiting calls in order of arrival.
    calls: BTreeMap<u64, Waits>,
    deadlines: BTreeSet<(Time, u64)>,
    last: u64,
}

/// This poller's cached state of a route.
#[derive(Debug)]
struct Here {
    route: Arc<Route>,
    /// Node that the route led to at the last check.
    leads_to: Option<PeerKey>,
    calls: BTreeSet<u64>,
}

#[derive(Debug)]
struct Waits {
    route: RouteId,
    /// Round that the call waits for. Ignored for calls that wait through failed rounds.
    round: u64,
    call: Submission,
}

impl Parked {
    /// Creates an empty queue for a poller.
    pub(crate) fn new(routes: &Arc<Routes>) -> Self {
        Self {
            routes: Arc::clone(routes),
            here: BTreeMap::new(),
            calls: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            last: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns the first deadline.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Sets the server of a call on this route, and returns the call. Queues or fails the call if the route has no server.
    /// `serves` returns true if a node has a session, accepts calls and has proved the given name.
    pub(crate) fn place(
        &mut self,
        transport: &Transport,
        serves: &dyn Fn(PeerKey, ExpectedId) -> bool,
        id: RouteId,
        call: Submission,
    ) -> Option<Submission> {
        if self.here(id).is_none() {
            // The channel and the future of the call were dropped.
            end(call, gave_up(), &"a channel that is gone");
            return None;
        }
        let here = self.here.get(&id)?;
        if let Some(peer) =
            here.leads_to.filter(|peer| here.calls.is_empty() && serves(*peer, here.route.expected))
        {
            return Some(here.route.lead(call, peer));
        }
        let target = &here.route.target;
        if here.calls.len() >= MOST && call.entry != AdmissionClass::Waits {
            end(call, too_many(MOST), target);
            return None;
        }
        match here.route.park(call.connect, transport.now()) {
            Ok(round) => self.keep(id, round, call),
            Err(status) => end(call, status, target),
        }
        None
    }

    fn keep(&mut self, id: RouteId, round: u64, call: Submission) {
        let number = self.last;
        self.last += 1;
        self.deadlines.insert((call.deadline, number));
        if let Some(here) = self.here.get_mut(&id) {
            here.calls.insert(number);
        }
        self.calls.insert(number, Waits { route: id, round, call });
        // Notify the seeker even during a round, because the round may have ended in the meantime.
        self.routes.tell_seeker(id);
    }

    /// Returns this poller's state of the route, looked up if necessary.
    fn here(&mut self, id: RouteId) -> Option<&mut Here> {
        if !self.here.contains_key(&id) {
            let route = self.routes.get(id)?;
            let leads_to = leads_to(&route.phase().0);
            self.here.insert(id, Here { route, leads_to, calls: BTreeSet::new() });
        }
        self.here.get_mut(&id)
    }

    /// Returns the calls that can be sent, in order, after a change of the route.
    pub(crate) fn look(
        &mut self,
        serves: &dyn Fn(PeerKey, ExpectedId) -> bool,
        id: RouteId,
    ) -> Vec<Submission> {
        if !self.here.contains_key(&id) {
            return Vec::new();
        }
        if self.routes.get(id).is_none() {
            for (call, route) in self.take(id, |_| true) {
                end(call, gave_up(), &route.target);
            }
            if let Some(gone) = self.here.remove(&id) {
                gone.route.release();
            }
            return Vec::new();
        }
        let Some(here) = self.here.get_mut(&id) else { return Vec::new() };
        let (phase, round) = here.route.phase();
        match phase {
            Phase::Up(peer) => {
                here.leads_to = Some(peer);
                self.released(serves, id)
            }
            Phase::Failed(failure, _) => {
                let fails = |waits: &Waits| {
                    waits.round <= round && (waits.call.connect == Connect::FailFast || failure.is_final)
                };
                for (call, route) in self.take(id, fails) {
                    end(call, failure.status(), &route.target);
                }
                Vec::new()
            }
            Phase::Idle => {
                // The server may still be connected, but may no longer belong to the target.
                here.leads_to = None;
                Vec::new()
            }
            Phase::Closed | Phase::Seeking => Vec::new(),
        }
    }

    /// Returns the calls that can be sent, in order, after a new session with a node.
    pub(crate) fn up(
        &mut self,
        serves: &dyn Fn(PeerKey, ExpectedId) -> bool,
        peer: PeerKey,
    ) -> Vec<Submission> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let leads_there = |here: &Here| here.leads_to == Some(peer) && !here.calls.is_empty();
        let routes = self.here.iter().filter(|(_, here)| leads_there(here)).map(|(id, _)| *id);
        let routes = routes.collect::<Vec<_>>();
        routes.into_iter().flat_map(|id| self.released(serves, id)).collect()
    }

    /// Removes and returns the calls of a route that has a session.
    fn released(&mut self, serves: &dyn Fn(PeerKey, ExpectedId) -> bool, id: RouteId) -> Vec<Submission> {
        let Some(here) = self.here.get(&id) else { return Vec::new() };
        let Some(peer) = here.leads_to.filter(|peer| serves(*peer, here.route.expected)) else {
            return Vec::new();
        };
        let taken = self.take(id, |_| true);
        taken.into_iter().map(|(call, route)| route.lead(call, peer)).collect()
    }

    /// Ends the calls whose deadline has passed. Returns true if any call ended.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(&first) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            any = true;
            let Some((call, route)) = self.remove(first.1) else {
                self.deadlines.remove(&first);
                continue;
            };
            let text = match route.failure() {
                Some(failure) => format!("no connection yet: {}", failure.text()),
                None => {
                    "no connection yet: the first lookup of its target, or attempt to connect, had not ended"
                        .to_owned()
                }
            };
            let status = Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired);
            end(call, status, &route.target);
        }
        any
    }

    /// Ends the calls whose futures were dropped.
    pub(crate) fn sweep(&mut self) {
        for (call, route) in self.take_all(|call| call.is_abandoned()) {
            end(call, gave_up(), &route.target);
        }
    }

    /// Ends all calls, or only those made outside of handlers and tasks, because the node shuts down.
    pub(crate) fn close(&mut self, all: bool) {
        for (call, route) in self.take_all(|call| all || !call.nested) {
            end(call, shutting_down(), &route.target);
        }
        if all {
            for (_, gone) in mem::take(&mut self.here) {
                gone.route.release();
            }
        }
    }

    fn take_all(&mut self, which: impl Fn(&Submission) -> bool) -> Vec<(Submission, Arc<Route>)> {
        let chosen = self.calls.iter().filter(|(_, waits)| which(&waits.call)).map(|(number, _)| *number);
        let chosen = chosen.collect::<Vec<_>>();
        chosen.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    fn take(&mut self, id: RouteId, which: impl Fn(&Waits) -> bool) -> Vec<(Submission, Arc<Route>)> {
        let Some(here) = self.here.get(&id) else { return Vec::new() };
        let chosen = here.calls.iter().filter(|number| self.calls.get(*number).is_some_and(&which));
        let chosen = chosen.copied().collect::<Vec<_>>();
        chosen.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    fn remove(&mut self, number: u64) -> Option<(Submission, Arc<Route>)> {
        let Waits { route: id, call, .. } = self.calls.remove(&number)?;
        self.deadlines.remove(&(call.deadline, number));
        let here = self.here.get_mut(&id)?;
        here.calls.remove(&number);
        here.route.unpark(call.connect);
        Some((call, Arc::clone(&here.route)))
    }
}

fn leads_to(phase: &Phase) -> Option<PeerKey> {
    match phase {
        Phase::Up(peer) => Some(*peer),
        _ => None,
    }
}

fn gave_up() -> Status {
    Status::not_run(Code::Cancelled, "the caller gave up").because(Reason::Cancelled)
}

fn end(mut call: Submission, status: Status, target: &dyn std::fmt::Display) {
    if let Some(completion) = call.completion.take() {
        completion.complete(Err(status.of_call(format_args!("{} at {target}", call.method))));
    }
}
