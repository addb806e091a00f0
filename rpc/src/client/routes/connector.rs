//! Connects the routes of a node. Owned and run by the first poller.
//!
//! A round begins when a call or a future waits for a route and the pause after the last round is over. The pause is 10 ms
//! after the first failed round and doubles up to 1.3 s. A random time of up to a quarter is added. While a call waits
//! through failed rounds, the pause is at most 750 ms, and each address is requested again as soon as an attempt at it
//! fails, so that the transport dials it within a second.

use super::failure::Failure;
use super::lookups::Lookup;
use super::round::{Round, Step};
use super::route::{Phase, Route, Usage};
use super::target::Source;
use super::{Judgement, Routes};
use crate::client::routes::id::{ExpectedId, Resolved, RouteId};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_transport::{Connect, LogLimit, PeerDown, PeerEvent, PeerKey, Transport};
use trunkline_verbs::Time;

/// Pause after the first failed round.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of times that the pause doubles.
const DOUBLINGS: u32 = 7;
/// Longest pause while a call waits through failed rounds.
const WAITED: Duration = Duration::from_millis(750);
/// Number of addresses that a round tries in turn. A round for a channel that is not balanced tries no further addresses.
const IN_TURN: usize = 16;
/// Minimum time between lookups outside of rounds. Without it, failing calls, or a resolver that constantly reports changes,
/// would cause lookups without a pause.
const REFRESH: Duration = Duration::from_millis(100);
/// Time between lookups for a balanced channel whose resolver reports no changes. A random time of up to a quarter is added.
const PERIOD: Duration = Duration::from_secs(30);

/// Returns a predicate that is true if a node has a session, accepts calls and has proved the expected name. The transport
/// is checked too, because it is the first to detect a dead node.
fn serves<'a>(
    transport: &'a Transport,
    routes: &'a Routes,
    expected: ExpectedId,
) -> impl Fn(PeerKey) -> bool + 'a {
    move |peer| transport.is_up(peer) && routes.serves(peer, expected)
}

/// Connects the routes of a node to their servers.
#[derive(Debug)]
pub(crate) struct Connector {
    routes: Arc<Routes>,
    sought: BTreeMap<RouteId, Sought>,
    timers: BTreeSet<(Time, RouteId)>,
    /// Lookups to start.
    lookups: Vec<Lookup>,
    last_lookup: u64,
    /// Rate limit for log lines about failed lookups.
    failed_lookups: LogLimit,
    is_closed: bool,
}

/// A route that a call or a future has waited for.
#[derive(Debug)]
struct Sought {
    route: Arc<Route>,
    /// Round in progress.
    round: Option<Round>,
    /// Number of failed rounds in a row.
    row: u32,
    /// Index of the first address for the next round, if a round tries only some addresses.
    first: usize,
    /// Earliest time of the next round after a failed one, if a call waits through failed rounds.
    early: Time,
    /// True if a call waited through failed rounds at the last check.
    is_waited_for: bool,
    /// Node that the route last led to.
    led_to: Option<PeerKey>,
    /// Addresses of the last lookup.
    last: Vec<PeerKey>,
    /// Number of the lookup in progress outside of a round.
    refresh: Option<u64>,
    /// Earliest time of the next lookup outside of a round.
    refresh_after: Time,
    /// Time of the next periodic lookup; `None` if the last lookup has not started.
    next_lookup: Option<Time>,
    timer: Option<Time>,
}

impl Sought {
    /// Returns true if calls on a balanced channel may go to this server while the channel's route has no session.
    fn may_lead_to(&self, peer: PeerKey) -> bool {
        let addresses = match &self.route.target.source {
            Source::Addresses(all) => &all.addresses,
            _ => &self.last,
        };
        self.route.usage != Usage::Sticky
            && !matches!(self.route.phase().0, Phase::Up(_))
            && addresses.contains(&peer)
    }

    /// Returns the time of the next round, after a failed round whose pause ends at `due`.
    fn next_round(&self, due: Time) -> Time {
        match self.route.connect() {
            Connect::Wait => due.min(self.early),
            _ => due,
        }
    }

    /// Returns true if a call waits through failed rounds, and either an attempt at this node failed in the current round,
    /// or the last round failed and the node belongs to the target.
    fn is_waited_at(&self, peer: PeerKey) -> bool {
        self.route.connect() == Connect::Wait
            && match (&self.round, &self.route.target.source) {
                (Some(round), _) => round.has_tried(peer) && !round.tries(peer),
                (None, Source::Address(address)) => *address == peer,
                (None, Source::Addresses(all)) => all.addresses.contains(&peer),
                (None, Source::Resolver(..)) => self.last.contains(&peer),
                (None, Source::Nonsense(_)) => false,
            }
            && !matches!(self.route.phase().0, Phase::Up(_) | Phase::Closed)
    }
}

impl Connector {
    /// Creates a connector without routes.
    pub(crate) fn new(routes: &Arc<Routes>) -> Self {
        Self {
            routes: Arc::clone(routes),
            sought: BTreeMap::new(),
            timers: BTreeSet::new(),
            lookups: Vec::new(),
            last_lookup: 0,
            failed_lookups: LogLimit::default(),
            is_closed: false,
        }
    }

    /// Takes the lookups that are to be started.
    pub(crate) fn take_lookups(&mut self) -> Vec<Lookup> {
        mem::take(&mut self.lookups)
    }

    /// Returns the time of the next step.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Checks a route after a change, such as a new waiting call or the removal of the route.
    pub(crate) fn look(&mut self, transport: &mut Transport, id: RouteId) {
        let Some(route) = self.routes.get(id) else {
            self.set_timer(id, None);
            if let Some(gone) = self.sought.remove(&id) {
                gone.route.release();
            }
            return;
        };
        let new = || Sought {
            route,
            round: None,
            row: 0,
            first: 0,
            early: Time::default(),
            is_waited_for: false,
            led_to: None,
            last: Vec::new(),
            refresh: None,
            refresh_after: Time::default(),
            next_lookup: None,
            timer: None,
        };
        self.sought.entry(id).or_insert_with(new);
        self.consider(transport, id);
        self.hasten(transport, id);
        self.refresh(transport, id);
    }

    /// Dials the addresses of the failed round again, if a call has begun to wait through failed rounds.
    fn hasten(&mut self, transport: &mut Transport, id: RouteId) {
        let Some(sought) = self.sought.get_mut(&id) else { return };
        let connect = sought.route.connect();
        let is_waited_for = connect == Connect::Wait;
        if mem::replace(&mut sought.is_waited_for, is_waited_for) || !is_waited_for {
            return;
        }
        for peer in sought.round.iter().flat_map(Round::failed_at) {
            // A session that is already up is reported by the transport.
            let _reach = transport.reach(peer, connect);
        }
    }

    /// Begins a round if one is needed and the pause is over.
    fn consider(&mut self, transport: &mut Transport, id: RouteId) {
        let Some(sought) = self.sought.get(&id).filter(|_| !self.is_closed) else { return };
        match sought.route.phase().0 {
            Phase::Up(peer) if !transport.is_up(peer) => sought.route.publish(Phase::Idle),
            Phase::Up(peer) if sought.route.target.has_several() && self.routes.is_draining(peer) => {
                sought.route.publish(Phase::Idle);
                self.routes.tell_all(id);
            }
            Phase::Failed(_, due) => {
                let due = sought.next_round(due);
                if due > transport.now() {
                    if sought.route.is_wanted() {
                        self.set_timer(id, Some(due));
                    }
                    return;
                }
            }
            Phase::Idle => {}
            Phase::Seeking | Phase::Up(_) | Phase::Closed => return,
        }
        if sought.route.is_wanted() {
            self.begin(transport, id);
        }
    }

    /// Returns the addresses of a route in the order in which a round tries them. `serves` is the predicate from [`serves`].
    fn in_order(
        serves: &dyn Fn(PeerKey) -> bool,
        routes: &Routes,
        route: &Route,
        first: usize,
        addresses: &[PeerKey],
    ) -> Vec<PeerKey> {
        let mut ordered = addresses.to_vec();
        let first = match route.usage {
            Usage::Sticky if ordered.len() > IN_TURN => first,
            Usage::Sticky | Usage::Current => 0,
            Usage::Spread => routes.random(),
        };
        if !ordered.is_empty() {
            let first = first % ordered.len();
            ordered.rotate_left(first);
        }
        if route.usage == Usage::Sticky {
            ordered.truncate(IN_TURN);
        } else {
            // Calls avoid a dead server while another server is available.
            ordered.sort_by_key(|address| !serves(*address));
        }
        ordered
    }

    /// Starts a requested lookup of a route's addresses. A request waits for the end of a round, because a round begins with
    /// a lookup. A request also waits for the end of a lookup in progress, because a slow resolver might never return
    /// addresses if each request replaced the lookup.
    fn refresh(&mut self, transport: &Transport, id: RouteId) {
        let Some(sought) = self.sought.get_mut(&id).filter(|_| !self.is_closed) else { return };
        let is_name = matches!(sought.route.target.source, Source::Resolver(..));
        if !is_name || sought.refresh.is_some() || sought.round.is_some() || !sought.route.is_stale() {
            return;
        }
        let (now, after) = (transport.now(), sought.refresh_after);
        if now < after {
            let due = sought.timer.map_or(after, |timer| timer.min(after));
            return self.set_timer(id, Some(due));
        }
        sought.refresh_after = now + REFRESH;
        sought.refresh = Some(self.last_lookup + 1);
        self.begin_lookup(id, now);
    }

    /// Starts a lookup with the next number, and sets the time of the following one.
    fn begin_lookup(&mut self, id: RouteId, now: Time) {
        self.last_lookup += 1;
        let Some(sought) = self.sought.get_mut(&id) else { return };
        sought.route.take_stale();
        self.lookups.push(Lookup::new(Arc::clone(&sought.route), self.last_lookup, self.routes.udp_port()));
        if sought.route.is_looked_up_periodically() {
            let part = u32::try_from(self.routes.random() % 256).unwrap_or(0);
            sought.next_lookup = Some(now + PERIOD + PERIOD * part / 1024);
        }
        let timer = sought.timer;
        self.set_timer(id, timer);
    }

    fn begin(&mut self, transport: &mut Transport, id: RouteId) {
        let Some(sought) = self.sought.get_mut(&id) else { return };
        let now = transport.now();
        sought.route.begin();
        let connect = sought.route.connect();
        sought.is_waited_for = connect == Connect::Wait;
        // A channel with [`Usage::Spread`] connects to all servers anyway, so no attempt is wasted.
        let in_turn = if sought.route.usage == Usage::Spread { 1 } else { IN_TURN };
        let step = match &sought.route.target.source {
            Source::Resolver(..) if sought.last.is_empty() || !mutant!(names_are_resolved_once) => {
                // This round replaces a lookup requested earlier.
                sought.refresh = None;
                let (round, step) = Round::looking_up(self.last_lookup + 1, in_turn, now);
                sought.round = Some(round);
                self.begin_lookup(id, now);
                step
            }
            Source::Nonsense(why) => {
                let failure = Failure::misuse(why);
                return self.lose(transport, id, failure);
            }
            Source::Resolver(..) => {
                let round = sought.round.insert(Round::trying(&sought.last, in_turn, now));
                round.advance(transport, &self.routes, connect)
            }
            Source::Address(address) => {
                let round = sought.round.insert(Round::trying(&[*address], in_turn, now));
                round.advance(transport, &self.routes, connect)
            }
            Source::Addresses(all) => {
                sought.route.tell_omitted(all.omitted);
                let all = Self::in_order(
                    &serves(transport, &self.routes, sought.route.expected),
                    &self.routes,
                    &sought.route,
                    sought.first,
                    &all.addresses,
                );
                let round = sought.round.insert(Round::trying(&all, in_turn, now));
                round.advance(transport, &self.routes, connect)
            }
        };
        self.follow(transport, id, step);
    }

    /// Handles the result of a lookup.
    pub(crate) fn resolved(&mut self, transport: &mut Transport, resolved: Resolved) {
        let Resolved { route: id, number, outcome } = resolved;
        let Some(sought) = self.sought.get_mut(&id) else { return };
        if sought.refresh == Some(number) {
            sought.refresh = None;
            let addresses = outcome.unwrap_or_else(|error| {
                // The failure is logged because no call reports it.
                if let Some(suppressed) = self.failed_lookups.line(transport.now()) {
                    tracing::warn!(
                        server = %sought.route.target,
                        error = error.join(": "),
                        suppressed,
                        "server name not resolved again; earlier addresses stay in use"
                    );
                }
                Vec::new()
            });
            if !addresses.is_empty() {
                sought.route.set_found(&addresses);
                sought.last = addresses;
                self.routes.keep_found(id);
                self.leave_removed(transport, id);
            }
            return self.refresh(transport, id);
        }
        let Some(round) = sought.round.as_mut().filter(|round| round.waits_for(number)) else { return };
        let error = match outcome {
            Ok(addresses) => {
                // The known servers stay in use if the list is empty.
                if !addresses.is_empty() {
                    sought.route.set_found(&addresses);
                    sought.last = addresses;
                    self.routes.keep_found(id);
                }
                Vec::new()
            }
            Err(error) => error,
        };
        let order = Self::in_order(
            &serves(transport, &self.routes, sought.route.expected),
            &self.routes,
            &sought.route,
            sought.first,
            &sought.last,
        );
        round.looked_up(&order, error);
        let step = round.advance(transport, &self.routes, sought.route.connect());
        self.follow(transport, id, step);
    }

    /// Moves the calls of a balanced channel away from a server that was removed from the target.
    fn leave_removed(&mut self, transport: &mut Transport, id: RouteId) {
        let Some(sought) = self.sought.get_mut(&id).filter(|sought| sought.route.usage != Usage::Sticky)
        else {
            return;
        };
        let Phase::Up(peer) = sought.route.phase().0 else { return };
        if !sought.last.contains(&peer) {
            sought.led_to = None;
            sought.route.publish(Phase::Idle);
            self.routes.tell_all(id);
            self.consider(transport, id);
        }
    }

    /// Handles a new or lost session with a peer.
    pub(crate) fn peer(&mut self, transport: &mut Transport, peer: PeerKey, event: PeerEvent) {
        let has_drained = self.routes.is_draining(peer);
        match &event {
            PeerEvent::Up { epoch, identity, .. } => self.routes.up(peer, *epoch, identity.clone()),
            PeerEvent::Renewed { identity } => return self.routes.renewed(peer, identity.clone()),
            PeerEvent::Down { .. } => self.routes.down(peer),
        }
        let mut concerned = Vec::new();
        for (id, sought) in &self.sought {
            let concerns = match &sought.round {
                Some(round) if matches!(event, PeerEvent::Up { .. }) => {
                    round.has_tried(peer) || sought.may_lead_to(peer)
                }
                Some(round) => round.tries(peer),
                None => {
                    let is_up = matches!(event, PeerEvent::Up { .. });
                    sought.led_to == Some(peer)
                        || sought.is_waited_at(peer)
                        || is_up && sought.may_lead_to(peer)
                }
            };
            if concerns {
                concerned.push(*id);
            }
        }
        for id in concerned {
            let Some(sought) = self.sought.get_mut(&id) else { continue };
            let connect = sought.route.connect();
            match (sought.round.as_mut(), &event) {
                (Some(_), PeerEvent::Up { .. }) => self.follow(transport, id, Step::Won(peer)),
                (Some(round), PeerEvent::Down { cause }) => {
                    let step = round.down(transport, &self.routes, peer, *cause, connect);
                    self.follow(transport, id, step);
                }
                (_, PeerEvent::Renewed { .. }) => {}
                // The peer opened the connection.
                (None, PeerEvent::Up { .. }) => self.follow(transport, id, Step::Won(peer)),
                (None, PeerEvent::Down { cause }) => {
                    let breaks = !matches!(
                        cause,
                        PeerDown::Closed
                            | PeerDown::ClosedFor(_)
                            | PeerDown::Stopped { .. }
                            | PeerDown::Leaving
                            | PeerDown::Restarted
                    );
                    if let Some(sought) = self.sought.get_mut(&id).filter(|_| has_drained) {
                        // The server drained and may restart at once, so the pause is skipped.
                        sought.row = 0;
                        sought.route.publish(Phase::Idle);
                    }
                    self.consider(transport, id);
                    if let Some(sought) = self.sought.get(&id).filter(|_| breaks) {
                        sought.route.lose();
                    }
                }
            }
        }
        if let PeerEvent::Down { cause } = event
            && !cause.is_final()
            && self.sought.values().any(|sought| sought.is_waited_at(peer))
        {
            let _reach = transport.reach(peer, Connect::Wait);
        }
    }

    /// Runs the steps whose time has come. Returns true if any step ran.
    pub(crate) fn tick(&mut self, transport: &mut Transport) -> bool {
        let now = transport.now();
        let mut any = false;
        while let Some(&(_, id)) = self.timers.first().filter(|(due, _)| *due <= now) {
            any = true;
            if let Some(sought) = self.sought.get_mut(&id)
                && sought.next_lookup.take_if(|next| *next <= now).is_some()
            {
                sought.route.look_again();
            }
            self.set_timer(id, None);
            let Some(sought) = self.sought.get_mut(&id) else { continue };
            let Some(round) = &mut sought.round else {
                self.consider(transport, id);
                self.refresh(transport, id);
                continue;
            };
            if round.is_lookup_late(now) {
                let addresses = Self::in_order(
                    &serves(transport, &self.routes, sought.route.expected),
                    &self.routes,
                    &sought.route,
                    sought.first,
                    &sought.last,
                );
                round.looked_up(&addresses, Round::late_lookup());
            }
            let step = round.advance(transport, &self.routes, sought.route.connect());
            self.follow(transport, id, step);
        }
        any
    }

    /// Applies a step. A session is used only if the peer has proved the expected name.
    fn follow(&mut self, transport: &mut Transport, id: RouteId, mut step: Step) {
        while let Step::Won(peer) = step {
            let Some(sought) = self.sought.get_mut(&id) else { return };
            let why = match self.routes.judge(peer, sought.route.expected) {
                Judgement::Matches => break,
                Judgement::NoSession => None,
                Judgement::Differs(why) => Some(why),
            };
            let connect = sought.route.connect();
            step = match (&mut sought.round, why) {
                (Some(round), Some(why)) => round.refuse(transport, &self.routes, peer, why, connect),
                (Some(round), None) => round.await_report(peer, transport.now()),
                (None, _) => return self.leave_other_name(transport, id, peer),
            };
        }
        match step {
            Step::Waits(until) => self.set_timer(id, Some(until)),
            Step::Won(peer) => {
                self.set_timer(id, None);
                let Some(sought) = self.sought.get_mut(&id) else { return };
                (sought.round, sought.row, sought.first, sought.led_to) = (None, 0, 0, Some(peer));
                sought.route.publish(Phase::Up(peer));
                self.routes.tell_all(id);
                self.refresh(transport, id);
            }
            Step::Lost => {
                let Some(sought) = self.sought.get(&id) else { return };
                let Some(round) = &sought.round else { return };
                let is_fixed = match &sought.route.target.source {
                    Source::Resolver(..) => false,
                    Source::Addresses(all) => {
                        sought.route.usage != Usage::Sticky || all.addresses.len() <= IN_TURN
                    }
                    Source::Address(_) | Source::Nonsense(_) => true,
                };
                let (tried, lookup) = round.what_failed();
                let failure = Failure::new(tried, lookup, is_fixed);
                let failure = if round.has_only_paused() { failure.without_attempt() } else { failure };
                self.lose(transport, id, failure);
            }
        }
    }

    /// Stops using a node that has a new session with an unexpected name.
    fn leave_other_name(&mut self, transport: &mut Transport, id: RouteId, peer: PeerKey) {
        let Some(sought) = self.sought.get(&id) else { return };
        if matches!(sought.route.phase().0, Phase::Up(to) if to == peer) {
            sought.route.publish(Phase::Idle);
            self.routes.tell_all(id);
        }
        self.consider(transport, id);
    }

    /// Handles a failed round.
    fn lose(&mut self, transport: &mut Transport, id: RouteId, failure: Failure) {
        let now = transport.now();
        let Some(sought) = self.sought.get_mut(&id) else { return };
        sought.round = None;
        let pause = PAUSE * (1 << sought.row.min(DOUBLINGS));
        sought.row = sought.row.saturating_add(1);
        sought.first = sought.first.wrapping_add(IN_TURN);
        // Spread the next rounds, because rounds of many nodes may have failed at the same time.
        let part = u32::try_from(now.0 / 64 % 256).unwrap_or(0);
        let with_jitter = |pause: Duration| now + pause + pause * part / 1024;
        let due = with_jitter(pause);
        sought.early = with_jitter(pause.min(WAITED));
        let next = sought.next_round(due);
        tracing::debug!(server = %sought.route.target, cause = failure.text(), "server not reached");
        sought.route.publish(Phase::Failed(Arc::new(failure), due));
        // Calls that wait through failed rounds wait for the next one.
        self.set_timer(id, Some(next));
        self.routes.tell_all(id);
        self.refresh(transport, id);
    }

    /// Sets the timer of a route to `due` or the time of the next periodic lookup, whichever is earlier. A step before its
    /// time has no effect.
    fn set_timer(&mut self, id: RouteId, due: Option<Time>) {
        let Some(sought) = self.sought.get_mut(&id) else {
            self.timers.retain(|(_, of)| *of != id);
            return;
        };
        if let Some(old) = sought.timer.take() {
            self.timers.remove(&(old, id));
        }
        sought.timer = due.into_iter().chain(sought.next_lookup).min();
        if let Some(due) = sought.timer {
            self.timers.insert((due, id));
        }
    }

    /// Closes all routes, because the node shuts down.
    pub(crate) fn close(&mut self) {
        if !mem::replace(&mut self.is_closed, true) {
            self.timers.clear();
            for (_, gone) in mem::take(&mut self.sought) {
                gone.route.release();
            }
            self.routes.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::routes::{Target, opened};
    use std::num::NonZeroU32;

    #[test]
    fn rounds_begin_at_random_address_only_with_spread_usage() {
        let addresses = [1, 2, 3].map(|port| PeerKey::new(([127, 0, 0, 1], port).into()));
        let firsts = |usage| {
            let (routes, id) = (opened(), RouteId(NonZeroU32::MIN));
            let route = Route::new(id, Target::from(addresses), usage, ExpectedId::ADDRESS);
            let first = |_| Connector::in_order(&|_| false, &routes, &route, 0, &addresses)[0];
            (0..64).map(first).collect::<BTreeSet<_>>().len()
        };
        assert_eq!([Usage::Sticky, Usage::Current].map(firsts), [1, 1]);
        assert!(firsts(Usage::Spread) > 1);
    }
}
