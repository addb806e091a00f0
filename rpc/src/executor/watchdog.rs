//! Warns of handlers and tasks that keep their poller from going on.
//!
//! The node's control plane calls it a few times within the limit. It compares the numbers of the pollers' turns. A turn that
//! lasts longer than the limit, while code of the program occupies the poller, is reported once. Pollers pay for this by
//! counting their turns, and by storing a number before each poll of a handler or task.
//!
//! Time for which the poller's thread waits for a CPU does not count: it is not the program's fault. Linux tells: `/proc`
//! has the state of a thread and the CPU time it has used. A thread that waits in a system call holds its poller for all of
//! that time. A thread that is runnable or stopped holds it for the CPU time that it uses.

use crate::executor::inbox::Inboxes;
use crate::executor::on_poller;
use crate::node::fork_lock::Lock;
use crate::wire::name::MethodName;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use trunkline_transport::{LogLimit, Watch};
use trunkline_verbs::Time;

/// Default limit on the time for which code may keep a poller.
pub(crate) const HOLD_LIMIT: Duration = Duration::from_millis(100);
/// Looks within the limit while pollers run, and most and least time between two looks.
const LOOKS: u32 = 4;
const MOST: Duration = Duration::from_millis(250);
const LEAST: Duration = Duration::from_millis(1);

/// Last observation of one poller.
#[derive(Debug, Clone, Copy)]
struct Seen {
    turn: u32,
    /// Time of the latest look, and what the poller's thread did then, if that was asked.
    looked: Time,
    thread: Option<ThreadTime>,
    /// Time for which the turn has held the poller.
    held: Duration,
    is_reported: bool,
}

impl Seen {
    fn new(turn: u32, looked: Time) -> Self {
        Self { turn, looked, thread: None, held: Duration::ZERO, is_reported: false }
    }

    /// Adds the time since the latest look to the time for which this turn has held the poller.
    fn goes_on(&mut self, now: Time, thread: Option<ThreadTime>) {
        let passed = now.saturating_duration_since(self.looked);
        self.held += thread.map_or(passed, |thread| thread.held_of(passed, self.thread));
        (self.looked, self.thread) = (now, thread);
    }
}

/// The watch over the pollers of a node.
#[derive(Debug)]
pub(crate) struct Watchdog {
    inboxes: Arc<Inboxes>,
    limit: Duration,
    state: Lock<(Vec<Seen>, LogLimit)>,
    /// Number of turns that took longer than the limit.
    held: AtomicU64,
}

impl Watchdog {
    /// Creates the watch over these pollers, with this limit.
    pub(crate) fn new(inboxes: Arc<Inboxes>, limit: Duration) -> Arc<Self> {
        let seen = vec![Seen { is_reported: true, ..Seen::new(0, Time(0)) }; inboxes.len()];
        Arc::new(Self {
            inboxes,
            limit,
            state: Lock::new((seen, LogLimit::default())),
            held: AtomicU64::new(0),
        })
    }

    /// Returns the number of turns reported since the start.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn report(&self, poller: usize, occupation: Occupation, held: Duration, left_out: u64) {
        tracing::warn!(
            poller,
            occupied_by = %occupation,
            ?held,
            left_out,
            "a poller does not go on, and all its other calls wait: {} (the limit is hold_limit)",
            remedy(occupation)
        );
    }
}

/// Returns what the program can do about code that keeps a poller.
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
                if let Some(left_out) = log.line(now) {
                    self.report(poller, occupation, seen.held, left_out);
                }
            }
        }
        // A node whose pollers sleep is not woken as often.
        let next = if any_runs { self.limit / LOOKS } else { self.limit };
        now + next.clamp(LEAST, MOST)
    }
}

const NOBODY: u32 = 0;
const TASK: u32 = u32::MAX;

/// The marker of one poller.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct RunningHandler {
    /// The number of a method in `methods` plus one, or one of the constants above.
    now: AtomicU32,
    /// Number of the poller's turns.
    turns: AtomicU32,
    methods: OnceLock<Vec<&'static MethodName>>,
    /// The poller's thread; `None` without `/proc`.
    thread: OnceLock<Option<ThreadStat>>,
}

/// The code that occupies a poller's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occupation {
    /// A handler of this method, or the end of one.
    Handler(&'static MethodName),
    /// A task of `run_on` or `spawn`.
    Task,
    /// No code of the program.
    Nothing,
}

impl RunningHandler {
    /// Names the methods that numbers stand for. Called once, before any of them runs.
    pub(crate) fn set_methods(&self, methods: Vec<&'static MethodName>) {
        let _first = self.methods.set(methods);
    }

    /// Records that the poller runs on the calling thread.
    pub(crate) fn runs_here(&self) {
        let _first = self.thread.set(ThreadStat::current());
    }

    /// Returns what the poller's thread is doing, if that is known.
    pub(crate) fn thread_time(&self) -> Option<ThreadTime> {
        self.thread.get()?.as_ref()?.read()
    }

    /// Records that the poller begins a turn.
    #[inline]
    pub(crate) fn turn_begins(&self) {
        // Only the poller stores it.
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the number of the poller's turn, which differs in the next turn.
    pub(crate) fn turn(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Records that a handler of this method is about to be polled, or dropped.
    #[inline]
    pub(crate) fn handler(&self, method: u32) {
        self.now.store(method.saturating_add(1), Ordering::Relaxed);
        on_poller::set_in_handler(true);
    }

    /// Records that a task is about to be polled, or dropped.
    #[inline]
    pub(crate) fn task(&self) {
        self.now.store(TASK, Ordering::Relaxed);
        on_poller::set_in_handler(false);
    }

    /// Records that the poller continues with its own work.
    #[inline]
    pub(crate) fn nobody(&self) {
        self.now.store(NOBODY, Ordering::Relaxed);
        on_poller::set_in_handler(false);
    }

    /// Returns the latest code that the poller was seen to run. The poller may have left it meanwhile.
    pub(crate) fn occupation(&self) -> Occupation {
        match self.now.load(Ordering::Relaxed) {
            NOBODY => Occupation::Nothing,
            TASK => Occupation::Task,
            method => {
                let name = usize::try_from(method - 1).ok().and_then(|at| self.methods.get()?.get(at));
                name.map_or(Occupation::Nothing, |name| Occupation::Handler(name))
            }
        }
    }
}

impl fmt::Display for Occupation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler(method) => write!(f, "a handler of {method}"),
            Self::Task => f.write_str("a task of run_on or spawn"),
            Self::Nothing => f.write_str("no handler or task"),
        }
    }
}

/// Unit of CPU times in `/proc`. Linux reports them in hundredths of a second on all common architectures.
const TICK: Duration = Duration::from_millis(10);

/// A thread of this process.
#[derive(Debug)]
pub(crate) struct ThreadStat(PathBuf);

impl ThreadStat {
    /// Returns the calling thread. Returns `None` without `/proc`.
    pub(crate) fn current() -> Option<Self> {
        let thread = std::fs::read_link("/proc/thread-self").ok()?;
        Some(Self(Path::new("/proc/self/task").join(thread.file_name()?).join("stat")))
    }

    /// Returns the thread's state and CPU time now. Returns `None` if it has ended.
    pub(crate) fn read(&self) -> Option<ThreadTime> {
        ThreadTime::parse(&std::fs::read_to_string(&self.0).ok()?)
    }
}

/// State of a thread, and the CPU time that it has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadTime {
    /// True if it waits in a system call, false if it is runnable or stopped.
    waits: bool,
    used: Duration,
}

impl ThreadTime {
    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may contain anything. The state follows it; CPU times are 11 and 12 fields later.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let waits = matches!(fields.next()?, "S" | "D");
        let mut ticks = fields.skip(10).map(|field| field.parse::<u32>().ok());
        let used = TICK * ticks.next()??.saturating_add(ticks.next()??);
        Some(Self { waits, used })
    }

    /// Returns the part of `passed` that counts as held, for a thread that was `before` at its start.
    pub(crate) fn held_of(self, passed: Duration, before: Option<Self>) -> Duration {
        if self.waits {
            return passed;
        }
        before.map_or(Duration::ZERO, |before| self.used.saturating_sub(before.used)).min(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::inbox::Inbox;
    use crate::node::lifecycle::Lifecycle;
    use crate::wire::name::ServiceName;
    use std::hint::black_box;
    use std::sync::mpsc::channel;
    use trunkline_testkit::wait_until;

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
    fn the_remedy_fits_the_code_that_keeps_the_poller() {
        static ADAPTED: ServiceName = ServiceName { name: "trunkline.grpc", ..SERVICE };
        static CALL: MethodName = MethodName { service: &ADAPTED, ..GET };
        let is_to_be_marked = |occupation| remedy(occupation).contains("#[blocking]");
        assert!(is_to_be_marked(Occupation::Handler(&GET)));
        assert!(!is_to_be_marked(Occupation::Handler(&CALL)), "tonic generates the method");
        assert!(!is_to_be_marked(Occupation::Task), "a task has no method");
    }

    #[test]
    fn a_turn_that_takes_longer_than_the_limit_counts_once_and_a_poller_that_sleeps_does_not() {
        let lifecycle = Lifecycle::new(2);
        let inboxes = Arc::<Inboxes>::default();
        inboxes.open((0..2).map(|_| Arc::new(Inbox::new(Arc::clone(&lifecycle)))));
        let watchdog = Watchdog::new(Arc::clone(&inboxes), HOLD_LIMIT);
        let at = |ms: u64| Time(1_000_000 * ms);
        let busy = inboxes[1].running();
        busy.set_methods(vec![&GET]);
        busy.turn_begins();
        busy.handler(0);
        assert_eq!(watchdog.look(at(1000)), at(1025), "it looks four times within the limit");
        assert_eq!(busy.occupation().to_string(), "a handler of test.Kv.get");
        let held = |ms: u64| {
            watchdog.look(at(ms));
            watchdog.held()
        };
        assert_eq!((held(1099), held(1100), held(5000)), (0, 1, 1));
        busy.turn_begins();
        assert_eq!((held(5050), held(5149), held(5150)), (1, 1, 2));
        busy.nobody();
        assert_eq!(held(9000), 2, "neither does one that is in its own code");
        assert_eq!(watchdog.look(at(9000)), at(9100), "while pollers sleep it looks once within the limit");
        busy.handler(0);
        assert_eq!((held(9001), held(9050)), (2, 2), "the time before does not count");
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn stat(state: char, ticks: [u32; 2]) -> ThreadTime {
        let [user, system] = ticks;
        let text = format!("42 (a) name (b)) {state} 1 2 3 4 5 6 7 8 9 10 {user} {system} 0 0 20");
        ThreadTime::parse(&text).unwrap()
    }

    #[test]
    fn waiting_for_a_cpu_does_not_hold_a_poller() {
        let passed = Duration::from_millis(40);
        let before = stat('R', [5, 1]);
        assert_eq!(stat('R', [5, 1]).held_of(passed, Some(before)), Duration::ZERO, "it got no CPU");
        assert_eq!(stat('T', [5, 1]).held_of(passed, Some(before)), Duration::ZERO, "it was stopped");
        assert_eq!(stat('R', [6, 2]).held_of(passed, Some(before)), Duration::from_millis(20), "it got half");
        assert_eq!(stat('R', [9, 9]).held_of(passed, Some(before)), passed, "no more than has passed");
        assert_eq!(stat('R', [6, 2]).held_of(passed, None), Duration::ZERO, "nothing is known before");
        for state in ['S', 'D'] {
            assert_eq!(
                stat(state, [5, 1]).held_of(passed, Some(before)),
                passed,
                "it waits for something else"
            );
        }
        assert_eq!(ThreadTime::parse("42 (name) R 1 2"), None);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the time of a real thread is tested")]
    fn a_thread_is_seen_to_compute_and_to_wait() {
        let ((tell, told), (go_on, goes_on)) = (channel(), channel::<()>());
        let thread = std::thread::spawn(move || {
            let stat = ThreadStat::current().unwrap();
            let before = stat.read().unwrap();
            let mut sum = 0_u64;
            while stat.read().unwrap().used < before.used + 2 * TICK {
                (0..100_000).for_each(|number| sum = black_box(sum.wrapping_add(number)));
            }
            tell.send(stat).unwrap();
            let _ended = goes_on.recv();
        });
        let stat = told.recv_timeout(MINUTE).unwrap();
        wait_until("the thread waits", MINUTE, || stat.read().unwrap().waits.then_some(()));
        go_on.send(()).unwrap();
        thread.join().unwrap();
        wait_until("the thread has ended", MINUTE, || stat.read().is_none().then_some(()));
    }
}
