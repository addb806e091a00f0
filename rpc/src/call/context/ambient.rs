//! The poller or worker that runs on the current thread, and the thread's innermost [`Context::scope`].
//!
//! Guards restore the previous values, so values are dropped by guards and never at the end of the thread.

use super::current::Inherited;
use super::{Context, PollerContext};
use crate::executor::on_poller::OnPoller;
use crate::executor::timers::Timers;
use crate::node::lifecycle::Lifecycle;
use std::cell::RefCell;
use std::mem::{ManuallyDrop, replace};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use tracing::span::EnteredSpan;
use trunkline_machine::mutant;

thread_local! {
    // Without a destructor, access costs no more than access to a plain variable.
    static HERE: Here = const {
        Here {
            poller: RefCell::new(ManuallyDrop::new(None)),
            pool: RefCell::new(ManuallyDrop::new(None)),
            scope: RefCell::new(ManuallyDrop::new(None)),
        }
    };
}

struct Here {
    /// Poller that runs on this thread.
    poller: RefCell<ManuallyDrop<Option<PollerContext>>>,
    /// Timers of the pool whose worker runs on this thread.
    pool: RefCell<ManuallyDrop<Option<Arc<Timers>>>>,
    /// The innermost scope on the stack.
    scope: RefCell<ManuallyDrop<Option<Context>>>,
}

/// Guard of a poller's turn on this thread.
#[derive(Debug)]
pub(crate) struct Entered {
    /// Previous value, restored on drop. A simulation runs programs and pollers on one thread.
    outer: Option<PollerContext>,
}

impl Entered {
    pub(crate) fn enter(poller: PollerContext) -> Self {
        Self { outer: HERE.with(|here| here.poller.borrow_mut().replace(poller)) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let ended = HERE.with(|here| replace(&mut **here.poller.borrow_mut(), self.outer.take()));
        drop(ended);
    }
}

/// Guard of a worker's turn on this thread.
#[derive(Debug)]
pub(crate) struct InPool {
    outer: Option<Arc<Timers>>,
    _mark: OnPoller,
}

impl InPool {
    /// Marks the thread as a worker of this node's pool, with the pool's timers. The node must outlive the guard.
    pub(crate) fn enter(node: &Lifecycle, timers: &Arc<Timers>) -> Self {
        let outer = HERE.with(|here| here.pool.borrow_mut().replace(Arc::clone(timers)));
        Self { outer, _mark: OnPoller::enter_worker(node) }
    }
}

impl Drop for InPool {
    fn drop(&mut self) {
        let ended = HERE.with(|here| replace(&mut **here.pool.borrow_mut(), self.outer.take()));
        drop(ended);
    }
}

/// Returns the timers of the poller or pool that runs on this thread.
pub(crate) fn current_timers() -> Option<Arc<Timers>> {
    HERE.with(|here| match &**here.poller.borrow() {
        Some(poller) => Some(Arc::clone(poller.timers())),
        None => (**here.pool.borrow()).clone(),
    })
}

/// Guard of a call's scope on this thread.
#[derive(Debug)]
pub(crate) struct Scope {
    outer: Option<Context>,
    /// Span of the call, if an interceptor set one.
    _span: Option<EnteredSpan>,
}

impl Scope {
    pub(crate) fn enter(context: Context) -> Self {
        let span = context.span().map(|span| span.clone().entered());
        Self { outer: HERE.with(|here| here.scope.borrow_mut().replace(context)), _span: span }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let ended = HERE.with(|here| replace(&mut **here.scope.borrow_mut(), self.outer.take()));
        drop(ended);
    }
}

/// Returns the properties that calls made on this thread inherit.
#[inline]
pub(crate) fn inherited() -> Inherited {
    let inherited = HERE.with(|here| match &**here.scope.borrow() {
        Some(scope) => Inherited { deadline: scope.due(), is_traced: scope.is_traced() },
        None => here.poller.borrow().as_ref().map(|poller| poller.call().inherited()).unwrap_or_default(),
    });
    if mutant!(nested_calls_start_again) {
        return Inherited { deadline: None, ..inherited };
    }
    inherited
}

impl PollerContext {
    /// Returns the poller on whose thread this code runs. Returns `None` outside of handlers and tasks of
    /// [`Node::run_on`](crate::Node::run_on).
    #[must_use]
    pub fn current() -> Option<Self> {
        HERE.with(|here| (**here.poller.borrow()).clone())
    }
}

impl Context {
    /// Returns the context of the handler or the [`Context::scope`] that this code runs in. Returns `None` outside of both,
    /// for example in a task of [`Node::run_on`](crate::Node::run_on).
    #[must_use]
    pub fn current() -> Option<Self> {
        HERE.with(|here| match &**here.scope.borrow() {
            Some(scope) => Some(scope.clone()),
            None => here.poller.borrow().as_ref().and_then(|poller| poller.call().context()),
        })
    }

    /// Wraps a future so that [`Context::current`] returns this context while the future is polled, on any executor. Calls
    /// made by the future inherit the deadline of this context.
    pub fn scope<F>(&self, future: F) -> Scoped<F> {
        Scoped { context: self.clone(), future: Box::pin(future) }
    }
}

/// A future that is polled within a context, from [`Context::scope`].
// The future is boxed, since pinning a field would require `unsafe`.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Scoped<F> {
    context: Context,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<F::Output> {
        let _scope = Scope::enter(self.context.clone());
        self.future.as_mut().poll(task)
    }
}
