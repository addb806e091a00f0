//! Whether the running thread is in a poller's code: in a handler, a task or a service's maker.
//!
//! A poller marks its thread while its upper half works. [`block_on`] there would wait for what only this thread
//! can do, so calls within it look here and fail instead. Nothing here is shared by threads.

use crate::lifecycle::Lifecycle;
use crate::reason::Reason;
use crate::status::{Code, Status};
use std::cell::Cell;
use std::ptr;

/// What callers are told. The remedy is theirs to apply.
const WOULD_WAIT: &str = "await the call instead: block_on on a poller's thread would wait for itself, since that thread makes the call";

thread_local! {
    static HERE: Here = const { Here { node: Cell::new(ptr::null()), waits: Cell::new(0), is_handler: Cell::new(false) } };
}

struct Here {
    /// The node whose poller's upper half is on the stack, by the address of its lifecycle; null if none is. It is only
    /// compared.
    node: Cell<*const Lifecycle>,
    /// How many [`block_on`] are on the stack above it.
    waits: Cell<u32>,
    /// The poller is in a handler.
    is_handler: Cell<bool>,
}

/// The thread is in a poller's code until this is dropped.
#[derive(Debug)]
pub(crate) struct OnPoller {
    /// Before: a simulation runs programs and pollers on one thread.
    node: *const Lifecycle,
    waits: u32,
    is_handler: bool,
}

impl OnPoller {
    /// In that of a poller of this node, which outlives the guard.
    pub(crate) fn enter(node: &Lifecycle) -> Self {
        HERE.with(|here| Self {
            node: here.node.replace(node),
            waits: here.waits.replace(0),
            is_handler: here.is_handler.replace(false),
        })
    }
}

impl Drop for OnPoller {
    fn drop(&mut self) {
        HERE.with(|here| {
            here.node.set(self.node);
            here.waits.set(self.waits);
            here.is_handler.set(self.is_handler);
        });
    }
}

/// A [`block_on`] that waits until this is dropped.
struct Waiting;

impl Waiting {
    fn begin() -> Self {
        HERE.with(|here| here.waits.set(here.waits.get().saturating_add(1)));
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        HERE.with(|here| here.waits.set(here.waits.get().saturating_sub(1)));
    }
}

/// Whether waiting here keeps a poller from doing what is waited for.
fn would_wait() -> bool {
    HERE.with(|here| !here.node.get().is_null() && here.waits.get() > 0)
}

/// Whether a poller of this node is in its upper half on this thread: what is called here, a handler or task calls.
pub(crate) fn is_of(node: &Lifecycle) -> bool {
    HERE.with(|here| ptr::eq(here.node.get(), node))
}

/// The poller whose upper half is on the stack goes into a handler, or out of one.
pub(crate) fn set_in_handler(is_handler: bool) {
    HERE.with(|here| here.is_handler.set(is_handler));
}

/// Whether the poller whose upper half is on the stack is in a handler.
pub(crate) fn is_in_handler() -> bool {
    HERE.with(|here| here.is_handler.get())
}

/// The status of a call that must not be made here, if it must not.
pub(crate) fn refusal() -> Option<Status> {
    would_wait().then(|| Status::not_run(Code::Internal, WOULD_WAIT).because(Reason::Misuse))
}

/// The status of a call, made before, that must not be waited for here.
pub(crate) fn interruption() -> Option<Status> {
    would_wait().then(|| Status::ran(Code::Internal, WOULD_WAIT).because(Reason::Misuse))
}

/// Waits for a future: for programs that have no executor.
///
/// A handler, a task of [`crate::Node::run_on`] and a service's maker run on a poller's thread and must not block
/// it: they await calls. Within a `block_on` there, calls of whatever node, and tasks of `run_on`, fail at once with
/// [`Code::Internal`] and [`Reason::Misuse`]. A call that was made before, as that of `block_on(client.get(key))` is, is
/// cancelled, and counts as one that may have run. Other futures are waited for, while all of the poller's calls wait. Waiting by other means,
/// such as another executor's `block_on`, cannot be noticed here: the poller would stand still until the call's
/// outcome, which only it can bring.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let _waiting = Waiting::begin();
    futures_lite::future::block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waiting_within_a_poller_is_refused() {
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
        drop(outer);
        assert_eq!(HERE.with(|here| here.waits.get()), 0);
        assert!(!is_of(&node));
    }
}
