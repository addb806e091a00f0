//! Tasks that handlers and tasks of a poller spawn.

use crate::call::context::PollerContext;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::pin::Pin;
use std::task::{Context, Poll};
use trunkline_machine::rings::cell::{self, Getter};

/// Spawns a task on the current poller, alongside its handlers. The future need not be `Send`.
///
/// The task continues when its handle is dropped and when the handler ends. It does not inherit the call's deadline
/// or [`Context`](crate::Context); [`Context::scope`](crate::Context::scope) passes them on. It ends with the node
/// at the latest.
///
/// # Panics
/// Panics anywhere but on a poller. Use the program's own executor outside of nodes, and in `#[offload]` and
/// `#[blocking]` methods.
///
/// ```
/// # let network = trunkline::InProcessNetwork::new();
/// # let node = trunkline::Node::builder().in_process(&network).start().unwrap();
/// let task = node.run_on(trunkline::PollerIndex(0), |_| async {
///     let (one, two) = (trunkline::spawn(async { 1 }), trunkline::spawn(async { 2 }));
///     Ok::<_, trunkline::Status>(one.await? + two.await?)
/// });
/// assert_eq!(trunkline::block_on(task).unwrap(), Ok(3));
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> Spawned<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let poller = PollerContext::current().expect(
        "trunkline::spawn works in handlers and in tasks of a node's pollers; elsewhere use an executor of the program's",
    );
    let (setter, getter) = cell::pair();
    poller.spawn(Box::pin(async move {
        let output = future.await;
        // The output is dropped if the handle is gone.
        let _ = setter.set(output);
    }));
    Spawned(getter)
}

/// A future of a task's output, from [`spawn`]. Dropping it does not stop the task.
#[derive(Debug)]
pub struct Spawned<T>(Getter<T>);

impl<T> Future for Spawned<T> {
    type Output = Result<T, Status>;

    /// Fails with `Internal` when the task has panicked, or has ended with its node.
    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = std::task::ready!(Pin::new(&mut self.0).poll(task));
        let lost = |_| {
            let text = "the task panicked, or its node has shut down";
            Status::ran(Code::Internal, text).because(Reason::Panicked)
        };
        Poll::Ready(ended.map_err(lost))
    }
}
