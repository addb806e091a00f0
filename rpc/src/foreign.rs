//! The tokio runtime for the program's code while a poller or the pool polls it.
//!
//! Without the feature `tokio` there is no runtime, and this module costs nothing.

use crate::reason::Reason;
use crate::status::{Code, Status};

/// The runtime, if the node was given one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Foreign {
    #[cfg(feature = "tokio")]
    handle: Option<tokio::runtime::Handle>,
}

/// The thread is in the runtime until this is dropped.
#[cfg(feature = "tokio")]
type Inside<'a> = Option<tokio::runtime::EnterGuard<'a>>;
#[cfg(not(feature = "tokio"))]
type Inside<'a> = std::marker::PhantomData<&'a ()>;

impl Foreign {
    /// Creates a foreign executor from this runtime.
    #[cfg(feature = "tokio")]
    pub(crate) fn tokio(handle: tokio::runtime::Handle) -> Self {
        Self { handle: Some(handle) }
    }

    /// Enters it, if there is one.
    #[cfg(feature = "tokio")]
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.handle.as_ref().map(tokio::runtime::Handle::enter)
    }

    /// Does nothing.
    #[cfg(not(feature = "tokio"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn enter(&self) -> Inside<'_> {
        std::marker::PhantomData
    }
}

/// The status of a call whose handler has panicked with this message. Its caller learns that only if it names a remedy.
#[cold]
pub(crate) fn panicked(message: Option<&str>) -> Status {
    let text = match message.and_then(remedy) {
        Some(remedy) => format!("the handler panicked: {remedy}"),
        None => "the handler panicked".to_owned(),
    };
    Status::ran(Code::Internal, text).because(Reason::Panicked)
}

/// The remedy for a panic with this message, if the code looked for a tokio runtime and did not find it, or not with what it needs.
fn remedy(message: &str) -> Option<&'static str> {
    // "there is no reactor running, must be called from the context of a Tokio 1.x runtime", and "A Tokio 1.x context was
    // found, but timers are disabled".
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
