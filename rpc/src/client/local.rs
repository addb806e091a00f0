//! Calls from a poller's own tasks to one server.

use super::resolve;
use crate::call::{Call, LocalCell, LocalQueue, Outcome, Submission, Wait};
use crate::codec;
use crate::context::PollerContext;
use crate::name::MethodName;
use crate::status::Status;
use bytes::Bytes;
use serde::Serialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_verbs::Clock;

/// The channel of a generated local client. It stays on its poller's thread.
#[derive(Debug, Clone)]
pub struct LocalChannel {
    server: SocketAddr,
    timeout: Duration,
    clock: Clock,
    queue: Rc<LocalQueue>,
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
        })
    }

    /// Sets the time limit of later calls; 10 s by default. It counts from the moment a call is made.
    /// Generated clients offer it as `with_timeout`.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Makes a call, whether or not the future is polled. Dropping the future cancels the call.
    pub fn call<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        Call::new(self.submit(method, arguments, body, false))
    }

    /// Makes a one-way call. Its future completes when the request is in the server's memory.
    pub fn send<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<LocalWait<'_>> {
        Call::new(self.submit(method, arguments, body, true))
    }

    fn submit<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        one_way: bool,
    ) -> Result<LocalWait<'_>, Status> {
        let mut encoded = self.queue.spare().take();
        codec::encode(arguments, &mut encoded)?;
        let cell = self.queue.cell();
        let submission = Submission {
            server: self.server,
            method,
            one_way,
            encoded,
            body,
            deadline: self.clock.now() + self.timeout,
            answer: Rc::clone(&cell),
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
