//! The error of a future that has not completed in time.

use crate::reason::Reason;
use crate::status::{Code, Status};

/// The error of a future that has not completed within its [`timeout`](crate::timeout). It converts to a [`Status`]
/// with [`Code::DeadlineExceeded`].
///
/// ```
/// use trunkline::{Code, Elapsed, Reason, Status};
///
/// let status = Status::from(Elapsed);
/// assert_eq!((status.code(), status.reason()), (Code::DeadlineExceeded, Some(Reason::Expired)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time limit has passed")]
pub struct Elapsed;

impl From<Elapsed> for Status {
    fn from(elapsed: Elapsed) -> Self {
        Self::ran(Code::DeadlineExceeded, elapsed.to_string()).because(Reason::Expired)
    }
}
