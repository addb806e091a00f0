//! Errors of processes that a test controls.

use std::io;
use std::process::ExitStatus;

/// Reason why an operation on a process failed. `name` is the name that the test gave to the process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages describe the fields")]
pub enum ProcessError {
    /// The operating system did not start the process.
    #[error("{name} does not start: {cause}")]
    Start { name: String, cause: io::Error },
    /// A line was written after the process's input was closed.
    #[error("the input of {name} is closed")]
    InputClosed { name: String },
    /// The process no longer reads, because it has ended or closed its input.
    #[error("{name} does not read its input, it has crashed or ended: {cause}")]
    Input { name: String, cause: io::Error },
    /// The expected line did not arrive.
    #[error("{name} {}: no {wanted:?}", if *.has_ended { "has ended" } else { "does not answer, it hangs" })]
    Silent { name: String, wanted: String, has_ended: bool },
    /// An answer contains a value that is not a number.
    #[error("{name} answered {answer:?}, which are not numbers")]
    NotNumbers { name: String, answer: String },
    /// The process cannot be killed or waited for.
    #[error("{name} cannot be ended: {cause}")]
    Wait { name: String, cause: io::Error },
    /// The process ended with a failure, or was still running when it should have ended.
    #[error("{name} should have ended with success; {}", .status.map_or("it is still running".to_owned(), |status| status.to_string()))]
    Ended { name: String, status: Option<ExitStatus> },
}
