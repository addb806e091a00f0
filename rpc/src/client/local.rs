//! Calls from a poller's own tasks to one server.

use super::interceptor::{ClientInterceptor, ClientInterceptors};
use super::{CallOptions, resolve};
use crate::call::context::{Inherited, PollerContext, inherited};
use crate::call::{
    Call, EndHooks, Entry, LocalCell, LocalQueue, NewStream, Opened, Outcome, Outgoing, Sending,
    StreamAnswer, StreamWait, Submission, Wait,
};
use crate::client::routes::id::RouteId;
use crate::client::routes::{Link, Ready, Target};
use crate::codec::EncodeArguments;
use crate::executor::on_poller;
use crate::status::Status;
use crate::wire::name::MethodName;
use bytes::Bytes;
use std::net::ToSocketAddrs;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_transport::{PeerKey, Turn};
use trunkline_verbs::Clock;

/// A channel of a generated local client. It stays on its poller's thread.
#[derive(Debug, Clone)]
pub struct LocalChannel {
    server: PeerKey,
    /// Route of the calls; `None` if they go to an address.
    route: Option<RouteId>,
    link: Arc<Link>,
    /// Time limit of calls; `None` if it is inherited or the default.
    timeout: Option<Duration>,
    clock: Clock,
    queue: Rc<LocalQueue>,
    poller: PollerContext,
    /// Number of an ordered channel.
    order: Option<Turn>,
    interceptors: ClientInterceptors,
}

impl LocalChannel {
    /// Creates a channel of this poller to the node that listens at `server`. Pass an address: resolving a host
    /// name blocks the poller.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(from: &PollerContext, server: impl ToSocketAddrs) -> Result<Self, Status> {
        let target = Target::from(resolve(server)?);
        Ok(Self::new(from, &Link::new(from.routes(), target)))
    }

    /// Creates a channel of this poller over a link of its node.
    pub(crate) fn new(from: &PollerContext, link: &Arc<Link>) -> Self {
        let (server, route) = link.server();
        let (clock, queue, poller) = (from.clock().clone(), from.calls(), from.clone());
        let (link, interceptors) = (Arc::clone(link), ClientInterceptors::NONE);
        Self { server, route, link, timeout: None, clock, queue, poller, order: None, interceptors }
    }

    /// Sets the time limit of calls, if there is one, and their interceptors.
    pub(super) fn like(self, timeout: Option<Duration>, interceptors: &ClientInterceptors) -> Self {
        Self { timeout, interceptors: interceptors.clone(), ..self }
    }

    /// Completes when the channel is connected. See [`Channel::ready`](crate::Channel::ready).
    pub fn ready(&self) -> Ready {
        Ready::new(&self.link)
    }

    /// Returns true if the channel has a session with its server, as far as this node knows.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.link.is_connected()
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
        Self { order: Some(self.queue.next_order()), ..self.clone() }
    }

    /// Returns a channel to the same server whose calls pass through `interceptor`, after the interceptors of this
    /// channel.
    /// See [`Channel::with_interceptor`](crate::Channel::with_interceptor).
    #[must_use]
    pub fn with_interceptor(&self, interceptor: impl ClientInterceptor) -> Self {
        Self { interceptors: self.interceptors.with(interceptor), ..self.clone() }
    }

    /// Makes a call. It is queued at the poller when this returns, even if the future is never polled.
    ///
    /// The future reports a call that could not be made. Dropping the future cancels the call.
    pub fn call<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        self.make(options, method, (arguments, body), false)
    }

    /// Makes a one-way call. Its future completes when the request is in the server's memory.
    pub fn send<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        self.make(options, method, (arguments, body), true)
    }

    #[inline]
    fn make<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        one_way: bool,
    ) -> Call<LocalWait<'_>> {
        let inherited = inherited();
        if !self.interceptors.is_empty() {
            return self.make_intercepted(options, method, (arguments, body), (one_way, inherited));
        }
        let made = self.submit(options, method, (arguments, body), (one_way, inherited));
        Call::new(made, (method, &*self.link), options.response())
    }

    /// Makes a call that streams items. See [`Channel::open`](crate::Channel::open).
    pub fn open<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        items: Outgoing,
    ) -> (Call<StreamWait>, Opened) {
        let owner = Arc::clone(self.poller.owner());
        let NewStream { answer, wait, opened, sending } =
            NewStream::new(owner, method.streams, options.idle_limit(), items);
        let inherited = inherited();
        if self.interceptors.is_empty() {
            let made = self.submit_stream((options, inherited), method, (arguments, body), (answer, sending));
            return (Call::new(made.map(|()| wait), (method, &*self.link), options.response()), opened);
        }
        let (admitted, options, hooks, inherited) = self.intercept(options, method, inherited);
        let made = admitted.and_then(|()| {
            self.submit_stream((&options, inherited), method, (arguments, body), (answer, sending))
        });
        let call = Call::new(made.map(|()| wait), (method, &*self.link), options.response());
        (call.with_hooks(hooks), opened)
    }

    fn submit_stream<A: EncodeArguments>(
        &self,
        (options, inherited): (&CallOptions, Inherited),
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        (answer, sending): (StreamAnswer, Option<Sending>),
    ) -> Result<(), Status> {
        if let Some(status) = on_poller::refusal() {
            return Err(status);
        }
        let made = self.clock.now();
        let deadline = options.stream_deadline(self.timeout, inherited, made);
        if deadline <= made {
            return Err(super::statuses::expired());
        }
        let entry = Entry::here(options.admits(), true);
        if let Some(status) = self.queue.refusal(entry) {
            return Err(status);
        }
        let mut encoded = self.queue.buffers().take();
        let metadata = options.put_metadata(&mut encoded, self.link.routes().most_metadata(), inherited)?;
        arguments.encode(encoded.buffer()).map_err(super::cannot_encode)?;
        self.queue.is_made(made);
        let submission = Submission {
            server: self.queue.key_of(self.server),
            route: self.route,
            method,
            one_way: false,
            encoded,
            metadata,
            body: body.into(),
            deadline,
            connect: options.connects(),
            order: self.order,
            nested: true,
            entry,
            answer: Some(answer.into()),
        };
        self.queue.push(submission);
        if let Some(sending) = sending {
            self.poller.spawn(sending);
        }
        Ok(())
    }

    /// Runs the interceptors. Returns whether they allow the call, and the options and hooks that they leave.
    #[cold]
    #[inline(never)]
    fn intercept(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        inherited: Inherited,
    ) -> (Result<(), Status>, CallOptions, EndHooks, Inherited) {
        let limits = (self.timeout, inherited);
        self.interceptors.admit(options.clone(), method, limits, &self.clock)
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
    ) -> Call<LocalWait<'_>> {
        let (admitted, options, hooks, inherited) = self.intercept(options, method, inherited);
        let made =
            admitted.and_then(|()| self.submit(&options, method, (arguments, body), (one_way, inherited)));
        Call::new(made, (method, &*self.link), options.response()).with_hooks(hooks)
    }

    // It is not inlined otherwise, because it has two callers, and calling it costs as much as its body.
    #[inline(always)]
    fn submit<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        (one_way, inherited): (bool, Inherited),
    ) -> Result<LocalWait<'_>, Status> {
        if let Some(status) = on_poller::refusal() {
            return Err(status);
        }
        let made = self.clock.now();
        let deadline = options.deadline(self.timeout, inherited, made);
        if deadline <= made {
            return Err(super::statuses::expired());
        }
        let entry = Entry::here(options.admits(), true);
        if let Some(status) = self.queue.refusal(entry) {
            return Err(status);
        }
        let mut encoded = self.queue.buffers().take();
        let metadata = options.put_metadata(&mut encoded, self.link.routes().most_metadata(), inherited)?;
        arguments.encode(encoded.buffer()).map_err(super::cannot_encode)?;
        let cell = self.queue.cell();
        self.queue.is_made(made);
        let submission = Submission {
            server: self.queue.key_of(self.server),
            route: self.route,
            method,
            one_way,
            encoded,
            metadata,
            body: body.into(),
            deadline,
            connect: options.connects(),
            order: self.order,
            nested: true,
            entry,
            answer: Some(Rc::clone(&cell).into()),
        };
        self.queue.push(submission);
        Ok(LocalWait { cell: Some(cell), queue: &self.queue })
    }
}

/// A wait for a call of the same poller.
#[derive(Debug)]
pub struct LocalWait<'a> {
    /// `None` once the outcome has been returned.
    cell: Option<Rc<LocalCell>>,
    queue: &'a LocalQueue,
}

impl Wait for LocalWait<'_> {
    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(cell) = &self.cell else { return Poll::Pending };
        let outcome = std::task::ready!(cell.poll(context));
        if let Some(cell) = self.cell.take() {
            self.queue.rest_cell(cell);
        }
        Poll::Ready(outcome)
    }
}

impl Drop for LocalWait<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.cell.take().is_some() {
            self.queue.ask_for_sweep();
        }
    }
}
