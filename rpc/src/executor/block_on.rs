//! A blocking wait for a future on any thread. On a thread with this crate's timers the wait itself fires them.

use crate::call::context::current_timers;
use crate::executor::on_poller::Waiting;
use crate::executor::waking::wait::{Rest, wait};
use std::time::Duration;

/// Blocks on a future, for programs without an executor.
///
/// Handlers, tasks of [`crate::Node::run_on`] and handler factories run on a poller's thread and must not block it.
/// They await calls instead. Within a `block_on` there, calls of any node and tasks of `run_on` fail at once with
/// [`Code::Internal`](crate::Code::Internal) and [`Reason::Misuse`](crate::Reason::Misuse). A call that was made
/// before, as in `block_on(client.get(key))`, is cancelled and counts as one that may have run. Other futures are
/// waited for, which stalls all of the poller's calls. Blocking by other means, such as another executor's
/// `block_on`, is not detected: if it waits for a call that the same poller makes, the poller waits for itself.
///
/// It also works in destructors of thread-local values and in `atexit` handlers.
///
/// `#[offload]` and `#[blocking]` methods run in the worker pool, where this blocks as on any other thread.
/// [`crate::sleep`] and [`crate::timeout`] keep working there.
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
