//! Tracks which handler or task a poller runs and what the poller's thread does, so that stalls can be reported.

use crate::executor::on_poller;
use crate::wire::name::MethodName;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const NOBODY: u32 = 0;
const TASK: u32 = u32::MAX;

/// The marker for the code that one poller runs.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct RunningHandler {
    /// Index of the running method in `methods` plus one, or one of the constants above.
    now: AtomicU32,
    /// Number of the poller's turns.
    turns: AtomicU32,
    methods: OnceLock<Vec<&'static MethodName>>,
    /// The poller's thread; `None` if `/proc` is not available.
    thread: OnceLock<Option<ThreadStat>>,
}

/// The code that occupies a poller's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occupation {
    /// A handler of this method, or a handler's destructor.
    Handler(&'static MethodName),
    /// A task started with `run_on` or `spawn`.
    Task,
    /// No code of the program.
    Nothing,
}

impl RunningHandler {
    /// Sets the methods to which the indices refer. Called once, before any of the methods runs.
    pub(crate) fn set_methods(&self, methods: Vec<&'static MethodName>) {
        let _first = self.methods.set(methods);
    }

    /// Records that the poller runs on the calling thread.
    pub(crate) fn runs_here(&self) {
        let _first = self.thread.set(ThreadStat::current());
    }

    /// Returns the state and CPU time of the poller's thread, if known.
    pub(crate) fn thread_time(&self) -> Option<ThreadTime> {
        self.thread.get()?.as_ref()?.read()
    }

    /// Records that the poller begins a turn.
    #[inline]
    pub(crate) fn turn_begins(&self) {
        // Load and store suffice, because only the poller changes the number.
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the number of the poller's current turn. Each turn has a different number.
    pub(crate) fn turn(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Records that a handler of this method is about to be polled or dropped.
    #[inline]
    pub(crate) fn handler(&self, method: u32) {
        self.now.store(method.saturating_add(1), Ordering::Relaxed);
        on_poller::set_in_handler(true);
    }

    /// Records that a task is about to be polled or dropped.
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

    /// Returns the code that the poller ran last. That code may already have returned.
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

/// Unit of CPU times in `/proc`. On all common architectures, Linux reports them in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// A thread of this process.
#[derive(Debug)]
pub(crate) struct ThreadStat(PathBuf);

impl ThreadStat {
    /// Returns the calling thread, or `None` if `/proc` is not available.
    pub(crate) fn current() -> Option<Self> {
        let thread = std::fs::read_link("/proc/thread-self").ok()?;
        Some(Self(Path::new("/proc/self/task").join(thread.file_name()?).join("stat")))
    }

    /// Returns the thread's current state and CPU time, or `None` if the thread has ended.
    pub(crate) fn read(&self) -> Option<ThreadTime> {
        ThreadTime::parse(&std::fs::read_to_string(&self.0).ok()?)
    }
}

/// State of a thread, and the CPU time that it has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadTime {
    /// True if the thread waits in a system call, false if it is runnable or stopped.
    waits: bool,
    used: Duration,
}

impl ThreadTime {
    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may contain any bytes. The state follows it, and the CPU times are 11 and 12 fields
        // after the state.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let waits = matches!(fields.next()?, "S" | "D");
        let mut ticks = fields.skip(10).map(|field| field.parse::<u32>().ok());
        let used = TICK * ticks.next()??.saturating_add(ticks.next()??);
        Some(Self { waits, used })
    }

    /// Returns the part of `passed` during which the thread occupied its poller. `before` is the thread's state at the start
    /// of `passed`.
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
    use std::hint::black_box;
    use std::sync::mpsc::channel;
    use trunkline_testkit::wait_until;

    const MINUTE: Duration = Duration::from_secs(60);

    fn stat(state: char, ticks: [u32; 2]) -> ThreadTime {
        let [user, system] = ticks;
        let text = format!("42 (a) name (b)) {state} 1 2 3 4 5 6 7 8 9 10 {user} {system} 0 0 20");
        ThreadTime::parse(&text).unwrap()
    }

    #[test]
    fn waiting_for_cpu_does_not_hold_poller() {
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
    fn thread_is_seen_to_compute_and_to_wait() {
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
