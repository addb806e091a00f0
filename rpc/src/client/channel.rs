//! Calls from any thread to one server.

use super::resolve;
use crate::call::{Call, Outcome, Submission, Wait, too_many};
use crate::codec;
use crate::inbox::{Inbox, Work};
use crate::name::MethodName;
use crate::status::{Code, Status};
use bytes::Bytes;
use serde::Serialize;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_rings::cell::Getter;
use trunkline_verbs::Clock;

/// The channel of a generated client: a server's address, and the pollers of a node. Calls go to the
/// pollers in turn.
pub struct Channel {
    server: SocketAddr,
    timeout: Duration,
    clock: Clock,
    inboxes: Arc<[Arc<Inbox>]>,
    /// Each clone counts by itself, so that clones share no counter.
    turn: AtomicUsize,
}

impl Channel {
    /// A channel over these pollers to the node that listens at `server`. `Channel::connect` is in
    /// `node`, because nothing here knows nodes.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub(crate) fn new(
        inboxes: Arc<[Arc<Inbox>]>,
        clock: Clock,
        server: impl ToSocketAddrs,
    ) -> Result<Self, Status> {
        let server = resolve(server)?;
        Ok(Self { server, timeout: super::DEFAULT_TIMEOUT, clock, inboxes, turn: AtomicUsize::new(0) })
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
    ) -> Call<SharedWait<'_>> {
        Call::new(self.submit(method, arguments, body, false))
    }

    /// Makes a one-way call. Its future completes when the request is in the server's memory.
    pub fn send<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        Call::new(self.submit(method, arguments, body, true))
    }

    fn submit<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        one_way: bool,
    ) -> Result<SharedWait<'_>, Status> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let inbox = &self.inboxes[turn % self.inboxes.len()];
        let mut encoded = inbox.buffer();
        codec::encode(arguments, &mut encoded)?;
        let (setter, getter) = inbox.cell();
        let submission = Submission {
            server: self.server,
            method,
            one_way,
            encoded,
            body,
            deadline: self.clock.now() + self.timeout,
            answer: setter,
        };
        inbox.push(Work::Call(submission)).map_err(|_| too_many())?;
        Ok(SharedWait { getter: Some(getter), inbox })
    }
}

impl Clone for Channel {
    fn clone(&self) -> Self {
        let turn = AtomicUsize::new(self.turn.load(Ordering::Relaxed));
        Self {
            server: self.server,
            timeout: self.timeout,
            clock: self.clock.clone(),
            inboxes: Arc::clone(&self.inboxes),
            turn,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("server", &self.server).field("timeout", &self.timeout).finish()
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
        let ended = |_| Err(Status::not_run(Code::Unavailable, "this node has shut down"));
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
