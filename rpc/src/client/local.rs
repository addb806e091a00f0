//! The way from a poller's own tasks to a server.

use super::answer::LocalCell;
use super::call::{Call, Wait};
use super::channel::deadline;
use super::{Outcome, Submission, resolve};
use crate::executor::{PollerContext, Spare};
use crate::name::MethodName;
use crate::{Status, codec};
use bytes::Bytes;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};
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
    ) -> Call<LocalWait<'_>> {
        Call::new(self.submit(method, arguments, body, false))
    }

    /// Makes a one-way call; its future ends when the call lies at the server.
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
        Ok(LocalWait { cell: Some(cell), queue: &self.queue })
    }
}

/// A call that the poller has, or will have.
#[derive(Debug)]
pub struct LocalWait<'a> {
    /// Gone once the outcome was handed out.
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
            self.queue.sweep.set(true);
        }
    }
}
