//! Waiting for a future on any thread. On one with timers of ours nobody else fires them meanwhile.

use crate::context::current_timers;
use crate::on_poller::Waiting;
use crate::wait::{Rest, wait};
use std::time::Duration;

/// Waits for a future: for programs that have no executor.
///
/// A handler, a task of [`crate::Node::run_on`] and a service's maker run on a poller's thread and must not block
/// it: they await calls. Within a `block_on` there, calls of whatever node, and tasks of `run_on`, fail at once with
/// [`Code::Internal`](crate::Code::Internal) and [`Reason::Misuse`](crate::Reason::Misuse). A call that was made before, as that of `block_on(client.get(key))` is, is
/// cancelled, and counts as one that may have run. Other futures are waited for, while all of the poller's calls wait. Waiting by other means,
/// such as another executor's `block_on`, cannot be noticed here: the poller would stand still until the call's
/// outcome, which only it can bring.
///
/// `#[offload]` and `#[blocking]` methods run in the worker pool, where it waits as on any other thread. [`crate::sleep`] and
/// [`crate::timeout`] go on meanwhile.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let _waiting = Waiting::begin();
    let Some(timers) = current_timers() else { return futures_lite::future::block_on(future) };
    let look = || {
        timers.fire(timers.clock().now());
        match timers.next() {
            Some(next) => Rest::For(Duration::from_nanos(next.since(timers.clock().now()))),
            None => Rest::Forever,
        }
    };
    wait(future, look).unwrap_or_else(|| unreachable!("it is not given up"))
}
