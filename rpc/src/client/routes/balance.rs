//! Choice of a server for each call on a balanced channel.
//!
//! Each server has a route, which tracks its session. A draining server is left out until it has a new session. A server
//! that is unreachable despite its session is left out for 400 ms. Then one call probes the server, and each further failure
//! doubles the time. While another server is ready, a server that reports a service as `NotServing` gets no calls to this
//! service, and a server whose calls fail or lag is left out for a time (`outliers.rs`).
//!
//! Calls go to servers with a session. If no server has a session, calls wait for the route of the channel's target, which
//! looks up the name and tries the addresses in order. During a pause of this route, calls that would fail at once wait for
//! a server that is being connected.

use super::outliers::{self, Fault, Record, Typical};
use super::route::{Phase, Reached, Usage};
use super::target::Source;
use super::{Link, Session, Watched};
use crate::client::routes::id::RouteId;
use crate::node::fork_lock::Lock;
use crate::status::reason::{Origin, Reason};
use crate::status::{Code, Status};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::Duration;
use trunkline_transport::{Connect, LogLimit, PeerKey, ServerReport};
use trunkline_verbs::Time;

/// First pause of a server that is left out, and minimum time for which a refused call counts as in progress.
const PAUSE: Duration = Duration::from_millis(400);
/// Maximum number of times that the pause doubles.
const DOUBLINGS: u32 = 4;
/// Time after a pause within which another fault of the server causes a pause of twice the length.
const RELAPSE: Duration = Duration::from_secs(10);
/// Units of the retry budget per attempt.
const TOKEN: u32 = 100;

/// The policy by which a [balanced channel](crate::Channel::balanced) chooses a server for each call.
///
/// ```
/// use trunkline::{Channel, Node, Policy};
///
/// fn replicas(node: &Node) -> Channel {
///     node.channel("stock.example:7000").balanced(Policy::RoundRobin) // all addresses of the name
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Policy {
    /// The first server with a session, in the order of the target's addresses. All clients with the same list use the same
    /// server. Other servers are not connected until they are needed.
    PickFirst,
    /// One server after the other, starting with a random server.
    RoundRobin,
    /// The less loaded of two random servers, by number of this channel's calls in progress. A refused call counts as in
    /// progress for at least 400 ms. So does a call whose hedge had the first outcome, but only one per server at a time.
    #[default]
    PowerOfTwo,
}

/// Settings of a [balanced channel](crate::Channel::balanced), such as its [`Policy`] and its retry budget.
///
/// ```
/// use std::time::Duration;
/// use trunkline::{Balance, Channel, Node, Policy};
///
/// fn replicas(node: &Node) -> Channel {
///     let balance = Balance::from(Policy::PowerOfTwo)
///         .retry_budget(100, 10) // 100 further attempts in a burst, then 10 % of the calls that succeed
///         .hedge_after(Duration::from_millis(5));
///     node.channel("stock.example:7000").balanced(balance)
/// }
/// ```
///
/// See `docs/book/src/guide/balancing.md`, and `retries.md` and `hedging.md` in the same folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Balance {
    policy: Policy,
    most: u32,
    percent: u32,
    watches_health: bool,
    leaves_out_failing: bool,
    hedge_after: Option<Duration>,
}

impl Balance {
    /// Sets the budget for further attempts at calls. The budget allows a burst of `calls` attempts, and each successful
    /// call restores `percent` percent of an attempt. The defaults are 1,000 and 20. An attempt uses no budget if the
    /// previous attempt was refused by a draining server, or was not sent because its server was unreachable.
    ///
    /// A call that fails while the budget is exhausted is not retried, and the last cause of its status names the budget.
    /// `ServerReport::unretried` counts such calls.
    #[must_use]
    pub fn retry_budget(mut self, calls: u32, percent: u32) -> Self {
        (self.most, self.percent) = (calls, percent);
        self
    }

    /// Sets whether the channel watches the health of the services that it calls. The default is `true`.
    ///
    /// A server that reports `NotServing` for a service gets no calls to that service while another connected server is
    /// available. If all connected servers report `NotServing`, the reports are ignored. Servers without a health service,
    /// and servers that refuse the watch, count as serving.
    ///
    /// The watch begins with the first call to a service. It uses one stream per server and service, shared by all channels
    /// of the node. At the server, each stream counts as one running handler.
    #[must_use]
    pub fn watch_health(mut self, watches: bool) -> Self {
        self.watches_health = watches;
        self
    }

    /// Sets whether the channel leaves out servers whose calls fail or lag in comparison with most other servers. The
    /// default is `true`.
    ///
    /// Such a server gets no calls for 400 ms. Then one call probes the server. Each failure doubles the time, to at most
    /// 6.4 s. At most a third of the servers, or one of two servers, are left out. Servers that are left out still get calls
    /// if no other server has a session.
    ///
    /// `ServerReport::state` of such a server is `left out: fails` or `left out: slow`. The counter `servers_left_out`
    /// counts how often servers were left out. `docs/book/src/guide/outliers.md` describes the conditions.
    #[must_use]
    pub fn leave_out_failing(mut self, leaves_out: bool) -> Self {
        self.leaves_out_failing = leaves_out;
        self
    }

    /// Enables hedging for calls to `#[idempotent]` methods. A call that has no outcome after `delay` is also sent to a
    /// second server that has a session. The first success, or error returned by a handler, is the outcome. The other
    /// attempt is then cancelled. Both attempts share the call's deadline. Calls are not hedged by default.
    ///
    /// A good delay is the 95th percentile of the method's latency, measured without hedging.
    /// [`Node::report`](crate::Node::report) provides it as `latency.quantile(0.95)` of the method in `called`. About 5% of
    /// the calls are then hedged. Each hedge uses the [retry budget](Self::retry_budget), so even if servers are slow, at
    /// most `percent` percent of the calls are hedged after a burst of `calls`.
    ///
    /// The time until the slower attempt is cancelled counts towards the latency of its server. See
    /// [`Self::leave_out_failing`].
    ///
    /// The counters `hedged_calls` and `hedges_won` in the report show whether hedging helps.
    #[must_use]
    pub fn hedge_after(mut self, delay: Duration) -> Self {
        self.hedge_after = Some(delay);
        self
    }
}

/// The default policy with the default budget.
impl Default for Balance {
    fn default() -> Self {
        Policy::default().into()
    }
}

impl From<Policy> for Balance {
    fn from(policy: Policy) -> Self {
        // The percentage is Finagle's default. Finagle's reserve of 10 attempts per second would need a clock, so the budget
        // starts full instead.
        Self {
            policy,
            most: 1000,
            percent: 20,
            watches_health: true,
            leaves_out_failing: true,
            hedge_after: None,
        }
    }
}

/// The servers of a balanced channel, shared by its clones.
#[derive(Debug)]
pub(crate) struct Balanced {
    policy: Policy,
    watches_health: bool,
    leaves_out_failing: bool,
    /// End of the current comparison period, in nanoseconds.
    compared: AtomicU64,
    budget: RetryBudget,
    /// Delay after which calls are hedged.
    pub(crate) hedge_after: Option<Duration>,
    /// Link to the target, separate from the link of the plain channel, which keeps its server even if lookups no longer
    /// find it.
    target: Arc<Link>,
    servers: Lock<Servers>,
    /// Random offset, so that many clients do not choose the same servers in the same order.
    start: OnceLock<usize>,
    /// Number of choices so far.
    chosen: AtomicUsize,
    /// Number of calls that ended because the retry budget was used up.
    unretried: AtomicU64,
    /// Total number of rounds of all servers at the last lookup.
    rounds: AtomicU64,
}

#[derive(Debug, Default)]
struct Servers {
    /// Addresses from which the list was built; `None` until they are known.
    found: Option<Arc<[PeerKey]>>,
    list: Arc<[Arc<Server>]>,
    /// Services called so far. Their health is watched.
    services: Vec<&'static str>,
}

/// A server of a balanced channel.
#[derive(Debug)]
struct Server {
    address: PeerKey,
    link: Arc<Link>,
    /// Number of calls in progress.
    calls: AtomicUsize,
    refusals: Lock<Refusals>,
    pause: Lock<Option<Pause>>,
    record: Record,
    /// The last pause for a fault, once the pause is over. `until` is the time of its end.
    last_pause: Lock<Option<Pause>>,
    /// Health watches, one for each service called so far.
    watches: Lock<Vec<Arc<Watched>>>,
}

/// A period in which a server is left out.
#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Time,
    /// Sequence number of the session. A later session ends the pause.
    session: u64,
    /// Number of pauses in a row before this one.
    row: u32,
    /// Fault of the server; `None` if the server is unreachable.
    fault: Option<Fault>,
}

/// The number of calls that a server refused recently.
#[derive(Debug, Default)]
struct Refusals {
    /// End of the period of `current`.
    until: Time,
    current: usize,
    /// Number in the previous period.
    last: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Ready,
    Connecting,
    Failed,
    LeftOut,
    /// Left out for a fault. The server still gets calls if all other servers are unavailable.
    Outlier(Fault),
}

/// The server of one attempt at a call.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// Node and route to which the call is sent.
    pub(crate) to: (PeerKey, Option<RouteId>),
    /// `None` if the call uses the route of the target.
    server: Option<Arc<Server>>,
    /// Sequence number of the server's session, if one was up.
    session: Option<u64>,
    /// Time at which the attempt began; `None` for a stream, whose duration does not depend on its server alone.
    begun: Option<Time>,
    /// True if the call probes whether the server has recovered.
    is_probe: bool,
}

impl Chosen {
    /// Converts the choice for a stream.
    pub(crate) fn of_stream(self) -> Self {
        Self { begun: None, ..self }
    }
}

/// Maximum number of servers without a session to which a call is sent, because a long list of dead servers would keep the
/// call's thread busy for seconds. The target's route tries all servers.
const MOST_UNCONNECTED: usize = 16;

/// Servers to which a call was sent.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    /// Name of the call's service.
    service: &'static str,
    servers: Vec<PeerKey>,
    /// Number of these servers that had no session.
    unconnected: usize,
    /// True if the call has waited for the route of the target.
    target: bool,
    pub(crate) connect: Connect,
    refused: Refused,
}

/// The worst refusal of a call by servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Refused {
    #[default]
    Never,
    /// A draining server refused the call. The call may wait for a server that is being connected.
    Draining,
    /// A server failed the call. The call may wait for a server that may be starting.
    Failed,
    /// An overloaded server refused the call. The call does not wait for another server.
    Overloaded,
}

impl Tried {
    /// Creates the record of a new call.
    pub(crate) fn new(connect: Connect, service: &'static str) -> Self {
        Self { connect, service, ..Self::default() }
    }

    /// Records a failed attempt at a call that may be retried.
    pub(crate) fn refused(&mut self, status: &Status) {
        let refused = match status.reason() {
            Some(Reason::Draining) if is_away(status) => Refused::Draining,
            _ if is_away(status) => Refused::Never,
            _ if outliers::is_fault(status) => Refused::Failed,
            _ => Refused::Overloaded,
        };
        self.refused = self.refused.max(refused);
        if refused == Refused::Failed {
            // A server has answered, so the call does not wait for unreachable servers.
            self.connect = Connect::FailFast;
        }
    }

    /// Returns true if the call has waited for any server, and may do so again.
    pub(crate) fn has_waited(&self) -> bool {
        self.target && self.connect == Connect::Wait
    }
}

impl Balanced {
    /// Creates the balance of a channel. Returns `None` if its target is a single address.
    pub(crate) fn new(target: &Arc<Link>, balance: Balance) -> Option<Arc<Self>> {
        if !target.target().has_several() {
            return None;
        }
        let usage = if balance.policy == Policy::PickFirst { Usage::Current } else { Usage::Spread };
        let target = Link::with_usage(target.routes(), target.target().clone(), usage);
        let balanced = Arc::new(Self {
            policy: balance.policy,
            watches_health: balance.watches_health,
            leaves_out_failing: balance.leaves_out_failing,
            compared: AtomicU64::new(0),
            budget: RetryBudget::new(balance.most, balance.percent),
            hedge_after: balance.hedge_after,
            target,
            servers: Lock::default(),
            start: OnceLock::new(),
            chosen: AtomicUsize::new(0),
            unretried: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
        });
        balanced.servers();
        if let Source::Addresses(usable) = &balanced.target.target().source {
            balanced.target.route().tell_omitted(usable.omitted);
        }
        balanced.target.routes().add_balanced(&balanced);
        Some(balanced)
    }

    pub(super) fn target(&self) -> &Arc<Link> {
        &self.target
    }

    /// Returns true if any server has a session.
    pub(crate) fn is_connected(&self) -> bool {
        !self.target.routes().is_forked() && self.servers().iter().any(|server| server.link.is_connected())
    }

    /// Keeps the servers connected, if the policy uses all of them.
    pub(super) fn keep(&self) {
        self.keep_each(&self.servers());
    }

    fn keep_each(&self, servers: &[Arc<Server>]) {
        if self.policy != Policy::PickFirst {
            servers.iter().for_each(|server| server.link.keep());
        }
    }

    /// Chooses the server of the next attempt. Returns `None` if all servers were tried.
    pub(crate) fn choose(&self, tried: &mut Tried, now: Time) -> Option<Chosen> {
        let servers = self.watched_servers(tried.service);
        self.keep_each(&servers);
        if self.target.is_name() {
            // A server that is being reconnected may have moved.
            let rounds = servers.iter().map(|server| server.link.route().reached().1).sum();
            if self.rounds.swap(rounds, Ordering::Relaxed) != rounds {
                self.target.look_again();
            }
        }
        // If another thread has begun the probe of a server, the next iteration leaves out that server.
        for _ in 0..=servers.len() {
            let chosen = self.choose_once(&servers, tried, now)?;
            let Some(server) = chosen else {
                tried.target = true;
                return Some(Chosen {
                    to: self.target.server(),
                    server: None,
                    session: None,
                    begun: None,
                    is_probe: false,
                });
            };
            let claimed = server.claim(now, tried.connect);
            let claimed = claimed.or_else(|| self.claim_outlier(&servers, &server, tried, now));
            let Some((session, is_probe)) = claimed else { continue };
            tried.servers.push(server.address);
            tried.unconnected += usize::from(server.link.session().is_none());
            server.calls.fetch_add(1, Ordering::Relaxed);
            let (node, own) = server.link.server();
            // If the session ends before the call is sent, the call uses the target's route.
            let route = if session.is_some() { self.target.server().1 } else { own };
            return Some(Chosen {
                to: (node, route),
                server: Some(server),
                session,
                begun: Some(now),
                is_probe,
            });
        }
        None
    }

    /// Chooses one of the servers. Returns `Some(None)` for the route of the target.
    #[expect(clippy::option_option, reason = "the caller matches both levels")]
    fn choose_once(&self, servers: &[Arc<Server>], tried: &Tried, now: Time) -> Option<Option<Arc<Server>>> {
        let untried = |server: &&Arc<Server>| !tried.servers.contains(&server.address);
        let standing = |wanted| {
            let is = move |server: &&Arc<Server>| server.standing(now) == wanted;
            servers.iter().filter(untried).filter(is).collect::<Vec<_>>()
        };
        let has_left = tried.unconnected < MOST_UNCONNECTED;
        let ready = standing(Standing::Ready);
        if !ready.is_empty() {
            if self.target.routes().watches.all_serve() {
                return Some(Some(Arc::clone(self.pick(&ready, now))));
            }
            return Some(Some(Arc::clone(self.pick(&self.serving(servers, ready, tried), now))));
        }
        if tried.refused >= Refused::Failed {
            // Connect the other servers for later calls.
            servers.iter().filter(untried).for_each(|server| server.link.keep());
            let waits = has_left && tried.refused == Refused::Failed;
            let starting = if waits { standing(Standing::Connecting) } else { Vec::new() };
            let next = starting.into_iter().find(|server| !server.link.route().is_lost());
            return next.map(|server| Some(Arc::clone(server)));
        }
        // A server that fails or lags is better than no server.
        let is_outlier = |server: &&Arc<Server>| matches!(server.standing(now), Standing::Outlier(_));
        if let Some(server) = servers.iter().filter(untried).find(is_outlier) {
            return Some(Some(Arc::clone(server)));
        }
        // The route of the target avoids draining servers, and waits until another server answers.
        if tried.connect == Connect::Wait
            && self.target.route().failure().is_none_or(|failure| !failure.is_final)
        {
            return Some(None);
        }
        // The route of the target may lead to a server that is left out or was tried. A server that is left out has a
        // session, so a new round would choose that server again.
        let is_left_out = |server: &Arc<Server>| server.standing(now) == Standing::LeftOut;
        let helps = self.target_leads_to(servers).map_or_else(
            || !servers.iter().any(is_left_out),
            |server| untried(&server) && !is_left_out(server),
        );
        if !tried.target && helps {
            // During the pause after a failed round, the call would fail at once. It waits for a server that is being
            // connected instead.
            let fails = tried.connect == Connect::FailFast && self.target.route().is_paused(now);
            let is_sought = |server: &&&Arc<Server>| server.link.route().is_sought();
            let connecting = if fails && has_left { standing(Standing::Connecting) } else { Vec::new() };
            return Some(connecting.iter().find(is_sought).map(|server| Arc::clone(server)));
        }
        // If a server drains, its refusal ends the call without a wait for dead servers. Servers that may be starting are
        // still tried.
        let drains = |server: &&Arc<Server>| server.link.session().is_some_and(|session| session.drains);
        let is_answered = tried.refused == Refused::Draining || servers.iter().any(|server| drains(&server));
        for server in [Standing::Connecting, Standing::Failed].into_iter().flat_map(standing) {
            if has_left && (!is_answered || !server.link.route().is_lost()) {
                return Some(Some(Arc::clone(server)));
            }
            server.link.keep();
        }
        if tried.connect == Connect::FailFast
            && let Some(server) = servers.iter().filter(untried).find(drains)
        {
            return Some(Some(Arc::clone(server)));
        }
        // If all servers are left out, only the first attempt uses the route of the target.
        let is_first = tried.servers.is_empty() && !tried.target;
        is_first.then_some(None)
    }

    /// Assigns a call to a server that is left out for a fault, if all other servers are unavailable.
    #[cold]
    fn claim_outlier(
        &self,
        servers: &[Arc<Server>],
        server: &Server,
        tried: &Tried,
        now: Time,
    ) -> Option<(Option<u64>, bool)> {
        let is_ready = |server: &Arc<Server>| {
            !tried.servers.contains(&server.address) && server.standing(now) == Standing::Ready
        };
        let is_last = matches!(server.standing(now), Standing::Outlier(_)) && !servers.iter().any(is_ready);
        let session = server.link.session().filter(|_| is_last)?;
        Some((Some(session.serial), false))
    }

    /// Returns the ready servers that serve the call's service, or all ready servers if none of them does.
    #[cold]
    fn serving<'a>(
        &self,
        servers: &[Arc<Server>],
        ready: Vec<&'a Arc<Server>>,
        tried: &Tried,
    ) -> Vec<&'a Arc<Server>> {
        if !self.watches_health {
            return ready;
        }
        let serving = ready.iter().copied().filter(|server| server.serves(tried.service)).collect::<Vec<_>>();
        if !serving.is_empty() {
            return serving;
        }
        // Connect the other servers for later calls.
        let others = servers.iter().filter(|server| !tried.servers.contains(&server.address));
        others.for_each(|server| server.link.keep());
        ready
    }

    fn pick<'a>(&self, ready: &[&'a Arc<Server>], now: Time) -> &'a Arc<Server> {
        let start = self.start.get_or_init(|| self.target.routes().random());
        let turn = self.chosen.fetch_add(1, Ordering::Relaxed).wrapping_add(*start);
        match self.policy {
            Policy::PickFirst => ready[0],
            Policy::RoundRobin => ready[turn % ready.len()],
            Policy::PowerOfTwo => {
                let (one, other) = two_of(turn, ready.len());
                if ready[other].load(now) < ready[one].load(now) { ready[other] } else { ready[one] }
            }
        }
    }

    /// Records the end of an attempt. Does nothing in a forked child, where a thread of the parent may hold a lock.
    pub(crate) fn ended(&self, chosen: &Chosen, outcome: Result<(), &Status>, now: Time) {
        if self.target.routes().is_forked() {
            return;
        }
        if let Some(server) = &chosen.server {
            server.calls.fetch_sub(1, Ordering::Relaxed);
        }
        match outcome {
            Err(status) if is_away(status) => {
                let servers = self.servers();
                let server = chosen.server.as_ref().or_else(|| self.target_leads_to(&servers));
                if let Some(server) = server {
                    server.leave_out(chosen.session, None, now);
                }
                if status.reason() == Some(Reason::Unreachable)
                    && let Some(server) = &chosen.server
                    && chosen.session.is_none()
                {
                    server.link.route().lose();
                }
                self.target.look_again();
            }
            // A handler replied, or the call was refused for another reason.
            _ => {
                if let Some(server) = &chosen.server {
                    self.record(server, chosen, outcome, now);
                }
                match outcome {
                    Ok(()) => self.budget.succeeded(),
                    Err(status) if is_refusal(status) => {
                        chosen.server.iter().for_each(|server| server.refusals.lock().add(now));
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// Records the outcome of a call for the outlier detection of its server.
    fn record(&self, server: &Arc<Server>, chosen: &Chosen, outcome: Result<(), &Status>, now: Time) {
        let is_fault = outcome.is_err_and(outliers::is_fault);
        let latency = chosen.begun.map(|begun| now - begun);
        if chosen.is_probe
            && let Some(fault) = server.answered_probe(is_fault || self.lags(server, latency, now), now)
        {
            self.log(server, fault, now, false);
        }
        if !self.leaves_out_failing {
            return;
        }
        match outcome {
            Err(_) if is_fault => {
                if server.record.failed() {
                    self.compare(Some(server), now);
                }
            }
            Err(status) if !status.is_own_error() => {}
            _ => server.record.succeeded(latency),
        }
        let due = self.compared.load(Ordering::Relaxed);
        let next = (now + outliers::PERIOD).0;
        if now.0 >= due
            && self.compared.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.compare(None, now);
        }
    }

    /// Returns true if a call to a server took much longer than calls to most others.
    #[cold]
    fn lags(&self, server: &Arc<Server>, latency: Option<Duration>, now: Time) -> bool {
        let servers = self.servers();
        let others = servers.iter().filter(|other| !Arc::ptr_eq(other, server));
        let used = others.filter(|other| other.standing(now) == Standing::Ready);
        latency.is_some_and(|latency| outliers::lags(latency, used.map(|other| other.record.recent())))
    }

    /// Records that the first attempt at a hedged call was slower than the hedge.
    ///
    /// The time until now counts as the latency of the attempt, because a server whose calls are all hedged would otherwise
    /// never count as slow. The attempt also counts as a refused call, because the server would otherwise seem idle and get
    /// more calls. Only one such attempt counts at a time, because at healthy servers such attempts would otherwise
    /// outnumber the calls in progress.
    pub(crate) fn superseded(&self, chosen: &Chosen, now: Time) {
        self.given_up(chosen);
        if let Some(server) = chosen.server.as_ref().filter(|_| !self.target.routes().is_forked()) {
            server.refusals.lock().add_first(now);
            self.record(server, chosen, Ok(()), now);
        }
    }

    /// Compares the servers and leaves out servers that fail or lag. `failed` is a server to check at once after several
    /// failures in a row. If `failed` is `None`, a period has ended and all servers are checked.
    #[cold]
    fn compare(&self, failed: Option<&Arc<Server>>, now: Time) {
        let servers = self.servers();
        let is_out = |server: &Server| server.pause.lock().is_some_and(|pause| pause.fault.is_some());
        let used = servers.iter().filter(|server| server.standing(now) == Standing::Ready && !is_out(server));
        let used = used.map(|server| (server, server.record.recent())).collect::<Vec<_>>();
        let outliers = if let Some(failed) = failed {
            let (own, others) = used.iter().partition::<Vec<_>, _>(|(server, _)| Arc::ptr_eq(server, failed));
            let fails = outliers::most_succeed(others.iter().map(|(_, recent)| *recent));
            own.iter().filter(|_| fails).map(|(server, _)| (*server, Fault::Fails)).collect::<Vec<_>>()
        } else {
            let typical = Typical::new(&used.iter().map(|(_, recent)| *recent).collect::<Vec<_>>());
            used.iter().filter_map(|(server, recent)| Some((*server, typical.judge(recent)?))).collect()
        };
        let already = servers.iter().filter(|server| is_out(server)).count();
        let most = (servers.len() / 3).max(1).saturating_sub(already).min(used.len().saturating_sub(1));
        for (server, fault) in outliers.into_iter().take(most) {
            if server.leave_out(None, Some(fault), now) {
                self.log(server, fault, now, true);
            }
        }
        if failed.is_none() {
            servers.iter().for_each(|server| server.record.begin_period());
        }
    }

    /// Counts and logs that a server is left out, or logs that a server has recovered.
    fn log(&self, server: &Server, fault: Fault, now: Time, is_left_out: bool) {
        let all = &self.target.routes().balanced;
        if is_left_out {
            all.left_out.fetch_add(1, Ordering::Relaxed);
        }
        let Some(suppressed) = all.log.lock().line(now) else { return };
        let (channel, server) = (self.target.to_string(), server.address);
        if is_left_out {
            let (cause, remedy) = match fault {
                Fault::Fails => (
                    "its calls fail, those of most other servers do not",
                    "look at the server's log, or restart it",
                ),
                Fault::Slow => (
                    "its calls take much longer than those of most other servers",
                    "look at the server's load and its network",
                ),
            };
            tracing::warn!(channel, %server, cause, remedy, suppressed, "server left out of a balanced channel");
        } else {
            tracing::info!(channel, %server, suppressed, "server back in a balanced channel");
        }
    }

    /// Records that an attempt was given up.
    pub(crate) fn given_up(&self, chosen: &Chosen) {
        if let Some(server) = &chosen.server {
            server.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes a further attempt from the budget.
    pub(crate) fn take_retry(&self) -> bool {
        self.budget.take()
    }

    /// Chooses the server for a second attempt while the first one is in progress, and takes the attempt from the budget.
    pub(crate) fn choose_hedge(&self, first: &Chosen, tried: &mut Tried, now: Time) -> Option<Chosen> {
        // If the first attempt used the target's route, its server is unknown.
        first.server.as_ref()?;
        if !self.take_retry() {
            return None;
        }
        // A hedge goes only to a server with a session. Other servers are connected for later calls.
        let refused = mem::replace(&mut tried.refused, Refused::Overloaded);
        let chosen = self.choose(tried, now);
        tried.refused = refused;
        if chosen.is_none() {
            self.return_retry();
        }
        chosen
    }

    /// Returns true if a server is left for a further attempt.
    pub(crate) fn has_another(&self, tried: &Tried, now: Time) -> bool {
        self.choose_once(&self.servers(), tried, now).is_some()
    }

    /// Adds the budget as a cause to the status of a call that is not retried, if a server was left for a further attempt.
    pub(crate) fn without_retry(&self, status: Status, tried: &Tried, now: Time) -> Status {
        if !self.has_another(tried, now) {
            return status;
        }
        self.unretried.fetch_add(1, Ordering::Relaxed);
        status.with_cause(&self.budget)
    }

    /// Returns an attempt that was not started to the budget.
    pub(crate) fn return_retry(&self) {
        self.budget.add(TOKEN);
    }

    pub(super) fn report(&self, now: Time) -> Vec<ServerReport> {
        let one = |server: &Arc<Server>| ServerReport {
            target: self.target.to_string(),
            address: server.address,
            state: match server.standing(now) {
                Standing::Ready if server.watches.lock().iter().any(|watched| !watched.is_serving()) => {
                    "not serving"
                }
                Standing::Ready => "up",
                Standing::Connecting => "connecting",
                Standing::Failed => "unreachable",
                Standing::LeftOut => "left out",
                Standing::Outlier(fault) => fault.state(),
            },
            calls: server.calls.load(Ordering::Relaxed),
            unretried: self.unretried.load(Ordering::Relaxed),
            omitted: self.target.route().omitted(),
        };
        self.servers().iter().map(one).collect()
    }

    /// Returns the server to which the route of the target is connected.
    fn target_leads_to<'a>(&self, servers: &'a [Arc<Server>]) -> Option<&'a Arc<Server>> {
        let Phase::Up(peer) = self.target.route().phase().0 else { return None };
        servers.iter().find(|server| server.address == peer)
    }

    /// Updates the list of servers, and returns it.
    fn servers(&self) -> Arc<[Arc<Server>]> {
        Arc::clone(&self.locked_servers().list)
    }

    /// Returns the servers, and watches their health for this service.
    fn watched_servers(&self, service: &'static str) -> Arc<[Arc<Server>]> {
        let mut servers = self.locked_servers();
        if self.watches_health && !servers.services.contains(&service) {
            servers.services.push(service);
            servers.list.iter().for_each(|server| server.watch(service));
        }
        Arc::clone(&servers.list)
    }

    fn locked_servers(&self) -> MutexGuard<'_, Servers> {
        let mut servers = self.servers.lock();
        let is_name = self.target.is_name();
        if is_name || servers.found.is_none() {
            let found = self.target.found();
            let is_same = match (&found, &servers.found) {
                (Some(found), Some(known)) => Arc::ptr_eq(found, known),
                (None, _) => true,
                (Some(_), None) => false,
            };
            if !is_same {
                servers.replace(&self.target, found);
            }
        }
        servers
    }
}

impl Servers {
    /// Replaces the list. Servers that stay keep their state.
    fn replace(&mut self, target: &Link, found: Option<Arc<[PeerKey]>>) {
        let server = |address: &PeerKey| {
            let known = self.list.iter().find(|server| server.address == *address);
            known.map_or_else(|| Arc::new(Server::new(target, *address, &self.services)), Arc::clone)
        };
        self.list = found.iter().flat_map(|found| found.iter()).map(server).collect();
        self.found = found;
    }
}

impl Server {
    fn new(target: &Link, address: PeerKey, services: &[&'static str]) -> Self {
        let link = Link::new(target.routes(), target.target().at(address));
        let (calls, refusals, pause) = (AtomicUsize::new(0), Lock::default(), Lock::default());
        let (record, last_pause, watches) = (Record::default(), Lock::default(), Lock::default());
        let server = Self { address, link, calls, refusals, pause, record, last_pause, watches };
        services.iter().for_each(|service| server.watch(service));
        server
    }

    fn watch(&self, service: &'static str) {
        let watched = self.link.routes().watch(&self.link, service);
        self.watches.lock().push(watched);
    }

    /// Returns false if the server reports that it does not serve this service.
    fn serves(&self, service: &str) -> bool {
        self.watches.lock().iter().all(|watched| watched.service() != service || watched.is_serving())
    }

    /// Returns the state of the server. The state depends on the session, because only some policies maintain the route.
    fn standing(&self, now: Time) -> Standing {
        let Some(session) = self.link.session() else {
            let (reached, _) = self.link.route().reached();
            return if reached == Reached::Failed { Standing::Failed } else { Standing::Connecting };
        };
        let is_in_force = |pause: &Pause| pause.session == session.serial && pause.until > now;
        match self.pause.lock().filter(is_in_force) {
            _ if session.drains => Standing::LeftOut,
            Some(pause) => pause.fault.map_or(Standing::LeftOut, Standing::Outlier),
            None => Standing::Ready,
        }
    }

    /// Assigns a call to the server. Returns the session, and true if the call probes whether the server has recovered.
    /// Returns `None` if the server was left out in the meantime.
    fn claim(&self, now: Time, connect: Connect) -> Option<(Option<u64>, bool)> {
        let Some(Session { serial, drains, .. }) = self.link.session() else { return Some((None, false)) };
        if drains {
            // A call with [`Connect::FailFast`] is sent to the draining server, which refuses it.
            return (connect == Connect::FailFast).then_some((None, false));
        }
        let mut pause = self.pause.lock();
        match &mut *pause {
            Some(pause) if pause.session == serial => {
                if pause.until > now {
                    return None;
                }
                pause.row += 1;
                pause.until = now + pause.length();
                Some((Some(serial), true))
            }
            ended => {
                *ended = None;
                Some((Some(serial), false))
            }
        }
    }

    /// Leaves the server out for a time, because it is unreachable or has a fault. Has no effect if the call belongs to an
    /// earlier session, and does not extend a pause. Returns true if a pause begins.
    fn leave_out(&self, of_call: Option<u64>, fault: Option<Fault>, now: Time) -> bool {
        let Some(Session { serial, .. }) = self.link.session() else { return false };
        if of_call.is_some_and(|session| session != serial) {
            return false;
        }
        let mut pause = self.pause.lock();
        match &mut *pause {
            Some(pause) if pause.session == serial => {
                // An unreachable server gets no calls at all.
                pause.fault = pause.fault.filter(|_| fault.is_some());
                false
            }
            begins => {
                let relapses = |last: &Pause| last.session == serial && now < last.until + RELAPSE;
                let last = self.last_pause.lock().filter(|last| fault.is_some() && relapses(last));
                let new = Pause { until: now, session: serial, row: last.map_or(0, |last| last.row), fault };
                *begins = Some(Pause { until: now + new.length(), ..new });
                true
            }
        }
    }

    /// Records the answer to a probe. Returns the fault if the server has recovered from one.
    fn answered_probe(&self, is_fault: bool, now: Time) -> Option<Fault> {
        let mut pause = self.pause.lock();
        let fault = pause.and_then(|pause| pause.fault);
        if fault.is_some() {
            if is_fault {
                return None;
            }
            *self.last_pause.lock() = pause.map(|pause| Pause { until: now, ..pause });
            self.record.clear();
        }
        *pause = None;
        fault
    }

    /// Returns the total number of calls in progress and of calls refused recently.
    fn load(&self, now: Time) -> usize {
        self.calls.load(Ordering::Relaxed) + self.refusals.lock().count(now)
    }
}

impl Refusals {
    fn add(&mut self, now: Time) {
        self.move_to(now);
        self.current += 1;
    }

    /// Adds a refusal unless the current or previous period contains one.
    fn add_first(&mut self, now: Time) {
        if self.count(now) == 0 {
            self.current = 1;
        }
    }

    /// Returns the number of refusals in the current and previous period.
    fn count(&mut self, now: Time) -> usize {
        self.move_to(now);
        self.current + self.last
    }

    fn move_to(&mut self, now: Time) {
        if now < self.until {
            return;
        }
        let is_next = now < self.until + PAUSE;
        self.last = if is_next { self.current } else { 0 };
        (self.current, self.until) = (0, now + PAUSE);
    }
}

/// Returns true if a call failed because its server drains or is unreachable.
pub(crate) fn is_away(status: &Status) -> bool {
    status.origin() != Origin::Handler
        && matches!(status.reason(), Some(Reason::Draining | Reason::Unreachable))
}

/// Returns true if the server refused a call for lack of room. Such refusals are counted because an overloaded server would
/// otherwise seem idle.
fn is_refusal(status: &Status) -> bool {
    let code = status.code();
    status.origin() == Origin::Peer
        && !status.may_have_run()
        && matches!(code, Code::ResourceExhausted | Code::Unavailable)
}

impl Pause {
    fn length(self) -> Duration {
        PAUSE * (1 << self.row.min(DOUBLINGS))
    }
}

/// Balanced channels of a node, with the routes of their targets.
#[derive(Debug, Default)]
pub(super) struct AllBalanced {
    channels: Lock<Vec<(RouteId, Weak<Balanced>)>>,
    /// Number of times that a server was left out for a fault.
    pub(super) left_out: AtomicU64,
    log: Lock<LogLimit>,
}

impl AllBalanced {
    pub(super) fn add(&self, balanced: &Arc<Balanced>) {
        let mut all = self.channels.lock();
        all.retain(|(_, known)| known.strong_count() > 0);
        all.push((balanced.target.route().id, Arc::downgrade(balanced)));
    }

    /// Returns the channel whose target has this route.
    pub(super) fn get(&self, target: RouteId) -> Option<Arc<Balanced>> {
        self.channels.lock().iter().find(|(id, _)| *id == target)?.1.upgrade()
    }

    pub(super) fn report(&self, now: Time) -> Vec<ServerReport> {
        let all = self.channels.lock().iter().filter_map(|(_, known)| known.upgrade()).collect::<Vec<_>>();
        all.iter().flat_map(|balanced| balanced.report(now)).collect()
    }
}

/// A token bucket that limits further attempts. Each attempt takes a token, and each success returns part of a token.
#[derive(Debug)]
struct RetryBudget {
    /// Remaining budget, in hundredths of a call.
    left: AtomicU32,
    most: u32,
    percent: u32,
}

impl RetryBudget {
    fn new(calls: u32, percent: u32) -> Self {
        let most = calls.saturating_mul(TOKEN);
        Self { left: AtomicU32::new(most), most, percent }
    }

    fn take(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(TOKEN)).is_ok()
    }

    fn succeeded(&self) {
        if self.left.load(Ordering::Relaxed) < self.most {
            self.add(self.percent);
        }
    }

    fn add(&self, hundredths: u32) {
        let add = |left: u32| Some(left.saturating_add(hundredths).min(self.most));
        let _always = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl fmt::Display for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (calls, percent) = (self.most / TOKEN, self.percent);
        write!(
            f,
            "the channel's retry budget ({calls} calls, then {percent} % of those that succeed) is used up; raise it with \
             Balance::retry_budget, or add servers"
        )
    }
}

/// Returns two different random indexes below `count`, or 0 twice if `count` is 1.
fn two_of(turn: usize, count: usize) -> (usize, usize) {
    // splitmix64 maps consecutive turns to unrelated indexes.
    let mut mixed = (turn as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let (high, low) = ((mixed >> 33) as usize, (mixed & 0x7fff_ffff) as usize);
    let one = high % count;
    if count < 2 {
        return (one, one);
    }
    (one, (one + 1 + low % (count - 1)) % count)
}

#[cfg(test)]
mod tests {
    use super::super::failure::Failure;
    use super::super::ready::Ready;
    use super::*;
    use crate::client::routes::opened;
    use crate::client::routes::{Routes, Target};
    use std::collections::{BTreeMap, VecDeque};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use trunkline_testkit::{in_forked_child, runs_alone};
    use trunkline_transport::PeerIdentity;

    const SERVERS: [u16; 2] = [1, 2];

    fn address(port: u16) -> PeerKey {
        PeerKey::new(([127, 0, 0, 1], port).into())
    }

    /// Creates a balanced channel to servers with sessions.
    fn connected(policy: Policy) -> (Arc<Routes>, Arc<Balanced>) {
        let routes = opened();
        for port in SERVERS {
            routes.up(address(port), 1, PeerIdentity::Unproven);
        }
        let link = Link::new(&routes, Target::from(SERVERS.map(address)));
        let balanced = Balanced::new(&link, policy.into()).unwrap();
        (routes, balanced)
    }

    #[test]
    fn servers_with_different_udp_ports_are_distinct() {
        let routes = opened();
        let texts = ["127.0.0.1:1", "127.0.0.1:1/4792", "127.0.0.1:1/4791"];
        let [own, other, same] = texts.map(|text| text.parse::<PeerKey>().unwrap());
        for peer in [own, other] {
            routes.up(peer, 1, PeerIdentity::Unproven);
        }
        let link = Link::new(&routes, Target::from([own, other, same]));
        let balanced = Balanced::new(&link, Policy::RoundRobin.into()).unwrap();
        let addresses = || routes.report().iter().map(|server| server.address).collect::<Vec<_>>();
        assert_eq!(addresses(), [own, other]);
        let chosen = || {
            let mut chosen = [(); 2].map(|()| choose(&balanced, Time::default()).1.to.0);
            chosen.sort();
            chosen
        };
        assert_eq!(chosen(), [own, other]);
        routes.down(other);
        assert_eq!(chosen(), [own, own]);
    }

    /// Chooses the server of a call's first attempt.
    fn choose(balanced: &Balanced, now: Time) -> (Option<u16>, Chosen) {
        let chosen = balanced.choose(&mut Tried::default(), now).unwrap();
        (chosen.server.as_ref().map(|server| server.address.address().port()), chosen)
    }

    fn refused(reason: Reason) -> Status {
        let code = if reason == Reason::Draining { Code::Unavailable } else { Code::ResourceExhausted };
        Status::not_run(code, "no").because(reason).of_peer()
    }

    #[test]
    fn overloaded_server_gets_few_calls_under_power_of_two() {
        let (_routes, balanced) = connected(Policy::PowerOfTwo);
        let overloaded = refused(Reason::Overloaded);
        let (mut held, mut refusals) = (VecDeque::new(), 0);
        let mut now = Time(1_000_000_000);
        // One call is made every 100 us for 4 s. One server refuses every call, and the other has 20 calls in progress.
        for _ in 0..40_000 {
            now += Duration::from_micros(100);
            let (port, chosen) = choose(&balanced, now);
            if port == Some(1) {
                refusals += 1;
                balanced.ended(&chosen, Err(&overloaded), now);
            } else {
                held.push_back(chosen);
            }
            if held.len() > 20
                && let Some(ended) = held.pop_front()
            {
                balanced.ended(&ended, Ok(()), now);
            }
        }
        // The overloaded server gets some calls in each period, which show whether it still refuses calls.
        assert!((20..500).contains(&refusals), "{refusals}");
        now += 2 * PAUSE;
        assert_eq!(balanced.servers().iter().map(|server| server.load(now)).collect::<Vec<_>>(), [0, 20]);
    }

    #[test]
    fn hedging_leaves_calls_evenly_spread_over_healthy_servers() {
        let (_routes, balanced) = connected(Policy::PowerOfTwo);
        // A channel begins at a random server, which slightly affects the distribution of calls in a window.
        balanced.start.set(0).unwrap();
        let mut now = Time(1_000_000_000);
        let mut ends = BTreeMap::<(Time, usize), (Chosen, bool)>::new();
        // One call is made every 100 us. One call in 20 is answered by a hedge after 6 ms. The others take 1 ms.
        for window in 0..20 {
            let mut calls = [0; SERVERS.len()];
            for call in 0..1000 {
                now += Duration::from_micros(100);
                while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
                    let (chosen, is_hedged) = end.remove();
                    if is_hedged {
                        balanced.superseded(&chosen, now);
                    } else {
                        balanced.ended(&chosen, Ok(()), now);
                    }
                }
                let (port, chosen) = choose(&balanced, now);
                calls[usize::from(port.unwrap()) - 1] += 1;
                let is_hedged = two_of(call, 20).0 == 0;
                let time = Duration::from_millis(if is_hedged { 6 } else { 1 });
                ends.insert((now + time, call), (chosen, is_hedged));
            }
            assert!(calls.iter().all(|calls| (450..=550).contains(calls)), "{calls:?} in window {window}");
        }
    }

    #[test]
    fn draining_server_is_left_out_by_every_policy_until_next_session() {
        for policy in [Policy::PickFirst, Policy::RoundRobin, Policy::PowerOfTwo] {
            let (routes, balanced) = connected(policy);
            let peer = address(1);
            let mut now = Time(1_000_000_000);
            for epoch in 1..4 {
                assert!((0..20).any(|_| choose(&balanced, now).0 == Some(1)), "{policy:?}");
                routes.drains(peer, epoch);
                for _ in 0..20 {
                    now += PAUSE;
                    assert_eq!(choose(&balanced, now).0, Some(2), "{policy:?}");
                }
                routes.down(peer);
                routes.up(peer, epoch + 1, PeerIdentity::Unproven);
                // The report of a poller that has not yet processed the new session.
                routes.drains(peer, epoch);
            }
        }
    }

    #[test]
    fn outlier_is_tried_last_and_recovers_by_successful_probe() {
        let (_routes, balanced) = connected(Policy::RoundRobin);
        let mut now = Time(1_000_000_000);
        let server = &balanced.servers()[0];
        assert!(!server.record.failed());
        assert!(server.leave_out(None, Some(Fault::Fails), now));
        let mut tried = Tried::default();
        let mut next = || {
            let chosen = balanced.choose(&mut tried, now)?;
            chosen.server.map(|server| (server.address.address().port(), chosen.is_probe))
        };
        assert_eq!([next(), next()], [Some((2, false)), Some((1, false))]);
        let mut hedged = Tried::default();
        let first = balanced.choose(&mut hedged, now).unwrap();
        assert!(balanced.choose_hedge(&first, &mut hedged, now).is_none());
        now += PAUSE;
        let probe = [(); 2].map(|()| choose(&balanced, now).1).into_iter().find(|chosen| chosen.is_probe);
        balanced.ended(&probe.unwrap(), Ok(()), now);
        assert_eq!((server.standing(now), server.record.recent().failed()), (Standing::Ready, 0));
    }

    #[test]
    fn server_failing_in_next_session_is_left_out_again() {
        let (routes, balanced) = connected(Policy::PickFirst);
        let lost = Status::not_run(Code::Unavailable, "lost").because(Reason::Unreachable);
        let peer = address(1);
        let mut now = Time(1_000_000_000);
        for epoch in 1..4 {
            let (port, chosen) = choose(&balanced, now);
            assert_eq!(port, Some(1));
            balanced.ended(&chosen, Err(&lost), now);
            assert_eq!(choose(&balanced, now).0, Some(2));
            // One call tests whether the server has recovered, and other calls avoid the server.
            now += PAUSE;
            assert_eq!([choose(&balanced, now).0, choose(&balanced, now).0], [Some(1), Some(2)]);
            routes.down(peer);
            routes.up(peer, epoch + 1, PeerIdentity::Unproven);
            // The end of a call in the previous session does not affect the new session.
            balanced.servers()[0].leave_out(chosen.session, None, now);
        }
    }

    #[test]
    fn call_in_pause_tries_connecting_servers_before_failed_ones() {
        let routes = opened();
        let link = Link::new(&routes, Target::from(SERVERS.map(address)));
        let balanced = Balanced::new(&link, Policy::PickFirst.into()).unwrap();
        let now = Time(1_000_000_000);
        let failure = Arc::new(Failure::new(&[], &[], true));
        let failed = || Phase::Failed(Arc::clone(&failure), now + PAUSE);
        balanced.target.route().publish(failed());
        balanced.servers()[0].link.route().publish(failed());
        let mut tried = Tried::default();
        let mut next = || {
            let chosen = balanced.choose(&mut tried, now)?;
            balanced.ended(&chosen, Err(&failure.status()), now);
            Some(chosen.server.map(|server| server.address.address().port()))
        };
        assert_eq!([next(), next(), next(), next()], [Some(None), Some(Some(2)), Some(Some(1)), None]);
    }

    #[test]
    fn fail_fast_call_in_pause_goes_to_connecting_server_and_waiting_call_to_target() {
        let routes = opened();
        let link = Link::new(&routes, Target::from(SERVERS.map(address)));
        let balanced = Balanced::new(&link, Policy::PickFirst.into()).unwrap();
        let now = Time(1_000_000_000);
        let first = |connect, now| {
            let chosen = balanced.choose(&mut Tried::new(connect, ""), now).unwrap();
            chosen.server.map(|server| server.address.address().port())
        };
        balanced.target.route().publish(Phase::Failed(Arc::new(Failure::new(&[], &[], true)), now + PAUSE));
        assert_eq!(first(Connect::FailFast, now), None, "nothing is being connected");
        balanced.servers()[1].link.route().begin();
        assert_eq!(first(Connect::FailFast, now), Some(2));
        assert_eq!(first(Connect::Wait, now), None);
        assert_eq!(first(Connect::FailFast, now + PAUSE), None, "a round may begin");
    }

    #[test]
    fn waiting_call_goes_to_target_while_all_servers_drain() {
        let (routes, balanced) = connected(Policy::RoundRobin);
        balanced.target.route().publish(Phase::Up(address(1)));
        for port in SERVERS {
            routes.drains(address(port), 1);
        }
        let now = Time(1_000_000_000);
        let mut tried = Tried::new(Connect::Wait, "");
        let mut next = || balanced.choose(&mut tried, now).map(|chosen| chosen.server.is_some());
        assert_eq!([next(), next(), next()], [Some(false); 3]);
        let (failure, until) = (Arc::new(Failure::misuse("no port")), now + PAUSE);
        balanced.target.route().publish(Phase::Failed(failure, until));
        assert_eq!(next(), None, "waiting does not mend it");
    }

    #[test]
    fn answered_call_does_not_wait_for_dead_server() {
        let (routes, balanced) = connected(Policy::RoundRobin);
        routes.down(address(2));
        let now = Time(1_000_000_000);
        let next = |reason, phase| {
            balanced.servers()[1].link.route().publish(phase);
            let mut tried = Tried::default();
            assert!(balanced.choose(&mut tried, now).is_some_and(|chosen| chosen.session.is_some()));
            tried.refused(&refused(reason));
            balanced.choose(&mut tried, now).map(|chosen| chosen.server.is_some())
        };
        let failed = || Phase::Failed(Arc::new(Failure::new(&[], &[], true)), now + PAUSE);
        balanced.target.route().publish(Phase::Up(address(1)));
        assert_eq!(next(Reason::Overloaded, Phase::Seeking), None);
        assert_eq!(next(Reason::Draining, Phase::Seeking), Some(true), "it may be starting");
        assert_eq!(next(Reason::Overloaded, failed()), None);
        assert_eq!(next(Reason::Draining, failed()), None);
    }

    #[test]
    fn call_does_not_wait_for_dead_server_while_another_drains() {
        for policy in [Policy::PickFirst, Policy::RoundRobin, Policy::PowerOfTwo] {
            let (routes, balanced) = connected(policy);
            let now = Time(1_000_000_000);
            routes.down(address(2));
            routes.drains(address(1), 1);
            let attempt = |status: Status| {
                let chosen = balanced.choose(&mut Tried::default(), now).unwrap();
                balanced.ended(&chosen, Err(&status), now);
                chosen.server.map(|server| server.address.address().port())
            };
            let lost = || Status::not_run(Code::Unavailable, "lost").because(Reason::Unreachable);
            assert_eq!(attempt(lost()), Some(2), "{policy:?}: it may be starting");
            // A round of attempts at the dead server does not change the choice.
            balanced.servers()[1].link.route().begin();
            assert_eq!(attempt(refused(Reason::Draining)), Some(1), "{policy:?}");
            balanced.servers()[1].link.route().publish(Phase::Idle);
            assert_eq!(attempt(lost()), Some(2), "{policy:?}: it has been told to leave");
        }
    }

    #[test]
    fn call_is_sent_to_few_of_many_dead_servers() {
        let routes = opened();
        let all = (1..=1000).map(address).collect::<Vec<_>>();
        let link = Link::new(&routes, Target::from(all));
        let balanced = Balanced::new(&link, Policy::RoundRobin.into()).unwrap();
        let now = Time(1_000_000_000);
        for phase in [Phase::Idle, Phase::Failed(Arc::new(Failure::new(&[], &[], true)), now + PAUSE)] {
            for server in balanced.servers().iter() {
                server.link.route().publish(phase.clone());
            }
            let mut tried = Tried::default();
            let mut attempts = 0;
            while attempts < 1000 && balanced.choose(&mut tried, now).is_some() {
                attempts += 1;
            }
            assert_eq!((attempts, tried.target), (1 + MOST_UNCONNECTED, true), "{phase:?}");
        }
        // A server with a session still gets the call.
        let mut tried = Tried { unconnected: MOST_UNCONNECTED, target: true, ..Tried::default() };
        routes.up(address(900), 1, PeerIdentity::Unproven);
        let chosen = balanced.choose(&mut tried, now).and_then(|chosen| chosen.server);
        assert_eq!(chosen.map(|server| server.address), Some(address(900)));
    }

    #[test]
    fn channels_begin_at_random_servers_except_with_pick_first() {
        let firsts = |policy| {
            let (routes, _) = connected(policy);
            let first = || {
                let link = Link::new(&routes, Target::from(SERVERS.map(address)));
                let balanced = Balanced::new(&link, Balance::from(policy)).unwrap();
                choose(&balanced, Time(1_000_000_000)).0
            };
            let firsts = (0..64).map(|_| first()).collect::<Vec<_>>();
            SERVERS.map(|port| firsts.contains(&Some(port)))
        };
        assert_eq!(firsts(Policy::RoundRobin), [true, true]);
        assert_eq!(firsts(Policy::PowerOfTwo), [true, true]);
        assert_eq!(firsts(Policy::PickFirst), [true, false]);
    }

    #[test]
    fn balanced_channel_is_ready_when_any_server_is() {
        let routes = opened();
        let link = Link::new(&routes, Target::from(SERVERS.map(address)));
        let balanced = Balanced::new(&link, Policy::PickFirst.into()).unwrap();
        let failure = Arc::new(Failure::new(&[], &[], true));
        balanced.target.route().publish(Phase::Failed(failure, Time(u64::MAX)));
        routes.up(address(2), 1, PeerIdentity::Unproven);
        let mut ready = pin!(Ready::of_any(&balanced));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(ready.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    }

    #[test]
    fn end_of_call_in_forked_child_does_not_lock() {
        if !runs_alone(module_path!(), "end_of_call_in_forked_child_does_not_lock") {
            return;
        }
        let (_routes, balanced) = connected(Policy::PickFirst);
        let lost = Status::not_run(Code::Unavailable, "lost").because(Reason::Unreachable);
        let now = Time(1_000_000_000);
        let (_, chosen) = choose(&balanced, now);
        // Simulates a lock held by a thread that does not exist in the child.
        let _servers = balanced.servers.lock();
        in_forked_child(|| balanced.ended(&chosen, Err(&lost), now));
    }

    #[test]
    fn two_choices_differ_and_reach_every_server() {
        for count in 2..6 {
            let mut seen = vec![0; count];
            for turn in 0..1000 {
                let (one, other) = two_of(turn, count);
                assert_ne!(one, other);
                seen[one] += 1;
            }
            assert!(seen.iter().all(|&times| times > 500 / count), "{seen:?}");
        }
        assert_eq!(two_of(7, 1), (0, 0));
    }

    #[test]
    fn budget_allows_burst_and_then_part_of_successes() {
        let budget = RetryBudget::new(3, 20);
        let taken = |budget: &RetryBudget| (0..100).take_while(|_| budget.take()).count();
        assert_eq!(taken(&budget), 3);
        (0..10).for_each(|_| budget.succeeded());
        assert_eq!(taken(&budget), 2);
        (0..1000).for_each(|_| budget.succeeded());
        assert_eq!(taken(&budget), 3);
    }
}
