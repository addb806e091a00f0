//! Runs blocking work on separate threads, for async code.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;
use trunkline_machine::rings::cell;
use trunkline_verbs::fork::{FORKED, Process};
use trunkline_verbs::internal_thread;

/// Runs `work` on a new thread. The future resolves to the result of `work`, or to an error if `work` panicked. Dropping the
/// future does not stop the work.
pub(super) fn run<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    name: &str,
    work: F,
) -> impl Future<Output = io::Result<T>> + Send + use<T, F> {
    let (setter, getter) = cell::pair();
    let started = thread(name, move || {
        // Fails if the future was dropped.
        let _ = setter.set(work());
    });
    let process = Process::current();
    async move {
        started?;
        let mut getter = getter;
        let outcome = poll_fn(|context| match Pin::new(&mut getter).poll(context) {
            Poll::Pending if process.is_forked() => Poll::Ready(Err(FORKED)),
            outcome => outcome.map_err(|_| "the thread has panicked"),
        });
        outcome.await.map_err(io::Error::other)
    }
}

/// Runs `work` on a new thread and waits up to `most` until it ends. Returns true if the thread was started.
pub(super) fn run_for(name: &str, most: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (ended, wait) = mpsc::channel();
    let started = thread(name, move || {
        work();
        let _nobody_waits = ended.send(());
    });
    let _ended_or_not = started.as_ref().ok().map(|()| wait.recv_timeout(most));
    started.is_ok()
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // Not a simulated thread, because a simulation starts and ends its nodes itself.
    internal_thread::spawn(name, work).map(drop)
}

/// Returns true if this thread runs a task of a tokio runtime.
#[cfg(feature = "tokio")]
pub(super) fn is_in_a_runtime() -> bool {
    tokio::runtime::Handle::try_current().is_ok()
}

/// Always returns false, because runtimes are not detected without the feature `tokio`.
#[cfg(not(feature = "tokio"))]
pub(super) fn is_in_a_runtime() -> bool {
    false
}
