//! The error of a future that has not completed in time.

use super::sleeping::sleep;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

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

/// Limits the time of a future. Resolves to its output, or to [`Elapsed`] if it has not completed after `limit`;
/// then the future is dropped.
///
/// The time counts from this call, not from the first poll. Usable wherever [`sleep`] is. A call has its own time
/// limit, which its server learns; use this for other futures.
///
/// # Panics
/// Panics wherever [`sleep`] does.
///
/// ```
/// # use std::time::Duration;
/// # let network = trunkline::InProcessNetwork::new();
/// # let node = trunkline::Node::builder().in_process(&network).start().unwrap();
/// let task = node.run_on(trunkline::PollerIndex(0), |_| async {
///     trunkline::timeout(Duration::from_millis(5), std::future::pending::<()>()).await
/// });
/// assert!(trunkline::block_on(task).unwrap().is_err());
/// ```
#[track_caller]
pub fn timeout<F: Future>(limit: Duration, future: F) -> impl Future<Output = Result<F::Output, Elapsed>> {
    let limit = sleep(limit);
    async move {
        let (mut future, mut limit) = (pin!(future), pin!(limit));
        poll_fn(|task| match future.as_mut().poll(task) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => limit.as_mut().poll(task).map(|()| Err(Elapsed)),
        })
        .await
    }
}
