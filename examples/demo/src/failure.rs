//! Why the demo could not go on.

use std::io;
use trunkline::Status;

/// An end of the demo other than a report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The operating system refused something.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A file or directory could not be used.
    #[error("{path}: {cause}")]
    File {
        /// Which.
        path: String,
        /// Why.
        cause: io::Error,
    },
    /// The node could not start.
    #[error("the node could not start: {0}")]
    Start(String),
    /// A call ended with an error.
    #[error("{what}: {status}")]
    Call {
        /// What was being done.
        what: &'static str,
        /// How the call ended.
        status: Status,
    },
    /// The server process ended before it listened; it has said why itself.
    #[error("the server did not start")]
    NoServer,
    /// A small call was answered with another number.
    #[error("a small call was answered wrongly")]
    WrongAnswer,
    /// A signal asked for an end.
    #[error("stopped by a signal")]
    Stopped,
}

impl Failure {
    /// Makes a closure for `map_err` that tells what was being done.
    pub(crate) fn call(what: &'static str) -> impl Fn(Status) -> Self {
        move |status| Self::Call { what, status }
    }

    /// Makes a closure for `map_err` that tells which file it was.
    pub(crate) fn file(path: &std::path::Path) -> impl Fn(io::Error) -> Self {
        move |cause| Self::File { path: path.display().to_string(), cause }
    }
}
