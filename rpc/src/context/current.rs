//! The call whose handler a poller is polling.
//!
//! The dispatcher brackets each poll by [`CurrentCall::begin`] and [`CurrentCall::end`], which store a few words. A
//! [`Context`] is made only for a handler that asks for one, and is kept with the handler until it ends.

use super::{Context, Peer};
use std::cell::Cell;
use std::fmt;
use trunkline_transport::PeerKey;
use trunkline_verbs::{Clock, Time};

/// One per poller.
pub(crate) struct CurrentCall {
    clock: Clock,
    peer: Cell<Option<PeerKey>>,
    /// Of that handler's call.
    deadline: Cell<Option<Time>>,
    /// `None` between two polls.
    context: Cell<Option<Context>>,
    /// A job of the handler that is being dropped was taken out of the pool's queue.
    is_withdrawn: Cell<bool>,
}

impl CurrentCall {
    /// No handler is being polled.
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            peer: Cell::new(None),
            deadline: Cell::new(None),
            context: Cell::new(None),
            is_withdrawn: Cell::new(false),
        }
    }

    /// A handler of this peer is about to be polled for the first time.
    #[inline]
    pub(crate) fn begin(&self, peer: PeerKey, deadline: Option<Time>) {
        self.peer.set(Some(peer));
        self.deadline.set(deadline);
    }

    /// A handler is about to be polled again. `context` is what its last poll has left.
    pub(crate) fn resume(&self, peer: PeerKey, deadline: Option<Time>, context: Option<Context>) {
        self.begin(peer, deadline);
        if context.is_some() {
            self.context.set(context);
        }
    }

    /// The handler was polled. Returns its context if it has asked for one.
    #[inline]
    pub(crate) fn end(&self) -> Option<Context> {
        self.peer.set(None);
        self.context.take()
    }

    /// The job of the handler that is being dropped had not begun, and never will.
    pub(crate) fn withdraw(&self) {
        self.is_withdrawn.set(true);
    }

    /// Whether that was so of the handler that was dropped last.
    pub(crate) fn take_withdrawn(&self) -> bool {
        self.is_withdrawn.take()
    }

    /// The peer of the handler that is being polled.
    pub(crate) fn peer(&self) -> Option<PeerKey> {
        self.peer.get()
    }

    /// When its call ends.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.peer.get().and_then(|_| self.deadline.get())
    }

    /// Its context.
    pub(crate) fn context(&self) -> Option<Context> {
        let peer = self.peer.get()?;
        let make = || Context::new(self.clock.clone(), Peer::new(peer), self.deadline.get());
        let context = self.context.take().unwrap_or_else(make);
        self.context.set(Some(context.clone()));
        Some(context)
    }
}

impl fmt::Debug for CurrentCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentCall")
            .field("peer", &self.peer)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
