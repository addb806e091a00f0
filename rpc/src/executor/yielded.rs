//! Yielding to other tasks.

use std::pin::Pin;
use std::task::{Context, Poll};

/// Yields once, so that other ready tasks run first. Works on any executor.
///
/// A handler that computes for long lets its poller handle messages and timers in between.
///
/// ```
/// # let network = trunkline::InProcessNetwork::new();
/// # let node = trunkline::Node::builder().in_process(&network).start().unwrap();
/// let task = node.run_on(trunkline::PollerIndex(0), |_| async {
///     let mut sum = 0_u64;
///     for part in 0..4 {
///         sum += (0..1000).map(|number| number * part).sum::<u64>();
///         trunkline::yield_now().await;
///     }
///     sum
/// });
/// assert_eq!(trunkline::block_on(task).unwrap(), 6 * 499_500);
/// ```
pub fn yield_now() -> Yielded {
    Yielded { has_yielded: false }
}

/// A future that completes at its second poll, from [`yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Yielded {
    has_yielded: bool,
}

impl Future for Yielded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}
