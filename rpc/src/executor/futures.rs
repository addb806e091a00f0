//! Sleeping, time limits and blocking, for handlers and tasks. All of them depend on the poller or worker that runs on the
//! current thread.

use crate::call::context::current_timers;
use crate::executor::on_poller::Waiting;
use crate::executor::timers::{SetTimer, Timers};
use crate::executor::wait::{Rest, wait};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline_verbs::Time;

/// Blocks on a future, for programs without an executor.
///
/// Handlers, tasks of [`crate::Node::run_on`] and handler factories run on a poller's thread and must not block it. Await
/// calls there instead. Inside `block_on` on such a thread, calls from any node and tasks of `run_on` fail at once with
/// [`Code::Internal`](crate::Code::Internal) and [`Reason::Misuse`](crate::Reason::Misuse). A call that has already started,
/// as in `block_on(client.get(key))`, is cancelled and may have run. Waiting for other futures stalls all calls on the
/// poller. Blocking by other means, such as another executor's `block_on`, is not detected, and causes a deadlock if it
/// waits for a call on the same poller.
///
/// `block_on` also works in destructors of thread-local values and in `atexit` handlers.
///
/// `#[offload]` and `#[blocking]` methods run in the worker pool, where `block_on` blocks as it does on any other thread.
/// [`crate::sleep`] and [`crate::timeout`] continue to work there.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let _waiting = Waiting::begin();
    let timers = current_timers();
    let look = || {
        let Some(timers) = &timers else { return Rest::Forever };
        if timers.fire(timers.clock().now()) {
            return Rest::For(Duration::ZERO);
        }
        match timers.next() {
            Some(next) => Rest::For(Duration::from_nanos(next.since(timers.clock().now()))),
            None => Rest::Forever,
        }
    };
    wait(future, look).unwrap_or_else(|| unreachable!("it is not given up"))
}

/// Panic message for code without timers, with the alternatives.
const NO_TIMERS: &str = "trunkline::sleep and trunkline::timeout work in handlers, in tasks of a node's pollers, and in its worker pool; \
     elsewhere use the timers of the executor that runs this code";

/// Waits for `duration`. Works in handlers, in tasks of [`Node::run_on`](crate::Node::run_on) and [`spawn`](crate::spawn),
/// and in `#[offload]` and `#[blocking]` methods.
///
/// Sleeping does not occupy the poller or the worker, except in a `#[blocking]` method. Timers of the pool are late while
/// all workers are busy.
///
/// # Panics
/// Panics in all other code. Use the executor's own timers there, such as `tokio::time::sleep`.
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

/// The future returned by [`sleep`], which completes at a point in time.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    at: Time,
    set: Option<(Arc<Timers>, SetTimer)>,
}

impl Sleep {
    /// Begins a wait that any executor may poll. Call this before the owner of the timers sleeps.
    pub(crate) fn with_timers(timers: &Arc<Timers>, at: Time) -> Self {
        Self { at, set: Some((Arc::clone(timers), timers.set(at, Waker::noop()))) }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        if let Some((timers, set)) = &self.set {
            // The waker is set before the check, because the timer may fire in between.
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

/// The error of a future that did not complete within its [`timeout`](crate::timeout). It converts to a [`Status`] with
/// [`Code::DeadlineExceeded`].
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

/// Limits the time of a future. Resolves to the output of the future. If the future does not complete within `limit`, it is
/// dropped, and the result is [`Elapsed`].
///
/// The time starts when this function is called, not at the first poll. Works wherever [`sleep`] works. Calls have their own
/// time limit, which is also sent to the server, so use this function for other futures.
///
/// # Panics
/// Panics where [`sleep`] panics.
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
