//! The context of a call, for its handler.

use crate::executor::wakes::Waiters;
use crate::node::fork_lock::Lock;
use crate::node::lifecycle::Drain;
use crate::wire::metadata::{Metadata, ReplyMetadata, TraceContext};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{self, Poll};
use std::time::{Duration, Instant};
use tracing::Span;
#[cfg(feature = "identity")]
use trunkline_transport::identity::Name;
use trunkline_transport::{PeerIdentity, PeerKey};
use trunkline_verbs::{Clock, Time};

/// The node that made a call, from [`Context::peer`].
///
/// Two values are equal if their addresses and principals are equal. Neither changes when the node reconnects or restarts.
#[derive(Clone)]
pub struct Peer {
    key: PeerKey,
    /// Identity in the session of the call.
    identity: PeerIdentity,
}

impl Peer {
    pub(crate) fn new(key: PeerKey, identity: PeerIdentity) -> Self {
        Self { key, identity }
    }

    /// Returns the address that the node listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.key.address()
    }

    /// Returns the UDP port of the node's software device, or `None` if the called node's device has the same port.
    #[must_use]
    pub fn udp_port(&self) -> Option<u16> {
        self.key.udp_port()
    }

    pub(crate) fn key(&self) -> PeerKey {
        self.key
    }

    /// Returns the identity of the node in the session of the call. The identity does not change when the session ends, or
    /// when a node with another name takes the address.
    #[cfg(feature = "identity")]
    #[must_use]
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// Returns the node's [principal](crate::identity::Proven::principal), or `None` if the node has not proved a name.
    #[cfg(feature = "identity")]
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match &self.identity {
            PeerIdentity::Proven(proven) => Some(proven.principal()),
            _ => None,
        }
    }
}

impl PartialEq for Peer {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(feature = "identity")]
        if self.name() != other.name() {
            return false;
        }
        self.key == other.key
    }
}

impl Eq for Peer {}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut peer = f.debug_tuple("Peer");
        peer.field(&self.key);
        if self.identity != PeerIdentity::Unproven {
            peer.field(&format_args!("{}", self.identity));
        }
        peer.finish()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

/// The call served by a handler, with its peer, deadline, metadata and cancellation.
///
/// A method receives it if the trait declares `cx: &Context` as the first argument. This argument is not sent. Other code
/// that a handler runs can call [`Context::current`]. Clones may be sent to other threads and may outlive the call.
///
/// ```
/// use std::time::Duration;
/// use trunkline::{Context, Status, block_on};
///
/// #[trunkline::service]
/// trait Reports {
///     async fn rows(&self, cx: &Context, most: u32) -> Result<u32, Status>;
/// }
///
/// struct Table;
///
/// impl Reports for Table {
///     async fn rows(&self, cx: &Context, most: u32) -> Result<u32, Status> {
///         for row in 0..most {
///             if cx.time_left().is_some_and(|left| left < Duration::from_millis(50)) {
///                 return Ok(row); // as many as the deadline allows
///             }
///             trunkline::yield_now().await;
///         }
///         Ok(most)
///     }
/// }
///
/// // A test calls the handler without a node.
/// assert_eq!(block_on(Table.rows(&Context::detached(), 3))?, 3);
/// # Ok::<(), Status>(())
/// ```
///
/// Calls made by a handler inherit the deadline and the trace of the handler's own call. A time limit on such a call can
/// only shorten the deadline. [`Context::scope`] provides the context to a future on another executor. Calls made in
/// `Context::detached().scope(...)` are independent of the current call.
#[derive(Clone)]
pub struct Context(Arc<ContextInner>);

struct ContextInner {
    clock: Clock,
    /// The drain state of the call's node; `None` in a detached context.
    drain: Option<Arc<Drain>>,
    peer: Option<Peer>,
    deadline: Option<Time>,
    request: Sent,
    /// Changes made by interceptors; unset if there are none.
    changes: OnceLock<Box<Changes>>,
    is_over: AtomicBool,
    /// Waiters for the end of the call.
    waiting: Waiters,
    /// Metadata of the response; `None` until the handler sets any.
    reply: Lock<Option<Box<ReplyMetadata>>>,
}

/// The metadata of a request.
struct Sent {
    metadata: Metadata,
    is_traced: bool,
}

impl Sent {
    fn new(metadata: Metadata) -> Self {
        let is_traced = metadata.has_trace();
        Self { metadata, is_traced }
    }
}

/// Changes made by interceptors.
struct Changes {
    /// New metadata of the request; `None` if unchanged.
    request: Option<Sent>,
    /// Span of the call; disabled if there is none.
    span: Span,
}

impl Context {
    pub(super) fn new(
        clock: Clock,
        drain: Arc<Drain>,
        peer: Peer,
        deadline: Option<Time>,
        metadata: Metadata,
    ) -> Self {
        Self::with(clock, Some(drain), Some(peer), deadline, metadata)
    }

    fn with(
        clock: Clock,
        drain: Option<Arc<Drain>>,
        peer: Option<Peer>,
        deadline: Option<Time>,
        metadata: Metadata,
    ) -> Self {
        let (request, changes) = (Sent::new(metadata), OnceLock::new());
        let (is_over, waiting, reply) = (AtomicBool::new(false), Waiters::default(), Lock::default());
        Self(Arc::new(ContextInner {
            clock,
            drain,
            peer,
            deadline,
            request,
            changes,
            is_over,
            waiting,
            reply,
        }))
    }

    /// Creates a context without a deadline or a peer, which is never cancelled. Calls made in its
    /// [`Context::scope`] inherit nothing.
    #[must_use]
    pub fn detached() -> Self {
        Self::detached_with(Metadata::new())
    }

    /// Creates a detached context with the metadata of a request, for tests that call a handler directly.
    #[must_use]
    pub fn detached_with(metadata: Metadata) -> Self {
        Self::with(Clock::monotonic(), None, None, None, metadata)
    }

    /// Returns the call's deadline, or `None` if the call has no time limit, as in a detached context.
    ///
    /// The request carries the remaining time, so the clocks of the two nodes need not agree. The value is meaningless in a
    /// simulation; use [`Context::time_left`] there.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "it is the program's clock that the program asks for")]
    pub fn deadline(&self) -> Option<Instant> {
        self.time_left().map(|left| Instant::now() + left)
    }

    /// Returns the time left until the deadline, or `None` if the call has no deadline. The time is zero after the deadline.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.0.deadline.map(|deadline| deadline.saturating_duration_since(self.0.clock.now()))
    }

    /// Returns the node that made the call, or `None` if the context is detached.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.0.peer.as_ref()
    }

    /// Returns the metadata of the request, which the caller sets with
    /// [`CallOptions::metadata`](crate::CallOptions::metadata). Calls made by the handler inherit only its trace.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.request().metadata
    }

    /// Returns the trace that the call belongs to, from the metadata keys `traceparent` and `tracestate`. `None` if the
    /// metadata contains no trace or a malformed one.
    ///
    /// Calls made by the handler continue the trace. Their requests contain the same two keys, unless the call's options
    /// contain a `traceparent`. The size of `tracestate` is limited as in [`TraceContext::of`]. If the metadata of such a
    /// call exceeds [`NodeBuilder::metadata_bytes`](crate::NodeBuilder::metadata_bytes) at the client or the server,
    /// `tracestate` is dropped first, and then `traceparent`.
    #[must_use]
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of(self.metadata())
    }

    /// Sets the metadata for the start of the response, and replaces metadata set earlier.
    ///
    /// If the handler returns a stream, the metadata is sent when the stream is returned, and metadata set later is dropped.
    ///
    /// Otherwise the metadata is sent with the outcome of the call, whether the handler succeeds, fails or panics. The
    /// metadata is dropped if the call is one-way or was cancelled. If the total metadata of the response exceeds
    /// [`NodeBuilder::metadata_bytes`](crate::NodeBuilder::metadata_bytes), the call fails with `ResourceExhausted`.
    pub fn set_initial_metadata(&self, metadata: Metadata) {
        self.0.reply.lock().get_or_insert_default().initial = metadata;
    }

    /// Sets the metadata for the end of the response, and replaces metadata set earlier. See also
    /// [`Context::set_initial_metadata`].
    ///
    /// A handler's stream can store a clone of the context, and set the metadata until the stream ends.
    ///
    /// The metadata of a [`Status`](crate::Status) that the handler returns is appended to this metadata.
    pub fn set_trailing_metadata(&self, metadata: Metadata) {
        self.0.reply.lock().get_or_insert_default().trailing = metadata;
    }

    /// Takes the metadata for the start of a response that begins before the call ends.
    pub(crate) fn take_initial_metadata(&self) -> Metadata {
        self.0.reply.lock().as_mut().map(|reply| std::mem::take(&mut reply.initial)).unwrap_or_default()
    }

    /// Restores the result of [`Self::take_initial_metadata`], because the response did not begin before the call ended.
    pub(crate) fn restore_initial_metadata(&self, initial: Metadata) {
        if let Some(reply) = self.0.reply.lock().as_mut() {
            reply.initial = initial;
        }
    }

    /// Returns the metadata that was set for the start of the response.
    #[must_use]
    pub fn initial_metadata(&self) -> Metadata {
        self.0.reply.lock().as_ref().map(|reply| reply.initial.clone()).unwrap_or_default()
    }

    /// Returns the metadata that was set for the end of the response.
    #[must_use]
    pub fn trailing_metadata(&self) -> Metadata {
        self.0.reply.lock().as_ref().map(|reply| reply.trailing.clone()).unwrap_or_default()
    }

    /// Returns true if the call is over. See [`Context::cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // SYNC: call-over
        self.0.is_over.load(Ordering::Acquire)
    }

    /// Completes when the caller has dropped the call, the time limit has passed, the session has ended, the node has ended,
    /// or the handler has returned.
    ///
    /// In the first four cases the handler itself is dropped. The future is for tasks and threads started by the handler,
    /// and for `#[blocking]` methods, which keep running.
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled { context: self, key: None }
    }

    /// Returns true if the node that serves the call is draining or shutting down. See [`Context::draining`].
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.drain.as_ref().is_some_and(|drain| drain.has_begun())
    }

    /// Completes when the node that serves the call begins to drain or shut down. A handler that would run longer than the
    /// grace period ([`NodeBuilder::grace`](crate::NodeBuilder::grace)), such as the sender of an endless stream, can then
    /// end early. Never completes in a detached context or in a forked child.
    ///
    /// The future may be awaited in handlers on pollers and workers, in tasks and on other runtimes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trunkline::{Context, Node, Status, Stream, block_on, spawn, stream, timeout};
    ///
    /// #[trunkline::service]
    /// trait Ticker {
    ///     async fn ticks(&self, cx: &Context) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    /// }
    ///
    /// struct Clock;
    ///
    /// impl Ticker for Clock {
    ///     async fn ticks(&self, cx: &Context) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
    ///         let ((sender, ticks), cx) = (stream::channel(1), cx.clone());
    ///         spawn(async move {
    ///             let mut tick = 0;
    ///             while sender.send(Ok(tick)).await.is_ok()
    ///                 && timeout(Duration::from_millis(10), cx.draining()).await.is_err()
    ///             {
    ///                 tick += 1;
    ///             }
    ///             sender.finish();
    ///         });
    ///         Ok(ticks)
    ///     }
    /// }
    ///
    /// let (server, node) = Node::in_process(TickerServer::new(Clock))?;
    /// let client = TickerClient::new(node.channel(server.local_address()));
    /// let mut ticks = block_on(client.ticks())?;
    /// assert_eq!(block_on(ticks.message())?, Some(0));
    /// server.begin_drain();
    /// while block_on(ticks.message())?.is_some() {} // the stream has ended, without an error
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn draining(&self) -> Draining<'_> {
        Draining::new(self.0.drain.as_deref())
    }

    /// Returns the peer's key, or the key of an unspecified address if the context is detached.
    pub(crate) fn peer_key(&self) -> PeerKey {
        let nobody = || PeerKey::new((Ipv4Addr::UNSPECIFIED, 0).into());
        self.peer().map_or_else(nobody, |peer| peer.key)
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.0.deadline
    }

    /// Returns true if the metadata contains a trace, well-formed or not.
    pub(super) fn is_traced(&self) -> bool {
        self.request().is_traced
    }

    /// Returns the span of the call, if an interceptor set one.
    pub(super) fn span(&self) -> Option<&Span> {
        self.0.changes.get().map(|changes| &changes.span).filter(|span| !span.is_none())
    }

    /// Stores the changes made by interceptors.
    pub(crate) fn change(&self, metadata: Option<Metadata>, span: Span) {
        let changes = Changes { request: metadata.map(Sent::new), span };
        // Interceptors run once per call.
        let _is_set = self.0.changes.set(Box::new(changes));
    }

    fn request(&self) -> &Sent {
        let changed = self.0.changes.get().and_then(|changes| changes.request.as_ref());
        changed.unwrap_or(&self.0.request)
    }

    /// Marks the call as over and wakes its waiters. Returns the metadata of its response.
    pub(crate) fn end(&self) -> Option<Box<ReplyMetadata>> {
        // SYNC: call-over
        self.0.is_over.store(true, Ordering::Release);
        self.0.waiting.wake_all();
        self.0.reply.lock().take()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("peer", &self.0.peer)
            .field("time_left", &self.time_left())
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}

/// A future that completes when a call is over, from [`Context::cancelled`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Cancelled<'c> {
    context: &'c Context,
    /// Key of the registered waker.
    key: Option<usize>,
}

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<()> {
        if self.context.0.deadline.is_none() && self.context.0.peer.is_none() {
            return Poll::Pending;
        }
        let context = self.context;
        if !context.is_cancelled() {
            context.0.waiting.register(&mut self.key, task.waker());
        }
        if context.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        self.context.0.waiting.remove(&mut self.key);
    }
}

/// A future that completes when a node drains, from [`Context::draining`] and
/// [`PollerContext::draining`](super::PollerContext::draining).
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Draining<'c> {
    /// `None` in a detached context.
    drain: Option<&'c Drain>,
    /// Key of the registered waker.
    key: Option<usize>,
}

impl<'c> Draining<'c> {
    pub(super) fn new(drain: Option<&'c Drain>) -> Self {
        Self { drain, key: None }
    }
}

impl Draining<'_> {
    /// Polls the drain state of a context, for streams that own the context. `key` is the key of the registered waker, or
    /// `None`.
    pub(crate) fn poll_of(context: &Context, key: &mut Option<usize>, task: &task::Context<'_>) -> Poll<()> {
        Self::poll_drain(context.0.drain.as_deref(), key, task)
    }

    fn poll_drain(drain: Option<&Drain>, key: &mut Option<usize>, task: &task::Context<'_>) -> Poll<()> {
        let has_begun = drain.is_some_and(|drain| drain.register(key, task.waker()));
        if has_begun { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Removes the waker with this key.
    pub(crate) fn remove(context: &Context, key: &mut Option<usize>) {
        context.0.drain.iter().for_each(|drain| drain.remove(key));
    }
}

impl Future for Draining<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<()> {
        Self::poll_drain(self.drain, &mut self.key, task)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.drain.iter().for_each(|drain| drain.remove(&mut self.key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lifecycle::Lifecycle;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Waker;

    fn of_call() -> Context {
        let peer = Peer::new(PeerKey::new(([127, 0, 0, 1], 7).into()), PeerIdentity::Unproven);
        let drain = Drain::new(&Lifecycle::new(1));
        Context::new(Clock::monotonic(), drain, peer, Some(Time::MAX), Metadata::new())
    }

    #[test]
    fn waiters_are_woken_at_end_of_call() {
        let context = of_call();
        let mut task = task::Context::from_waker(Waker::noop());
        let mut before = pin!(context.cancelled());
        assert!(before.as_mut().poll(&mut task).is_pending() && before.as_mut().poll(&mut task).is_pending());
        {
            let mut dropped = pin!(context.cancelled());
            assert!(dropped.as_mut().poll(&mut task).is_pending());
            assert_eq!(context.0.waiting.len(), 2);
        }
        assert_eq!(context.0.waiting.len(), 1, "a waiter that is dropped leaves nothing");
        context.end();
        assert!(context.is_cancelled() && before.as_mut().poll(&mut task).is_ready());
        assert!(pin!(context.cancelled()).poll(&mut task).is_ready(), "also one that asks later");
        assert!(pin!(Context::detached().cancelled()).poll(&mut task).is_pending());
    }

    /// A waker that owns a future that waits for the end of the same call.
    struct Ends {
        _other: Cancelled<'static>,
    }

    impl task::Wake for Ends {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the lock of a real thread is tested")]
    fn replaced_waker_may_drop_another_waiter() {
        let (sender, receiver) = mpsc::channel();
        let polls = move || {
            let context: &'static Context = Box::leak(Box::new(of_call()));
            let poll = |cancelled: &mut Cancelled<'_>, waker: &Waker| {
                assert!(Pin::new(cancelled).poll(&mut task::Context::from_waker(waker)).is_pending());
            };
            let (mut cancelled, mut other) = (context.cancelled(), context.cancelled());
            poll(&mut other, Waker::noop());
            poll(&mut cancelled, &Waker::from(Arc::new(Ends { _other: other })));
            poll(&mut cancelled, Waker::noop());
            sender.send(context.0.waiting.len()).unwrap();
        };
        // A deadlock would block this thread.
        std::thread::spawn(polls);
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(1));
    }

    #[test]
    fn scope_sets_current_context_during_polls() {
        let (outer, inner) = (of_call(), Context::detached());
        let is_outer = || Context::current().is_some_and(|current| Arc::ptr_eq(&current.0, &outer.0));
        let mut task = task::Context::from_waker(Waker::noop());
        let nested = outer.scope(async {
            assert!(is_outer());
            inner.scope(async { assert!(!is_outer()) }).await;
            assert!(is_outer());
        });
        assert!(pin!(nested).poll(&mut task).is_ready());
        assert!(Context::current().is_none());
    }
}
