//! Calls from any thread to one server.

use super::{CallOptions, resolve};
use crate::call::{Call, Entry, Outcome, Submission, Wait, shutting_down, too_many};
use crate::codec::EncodeArguments;
use crate::inbox::{Inbox, Work};
use crate::inboxes::Inboxes;
use crate::name::MethodName;
use crate::on_poller;
use crate::status::Status;
use bytes::Bytes;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_rings::cell::Getter;
use trunkline_transport::Turn;
use trunkline_verbs::Clock;

/// The channel of a generated client: a server's address, and the pollers of a node. Calls go to the
/// pollers in turn.
pub struct Channel {
    server: SocketAddr,
    timeout: Duration,
    clock: Clock,
    inboxes: Arc<Inboxes>,
    /// Of its next call.
    turn: AtomicUsize,
    /// On an ordered channel: its number.
    order: Option<u32>,
}

impl Channel {
    /// A channel over these pollers to the node that listens at `server`. `Channel::connect` is in
    /// `node`, because nothing here knows nodes.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub(crate) fn new(
        inboxes: Arc<Inboxes>,
        clock: Clock,
        server: impl ToSocketAddrs,
    ) -> Result<Self, Status> {
        let server = resolve(server)?;
        let turn = AtomicUsize::new(inboxes.first_turn());
        Ok(Self { server, timeout: super::DEFAULT_TIMEOUT, clock, inboxes, turn, order: None })
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
        Call::new(made, (method, self.server))
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
        Call::new(made, (method, self.server))
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
        let submission = Submission {
            server: self.server,
            method,
            one_way,
            encoded,
            body: body.into(),
            deadline: self.clock.now() + options.limit(self.timeout),
            connect: options.connects(),
            order: self.order.map(Turn),
            nested,
            entry: Entry::here(options.admits(), nested),
            answer: Some(setter),
        };
        inbox.push(Work::Call(submission)).map_err(|_| too_many())?;
        Ok(SharedWait { getter: Some(getter), inbox })
    }
}

impl Clone for Channel {
    fn clone(&self) -> Self {
        let turn = AtomicUsize::new(self.inboxes.first_turn());
        Self {
            server: self.server,
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
