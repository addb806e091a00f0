//! Records which handler or task a poller is running, so that a stall can be attributed.
//!
//! The poller stores a number before each poll of a handler or task; other threads read it. The number has a
//! cache line to itself, so the store costs no more than one to the poller's own memory. Code on the poller's thread
//! asks [`on_poller`] instead, which this module updates.

use crate::executor::on_poller;
use crate::executor::watchdog::thread_time::{ThreadStat, ThreadTime};
use crate::wire::name::MethodName;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

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
