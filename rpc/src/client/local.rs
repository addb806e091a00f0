//! The way from a poller's own tasks to a server.

use super::answer::LocalCell;
use super::channel::{deadline, polled_after_end};
use super::{Outcome, Submission, resolve};
use crate::executor::{PollerContext, Spare};
use crate::name::MethodName;
use crate::{Status, codec};
use bytes::Bytes;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Most calls that wait for the poller's turn.
const DEPTH: usize = 65_536;
/// Completion cells kept for later calls.
const SPARE_CELLS: usize = 256;

/// Calls that tasks of a poller have made since its last turn.
#[derive(Debug, Default)]
pub(crate) struct LocalQueue {
    calls: RefCell<VecDeque<Submission<Rc<LocalCell>>>>,
    sweep: Cell<bool>,
    spare: Spare,
    cells: RefCell<Vec<Rc<LocalCell>>>,
}

impl LocalQueue {
    pub(crate) fn pop(&self) -> Option<Submission<Rc<LocalCell>>> {
        self.calls.borrow_mut().pop_front()
    }

    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.take()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.sweep.get() || !self.calls.borrow().is_empty()
    }

    /// Buffers of the poller.
    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    fn cell(&self) -> Rc<LocalCell> {
        self.cells.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a cell whose outcome was taken for later, if nobody else holds it.
    fn rest_cell(&self, cell: Rc<LocalCell>) {
        let mut cells = self.cells.borrow_mut();
        if Rc::strong_count(&cell) == 1 && cells.len() < SPARE_CELLS {
            cells.push(cell);
        }
    }

    fn push(&self, submission: Submission<Rc<LocalCell>>) -> Result<(), Status> {
        let mut calls = self.calls.borrow_mut();
        if calls.len() >= DEPTH {
            return Err(super::channel::too_many());
        }
        calls.push_back(submission);
        Ok(())
    }
}

/// What a generated local client calls through. It stays on its poller's thread.
#[derive(Debug, Clone)]
pub struct LocalChannel {
    server: SocketAddr,
    timeout: Duration,
    queue: Rc<LocalQueue>,
}

impl LocalChannel {
    /// A channel of a poller to the node that listens at `server`: an address, better than a name,
    /// whose resolution would block the poller.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is no address and no name of one.
    pub fn connect(from: &PollerContext, server: impl ToSocketAddrs) -> Result<Self, Status> {
        Ok(Self { server: resolve(server)?, timeout: super::DEFAULT_TIMEOUT, queue: from.calls() })
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
    ) -> LocalCall<'_> {
        self.begin(method, arguments, body, false)
    }

    /// Makes a one-way call; its future ends when the call lies at the server.
    pub fn send<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
    ) -> LocalCall<'_> {
        self.begin(method, arguments, body, true)
    }

    fn begin<A: Serialize>(
        &self,
        method: &'static MethodName,
        arguments: &A,
        body: Bytes,
        one_way: bool,
    ) -> LocalCall<'_> {
        LocalCall(match self.submit(method, arguments, body, one_way) {
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
        let mut encoded = self.queue.spare.take();
        codec::encode(arguments, &mut encoded)?;
        let cell = self.queue.cell();
        let submission = Submission {
            server: self.server,
            method,
            one_way,
            encoded,
            body,
            deadline: deadline(self.timeout),
            answer: Rc::clone(&cell),
        };
        self.queue.push(submission)?;
        Ok(Waiting { cell: Some(cell), queue: &self.queue })
    }
}

/// A call under way. Dropping it cancels the call.
#[derive(Debug)]
#[must_use = "a call ends when its future is dropped"]
pub struct LocalCall<'a>(State<'a>);

#[derive(Debug)]
enum State<'a> {
    Waiting(Waiting<'a>),
    /// It could not begin; `None` once that was told.
    Ended(Option<Status>),
}

impl Future for LocalCall<'_> {
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

/// A call that the poller has, or will have.
#[derive(Debug)]
struct Waiting<'a> {
    /// Gone once the outcome was handed out.
    cell: Option<Rc<LocalCell>>,
    queue: &'a LocalQueue,
}

impl Waiting<'_> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<Outcome> {
        let Some(cell) = &self.cell else { return Poll::Ready(Err(polled_after_end())) };
        let outcome = std::task::ready!(cell.poll(context));
        if let Some(cell) = self.cell.take() {
            self.queue.rest_cell(cell);
        }
        Poll::Ready(outcome)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.cell.take().is_some() {
            self.queue.sweep.set(true);
        }
    }
}
