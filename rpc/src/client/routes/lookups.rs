//! Lookups of server addresses. A lookup may block, so each lookup in progress has its own thread. The threads end when the
//! queue is empty. A simulation runs lookups as tasks of a poller instead.

use super::Pollers;
use super::round::{LOOKUP, Round};
use super::route::Route;
use super::target::{Source, Usable, scoped, usable};
use crate::client::routes::id::{Resolved, RouteId};
use crate::executor::runtime_guard::RuntimeGuard;
use crate::executor::wait::{Rest, wait};
use crate::node::fork_lock::Lock;
use crate::status::{MOST_CAUSE_BYTES, cut};
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_machine::rings::panics::catch_or;
use trunkline_transport::PeerKey;
use trunkline_verbs::internal_thread;

/// Maximum number of lookup threads per node. A resolver occupies a thread for up to [`LOOKUP`], or longer if it blocks. If
/// there were fewer threads than targets, unresponsive resolvers would delay all other lookups.
const THREADS: usize = 1024;
/// Maximum number of errors kept from an error and its chain of sources.
const CAUSES: usize = 4;

#[derive(Debug)]
pub(crate) struct Lookup {
    route: Arc<Route>,
    number: u64,
    /// UDP port of the node's device.
    udp_port: u16,
}

impl Lookup {
    pub(super) fn new(route: Arc<Route>, number: u64, udp_port: u16) -> Self {
        Self { route, number, udp_port }
    }

    pub(crate) async fn run(self) -> Resolved {
        let outcome = match &self.route.target.source {
            Source::Resolver(resolver, _) => match resolver.resolve().await {
                Ok(addresses) => found(addresses, self.udp_port).map(|usable| {
                    self.route.tell_omitted(usable.omitted);
                    usable.addresses
                }),
                Err(error) => Err(texts(error.as_ref())),
            },
            _ => Ok(Vec::new()),
        };
        Resolved { route: self.route.id, number: self.number, outcome }
    }

    /// Runs the lookup on this thread, which the lookup may block.
    #[expect(clippy::disallowed_methods, reason = "a simulation runs lookups as tasks")]
    fn run_here(self, runtime_guard: &RuntimeGuard) -> Resolved {
        let (route, number) = (self.route.id, self.number);
        let run = || {
            let _inside = runtime_guard.enter();
            let until = Instant::now() + LOOKUP;
            let look = || match until.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Rest::GiveUp,
                left => Rest::For(left),
            };
            // A lookup that blocks its thread cannot be cancelled.
            let late = || Resolved { route, number, outcome: Err(Round::late_lookup()) };
            wait(self.run(), look).unwrap_or_else(late)
        };
        let panicked = |message: Option<&str>| {
            let text = format!("the resolver panicked: {}", message.unwrap_or("without a message"));
            Resolved { route, number, outcome: Err(vec![text]) }
        };
        catch_or(run, panicked).unwrap_or_else(|panicked| panicked)
    }

    fn failed(&self, error: &dyn Error) -> Resolved {
        Resolved { route: self.route.id, number: self.number, outcome: Err(texts(error)) }
    }
}

/// Returns the usable addresses of a lookup. Runs on the lookup thread, because filtering millions of addresses would keep a
/// poller busy.
///
/// # Errors
/// Returns the reason if no address is usable and the first address requires an interface.
fn found(addresses: Vec<PeerKey>, udp_port: u16) -> Result<Usable, Vec<String>> {
    let why = addresses.first().copied().and_then(scoped);
    let usable = usable(addresses, udp_port);
    why.filter(|_| usable.addresses.is_empty()).map_or(Ok(usable), |why| Err(vec![why]))
}

/// Returns the texts of an error and its sources.
fn texts(error: &dyn Error) -> Vec<String> {
    let mut texts = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next.filter(|_| texts.len() < CAUSES) {
        texts.push(cut(&error.to_string(), MOST_CAUSE_BYTES).to_owned());
        next = error.source();
    }
    texts
}

/// The lookup threads of a node.
pub(crate) struct Lookups {
    runtime_guard: RuntimeGuard,
    /// Receivers of the results.
    pollers: Arc<dyn Pollers>,
    state: Lock<LookupQueue>,
}

#[derive(Debug, Default)]
struct LookupQueue {
    threads: usize,
    /// Routes of the running lookups. Each route has at most one running lookup, so that a blocking resolver occupies a
    /// single thread.
    running: Vec<RouteId>,
    /// Waiting lookups, at most one per route.
    waiting: VecDeque<Lookup>,
}

impl LookupQueue {
    fn is_running(&self, lookup: &Lookup) -> bool {
        self.running.contains(&lookup.route.id)
    }
}

impl Lookups {
    /// Creates an empty queue. Threads start on demand.
    pub(crate) fn new(pollers: &Arc<dyn Pollers>, runtime_guard: RuntimeGuard) -> Arc<Self> {
        Arc::new(Self { runtime_guard, pollers: Arc::clone(pollers), state: Lock::default() })
    }

    /// Queues a lookup, which replaces a queued lookup for the same route.
    pub(crate) fn begin(self: &Arc<Self>, lookup: Lookup) {
        let mut state = self.state.lock();
        // The thread that runs the route's current lookup then runs the new lookup.
        let has_thread = state.threads == THREADS || state.is_running(&lookup);
        state.waiting.retain(|other| other.route.id != lookup.route.id);
        state.waiting.push_back(lookup);
        if has_thread {
            return;
        }
        state.threads += 1;
        drop(state);
        let this = Arc::clone(self);
        // A simulation runs lookups as tasks, and does not get here.
        let started = internal_thread::spawn("trunkline-resolve", move || while this.run_next() {});
        if let Err(error) = started {
            self.not_started(&error);
        }
    }

    /// Runs the next lookup on this thread. Returns false if the queue is empty.
    fn run_next(&self) -> bool {
        let mut state = self.state.lock();
        let next = state.waiting.iter().position(|lookup| !state.is_running(lookup));
        let Some(lookup) = next.and_then(|next| state.waiting.remove(next)) else {
            state.threads -= 1;
            return false;
        };
        let route = lookup.route.id;
        state.running.push(route);
        drop(state);
        let resolved = lookup.run_here(&self.runtime_guard);
        self.state.lock().running.retain(|running| *running != route);
        self.report(resolved);
        true
    }

    /// Handles a failure to start a thread. Queued lookups fail if no other thread exists.
    fn not_started(&self, error: &std::io::Error) {
        let mut state = self.state.lock();
        state.threads -= 1;
        let waiting = if state.threads == 0 { std::mem::take(&mut state.waiting) } else { VecDeque::new() };
        drop(state);
        waiting.iter().for_each(|lookup| self.report(lookup.failed(error)));
    }

    fn report(&self, resolved: Resolved) {
        self.pollers.resolved(resolved);
    }
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups").field("state", &self.state.lock()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use crate::client::routes::id::ExpectedId;
    use crate::client::routes::route::Usage;
    use crate::client::routes::{Resolve, Resolving, Target};
    use std::num::NonZeroU32;

    #[derive(Debug)]
    struct Listed(Vec<PeerKey>);

    impl Resolve for Listed {
        fn resolve(&self) -> Resolving<'_> {
            Box::pin(async { Ok(self.0.clone()) })
        }
    }

    #[test]
    fn poller_gets_only_usable_addresses_of_lookup() {
        let outcome = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
            let id = RouteId(NonZeroU32::MIN);
            let route =
                Route::new(id, Target::resolver(Listed(addresses)), Usage::Sticky, ExpectedId::ADDRESS);
            block_on(Lookup::new(Arc::new(route), 1, 4791).run()).outcome
        };
        let (good, bad) = ("10.0.0.1:7", "0.0.0.0:7");
        assert_eq!(outcome(&[bad, good, bad, good]), Ok(vec![good.parse().unwrap()]));
        assert_eq!(outcome(&["[fe80::1]:7", good]), Ok(vec![good.parse().unwrap()]));
        let [own, other] = ["10.0.0.1:7/4791", "10.0.0.1:7/4792"];
        assert_eq!(outcome(&[own, other, good]), Ok(vec![good.parse().unwrap(), other.parse().unwrap()]));
        assert_eq!(outcome(&[bad]), Ok(Vec::new()));
        let why = outcome(&["[fe80::1]:7", bad]).unwrap_err();
        assert!(why[0].contains("[fe80::1]:7"), "{why:?}");
    }
}
