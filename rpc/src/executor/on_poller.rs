//! Detects that the current thread is running a poller's handler, task or handler factory.
//!
//! A poller marks its thread while its upper half runs. On such a thread, [`block_on`] would wait for work that only this
//! thread can do. Calls inside `block_on` therefore check the mark and fail. The mark is local to the thread.

use crate::node::lifecycle::Lifecycle;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::cell::Cell;
use std::ptr;

/// Remedy in the error for calls inside `block_on`.
const WOULD_WAIT: &str = "await the call instead: block_on on a poller's thread would wait for itself, since that thread makes the call";

thread_local! {
    static HERE: Here = const {
        Here {
            node: Cell::new(ptr::null()),
            waits: Cell::new(0),
            is_handler: Cell::new(false),
            is_worker: Cell::new(false),
        }
    };
}

struct Here {
    /// Address of the lifecycle of the node whose poller's upper half is on the stack, or null. Used only for comparison.
    node: Cell<*const Lifecycle>,
    /// Number of [`block_on`] calls on the stack above the upper half.
    waits: Cell<u32>,
    /// True if the poller runs a handler.
    is_handler: Cell<bool>,
    /// True for a worker of the pool, which may block.
    is_worker: Cell<bool>,
}

/// Marks the thread as a poller or a worker until it is dropped.
#[derive(Debug)]
pub(crate) struct OnPoller {
    /// Previous value. A simulation runs programs and pollers on one thread.
    node: *const Lifecycle,
    waits: u32,
    is_handler: bool,
    is_worker: bool,
}

impl OnPoller {
    /// Marks the thread as a poller of this node. The node must outlive the guard.
    pub(crate) fn enter(node: &Lifecycle) -> Self {
        Self::enter_as(node, false)
    }

    /// Marks the thread as a worker of this node's pool. Calls on the thread then count as calls from a handler.
    pub(crate) fn enter_worker(node: &Lifecycle) -> Self {
        Self::enter_as(node, true)
    }

    fn enter_as(node: &Lifecycle, is_worker: bool) -> Self {
        HERE.with(|here| Self {
            node: here.node.replace(node),
            waits: here.waits.replace(0),
            is_handler: here.is_handler.replace(is_worker),
            is_worker: here.is_worker.replace(is_worker),
        })
    }
}

impl Drop for OnPoller {
    fn drop(&mut self) {
        HERE.with(|here| {
            here.node.set(self.node);
            here.waits.set(self.waits);
            here.is_handler.set(self.is_handler);
            here.is_worker.set(self.is_worker);
        });
    }
}

/// Guard for a running [`crate::block_on`].
pub(crate) struct Waiting;

impl Waiting {
    pub(crate) fn begin() -> Self {
        HERE.with(|here| here.waits.set(here.waits.get().saturating_add(1)));
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        HERE.with(|here| here.waits.set(here.waits.get().saturating_sub(1)));
    }
}

/// Returns true if waiting on this thread would block the poller that must complete the wait.
#[inline]
fn would_wait() -> bool {
    HERE.with(|here| !here.node.get().is_null() && !here.is_worker.get() && here.waits.get() > 0)
}

/// Returns true if this thread runs the upper half of a poller of this node, or a handler on a worker of the node's pool.
/// Calls on the thread then count as calls from a handler or task.
pub(crate) fn is_of(node: &Lifecycle) -> bool {
    HERE.with(|here| ptr::eq(here.node.get(), node))
}

/// Records that the poller on the stack enters or leaves a handler.
#[inline]
pub(crate) fn set_in_handler(is_handler: bool) {
    HERE.with(|here| here.is_handler.set(is_handler));
}

/// Returns true if this thread is a worker of a pool.
pub(crate) fn is_worker() -> bool {
    HERE.with(|here| here.is_worker.get())
}

/// Returns true if the poller on this thread runs a handler, or the thread is a worker.
#[inline]
pub(crate) fn is_in_handler() -> bool {
    HERE.with(|here| here.is_handler.get())
}

/// Returns the error for a new call on this thread, or `None` if calls are allowed.
#[inline]
pub(crate) fn refusal() -> Option<Status> {
    would_wait().then(|| Status::not_run(Code::Internal, WOULD_WAIT).because(Reason::Misuse))
}

/// Returns the error for waiting on this thread for an earlier call, or `None` if waiting is allowed.
#[inline]
pub(crate) fn interruption() -> Option<Status> {
    would_wait().then(|| Status::ran(Code::Internal, WOULD_WAIT).because(Reason::Misuse))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;

    #[test]
    fn only_waiting_within_poller_is_refused() {
        assert!(block_on(async { refusal() }).is_none(), "on a program's thread");
        let outer = Waiting::begin();
        let (node, other) = (Lifecycle::new(1), Lifecycle::new(1));
        let poller = OnPoller::enter(&node);
        assert!(is_of(&node) && !is_of(&other));
        assert!(refusal().is_none(), "a handler that waits for nothing");
        assert!(!block_on(async { refusal() }).expect("it would wait").may_have_run());
        assert!(block_on(async { interruption() }).expect("it would wait").may_have_run());
        drop(poller);
        assert!(!would_wait(), "the program that waits is no poller's");
        let worker = OnPoller::enter_worker(&node);
        assert!(block_on(async { refusal() }).is_none() && is_of(&node), "a worker may wait");
        assert!(is_in_handler() && is_worker());
        drop(worker);
        assert!(!is_in_handler() && !is_worker());
        drop(outer);
        assert_eq!(HERE.with(|here| here.waits.get()), 0);
        assert!(!is_of(&node));
    }
}
