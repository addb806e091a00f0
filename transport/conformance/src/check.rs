//! Reports of deviations from the contract.

use std::fmt::Debug;
use std::io;
use trunkline_testkit::ProcessError;
use trunkline_verbs::{MemoryError, PostError, VerbsError};

/// The reason why a check did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deviation {
    /// The device deviates from the contract.
    Failed(String),
    /// The device or the host does not meet a requirement of the check.
    Skipped(String),
}

/// The result of a check.
pub(crate) type Verdict<T = ()> = Result<T, Deviation>;

pub(crate) const EAGAIN: i32 = 11;
pub(crate) const EBUSY: i32 = 16;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EOPNOTSUPP: i32 = 95;

impl From<VerbsError> for Deviation {
    fn from(error: VerbsError) -> Self {
        Self::Failed(format!("a verb was refused: {error}"))
    }
}

impl From<PostError> for Deviation {
    fn from(error: PostError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<MemoryError> for Deviation {
    fn from(error: MemoryError) -> Self {
        Self::Failed(format!("the suite's own memory: {error}"))
    }
}

impl From<io::Error> for Deviation {
    fn from(error: io::Error) -> Self {
        Self::Skipped(format!("the host does not provide what the item needs: {error}"))
    }
}

impl From<ProcessError> for Deviation {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::Start { cause, .. } => cause.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Returns an error with the text of `otherwise` unless `holds` is true.
pub(crate) fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(Deviation::Failed(otherwise())) }
}

/// Returns an error unless two values are equal.
pub(crate) fn equal<T: PartialEq + Debug>(what: &str, got: T, wanted: T) -> Verdict {
    check(got == wanted, || format!("{what}: {got:?} instead of {wanted:?}"))
}

/// Returns an error unless a verb was refused with `errno`.
pub(crate) fn refused<T>(what: &str, result: Result<T, VerbsError>, errno: i32) -> Verdict {
    match result {
        Ok(_) => Err(Deviation::Failed(format!("{what} was allowed; it must fail with errno {errno}"))),
        Err(error) => check(error.errno() == errno, || {
            format!("{what} was refused with errno {} ({error}) instead of {errno}", error.errno())
        }),
    }
}

/// Returns an error unless a post was refused with `EINVAL` at its first request (`bad_wr`).
pub(crate) fn post_refused(what: &str, result: Result<(), PostError>) -> Verdict {
    if let Err(error) = result {
        equal(&format!("{what}: the refused request"), error.index, 0)?;
    }
    refused(what, result.map_err(|error| error.cause), EINVAL)
}
