//! A poller that makes no progress may be held by its handler, or may wait for a CPU on a loaded machine. Only the first
//! is the program's fault. Linux tells them apart: `/proc` has the state of a thread and the CPU time it has used.
//!
//! A thread that waits in a system call holds its poller for all of that time. A thread that is runnable or stopped holds
//! it for the CPU time that it uses.

use std::path::{Path, PathBuf};
use std::time::Duration;

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
