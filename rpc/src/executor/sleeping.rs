//! Sleep for handlers and tasks.

use crate::call::context::current_timers;
use crate::executor::waking::timers::{SetTimer, Timers};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_verbs::Time;

/// Text for code without timers, with the alternatives.
const NO_TIMERS: &str = "trunkline::sleep and trunkline::timeout work in handlers, in tasks of a node's pollers, and in its worker pool; \
     elsewhere use the timers of the executor that runs this code";

/// Waits for `duration`, in a handler, in a task of [`Node::run_on`](crate::Node::run_on) or of
/// [`spawn`](crate::spawn), or in an `#[offload]` or `#[blocking]` method.
///
/// Sleeping occupies neither the poller nor a worker, except in a `#[blocking]` method. Timers of the pool are late while
/// all its workers are busy.
///
/// # Panics
/// Panics anywhere else. Use the executor's own timers there, such as `tokio::time::sleep`.
///
/// ```
/// # use std::time::{Duration, Instant};
/// # let network = trunkline::InProcessNetwork::new();
/// # let node = trunkline::Node::builder().in_process(&network).start().unwrap();
/// let task = node.run_on(trunkline::PollerIndex(0), |_| async {
///     let began = Instant::now();
///     trunkline::sleep(Duration::from_millis(5)).await;
///     began.elapsed()
/// });
/// assert!(trunkline::block_on(task).unwrap() >= Duration::from_millis(5));
/// ```
#[track_caller]
pub fn sleep(duration: Duration) -> Sleep {
    let timers = current_timers().expect(NO_TIMERS);
    Sleep { at: timers.clock().now() + duration, set: None }
}

/// A future that completes at a point in time, from [`sleep`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    at: Time,
    set: Option<(Arc<Timers>, SetTimer)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        if let Some((timers, set)) = &self.set {
            // Set before the check, because the timer may fire in between.
            set.set_waker(task.waker());
            return if timers.is_due(set) { Poll::Ready(()) } else { Poll::Pending };
        }
        let timers = current_timers().expect(NO_TIMERS);
        if timers.clock().now() >= self.at {
            return Poll::Ready(());
        }
        let set = timers.set(self.at, task.waker());
        self.set = Some((timers, set));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((timers, set)) = &self.set {
            timers.remove(set);
        }
    }
}
