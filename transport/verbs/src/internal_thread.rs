//! Threads that belong to this library and that its users do not see.
//!
//! A signal for a process goes to any of its threads that does not block it. A program that reads a signal through
//! `signalfd` or `sigwait` must block it in all threads, but cannot do so in the threads of a library. Internal threads
//! therefore block every signal from their first instruction, except signals for the thread's own faults. A blocked fault
//! signal would end the process without its handler.

use nix::sys::signal::{SigSet, Signal};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Builder, JoinHandle};

/// Signals that a fault or `abort` raises in a thread.
const FAULTS: [Signal; 7] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
    Signal::SIGABRT,
    Signal::SIGTRAP,
    Signal::SIGSYS,
];

thread_local! {
    /// Number of the running thread; 0 for threads that this module did not start. It has no destructor, so it
    /// can be read while other thread locals are destroyed.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Number of an internal thread in this process. Unlike a `ThreadId`, it can be compared with the current thread's number
/// after that thread's locals are destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadNumber(u64);

impl ThreadNumber {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns true if the current thread has this number.
    #[must_use]
    pub fn is_current(self) -> bool {
        NUMBER.get() == self.0
    }
}

/// A handle to an internal thread. Dropping it detaches the thread.
#[derive(Debug)]
pub struct InternalThread<T> {
    handle: JoinHandle<T>,
    number: ThreadNumber,
}

impl<T> InternalThread<T> {
    /// Returns the thread's number.
    #[must_use]
    pub const fn number(&self) -> ThreadNumber {
        self.number
    }

    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// The payload of the thread's panic.
    pub fn join(self) -> thread::Result<T> {
        self.handle.join()
    }
}

/// Guard that blocks signals in this thread until it is dropped.
struct Blocked {
    before: SigSet,
}

impl Blocked {
    fn begin() -> io::Result<Self> {
        let mut all = SigSet::all();
        FAULTS.into_iter().for_each(|fault| all.remove(fault));
        let before = SigSet::thread_get_mask()?;
        // Fault signals that the program has blocked stay blocked.
        all.extend(&before);
        all.thread_set_mask()?;
        Ok(Self { before })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // This fails only for an invalid signal set.
        let _restored = self.before.thread_set_mask();
    }
}

/// Starts a thread that blocks all signals except fault signals. The caller's signal mask is unchanged on
/// return.
///
/// # Errors
/// The operating system's error if it cannot create the thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<InternalThread<T>> {
    let number = ThreadNumber::next();
    let run = move || {
        NUMBER.set(number.0);
        run()
    };
    // A new thread inherits the mask of its creator.
    let _blocked = Blocked::begin()?;
    #[allow(clippy::disallowed_methods, reason = "the one place that starts threads of the library")]
    let handle = Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(InternalThread { handle, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_threads_block_all_signals_except_faults() {
        let mut mine = SigSet::empty();
        mine.add(Signal::SIGUSR1);
        mine.thread_set_mask().unwrap();
        let theirs = spawn("internal", || SigSet::thread_get_mask().unwrap()).unwrap().join().unwrap();
        let unblocked = Signal::iterator().filter(|signal| !theirs.contains(*signal));
        let never = [Signal::SIGKILL, Signal::SIGSTOP];
        let unblocked: Vec<_> = unblocked.filter(|signal| !never.contains(signal)).collect();
        assert!(unblocked.iter().all(|signal| FAULTS.contains(signal)), "{unblocked:?}");
        assert_eq!(unblocked.len(), FAULTS.len(), "a fault reaches its handler");
        assert_eq!(SigSet::thread_get_mask().unwrap(), mine, "the creator's mask is as before");
    }
}
