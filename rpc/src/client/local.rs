//! Calls from a poller's own tasks to one server.

use super::{CallOptions, resolve};
use crate::call::{Call, Entry, LocalCell, LocalQueue, Outcome, Submission, Wait};
use crate::codec::EncodeArguments;
use crate::context::PollerContext;
use crate::name::MethodName;
use crate::on_poller;
use crate::status::Status;
use bytes::Bytes;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_transport::Turn;
use trunkline_verbs::Clock;

/// The channel of a generated local client. It stays on its poller's thread.
#[derive(Debug, Clone)]
pub struct LocalChannel {
    server: SocketAddr,
    timeout: Duration,
    clock: Clock,
    queue: Rc<LocalQueue>,
    /// On an ordered channel: its number.
    order: Option<Turn>,
}

impl LocalChannel {
    /// A channel of this poller to the node that listens at `server`. Pass an address: resolving a host
    /// name would block the poller.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(from: &PollerContext, server: impl ToSocketAddrs) -> Result<Self, Status> {
        Ok(Self {
            server: resolve(server)?,
            timeout: super::DEFAULT_TIMEOUT,
            clock: from.clock().clone(),
            queue: from.calls(),
            order: None,
        })
    }

    /// Sets the time limit of later calls; 10 s by default. It counts from the moment a call is made, which is when
    /// `call` or `send` is called. Generated clients offer it as `with_timeout`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// A channel to the same server whose calls arrive in the order in which they were made; so do those of its clones,
    /// with its own. See `ordered` of the generated clients.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self { order: Some(self.queue.next_order()), ..self.clone() }
    }

    /// Makes a call, whether or not the future is polled: a poller has it when this returns, unless it could not be
    /// made, which the future reports. Dropping the future cancels the call.
    pub fn call<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        let made = self.submit(options, method, (arguments, body), false);
        Call::new(made, (method, self.server))
    }

    /// Makes a one-way call. Its future completes when the request is in the server's memory.
    pub fn send<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        let made = self.submit(options, method, (arguments, body), true);
        Call::new(made, (method, self.server))
    }

    fn submit<A: EncodeArguments>(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        (arguments, body): (&A, Bytes),
        one_way: bool,
    ) -> Result<LocalWait<'_>, Status> {
        if let Some(status) = on_poller::refusal() {
            return Err(status);
        }
        let mut encoded = self.queue.spare().take();
        arguments.encode(encoded.buffer()).map_err(super::cannot_encode)?;
        let cell = self.queue.cell();
        let submission = Submission {
            server: self.server,
            method,
            one_way,
            encoded,
            body: body.into(),
            deadline: self.clock.now() + options.limit(self.timeout),
            connect: options.connects(),
            order: self.order,
            nested: true,
            entry: Entry::here(options.admits(), true),
            answer: Some(Rc::clone(&cell).into()),
        };
        self.queue.push(submission)?;
        Ok(LocalWait { cell: Some(cell), queue: &self.queue })
    }
}

/// Waits for a call of the same poller.
#[derive(Debug)]
pub struct LocalWait<'a> {
    /// `None` once the outcome has been returned.
    cell: Option<Rc<LocalCell>>,
    queue: &'a LocalQueue,
}

impl Wait for LocalWait<'_> {
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
    fn drop(&mut self) {
        if self.cell.take().is_some() {
            self.queue.ask_for_sweep();
        }
    }
}
