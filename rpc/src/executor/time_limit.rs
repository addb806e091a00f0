//! A future with a time limit.

use super::elapsed::Elapsed;
use super::sleeping::sleep;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// A future's output, or [`Elapsed`] if it has not ended after so long; then it is dropped. The time counts from now, not from the
/// first poll. Usable where [`sleep`] is.
///
/// A call has a time limit of its own, which its server learns; this is for anything else.
///
/// # Panics
/// Where [`sleep`] does.
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
