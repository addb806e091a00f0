//! Logs warnings about handlers and tasks that stall their poller.
//!
//! The node's control plane runs the watchdog several times within the limit, to compare the turn numbers of the pollers. If
//! a turn lasts longer than the limit while code of the program occupies the poller, the turn is reported once. Pollers only
//! count their turns, and store a number before each poll of a handler or task.
//!
//! The time during which the poller's thread waits for a CPU does not count. `/proc` contains the state and the CPU time of
//! a thread. If the thread waits in a system call, the whole time counts. If it is runnable or stopped, only its CPU time
//! counts.

use crate::executor::inbox::Inboxes;
use crate::executor::running_handler::{Occupation, ThreadTime};
use crate::node::fork_lock::Lock;
use crate::observe::counted;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use trunkline_transport::{EventKind, Held, LogLimit, MethodStatus, NodeEvents, RecordedEvent, Watch};
use trunkline_verbs::Time;

/// Default limit on the time for which code may occupy a poller.
pub(crate) const HOLD_LIMIT: Duration = Duration::from_millis(100);
/// Number of checks within the limit while pollers run.
const LOOKS: u32 = 4;
/// Maximum time between two checks.
const MOST: Duration = Duration::from_millis(250);
/// Minimum time between two checks.
const LEAST: Duration = Duration::from_millis(1);
/// Number of events that are logged for a stalled poller.
const LOGGED_EVENTS: usize = 32;
/// Maximum length of a logged event, in characters.
const LOGGED_CHARS: usize = 160;

/// Last observation of one poller.
#[derive(Debug, Clone, Copy)]
struct Seen {
    turn: u32,
    /// Time of the last check, and state of the poller's thread at that time if it could be read.
    looked: Time,
    thread: Option<ThreadTime>,
    /// Time for which the current turn has held the poller.
    held: Duration,
    is_reported: bool,
}

impl Seen {
    fn new(turn: u32, looked: Time) -> Self {
        Self { turn, looked, thread: None, held: Duration::ZERO, is_reported: false }
    }

    /// Adds the poller's occupied time since the last check to `held`.
    fn goes_on(&mut self, now: Time, thread: Option<ThreadTime>) {
        let passed = now.saturating_duration_since(self.looked);
        self.held += thread.map_or(passed, |thread| thread.held_of(passed, self.thread));
        (self.looked, self.thread) = (now, thread);
    }
}

/// The watchdog of a node's pollers.
#[derive(Debug)]
pub(crate) struct Watchdog {
    inboxes: Arc<Inboxes>,
    /// Events of the node that no poller records.
    events: Arc<NodeEvents>,
    limit: Duration,
    state: Lock<(Vec<Seen>, LogLimit)>,
    /// Number of turns that exceeded the limit.
    held: AtomicU64,
    is_draining: AtomicBool,
}

impl Watchdog {
    /// Creates the watchdog of a node.
    pub(crate) fn new(inboxes: Arc<Inboxes>, events: Arc<NodeEvents>, limit: Duration) -> Arc<Self> {
        let seen = vec![Seen { is_reported: true, ..Seen::new(0, Time(0)) }; inboxes.len()];
        Arc::new(Self {
            inboxes,
            events,
            limit,
            state: Lock::new((seen, LogLimit::default())),
            held: AtomicU64::new(0),
            is_draining: AtomicBool::new(false),
        })
    }

    /// Returns the number of turns reported since the start.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn report(&self, poller: usize, occupation: Occupation, held: Duration, suppressed: u64) {
        tracing::warn!(
            poller,
            occupied_by = %occupation,
            held_ms = held.as_millis(),
            remedy = remedy(occupation),
            suppressed,
            "poller occupied for longer than hold_limit; its other calls wait"
        );
        if tracing::enabled!(tracing::Level::DEBUG) {
            let events = self.events_of(poller);
            let last = events.iter().skip(events.len().saturating_sub(LOGGED_EVENTS));
            let line = |event: &RecordedEvent| format!("{} {event}", event.at_ns);
            let lines = last.map(|event| line(event).chars().take(LOGGED_CHARS).collect::<String>());
            let events = lines.collect::<Vec<_>>().join("; ");
            tracing::debug!(poller, events, "last events of the occupied poller");
        }
    }

    /// Returns the events of a poller, ordered by time.
    fn events_of(&self, poller: usize) -> Vec<RecordedEvent> {
        let inbox = self.inboxes.get(poller);
        let index = u16::try_from(poller).unwrap_or(u16::MAX);
        let mut events = inbox.map(|inbox| inbox.events(index)).unwrap_or_default();
        events.sort_by_key(|event| event.at_ns);
        events
    }

    /// Returns the last events of the node, ordered by time.
    pub(crate) fn events(&self) -> Vec<RecordedEvent> {
        let mut events = self.events.events();
        events.extend((0..self.inboxes.len()).flat_map(|poller| self.events_of(poller)));
        RecordedEvent::in_order(&mut events, self.events.clock());
        events
    }

    fn record_held(&self, poller: usize, occupation: Occupation, time: Duration) {
        let by = match occupation {
            Occupation::Handler(method) => Some((method.service.name, method.name)),
            Occupation::Task | Occupation::Nothing => None,
        };
        self.events.held(Held { poller: u16::try_from(poller).unwrap_or(u16::MAX), by, time });
    }

    /// Records that the node drains.
    pub(crate) fn drains(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        self.events.note(EventKind::Drain);
    }
}

/// Returns the remedy if code holds a poller.
fn remedy(occupation: Occupation) -> &'static str {
    match occupation {
        Occupation::Handler(method) if method.is_of_grpc() => {
            "have the method await, or serve it on a runtime (trunkline_tonic::Server::runtime)"
        }
        Occupation::Handler(_) => {
            "mark the method #[blocking] or #[offload], or have it await; if it is marked, its arguments or reply are \
             large: use Bytes"
        }
        Occupation::Task | Occupation::Nothing => {
            "have the task await, or run it on a thread or runtime of the program"
        }
    }
}

impl Watch for Watchdog {
    fn methods(&self) -> Vec<MethodStatus> {
        let served = counted::report(self.inboxes.iter().map(|inbox| inbox.served()));
        let called = counted::report(self.inboxes.iter().map(|inbox| inbox.called()));
        let handlers = self.inboxes.iter().filter_map(|inbox| match inbox.running().occupation() {
            Occupation::Handler(method) => Some((method.service.name, method.name)),
            Occupation::Task | Occupation::Nothing => None,
        });
        let handlers: Vec<_> = handlers.collect();
        let served = served.iter().map(|method| {
            // A call counts as begun only after its first turn, so a handler that holds its poller is not yet included.
            let holding = handlers.iter().filter(|name| **name == (method.service, method.method)).count();
            let status = MethodStatus::of("server", method);
            MethodStatus { running: status.running.max(holding as u64), ..status }
        });
        served.chain(called.iter().map(|method| MethodStatus::of("client", method))).collect()
    }

    fn record(&self) -> Vec<RecordedEvent> {
        self.events()
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    fn look(&self, now: Time) -> Time {
        let mut state = self.state.lock();
        let (seen, log) = &mut *state;
        let mut any_runs = false;
        for (poller, (inbox, seen)) in self.inboxes.iter().zip(seen).enumerate() {
            let (turn, occupation) = (inbox.running().turn(), inbox.running().occupation());
            any_runs |= turn != seen.turn || occupation != Occupation::Nothing;
            if turn != seen.turn || occupation == Occupation::Nothing {
                *seen = Seen::new(turn, now);
            } else if !seen.is_reported {
                seen.goes_on(now, inbox.running().thread_time());
            }
            if seen.held >= self.limit && !seen.is_reported {
                seen.is_reported = true;
                self.held.fetch_add(1, Ordering::Relaxed);
                self.record_held(poller, occupation, seen.held);
                if let Some(suppressed) = log.line(now) {
                    self.report(poller, occupation, seen.held, suppressed);
                }
            }
        }
        // Checks are less frequent while all pollers sleep.
        let next = if any_runs { self.limit / LOOKS } else { self.limit };
        now + next.clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::inbox::Inbox;
    use crate::node::lifecycle::Lifecycle;
    use crate::wire::name::{MethodName, ServiceName};
    use trunkline_verbs::Clock;

    static SERVICE: ServiceName =
        ServiceName { name: "test.Kv", version: 1, oldest: 1, codec: 0, codec_name: "bincode", hash: 7 };
    static GET: MethodName = MethodName {
        service: &SERVICE,
        name: "get",
        hash: 8,
        one_way: false,
        idempotent: false,
        streams: crate::wire::name::Streams::Neither,
        shapes: None,
    };

    #[test]
    fn remedy_is_blocking_attribute_only_for_native_handlers() {
        static ADAPTED: ServiceName = ServiceName { name: "trunkline.grpc", ..SERVICE };
        static CALL: MethodName = MethodName { service: &ADAPTED, ..GET };
        let is_to_be_marked = |occupation| remedy(occupation).contains("#[blocking]");
        assert!(is_to_be_marked(Occupation::Handler(&GET)));
        assert!(!is_to_be_marked(Occupation::Handler(&CALL)), "tonic generates the method");
        assert!(!is_to_be_marked(Occupation::Task), "a task has no method");
    }

    #[test]
    fn overlong_turn_counts_once_and_sleeping_poller_does_not_count() {
        let lifecycle = Lifecycle::new(2);
        let inboxes = Arc::<Inboxes>::default();
        let inbox = |_| Arc::new(Inbox::new(Arc::clone(&lifecycle), Clock::monotonic()));
        inboxes.open((0..2).map(inbox));
        let events = Arc::new(NodeEvents::new(Clock::monotonic()));
        let watchdog = Watchdog::new(Arc::clone(&inboxes), events, HOLD_LIMIT);
        let at = |ms: u64| Time(1_000_000 * ms);
        let busy = inboxes[1].running();
        busy.set_methods(vec![&GET]);
        busy.turn_begins();
        busy.handler(0);
        assert_eq!(watchdog.look(at(1000)), at(1025), "it looks four times within the limit");
        assert_eq!(busy.occupation().to_string(), "a handler of test.Kv.get");
        let _counters = inboxes[1].served().add(&GET);
        assert_eq!(watchdog.methods()[0].running, 1, "its first turn has not ended");
        let held = |ms: u64| {
            watchdog.look(at(ms));
            watchdog.held()
        };
        assert_eq!((held(1099), held(1100), held(5000)), (0, 1, 1));
        busy.turn_begins();
        assert_eq!((held(5050), held(5149), held(5150)), (1, 1, 2));
        let recorded: Vec<_> = watchdog.events().iter().map(ToString::to_string).collect();
        assert_eq!(recorded, ["poller held, poller 1, test.Kv.get, 100.0ms"; 2]);
        busy.nobody();
        assert_eq!(held(9000), 2, "neither does one that is in its own code");
        assert_eq!(watchdog.look(at(9000)), at(9100), "while pollers sleep it looks once within the limit");
        busy.handler(0);
        assert_eq!((held(9001), held(9050)), (2, 2), "the time before does not count");
    }
}
