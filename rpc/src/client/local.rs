//! Calls from handlers and tasks on a poller.

use super::interceptor::ClientInterceptor;
use super::new_call::{CallKind, ChannelCore, NewCall};
use super::{CallOptions, checked};
use crate::call::context::PollerContext;
use crate::call::{
    AdmissionClass, Call, Completion, LocalCell, LocalQueue, NewStream, Opened, Outcome, Outgoing,
    StreamWait, Submission, Wait,
};
use crate::client::routes::{Link, Ready, Target};
use crate::codec::EncodeArguments;
use crate::executor::on_poller;
use crate::status::Status;
use crate::wire::name::MethodName;
use bytes::Bytes;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_transport::PollerChoice;
use trunkline_verbs::Clock;

/// A channel for generated local clients. Its calls stay on a poller's thread. See [`PollerContext`].
#[derive(Debug, Clone)]
pub struct LocalChannel {
    core: ChannelCore,
    clock: Clock,
    queue: Rc<LocalQueue>,
    poller: PollerContext,
    /// Number of an ordered channel; `None` if the calls are not ordered.
    order: Option<PollerChoice>,
}

impl LocalChannel {
    /// Creates a channel from this poller to a server. See [`Node::channel`](crate::Node::channel).
    ///
    /// # Errors
    /// Returns `InvalidArgument` if a server cannot listen at the target.
    pub fn connect(from: &PollerContext, server: impl Into<Target>) -> Result<Self, Status> {
        Ok(Self::new(from, ChannelCore::new(Link::new(from.routes(), checked(server)?))))
    }

    pub(super) fn new(from: &PollerContext, core: ChannelCore) -> Self {
        let (clock, queue, poller) = (from.clock().clone(), from.calls(), from.clone());
        Self { core, clock, queue, poller, order: None }
    }

    /// Completes when the channel is connected. See [`Channel::ready`](crate::Channel::ready).
    pub fn ready(&self) -> Ready {
        Ready::new(&self.core.link)
    }

    /// Returns true if the channel has a session with its server. A lost session counts until its loss is detected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.core.link.is_connected()
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
        Self { order: Some(self.queue.next_order()), ..self.clone() }
    }

    /// Returns a channel to the same server whose calls pass through `interceptor`, after the interceptors of this channel.
    /// See [`Channel::with_interceptor`](crate::Channel::with_interceptor).
    #[must_use]
    pub fn with_interceptor(&self, interceptor: impl ClientInterceptor) -> Self {
        Self { core: self.core.with_interceptor(interceptor), ..self.clone() }
    }

    /// Starts a call. The call is queued at the poller when this method returns, even if the future is never polled.
    ///
    /// The future fails if the call could not be queued. Dropping the future cancels the call.
    pub fn call<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        self.make(NewCall::new(CallKind::Unary, options, method, arguments, body))
    }

    /// Starts a one-way call. The future completes when the request is in the server's memory.
    pub fn send<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        self.make(NewCall::new(CallKind::OneWay, options, method, arguments, body))
    }

    #[inline]
    fn make<A: EncodeArguments>(&self, call: NewCall<'_, A>) -> Call<LocalWait<'_>> {
        if self.core.is_intercepted() {
            return self.make_intercepted(call);
        }
        let (method, response) = (call.method, call.options.response());
        Call::new(self.submit(call, || self.new_wait()), method, &*self.core.link, response)
    }

    #[cold]
    #[inline(never)]
    fn make_intercepted<A: EncodeArguments>(&self, call: NewCall<'_, A>) -> Call<LocalWait<'_>> {
        self.core.make(call, |call, _| self.submit(call, || self.new_wait()))
    }

    #[inline]
    fn new_wait(&self) -> (Completion, LocalWait<'_>) {
        let cell = self.queue.cell();
        (Rc::clone(&cell).into(), LocalWait { cell: Some(cell), queue: &self.queue })
    }

    /// Starts a call that streams items. See [`Channel::open`](crate::Channel::open).
    pub fn open<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        items: Outgoing,
    ) -> (Call<StreamWait>, Opened) {
        let owner = Arc::clone(self.poller.owner());
        let NewStream { completion, wait, opened, sending } =
            NewStream::new(owner, method, options.idle_limit(), items);
        let call = NewCall::new(CallKind::Stream, options, method, arguments, body);
        let call = self.core.make(call, |call, _| {
            let wait = self.submit(call, || (completion.into(), wait))?;
            if let Some(sending) = sending {
                self.poller.spawn(sending);
            }
            Ok(wait)
        });
        (call, opened)
    }

    /// Queues a call. `new_completion` returns the completion and the future that waits for the outcome.
    // The compiler would not inline this function, because it has several callers. A function call costs as much as the
    // body.
    #[inline(always)]
    fn submit<A: EncodeArguments, W>(
        &self,
        call: NewCall<'_, A>,
        new_completion: impl FnOnce() -> (Completion, W),
    ) -> Result<W, Status> {
        if let Some(status) = on_poller::refusal() {
            return Err(status);
        }
        let made = self.clock.now();
        let deadline = call.deadline(self.core.timeout, made);
        if deadline <= made {
            return Err(super::statuses::expired());
        }
        let entry = AdmissionClass::here(call.options.admits(), true);
        if let Some(status) = self.queue.refusal(entry) {
            return Err(status);
        }
        let most_metadata = self.core.link.routes().most_metadata();
        let (encoded, metadata) = call.encode(self.queue.buffers().take(), most_metadata)?;
        let (completion, wait) = new_completion();
        self.queue.is_made(made);
        self.queue.push(Submission {
            server: self.queue.key_of(self.core.server),
            route: self.core.route,
            expected: self.core.expected,
            method: call.method,
            one_way: call.kind == CallKind::OneWay,
            encoded,
            metadata,
            body: call.body.into(),
            deadline,
            connect: call.options.connects(),
            order: self.order,
            nested: true,
            entry,
            completion: Some(completion),
        });
        Ok(wait)
    }
}

/// A future that resolves to the outcome of a call on the same poller.
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
