//! The way from any thread to a server.

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
    pub fn call<A: Serialize>(&self, method: &'static MethodName, arguments: &A, body: Bytes) -> Call<'_> {
        self.begin(method, arguments, body, false)
    }

    /// Makes a one-way call; its future ends when the call lies at the server.
    pub fn send<A: Serialize>(&self, method: &'static MethodName, arguments: &A, body: Bytes) -> Call<'_> {
        self.begin(method, arguments, body, true)
    }

    fn begin<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        one_way: bool,
    ) -> Call<'_> {
        Call(match self.submit(method, arguments, body, one_way) {
            Ok(waiting) => State::Waiting(waiting),
            Err(status) => State::Ended(Some(status)),
        })
    }

    fn submit<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        one_way: bool,
    ) -> Result<Waiting<'_>, Status> {
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
        Ok(Waiting { getter: Some(getter), inbox })
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

/// A call under way. Dropping it cancels the call.
#[derive(Debug)]
#[must_use = "a call ends when its future is dropped"]
pub struct Call<'a>(State<'a>);

#[derive(Debug)]
enum State<'a> {
    Waiting(Waiting<'a>),
    /// It could not begin; `None` once that was told.
    Ended(Option<Status>),
}

impl Future for Call<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let outcome = match &mut self.0 {
            State::Ended(status) => Err(status.take().unwrap_or_else(polled_after_end)),
            State::Waiting(waiting) => std::task::ready!(waiting.poll(context)),
        };
        self.0 = State::Ended(None);
        Poll::Ready(outcome)
    }
}

/// A call that a poller has, or will have.
#[derive(Debug)]
struct Waiting<'a> {
    /// Gone once the outcome was handed out.
    getter: Option<Getter<Outcome>>,
    inbox: &'a Inbox,
}

impl Waiting<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(getter) = &mut self.getter else { return Poll::Ready(Err(polled_after_end())) };
        let outcome = std::task::ready!(Pin::new(getter).poll(context));
        if let Some(getter) = self.getter.take() {
            self.inbox.rest_cell(getter);
        }
        let ended = |_| Err(Status::not_run(Code::Unavailable, "this node has shut down"));
        Poll::Ready(outcome.unwrap_or_else(ended))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // The getter goes first: a sweep finds the calls whose getter is gone.
        if self.getter.take().is_some() {
            self.inbox.ask_for_sweep();
        }
    }
}

pub(super) fn polled_after_end() -> Status {
    Status::internal("a call was polled after its end")
}
