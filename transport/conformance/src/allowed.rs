//! Checks of outcomes for which the contract allows more than one.
//!
//! The items in [`crate::items`] create a situation and pass its outcome to this module. The module itself uses no device.

use crate::check::{EINVAL, Verdict, check};
use trunkline_verbs::{CompletionStatus as Status, PostError, VerbsError};

/// The outcome of a posted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posted {
    /// The post itself was refused.
    Refused(PostError),
    /// The request was accepted and completed with this status.
    Ended(Status),
    /// The request was accepted and had not completed when the item stopped waiting.
    Waiting,
}

impl Posted {
    fn is_refused_at_once(self) -> bool {
        matches!(self, Self::Refused(error) if error.index == 0 && error.cause.errno() == EINVAL)
    }

    fn has_failed(self) -> bool {
        matches!(self, Self::Ended(status) if !status.is_success())
    }
}

/// Judges a send whose receive is too short or has an invalid key. It must end with NAK 0x61 or 0x63 (contract G10).
pub(crate) fn unusable_receive(what: &str, status: Status) -> Verdict {
    one_of(what, status, &[Status::RemoteInvalidRequest, Status::RemoteOperationError])
}

/// Judges an operation that the target QP's access flags forbid. It must end with the status for an invalid request
/// (contract rocev2 7.9) or for an access error, as on RC (contract R6, F3).
pub(crate) fn denied_by_the_qp(what: &str, status: Status) -> Verdict {
    one_of(what, status, &[Status::RemoteInvalidRequest, Status::RemoteAccessError])
}

/// Judges a request that the QP must not execute in its current state. The post may be refused, or the request may fail or
/// wait.
///
/// One such request is a send before RTS, which some hardware accepts without a check (contract E8). Another is a READ
/// while max_rd_atomic is 0, which may wait like any READ above the limit (contract F5, contract rocev2 7.17).
pub(crate) fn not_executed(what: &str, posted: Posted) -> Verdict {
    let fits = posted.is_refused_at_once() || posted.has_failed() || posted == Posted::Waiting;
    check(fits, || format!("{what}: {posted:?}"))
}

/// Judges an atomic whose local buffer is not 8 bytes long. It must not succeed. The contract does not specify which side
/// detects the error (contract rocev2 7.14).
pub(crate) fn atomic_of_wrong_length(what: &str, posted: Posted) -> Verdict {
    let fits = posted.is_refused_at_once() || posted.has_failed();
    check(fits, || format!("{what}: {posted:?}"))
}

/// Judges a request to raise an INI's number of outstanding READs above its device's limit. A device may accept the request
/// or refuse it with `EINVAL` (contract E1).
pub(crate) fn depth_above_the_device(what: &str, result: Result<(), VerbsError>) -> Verdict {
    check(result.is_ok() || result.is_err_and(|error| error.errno() == EINVAL), || {
        format!("{what}: {result:?}")
    })
}

fn one_of(what: &str, status: Status, allowed: &[Status]) -> Verdict {
    check(allowed.contains(&status), || format!("{what} ended with {status:?}; allowed are {allowed:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Posted = Posted::Refused(PostError { index: 0, cause: VerbsError::Invalid("a test") });
    const REFUSED_LATER: Posted =
        Posted::Refused(PostError { index: 1, cause: VerbsError::Invalid("a test") });
    const BUSY: Posted = Posted::Refused(PostError { index: 0, cause: VerbsError::Busy("a test") });
    const SUCCESS: Posted = Posted::Ended(Status::Success);
    const FAILURE: Posted = Posted::Ended(Status::LocalQpOperationError);

    /// Asserts that a judgement accepts the allowed outcomes and no others.
    fn allows<T: Copy + PartialEq + std::fmt::Debug>(
        judgement: fn(&str, T) -> Verdict,
        allowed: &[T],
        refused: &[T],
    ) {
        for outcome in allowed {
            assert_eq!(judgement("it", *outcome), Ok(()), "{outcome:?} is allowed");
        }
        for outcome in refused {
            assert!(judgement("it", *outcome).is_err(), "{outcome:?} is not allowed");
        }
    }

    #[test]
    fn g10_unusable_receive_is_nak_61_or_63() {
        let refused = [Status::Success, Status::RemoteAccessError, Status::RetryExceeded];
        allows(unusable_receive, &[Status::RemoteInvalidRequest, Status::RemoteOperationError], &refused);
    }

    #[test]
    fn g4_missing_right_of_qp_is_invalid_request_or_access_error() {
        let refused = [Status::Success, Status::RemoteOperationError, Status::RetryExceeded];
        allows(denied_by_the_qp, &[Status::RemoteInvalidRequest, Status::RemoteAccessError], &refused);
    }

    #[test]
    fn g4_atomic_of_wrong_length_is_refused_or_fails() {
        allows(atomic_of_wrong_length, &[REFUSED, FAILURE], &[SUCCESS, REFUSED_LATER, BUSY, Posted::Waiting]);
    }

    #[test]
    fn e8_f5_disallowed_request_is_refused_or_fails_or_waits() {
        allows(not_executed, &[REFUSED, Posted::Waiting, FAILURE], &[SUCCESS, REFUSED_LATER, BUSY]);
    }

    #[test]
    fn f5_device_may_accept_depth_above_announced_limit() {
        let refused = [Err(VerbsError::Busy("a test"))];
        allows(depth_above_the_device, &[Ok(()), Err(VerbsError::Invalid("a test"))], &refused);
    }
}
