//! Guards the program's code on a poller or in the pool. Enters the node's tokio runtime, and detects forks.
//!
//! If the program's code forks and returns in the child too, the child would continue as a second copy of the poller on the
//! same sockets. The child therefore exits when the guard is dropped.

use crate::status::reason::Reason;
use crate::status::{Code, Status};
use trunkline_verbs::fork::Process;

/// The process, and the runtime if the node has one.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeGuard {
    /// The process that runs the node's threads.
    process: Process,
    #[cfg(feature = "tokio")]
    handle: Option<tokio::runtime::Handle>,
}

#[cfg(feature = "tokio")]
type Runtime<'a> = Option<tokio::runtime::EnterGuard<'a>>;
#[cfg(not(feature = "tokio"))]
type Runtime<'a> = std::marker::PhantomData<&'a ()>;

/// Guard that is held while the thread runs code of the program, within the runtime if there is one.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    process: Process,
    _runtime: Runtime<'a>,
}

impl Drop for Inside<'_> {
    /// Ends the process if it is a forked child.
    #[inline]
    fn drop(&mut self) {
        self.process.end_if_forked();
    }
}

impl Default for RuntimeGuard {
    fn default() -> Self {
        Self {
            process: Process::current(),
            #[cfg(feature = "tokio")]
            handle: None,
        }
    }
}

impl RuntimeGuard {
    /// Creates a guard that enters this runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn tokio(handle: tokio::runtime::Handle) -> Self {
        Self { handle: Some(handle), ..Self::default() }
    }

    /// Returns a copy for a node that starts in this process. The node's builder may be older than a fork.
    pub(crate) fn of_this_process(self) -> Self {
        Self { process: Process::current(), ..self }
    }

    /// Enters the runtime, if there is one.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_> {
        Inside {
            process: self.process,
            #[cfg(feature = "tokio")]
            _runtime: self.handle.as_ref().map(tokio::runtime::Handle::enter),
            #[cfg(not(feature = "tokio"))]
            _runtime: std::marker::PhantomData,
        }
    }
}

/// Returns the status of a call whose handler panicked with this message. The status contains no message, only a remedy if
/// the cause is known.
#[cold]
pub(crate) fn panicked(message: Option<&str>) -> Status {
    let text = match message.and_then(remedy) {
        Some(remedy) => format!("the handler panicked: {remedy}"),
        None => "the handler panicked".to_owned(),
    };
    Status::ran(Code::Internal, text).because(Reason::Panicked)
}

/// Returns the remedy for a panic with this message, if the message reports that the tokio runtime or one of its drivers is
/// missing.
fn remedy(message: &str) -> Option<&'static str> {
    // tokio panics with "there is no reactor running, must be called from the context of a Tokio 1.x runtime", or "A Tokio 1.x
    // context was found, but timers are disabled".
    if message.contains("context of a Tokio 1.x runtime") {
        Some(
            "the handler uses tokio, and its node has no tokio runtime: start the node with NodeBuilder::tokio(handle)",
        )
    } else if message.contains("A Tokio 1.x context was found") {
        Some(
            "the tokio runtime of the handler's node lacks what the handler uses: build it with enable_all()",
        )
    } else {
        None
    }
}
