//! Calls from any thread must reach the poller that owns a connection to their server. A [`Channel`] encodes the
//! arguments on the caller's thread and hands the call to the inbox of one of its node's pollers, in turn. An
//! ordered channel always uses the same poller.

use super::interceptor::{ClientInterceptor, ClientInterceptors};
use super::{CallOptions, LocalChannel, resolve};
use crate::call::{
    Call, EndHooks, Entry, NewStream, Opened, Opening, Outcome, Outgoing, Sending, StreamAnswer, StreamWait,
    Submission, Wait, shutting_down, too_many,
};
use crate::codec::EncodeArguments;
use crate::context::{Inherited, PollerContext, inherited};
use crate::inbox::{Inbox, Work};
use crate::inboxes::Inboxes;
use crate::lifecycle::{lost_in_child, not_started, refused_in_child};
use crate::name::MethodName;
use crate::on_poller;
use crate::route_id::RouteId;
use crate::routes::{Link, Ready, Routes, Started, Target};
use crate::status::Status;
use crate::stream::Owner;
use bytes::Bytes;
use std::fmt;
use std::net::ToSocketAddrs;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_rings::cell::Getter;
use trunkline_transport::{PeerKey, Turn};

/// A connection to one server, for generated clients. Created by [`Node::channel`](crate::Node::channel), or before
/// the node starts by [`NodeBuilder::channel`](crate::NodeBuilder::channel). Clones share the connection.
///
/// The first call, or a wait for [`Channel::ready`], connects. A lost connection is made again in the same way.
/// Calls go to the node's pollers in turn.
///
/// A target with a name or several addresses is looked up before each attempt to connect. Names are resolved again,
/// on a separate thread. Addresses are tried in order; the next attempt starts when the last one fails or has not
/// answered for half a second. [`CallOptions::connect`] says whether calls wait meanwhile. All calls go to one
/// address until its session ends.
///
/// ```
/// use trunkline::{InProcessNetwork, Node, Status, block_on};
///
/// #[trunkline::service]
/// pub trait Greeter {
///     async fn greet(&self, name: String) -> Result<String, Status>;
/// }
///
/// struct Polite;
///
/// impl Greeter for Polite {
///     async fn greet(&self, name: String) -> Result<String, Status> {
///         Ok(format!("Good day, {name}!"))
///     }
/// }
///
/// let network = InProcessNetwork::new();
/// let server = Node::builder().in_process(&network).serve(GreeterServer::new(Polite)).start()?;
/// let node = Node::builder().in_process(&network).start()?;
/// let channel = node.channel(server.local_address());
/// block_on(channel.ready())?;
/// assert!(channel.is_connected());
/// let greeter = GreeterClient::new(channel);
/// assert_eq!(block_on(greeter.greet("trunk".into()))?, "Good day, trunk!");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel {
    server: PeerKey,
    /// Route of the calls; `None` if they go to an address.
    route: Option<RouteId>,
    link: Arc<Link>,
    /// Time limit of calls; `None` if it is inherited or the default.
    timeout: Option<Duration>,
    inboxes: Arc<Inboxes>,
    /// Sequence number of the next call.
    turn: AtomicUsize,
    /// Number of an ordered channel.
    order: Option<u32>,
    interceptors: ClientInterceptors,
}

impl Channel {
    /// Creates a channel over a link.
    pub(crate) fn new(inboxes: &Arc<Inboxes>, link: Arc<Link>) -> Self {
        let (server, route) = link.server();
        let inboxes = Arc::clone(inboxes);
        let turn = AtomicUsize::new(inboxes.first_turn());
        let interceptors = ClientInterceptors::NONE;
        Self { server, route, link, timeout: None, inboxes, turn, order: None, interceptors }
    }

    /// Creates a channel to the first address that `server` resolves to now. `Channel::connect` is in `node`,
    /// because nothing here knows nodes.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub(crate) fn resolved(
        inboxes: &Arc<Inboxes>,
        routes: &Arc<Routes>,
        server: impl ToSocketAddrs,
    ) -> Result<Self, Status> {
        Ok(Self::new(inboxes, Link::new(routes, Target::from(resolve(server)?))))
    }

    /// Completes when the channel is connected, or fails when one attempt at all of the server's addresses has
    /// failed.
    ///
    /// It joins the attempt that is under way, if there is one. It fails with the status that a call would fail
    /// with: [`Code::Unavailable`](crate::Code::Unavailable), with each address and the reason why it was not
    /// reached, or with the error of the resolver. It fails at once while the node pauses before its next attempt.
    ///
    /// It has no time limit. An attempt at hosts that do not answer takes some seconds. On a poller's thread await
    /// it; [`block_on`](crate::block_on) must not wait for it there.
    pub fn ready(&self) -> Ready {
        Ready::new(&self.link)
    }

    /// Returns true if the channel has a session with its server, as far as this node knows.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// Returns a channel to the same server for tasks and handlers on a poller. Its calls stay on the poller's
    /// thread and have the same time limit.
    ///
    /// Calls of the two channels are not ordered with each other. If the poller belongs to another node, the
    /// channel does too.
    #[must_use]
    pub fn on(&self, poller: &PollerContext) -> LocalChannel {
        let link = if Arc::ptr_eq(poller.routes(), self.link.routes()) {
            Arc::clone(&self.link)
        } else {
            Link::new(poller.routes(), self.link.target().clone())
        };
        let local = LocalChannel::new(poller, &link).like(self.timeout, &self.interceptors);
        if self.order.is_some() { local.ordered() } else { local }
    }

    /// Sets the time limit of later calls. The default is the deadline of the calling handler, or 10 s elsewhere.
    ///
    /// The time counts from `call` or `send`. Generated clients offer this as `with_timeout`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// Returns a channel to the same server whose calls arrive in the order in which they were made. Its clones
    /// share that order. See `ordered` of the generated clients.
    #[must_use]
    pub fn ordered(&self) -> Self {
        let number = self.turn.fetch_add(1, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, reason = "it only spreads channels")]
        let order = Some(number as u32);
        Self { order, ..self.clone() }
    }

    /// Returns a channel to the same server whose calls pass through `interceptor`, behind those of this channel.
    ///
    /// ```
    /// use trunkline::{Channel, ClientCall};
    ///
    /// fn with_token(channel: &Channel, token: String) -> Channel {
    ///     channel.with_interceptor(move |call: &mut ClientCall| {
    ///         call.metadata_mut().insert("authorization", &token)?;
    ///         Ok(())
    ///     })
    /// }
    /// ```
    #[must_use]
    pub fn with_interceptor(&self, interceptor: impl ClientInterceptor) -> Self {
        Self { interceptors: self.interceptors.with(interceptor), ..self.clone() }
    }

    /// Makes a call. It is queued at a poller when this returns, even if the future is never polled.
    ///
    /// The future reports a call that could not be made. Dropping the future cancels the call.
    pub fn call<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        self.make(options, method, (arguments, body), false)
    }

    /// Makes a one-way call. Its future completes when the request is in the server's memory.
    pub fn send<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        self.make(options, method, (arguments, body), true)
    }

    #[inline]
    fn make<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        one_way: bool,
    ) -> Call<SharedWait<'_>> {
        let inherited = inherited();
        if !self.interceptors.is_empty() {
            return self.make_intercepted(options, method, (arguments, body), (one_way, inherited));
        }
        let made = self.submit(options, method, (arguments, body), (one_way, inherited));
        Call::new(made, (method, &*self.link), options.response())
    }

    /// Runs the interceptors, and returns what they allow with their changes.
    #[cold]
    #[inline(never)]
    fn intercept(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        inherited: Inherited,
    ) -> (Result<(), Status>, CallOptions, EndHooks, Inherited) {
        let options = options.clone();
        let Some(started) = self.link.routes().started() else {
            return (Err(not_started()), options, EndHooks::default(), inherited);
        };
        let limits = (self.timeout, inherited);
        self.interceptors.admit(options, method, limits, started.most_metadata, &started.clock)
    }

    /// Makes a call if the interceptors allow it, with their changes.
    #[cold]
    #[inline(never)]
    fn make_intercepted<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        (one_way, inherited): (bool, Inherited),
    ) -> Call<SharedWait<'_>> {
        let (admitted, options, hooks, inherited) = self.intercept(options, method, inherited);
        let made =
            admitted.and_then(|()| self.submit(&options, method, (arguments, body), (one_way, inherited)));
        Call::new(made, (method, &*self.link), options.response()).with_hooks(hooks)
    }

    /// Makes a call that streams items: those of `items`, if the method takes any. The call completes with the reply, or
    /// when the handler's stream exists, if it has one. It is queued at a poller when this returns.
    pub fn open<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        items: Outgoing,
    ) -> (Call<StreamWait>, Opened) {
        let next = self.next_inbox();
        let owner: Arc<dyn Owner> = match &next {
            Ok((_, inbox)) => Arc::clone(inbox) as _,
            Err(_) => Arc::clone(&self.inboxes) as _,
        };
        let NewStream { answer, wait, opened, sending } = NewStream::new(owner, method.streams, items);
        let inherited = inherited();
        if self.interceptors.is_empty() {
            let made = next.and_then(|next| {
                self.submit_stream(next, (options, inherited), method, (arguments, body), (answer, sending))
            });
            return (Call::new(made.map(|()| wait), (method, &*self.link), options.response()), opened);
        }
        let (admitted, options, hooks, inherited) = self.intercept(options, method, inherited);
        let made = admitted.and(next).and_then(|next| {
            self.submit_stream(next, (&options, inherited), method, (arguments, body), (answer, sending))
        });
        let call = Call::new(made.map(|()| wait), (method, &*self.link), options.response());
        (call.with_hooks(hooks), opened)
    }

    fn submit_stream<A: EncodeArguments>(
        &self,
        (started, inbox): (&Started, &Arc<Inbox>),
        (options, inherited): (&CallOptions, Inherited),
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        (answer, sending): (StreamAnswer, Option<Sending>),
    ) -> Result<(), Status> {
        let nested = Self::check(inbox)?;
        let mut encoded = inbox.buffer();
        let metadata = options.put_metadata(&mut encoded, started.most_metadata, inherited)?;
        arguments.encode(encoded.buffer()).map_err(super::cannot_encode)?;
        let made = started.clock.now();
        let submission = Submission {
            server: self.server,
            route: self.route,
            method,
            one_way: false,
            encoded,
            metadata,
            body: body.into(),
            deadline: options.stream_deadline(self.timeout, inherited, made),
            connect: options.connects(),
            order: self.order.map(Turn),
            nested,
            entry: Entry::here(options.admits(), nested),
            answer: Some(answer),
        };
        let opening = Box::new(Opening { submission, sending });
        inbox.push(Work::Open(opening)).map_err(|_| too_many(Inbox::DEPTH))
    }

    /// Returns the node's properties, and the inbox of the poller that makes the next call.
    ///
    /// # Errors
    /// Returns the status of a call that must not be made.
    fn next_inbox(&self) -> Result<(&Started, &Arc<Inbox>), Status> {
        if let Some(status) = on_poller::refusal() {
            return Err(status);
        }
        let turn = match self.order {
            Some(number) if !mutant!(ordered_calls_go_to_all_pollers) => number as usize,
            _ => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        let Some(started) = self.link.routes().started() else { return Err(not_started()) };
        Ok((started, &self.inboxes[turn % self.inboxes.len()]))
    }

    /// Returns true if a call made here is one of a handler or task of the inbox's node.
    ///
    /// # Errors
    /// Returns the status of a call that must not be made.
    fn check(inbox: &Inbox) -> Result<bool, Status> {
        if inbox.lifecycle().is_forked() {
            return Err(refused_in_child());
        }
        let nested = on_poller::is_of(inbox.lifecycle());
        if !nested && inbox.lifecycle().is_ending() {
            return Err(shutting_down());
        }
        Ok(nested)
    }

    fn submit<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        (one_way, inherited): (bool, Inherited),
    ) -> Result<SharedWait<'_>, Status> {
        let (started, inbox) = self.next_inbox()?;
        let nested = Self::check(inbox)?;
        let mut encoded = inbox.buffer();
        let metadata = options.put_metadata(&mut encoded, started.most_metadata, inherited)?;
        arguments.encode(encoded.buffer()).map_err(super::cannot_encode)?;
        let (setter, getter) = inbox.cell();
        let made = started.clock.now();
        if nested {
            PollerContext::current().inspect(|poller| poller.calls().is_made(made));
        }
        let submission = Submission {
            server: self.server,
            route: self.route,
            method,
            one_way,
            encoded,
            metadata,
            body: body.into(),
            deadline: options.deadline(self.timeout, inherited, made),
            connect: options.connects(),
            order: self.order.map(Turn),
            nested,
            entry: Entry::here(options.admits(), nested),
            answer: Some(setter),
        };
        inbox.push(Work::Call(submission)).map_err(|_| too_many(Inbox::DEPTH))?;
        Ok(SharedWait { getter: Some(getter), inbox })
    }
}

impl Clone for Channel {
    fn clone(&self) -> Self {
        let turn = AtomicUsize::new(self.inboxes.first_turn());
        Self {
            server: self.server,
            route: self.route,
            link: Arc::clone(&self.link),
            timeout: self.timeout,
            inboxes: Arc::clone(&self.inboxes),
            turn,
            order: self.order,
            interceptors: self.interceptors.clone(),
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("server", &self.link).field("timeout", &self.timeout).finish()
    }
}

/// A wait for a call that was handed to a poller, from any thread and on any executor.
#[derive(Debug)]
pub struct SharedWait<'a> {
    /// `None` once the outcome has been returned.
    getter: Option<Getter<Outcome>>,
    inbox: &'a Inbox,
}

impl Wait for SharedWait<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(getter) = &mut self.getter else { return Poll::Pending };
        let Poll::Ready(outcome) = Pin::new(getter).poll(context) else {
            let is_lost = self.inbox.lifecycle().is_forked();
            return if is_lost { Poll::Ready(Err(lost_in_child())) } else { Poll::Pending };
        };
        if let Some(getter) = self.getter.take() {
            self.inbox.rest_cell(getter);
        }
        let ended = |_| Err(super::shut_down());
        Poll::Ready(outcome.unwrap_or_else(ended))
    }
}

impl Drop for SharedWait<'_> {
    fn drop(&mut self) {
        // The getter is dropped first: a sweep finds the calls whose getter is gone.
        if self.getter.take().is_some() && !self.inbox.lifecycle().is_forked() {
            self.inbox.ask_for_sweep();
        }
    }
}
