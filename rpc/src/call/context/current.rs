//! The call whose handler is being polled.
//!
//! The dispatcher brackets each poll of a handler with [`CurrentCall::begin`] and [`CurrentCall::end`], which store a few
//! words. A [`Context`] is created only if the handler uses it, and is stored with the handler until it ends. A node with an
//! identity also creates the context of each handler that outlives its first poll, because a peer with another name may
//! later take the address.

use super::{Context, Peer};
use crate::node::lifecycle::Drain;
use crate::wire::metadata::Metadata;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use trunkline_transport::{PeerIdentity, PeerKey};
use trunkline_verbs::{Clock, Time};

/// The properties of a handler's call that nested calls inherit.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inherited {
    pub(crate) deadline: Option<Time>,
    /// True if the handler's call has a trace.
    pub(crate) is_traced: bool,
}

/// The current call of one poller.
pub(crate) struct CurrentCall {
    clock: Clock,
    /// The drain state of the node.
    drain: Arc<Drain>,
    peer: Cell<Option<PeerKey>>,
    /// Deadline of the current handler's call.
    deadline: Cell<Option<Time>>,
    /// Context of the current handler, if created; `None` between two polls.
    context: Cell<Option<Context>>,
    /// True if the current handler's call has a trace. False whenever `context` is `None`.
    is_traced: Cell<bool>,
    /// Maximum size of an item in the reply of the last opened stream, in bytes.
    most_in_reply: Cell<usize>,
    /// True if the handler being dropped had a job that was removed from the pool's queue.
    is_withdrawn: Cell<bool>,
    /// Identities of the peers in their current sessions; `None` if this node has no identity.
    identities: Option<Box<RefCell<BTreeMap<PeerKey, PeerIdentity>>>>,
}

impl CurrentCall {
    /// Creates the state without a current call.
    pub(crate) fn new(clock: Clock, drain: Arc<Drain>, has_identity: bool) -> Self {
        Self {
            clock,
            drain,
            peer: Cell::new(None),
            deadline: Cell::new(None),
            context: Cell::new(None),
            is_traced: Cell::new(false),
            most_in_reply: Cell::new(0),
            is_withdrawn: Cell::new(false),
            identities: has_identity.then(Box::default),
        }
    }

    /// Records the identity of a peer with a new session.
    pub(crate) fn up(&self, peer: PeerKey, identity: PeerIdentity) {
        if let Some(identities) = &self.identities {
            identities.borrow_mut().insert(peer, identity);
        }
    }

    /// Records that a peer's session has ended.
    pub(crate) fn down(&self, peer: PeerKey) {
        if let Some(identities) = &self.identities {
            identities.borrow_mut().remove(&peer);
        }
    }

    /// Returns the peer with its identity in the current session.
    pub(crate) fn peer_of(&self, key: PeerKey) -> Peer {
        let identity = self.identities.as_ref().and_then(|all| all.borrow().get(&key).cloned());
        Peer::new(key, identity.unwrap_or_default())
    }

    /// Records that a handler of this peer is about to be polled for the first time.
    #[inline]
    pub(crate) fn begin(&self, peer: PeerKey, deadline: Option<Time>) {
        self.peer.set(Some(peer));
        self.deadline.set(deadline);
    }

    /// Creates the context of a handler that outlives its first poll, if this node has an identity.
    #[inline]
    pub(crate) fn bind(&self) {
        if cfg!(feature = "identity") && self.identities.is_some() {
            let _created = self.context();
        }
    }

    /// Records that a handler is about to be polled again. `context` is the result of the last [`CurrentCall::end`].
    pub(crate) fn resume(&self, peer: PeerKey, deadline: Option<Time>, context: Option<Context>) {
        self.begin(peer, deadline);
        if let Some(context) = context {
            self.is_traced.set(context.is_traced());
            self.context.set(Some(context));
        }
    }

    /// Records the end of a poll. Returns the handler's context, if it was created.
    #[inline]
    pub(crate) fn end(&self) -> Option<Context> {
        self.peer.set(None);
        let context = self.context.take();
        if context.is_some() {
            self.is_traced.set(false);
        }
        context
    }

    /// Records the maximum size of an item in the reply of the stream being opened, whose handler is polled next.
    pub(crate) fn set_most_in_reply(&self, bytes: usize) {
        self.most_in_reply.set(bytes);
    }

    /// Returns the maximum size of an item in the reply of the current handler's stream, in the handler's first poll.
    pub(crate) fn most_in_reply(&self) -> usize {
        self.most_in_reply.get()
    }

    /// Records that the handler being dropped had a job that will not run.
    pub(crate) fn withdraw(&self) {
        self.is_withdrawn.set(true);
    }

    /// Returns true if the job of the last dropped handler was withdrawn, and resets the flag.
    pub(crate) fn take_withdrawn(&self) -> bool {
        self.is_withdrawn.take()
    }

    pub(super) fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Returns the peer of the current handler.
    pub(crate) fn peer(&self) -> Option<PeerKey> {
        self.peer.get()
    }

    /// Returns the properties that nested calls inherit.
    #[inline]
    pub(super) fn inherited(&self) -> Inherited {
        match self.peer.get() {
            Some(_) => Inherited { deadline: self.deadline.get(), is_traced: self.is_traced.get() },
            None => Inherited::default(),
        }
    }

    /// Records that an interceptor changed the context.
    pub(crate) fn changed(&self, context: &Context) {
        self.is_traced.set(context.is_traced());
    }

    /// Returns the context of the current handler, created if necessary.
    pub(crate) fn context(&self) -> Option<Context> {
        let peer = self.peer.get()?;
        let context = self.context.take().unwrap_or_else(|| self.make(peer, Metadata::new()));
        self.context.set(Some(context.clone()));
        Some(context)
    }

    /// Like [`CurrentCall::begin`], for a request with metadata, which is stored in the handler's context.
    pub(crate) fn begin_with(&self, peer: PeerKey, deadline: Option<Time>, metadata: Metadata) {
        self.begin(peer, deadline);
        let context = self.make(peer, metadata);
        self.is_traced.set(context.is_traced());
        self.context.set(Some(context));
    }

    fn make(&self, peer: PeerKey, metadata: Metadata) -> Context {
        Context::new(
            self.clock.clone(),
            Arc::clone(&self.drain),
            self.peer_of(peer),
            self.deadline.get(),
            metadata,
        )
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
