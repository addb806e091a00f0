//! Calls from any thread. A [`Channel`] encodes the arguments on the caller's thread and queues the call in the inbox of one
//! of the node's pollers, which take turns. An ordered channel always uses the same poller.

use super::attempts::Attempts;
use super::interceptor::ClientInterceptor;
use super::new_call::{CallKind, ChannelCore, NewCall, check_inbox};
use super::{CallOptions, LocalChannel, checked};
use crate::call::context::PollerContext;
use crate::call::{
    AdmissionClass, Call, EndHooks, NewStream, Opened, Opening, Outcome, Outgoing, StreamWait, Submission,
    Wait, too_many,
};
use crate::client::routes::id::RouteId;
use crate::client::routes::{Balance, Balanced, Link, Ready, Routes, Started, Target, Tried};
use crate::codec::EncodeArguments;
use crate::executor::inbox::Inboxes;
use crate::executor::inbox::{Inbox, Work};
use crate::executor::on_poller;
use crate::node::lifecycle::not_started;
use crate::status::Status;
use crate::stream::StreamHost;
use crate::wire::name::MethodName;
use bytes::Bytes;
use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_machine::rings::cell::Getter;
use trunkline_transport::{PeerKey, PollerChoice};

/// A connection to a server, used by generated clients.
///
/// Created by [`Node::channel`](crate::Node::channel), or by [`NodeBuilder::channel`](crate::NodeBuilder::channel) before
/// the node starts. Clones share the connection.
///
/// The first call, or awaiting [`Channel::ready`], connects the channel. A lost connection is restored in the same way.
/// Calls are distributed over the node's pollers in turn.
///
/// A name is resolved on a separate thread before each attempt to connect. Several addresses are tried in order. The next
/// address is tried if the previous one fails or does not answer within half a second. [`CallOptions::connect`] sets whether
/// calls wait during the attempts. All calls go to one address until its session ends.
///
/// ```
/// use trunkline::{Node, Status, block_on};
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
/// let (server, node) = Node::in_process(GreeterServer::new(Polite))?;
/// let channel = node.channel(server.local_address());
/// block_on(channel.ready())?;
/// assert!(channel.is_connected());
/// let greeter = GreeterClient::new(channel);
/// assert_eq!(block_on(greeter.greet("trunk".into()))?, "Good day, trunk!");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel {
    core: ChannelCore,
    inboxes: Arc<Inboxes>,
    /// Sequence number of the next call.
    turn: AtomicUsize,
    /// Number of an ordered channel; `None` if the calls are not ordered.
    order: Option<u32>,
    /// Servers of a balanced channel.
    balance: Option<Arc<Balanced>>,
}

impl Channel {
    /// Creates a channel over a link.
    pub(crate) fn new(inboxes: &Arc<Inboxes>, link: Arc<Link>) -> Self {
        let turn = AtomicUsize::new(inboxes.first_turn());
        Self { core: ChannelCore::new(link), inboxes: Arc::clone(inboxes), turn, order: None, balance: None }
    }

    /// Creates a channel to a server. `Channel::connect` is defined in `node`, because this module does not depend on nodes.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if a server cannot listen at the target.
    pub(crate) fn checked(
        inboxes: &Arc<Inboxes>,
        routes: &Arc<Routes>,
        server: impl Into<Target>,
    ) -> Result<Self, Status> {
        Ok(Self::new(inboxes, Link::new(routes, checked(server)?)))
    }

    /// Completes when the channel is connected, or fails after one round of attempts to connect to the server's addresses.
    ///
    /// The future joins a round in progress. It fails with the status that a call would get, for example
    /// [`Code::Unavailable`](crate::Code::Unavailable) with the cause for each address, or with the resolver's error.
    ///
    /// While the node pauses before its next round, the future fails at once if the target is a single address. If the
    /// target may have several addresses, the future waits for the next round that tries at least one of them. It waits for
    /// at most 10 s while every address is paused. A balanced channel is ready when one of its servers is connected.
    ///
    /// The future has no time limit. An attempt to connect to a host that does not answer takes some seconds. On a poller's
    /// thread, await the future instead of passing it to [`block_on`](crate::block_on).
    pub fn ready(&self) -> Ready {
        self.balance.as_ref().map_or_else(|| Ready::new(&self.core.link), Ready::of_any)
    }

    /// Returns true if the channel has a session with its server. A lost session counts until its loss is detected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.balance.as_ref().map_or_else(|| self.core.link.is_connected(), |balance| balance.is_connected())
    }

    /// Returns a channel that spreads its calls over all addresses of its target.
    ///
    /// A call that has not run is retried at another server if its server drains, is overloaded or cannot be reached. A call
    /// to an `#[idempotent]` method is also retried if it may have run and its server was lost. It is retried once if it
    /// failed at its server with `Unknown`, `Internal`, `Unavailable` or `DataLoss`. All attempts share the call's deadline.
    /// Each server is tried once, within the [retry budget](Balance::retry_budget). Streams are not retried.
    ///
    /// Servers that drain, cannot be reached, fail, lag or report `NotServing` are left out for a time. See
    /// `docs/book/src/guide/balancing.md`.
    ///
    /// [`Channel::ready`] waits until one server is connected. Channels from [`Channel::ordered`] and [`Channel::on`] are
    /// not balanced, and use one server at a time. A channel to a single address is never balanced.
    /// [`Node::report`](crate::Node::report) contains the state of each server.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use trunkline::{Channel, Node, Policy};
    ///
    /// fn replicas(node: &Node, addresses: Vec<SocketAddr>) -> Channel {
    ///     node.channel(addresses).balanced(Policy::PowerOfTwo)
    /// }
    /// ```
    #[must_use]
    pub fn balanced(&self, balance: impl Into<Balance>) -> Self {
        let balance = Balanced::new(&self.core.link, balance.into()).filter(|_| self.order.is_none());
        Self { balance, ..self.clone() }
    }

    /// Returns a channel to the same server for tasks and handlers on a poller. Its calls stay on the poller's thread and
    /// have the time limit of this channel.
    ///
    /// Calls through the two channels are not ordered relative to each other. If the poller belongs to another node, so does
    /// the returned channel.
    #[must_use]
    pub fn on(&self, poller: &PollerContext) -> LocalChannel {
        let link = if Arc::ptr_eq(poller.routes(), self.core.link.routes()) {
            Arc::clone(&self.core.link)
        } else {
            Link::new(poller.routes(), self.core.link.target().clone())
        };
        let (timeout, interceptors) = (self.core.timeout, self.core.interceptors.clone());
        let local =
            LocalChannel::new(poller, ChannelCore { timeout, interceptors, ..ChannelCore::new(link) });
        if self.order.is_some() { local.ordered() } else { local }
    }

    /// Sets the time limit of later calls. By default, calls made by a handler have the handler's deadline. Other calls time
    /// out after 10 s, unless they are streams.
    ///
    /// The time starts when `call`, `send` or `open` is called. Generated clients provide this method as `with_timeout`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.core.timeout = Some(timeout);
    }

    /// Returns a channel to the same server whose calls arrive in the order in which they were made. Clones of the returned
    /// channel share this order. Generated clients provide this method as `ordered`.
    #[must_use]
    pub fn ordered(&self) -> Self {
        let number = self.turn.fetch_add(1, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, reason = "it only spreads channels")]
        let order = Some(number as u32);
        Self { order, balance: None, ..self.clone() }
    }

    /// Returns a channel to the same server whose calls pass through `interceptor`, after the interceptors of this
    /// channel.
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
        Self { core: self.core.with_interceptor(interceptor), ..self.clone() }
    }

    /// Starts a call. The call is queued at a poller when this method returns, even if the future is never polled.
    ///
    /// The future fails if the call could not be queued. Dropping the future cancels the call.
    pub fn call<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        self.make(NewCall::new(CallKind::Unary, options, method, arguments, body))
    }

    /// Starts a one-way call. The future completes when the request is in the server's memory.
    pub fn send<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        self.make(NewCall::new(CallKind::OneWay, options, method, arguments, body))
    }

    #[inline]
    fn make<A: EncodeArguments>(&self, call: NewCall<'_, A>) -> Call<SharedWait<'_>> {
        self.core.make(call, |call, _| match &self.balance {
            None => self.submit(call),
            Some(balance) => self.submit_balanced(balance, call),
        })
    }

    /// Starts a call that streams items, and sends `items` if the method takes a stream. The call is queued at a poller when
    /// this method returns. The future completes when the handler returns its stream, or with the reply if the handler
    /// returns no stream.
    pub fn open<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        items: Outgoing,
    ) -> (Call<StreamWait>, Opened) {
        let next = self.next_inbox();
        let owner: Arc<dyn StreamHost> = match &next {
            Ok((_, inbox)) => Arc::clone(inbox) as _,
            Err(_) => Arc::clone(&self.inboxes) as _,
        };
        let NewStream { completion, wait, opened, sending } =
            NewStream::new(owner, method, options.idle_limit(), items);
        let call = NewCall::new(CallKind::Stream, options, method, arguments, body);
        let call = self.core.make(call, |call, hooks| {
            let (started, inbox) = next?;
            let tried = Tried::new(call.options.connects(), method.service.name);
            let (server, route) = self.choose_for_stream(started, inbox, tried, hooks)?;
            let submission = self.submission(started, inbox, call, Some(completion))?;
            let opening = Opening { submission: Submission { server, route, ..submission }, sending };
            inbox.push(Work::Open(Box::new(opening))).map_err(|_| too_many(Inbox::DEPTH))?;
            Ok(wait)
        });
        (call, opened)
    }

    /// Chooses the server for a stream. On a balanced channel, the end of the stream is recorded for that server.
    fn choose_for_stream(
        &self,
        started: &Started,
        inbox: &Inbox,
        mut tried: Tried,
        hooks: &mut EndHooks,
    ) -> Result<(PeerKey, Option<RouteId>), Status> {
        let of_channel = (self.core.server, self.core.route);
        let Some(balance) = &self.balance else { return Ok(of_channel) };
        check_inbox(inbox)?;
        let clock = started.clock.clone();
        let Some(chosen) = balance.choose(&mut tried, clock.now()) else { return Ok(of_channel) };
        let (to, balance, chosen) = (chosen.to, Arc::clone(balance), chosen.of_stream());
        hooks.add(move |outcome| balance.ended(&chosen, outcome, clock.now()));
        Ok(to)
    }

    /// Returns the node's properties and the inbox for the next call.
    ///
    /// # Errors
    /// Returns a status if calls are not allowed on this thread.
    fn next_inbox(&self) -> Result<(&Started, &Arc<Inbox>), Status> {
        if let Some(status) = on_poller::refusal() {
            return Err(status);
        }
        let turn = match self.order {
            Some(number) if !mutant!(ordered_calls_go_to_all_pollers) => number as usize,
            _ => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        let Some(started) = self.core.link.routes().started() else { return Err(not_started()) };
        Ok((started, &self.inboxes[turn % self.inboxes.len()]))
    }

    fn submit<A: EncodeArguments>(&self, call: NewCall<'_, A>) -> Result<SharedWait<'_>, Status> {
        let (started, inbox) = self.next_inbox()?;
        let mut submission = self.submission(started, inbox, call, None)?;
        // Create the cell after `submission`, which refuses calls in a forked child, because `cell` may wait there for a
        // thread of the parent.
        let (setter, getter) = inbox.cell();
        submission.completion = Some(setter);
        inbox.push(Work::Call(submission)).map_err(|_| too_many(Inbox::DEPTH))?;
        Ok(SharedWait { waiting: Waiting::Plain(getter), inbox })
    }

    /// Starts the first attempt at a call on a balanced channel.
    #[cold]
    #[inline(never)]
    fn submit_balanced<A: EncodeArguments>(
        &self,
        balance: &Arc<Balanced>,
        call: NewCall<'_, A>,
    ) -> Result<SharedWait<'_>, Status> {
        let (started, inbox) = self.next_inbox()?;
        let call = self.submission(started, inbox, call, None::<()>)?;
        let attempts = Attempts::begin(balance, &started.clock, call, inbox)?;
        Ok(SharedWait { waiting: Waiting::Balanced(Box::new(attempts)), inbox })
    }

    #[inline]
    fn submission<A: EncodeArguments, T>(
        &self,
        started: &Started,
        inbox: &Inbox,
        call: NewCall<'_, A>,
        completion: Option<T>,
    ) -> Result<Submission<T>, Status> {
        let nested = check_inbox(inbox)?;
        let (encoded, metadata) = call.encode(inbox.buffer(), started.most_metadata)?;
        let made = started.clock.now();
        if nested {
            PollerContext::current().inspect(|poller| poller.calls().is_made(made));
        }
        let deadline = call.deadline(self.core.timeout, made);
        if deadline <= made {
            // Refuse the call here, because the poller's clock may be behind, and the poller would then send the call.
            return Err(super::statuses::expired());
        }
        Ok(Submission {
            server: self.core.server,
            route: self.core.route,
            expected: self.core.expected,
            method: call.method,
            one_way: call.kind == CallKind::OneWay,
            encoded,
            metadata,
            deadline,
            body: call.body.into(),
            connect: call.options.connects(),
            order: self.order.map(PollerChoice::new),
            nested,
            entry: AdmissionClass::here(call.options.admits(), nested),
            completion,
        })
    }
}

impl Clone for Channel {
    fn clone(&self) -> Self {
        let turn = AtomicUsize::new(self.inboxes.first_turn());
        let (core, inboxes) = (self.core.clone(), Arc::clone(&self.inboxes));
        Self { core, inboxes, turn, order: self.order, balance: self.balance.clone() }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("server", &self.core.link)
            .field("timeout", &self.core.timeout)
            .finish()
    }
}

/// A future that resolves to the outcome of a call queued at a poller. Any thread and executor may poll it.
#[derive(Debug)]
pub struct SharedWait<'a> {
    waiting: Waiting,
    inbox: &'a Inbox,
}

#[derive(Debug)]
enum Waiting {
    /// A call to one server.
    Plain(Getter<Outcome>),
    /// A call on a balanced channel.
    Balanced(Box<Attempts>),
    /// The outcome has been returned.
    Ended,
}

impl Wait for SharedWait<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        self.inbox.wake_others();
        let getter = match &mut self.waiting {
            Waiting::Plain(getter) => getter,
            Waiting::Balanced(attempts) => return attempts.poll(context, self.inbox),
            Waiting::Ended => return Poll::Pending,
        };
        let Poll::Ready(outcome) = Pin::new(getter).poll(context) else {
            return self.inbox.lifecycle().pending();
        };
        if let Waiting::Plain(getter) = mem::replace(&mut self.waiting, Waiting::Ended) {
            self.inbox.rest_cell(getter);
        }
        let ended = |_| Err(super::shut_down());
        Poll::Ready(outcome.unwrap_or_else(ended))
    }
}

impl Drop for SharedWait<'_> {
    fn drop(&mut self) {
        let is_given_up = match mem::replace(&mut self.waiting, Waiting::Ended) {
            // Drop the getter before the sweep, which looks for calls with a dropped getter.
            Waiting::Plain(getter) => {
                drop(getter);
                true
            }
            Waiting::Balanced(mut attempts) => attempts.give_up(),
            Waiting::Ended => false,
        };
        if is_given_up && !self.inbox.lifecycle().is_forked() {
            self.inbox.ask_for_sweep();
        }
    }
}
