//! The context of the current thread: a poller's or a worker's turn, the call whose handler is being polled, and the innermost
//! scope of a call.
//!
//! Guards restore the previous values. Values are therefore dropped by guards, never at the end of the thread. The
//! dispatcher brackets each poll of a handler by [`CurrentCall::begin`] and [`CurrentCall::end`], which store a few words. A
//! [`Context`] is created only for a handler that asks for one, and is stored with the handler until it ends.

use super::{Context, Peer, PollerContext};
use crate::executor::on_poller::OnPoller;
use crate::executor::timers::Timers;
use crate::node::lifecycle::{Drain, Lifecycle};
use crate::wire::metadata::Metadata;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::{ManuallyDrop, replace};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use tracing::span::EnteredSpan;
use trunkline_machine::mutant;
use trunkline_transport::PeerKey;
use trunkline_verbs::{Clock, Time};

/// The parts of a handler's call that its own calls inherit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inherited {
    pub(crate) deadline: Option<Time>,
    /// True if the handler's call has a trace.
    pub(crate) is_traced: bool,
}

/// The current call of one poller.
pub(crate) struct CurrentCall {
    clock: Clock,
    /// The drain of its node.
    drain: Arc<Drain>,
    peer: Cell<Option<PeerKey>>,
    /// Deadline of that handler's call.
    deadline: Cell<Option<Time>>,
    /// `None` between two polls.
    context: Cell<Option<Context>>,
    /// True if that handler's call has a trace. False whenever `context` is `None`.
    is_traced: Cell<bool>,
    /// True if a job of the handler that is being dropped was taken out of the pool's queue.
    is_withdrawn: Cell<bool>,
}

impl CurrentCall {
    /// Creates the state in which no handler is being polled.
    pub(crate) fn new(clock: Clock, drain: Arc<Drain>) -> Self {
        Self {
            clock,
            drain,
            peer: Cell::new(None),
            deadline: Cell::new(None),
            context: Cell::new(None),
            is_traced: Cell::new(false),
            is_withdrawn: Cell::new(false),
        }
    }

    /// Records that a handler of this peer is about to be polled for the first time.
    #[inline]
    pub(crate) fn begin(&self, peer: PeerKey, deadline: Option<Time>) {
        self.peer.set(Some(peer));
        self.deadline.set(deadline);
    }

    /// Records that a handler is about to be polled again. `context` is the result of the last
    /// [`CurrentCall::end`].
    pub(crate) fn resume(&self, peer: PeerKey, deadline: Option<Time>, context: Option<Context>) {
        self.begin(peer, deadline);
        if let Some(context) = context {
            self.is_traced.set(context.is_traced());
            self.context.set(Some(context));
        }
    }

    /// Records that the handler was polled. Returns its context if it has asked for one.
    #[inline]
    pub(crate) fn end(&self) -> Option<Context> {
        self.peer.set(None);
        let context = self.context.take();
        if context.is_some() {
            self.is_traced.set(false);
        }
        context
    }

    /// Records that the job of the handler that is being dropped will never begin.
    pub(crate) fn withdraw(&self) {
        self.is_withdrawn.set(true);
    }

    /// Returns true if the job of the handler dropped last was withdrawn, and resets that.
    pub(crate) fn take_withdrawn(&self) -> bool {
        self.is_withdrawn.take()
    }

    /// Returns the drain of its node.
    pub(super) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Returns the peer of the handler that is being polled.
    pub(crate) fn peer(&self) -> Option<PeerKey> {
        self.peer.get()
    }

    /// Returns what its own calls inherit.
    #[inline]
    pub(super) fn inherited(&self) -> Inherited {
        match self.peer.get() {
            Some(_) => Inherited { deadline: self.deadline.get(), is_traced: self.is_traced.get() },
            None => Inherited::default(),
        }
    }

    /// Records that an interceptor has changed its context.
    pub(crate) fn changed(&self, context: &Context) {
        self.is_traced.set(context.is_traced());
    }

    /// Returns its context, and creates it if necessary.
    pub(crate) fn context(&self) -> Option<Context> {
        let peer = self.peer.get()?;
        let context = self.context.take().unwrap_or_else(|| self.make(peer, Metadata::new()));
        self.context.set(Some(context.clone()));
        Some(context)
    }

    /// Does what [`CurrentCall::begin`] does, for a request with metadata, which the context of its handler keeps.
    pub(crate) fn begin_with(&self, peer: PeerKey, deadline: Option<Time>, metadata: Metadata) {
        self.begin(peer, deadline);
        let context = self.make(peer, metadata);
        self.is_traced.set(context.is_traced());
        self.context.set(Some(context));
    }

    fn make(&self, peer: PeerKey, metadata: Metadata) -> Context {
        Context::new(
            self.clock.clone(),
            Arc::clone(&self.drain),
            Peer::new(peer),
            self.deadline.get(),
            metadata,
        )
    }
}

thread_local! {
    // Without a destructor, access costs no more than to a plain variable.
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

/// A poller's turn on this thread, until the guard is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    /// Previous value: a simulation runs programs and pollers on one thread.
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

/// A worker's turn on this thread, until the guard is dropped.
#[derive(Debug)]
pub(crate) struct InPool {
    outer: Option<Arc<Timers>>,
    _mark: OnPoller,
}

impl InPool {
    /// Enters the pool of this node, which outlives the guard, with these timers.
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

/// Returns the timers of the poller or the pool that runs on this thread.
pub(crate) fn current_timers() -> Option<Arc<Timers>> {
    HERE.with(|here| match &**here.poller.borrow() {
        Some(poller) => Some(Arc::clone(poller.timers())),
        None => (**here.pool.borrow()).clone(),
    })
}

/// A scope of a call on this thread, until the guard is dropped.
#[derive(Debug)]
pub(crate) struct Scope {
    outer: Option<Context>,
    /// Span of the call, if an interceptor has set one.
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

/// Returns what calls made here inherit.
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
    /// Returns the poller on whose thread this code runs. `None` outside of handlers and tasks of
    /// [`Node::run_on`](crate::Node::run_on).
    #[must_use]
    pub fn current() -> Option<Self> {
        HERE.with(|here| (**here.poller.borrow()).clone())
    }
}

impl Context {
    /// Returns the context of the handler or the [`Context::scope`] that this code runs in. `None` outside of both,
    /// as in a task of [`Node::run_on`](crate::Node::run_on).
    #[must_use]
    pub fn current() -> Option<Self> {
        HERE.with(|here| match &**here.scope.borrow() {
            Some(scope) => Some(scope.clone()),
            None => here.poller.borrow().as_ref().and_then(|poller| poller.call().context()),
        })
    }

    /// Wraps a future so that [`Context::current`] returns this context while it is polled, on any executor. Calls
    /// made in it inherit this deadline.
    pub fn scope<F>(&self, future: F) -> Scoped<F> {
        Scoped { context: self.clone(), future: Box::pin(future) }
    }
}

/// A future that is polled within a context, from [`Context::scope`].
// It is boxed, since the crate has no `unsafe` by which a field could be pinned.
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

impl fmt::Debug for CurrentCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentCall")
            .field("peer", &self.peer)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
