//! Errors that end the demo without a report.

use std::io;
use trunkline::Status;

/// Error that ends the demo without a report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// An operating system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A file or directory cannot be used.
    #[error("{path}: {cause}")]
    File {
        /// Path of the file or directory.
        path: String,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The node cannot start.
    #[error("the node could not start: {0}")]
    Start(String),
    /// A call failed.
    #[error("{what}: {status}")]
    Call {
        /// Purpose of the call.
        what: &'static str,
        /// Status of the call.
        status: Status,
    },
    /// The server process exited before it listened, after printing the reason.
    #[error("the server did not start")]
    NoServer,
    /// A small call returned a number different from its argument.
    #[error("a small call was answered wrongly")]
    WrongAnswer,
    /// A signal ended the demo.
    #[error("stopped by a signal")]
    Stopped,
}

impl Failure {
    /// Returns a closure for `map_err` that adds the purpose of the call to a status.
    pub(crate) fn call(what: &'static str) -> impl Fn(Status) -> Self {
        move |status| Self::Call { what, status }
    }

    /// Returns a closure for `map_err` that adds the path of the file to an error.
    pub(crate) fn file(path: &std::path::Path) -> impl Fn(io::Error) -> Self {
        move |cause| Self::File { path: path.display().to_string(), cause }
    }
}
