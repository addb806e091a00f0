//! Calls from any thread to one server.

use super::{CallOptions, LocalChannel, resolve};
use crate::call::{Call, Entry, Outcome, Submission, Wait, shutting_down, too_many};
use crate::codec::EncodeArguments;
use crate::context::PollerContext;
use crate::inbox::{Inbox, Work};
use crate::inboxes::Inboxes;
use crate::name::MethodName;
use crate::on_poller;
use crate::route_id::RouteId;
use crate::routes::{Link, Ready, Routes, Target};
use crate::status::Status;
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
use trunkline_verbs::Clock;

/// A way to a server, for generated clients; [`Node::channel`](crate::Node::channel) makes one. Clones share the connection.
///
/// It connects when the first call is made, or when somebody waits for [`Channel::ready`], and again when a connection is lost. Calls
/// go to the pollers of its node in turn. A server that has a name, or several addresses, is looked for before each attempt to
/// connect: the name is resolved again, on a thread that is there for that, and the addresses are tried in order, the next one when
/// the last has failed or not answered for half a second. Calls wait for that as [`CallOptions::connect`] has it.
/// They go to one address at a time, and to another one only when its session has ended.
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
    /// The route that calls go by, if not to an address.
    route: Option<RouteId>,
    link: Arc<Link>,
    /// Of its calls, if it is not inherited or the default.
    timeout: Option<Duration>,
    clock: Clock,
    inboxes: Arc<Inboxes>,
    /// Of its next call.
    turn: AtomicUsize,
    /// On an ordered channel: its number.
    order: Option<u32>,
}

impl Channel {
    /// A channel by this link.
    pub(crate) fn new(inboxes: &Arc<Inboxes>, link: Arc<Link>) -> Self {
        let (server, route) = link.server();
        let inboxes = Arc::clone(inboxes);
        let turn = AtomicUsize::new(inboxes.first_turn());
        let clock = link.routes().clock().clone();
        Self { server, route, link, timeout: None, clock, inboxes, turn, order: None }
    }

    /// A channel to the first address that `server` resolves to now. `Channel::connect` is in `node`, because nothing here knows nodes.
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

    /// Completes when the channel is connected: at once if it is, and otherwise with the outcome of one attempt at all of the
    /// server's addresses, the one that is under way if there is one.
    ///
    /// It fails with what a call would fail with: [`Code::Unavailable`](crate::Code::Unavailable), each address with the reason why it was not
    /// reached, and the error of the resolver if that has failed; at once while the next attempt is not due. It has no time
    /// limit of its own, and an attempt at hosts that do not answer takes some seconds. On a poller's thread it must be
    /// awaited, and not waited for by [`block_on`](crate::block_on).
    pub fn ready(&self) -> Ready {
        Ready::new(&self.link)
    }

    /// Whether the channel has a session with its server now, as far as this node knows.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
    }

    /// The same channel for tasks and handlers on a poller, whose calls stay on its thread, with the same time limit. Calls of the two
    /// are not in one order. If the poller is another node's, it is a channel of that node to the same server.
    #[must_use]
    pub fn on(&self, poller: &PollerContext) -> LocalChannel {
        let link = if Arc::ptr_eq(poller.routes(), self.link.routes()) {
            Arc::clone(&self.link)
        } else {
            Link::new(poller.routes(), self.link.target().clone())
        };
        let local = LocalChannel::new(poller, &link).timed(self.timeout);
        if self.order.is_some() { local.ordered() } else { local }
    }

    /// Sets the time limit of later calls; without it a call has that of the call whose handler makes it, or 10 s. It counts from the moment a call is made, which is when
    /// `call` or `send` is called. Generated clients offer it as `with_timeout`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// A channel to the same server whose calls arrive in the order in which they were made; so do those of its clones,
    /// with its own. See `ordered` of the generated clients.
    #[must_use]
    pub fn ordered(&self) -> Self {
        let number = self.turn.fetch_add(1, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, reason = "it only spreads channels")]
        let order = Some(number as u32);
        Self { order, ..self.clone() }
    }

    /// Makes a call, whether or not the future is polled: a poller has it when this returns, unless it could not be
    /// made, which the future reports. Dropping the future cancels the call.
    pub fn call<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        let made = self.submit(options, method, (arguments, body), false);
        Call::new(made, (method, &*self.link))
    }

    /// Makes a one-way call. Its future completes when the request is in the server's memory.
    pub fn send<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        let made = self.submit(options, method, (arguments, body), true);
        Call::new(made, (method, &*self.link))
    }

    fn submit<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        one_way: bool,
    ) -> Result<SharedWait<'_>, Status> {
        if let Some(status) = on_poller::refusal() {
            return Err(status);
        }
        let turn = match self.order {
            Some(number) if !mutant!(ordered_calls_go_to_all_pollers) => number as usize,
            _ => self.turn.fetch_add(1, Ordering::Relaxed),
        };
        let inbox = &self.inboxes[turn % self.inboxes.len()];
        let nested = on_poller::is_of(inbox.lifecycle());
        if !nested && inbox.lifecycle().is_ending() {
            return Err(shutting_down());
        }
        let mut encoded = inbox.buffer();
        arguments.encode(encoded.buffer()).map_err(super::cannot_encode)?;
        let (setter, getter) = inbox.cell();
        let made = self.clock.now();
        if nested {
            PollerContext::current().inspect(|poller| poller.calls().is_made(made));
        }
        let submission = Submission {
            server: self.server,
            route: self.route,
            method,
            one_way,
            encoded,
            body: body.into(),
            deadline: options.deadline(self.timeout, made),
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
            clock: self.clock.clone(),
            inboxes: Arc::clone(&self.inboxes),
            turn,
            order: self.order,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("server", &self.link).field("timeout", &self.timeout).finish()
    }
}

/// Waits for a call that was handed to a poller, from any thread and on any executor.
#[derive(Debug)]
pub struct SharedWait<'a> {
    /// `None` once the outcome has been returned.
    getter: Option<Getter<Outcome>>,
    inbox: &'a Inbox,
}

impl Wait for SharedWait<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(getter) = &mut self.getter else { return Poll::Pending };
        let outcome = std::task::ready!(Pin::new(getter).poll(context));
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
        if self.getter.take().is_some() {
            self.inbox.ask_for_sweep();
        }
    }
}
