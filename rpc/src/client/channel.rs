//! The way from any thread to a server.

use super::call::{Call, Wait};
use super::{Outcome, resolve};
use crate::inbox::{Inbox, Work};
use crate::name::MethodName;
use crate::{Code, Node, Status, codec};
use bytes::Bytes;
use serde::Serialize;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use trunkline_rings::cell::Getter;

/// A call on its way to a poller, from any thread or from a task of the poller itself.
#[derive(Debug)]
pub(crate) struct Submission<A> {
    pub(crate) server: SocketAddr,
    pub(crate) method: &'static MethodName,
    pub(crate) one_way: bool,
    pub(crate) encoded: Vec<u8>,
    pub(crate) body: Bytes,
    pub(crate) deadline: Instant,
    pub(crate) answer: A,
}

/// What a generated client calls through: a server's address, and the pollers of a node, which the
/// calls are spread over in turn.
pub struct Channel {
    server: SocketAddr,
    timeout: Duration,
    inboxes: Arc<[Arc<Inbox>]>,
    /// Each clone takes turns of its own, so that clones share no counter.
    turn: AtomicUsize,
}

impl Channel {
    /// A channel of `node` to the node that listens at `server`.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is no address and no name of one.
    pub fn connect(node: &Node, server: impl ToSocketAddrs) -> Result<Self, Status> {
        let server = resolve(server)?;
        let (timeout, turn) = (super::DEFAULT_TIMEOUT, AtomicUsize::new(0));
        Ok(Self { server, timeout, inboxes: node.inboxes(), turn })
    }

    /// Changes the time limit of later calls.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Makes a call; it begins at once, and ends when the future does.
    pub fn call<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> Call<SharedWait<'_>> {
        Call::new(self.submit(method, arguments, body, false))
    }

    /// Makes a one-way call; its future ends when the call lies at the server.
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
            deadline: deadline(self.timeout),
            answer: setter,
        };
        inbox.push(Work::Call(submission)).map_err(|_| too_many())?;
        Ok(SharedWait { getter: Some(getter), inbox })
    }
}

impl Clone for Channel {
    fn clone(&self) -> Self {
        let turn = AtomicUsize::new(self.turn.load(Ordering::Relaxed));
        Self { server: self.server, timeout: self.timeout, inboxes: Arc::clone(&self.inboxes), turn }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("server", &self.server).field("timeout", &self.timeout).finish()
    }
}

/// When a call that begins now must have ended.
pub(super) fn deadline(timeout: Duration) -> Instant {
    // A limit beyond the clock's range is as good as a year.
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}

/// The status of a call that found no place.
pub(crate) fn too_many() -> Status {
    Status::not_run(Code::ResourceExhausted, "too many calls are under way on this poller")
}

/// A call that a poller has, or will have.
#[derive(Debug)]
pub struct SharedWait<'a> {
    /// Gone once the outcome was handed out.
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
        // The getter goes first: a sweep finds the calls whose getter is gone.
        if self.getter.take().is_some() {
            self.inbox.ask_for_sweep();
        }
    }
}
