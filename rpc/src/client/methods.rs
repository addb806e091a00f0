//! Method numbers and counters of the methods called by one poller.

use crate::executor::inbox::Inbox;
use crate::observe::counted::{CallFailure, MethodCounters};
use crate::wire::frame::Number;
use crate::wire::name::MethodName;
use crate::wire::name::Schema;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use trunkline_transport::{Origin, PeerKey, PeerMap, SessionNumber};

/// A method, and the schema checked by its server.
type Key = (u64, Schema);

fn key(method: &MethodName) -> Key {
    (method.hash, method.service.schema())
}

/// Known method numbers of one server.
#[derive(Debug)]
struct Server {
    session: SessionNumber,
    methods: BTreeMap<Key, u16>,
}

/// Method numbers assigned by servers.
///
/// A number is valid only in the session that reported it, because a restarted server may assign it to another method.
/// Numbers are discarded at the end of the session, and a request with a number is bound to the session.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Shape digests of the called methods, at most one per method of the program. Numbers of other methods are not stored.
    /// The digest is `None` for a method with several shapes, because a number does not identify the shape that the server
    /// compared.
    asked: BTreeMap<Key, Option<u64>>,
    servers: PeerMap<Server>,
    /// Cached last result, because successive calls often use the same method.
    last: Option<Last>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    peer: PeerKey,
    method: &'static MethodName,
    number: u16,
    session: SessionNumber,
}

impl Numbers {
    /// Returns the number of a method at a server, and the session in which it is valid. Marks the method as called if its
    /// number is unknown.
    #[inline]
    pub(super) fn of(&mut self, peer: PeerKey, method: &'static MethodName) -> Option<(u16, SessionNumber)> {
        match &self.last {
            Some(last) if ptr::eq(last.method, method) && last.peer == peer => {
                Some((last.number, last.session))
            }
            _ => self.find(peer, method),
        }
    }

    #[inline(never)]
    fn find(&mut self, peer: PeerKey, method: &'static MethodName) -> Option<(u16, SessionNumber)> {
        let digest = Some(method.shape_digest());
        let asked = self.asked.entry(key(method)).or_insert(digest);
        if *asked != digest {
            (*asked, self.last) = (None, None);
            return None;
        }
        let known = self
            .servers
            .get(peer)
            .and_then(|server| Some((*server.methods.get(&key(method))?, server.session)));
        if let Some((number, session)) = known {
            self.last = Some(Last { peer, method, number, session });
        }
        known
    }

    /// Stores a number reported by a server.
    pub(super) fn learn(&mut self, from: Origin, number: Number) {
        let key = (number.method, number.schema);
        if !self.asked.get(&key).is_some_and(Option::is_some) {
            return;
        }
        let new = || Server { session: from.session, methods: BTreeMap::new() };
        let server = self.servers.get_or_insert_with(from.peer, new);
        if server.session != from.session {
            *server = new();
        }
        server.methods.insert(key, number.number);
        self.last = None;
    }

    /// Discards the numbers of a server, because the session ended or the server refused a number.
    pub(super) fn forget(&mut self, peer: PeerKey) {
        self.servers.remove(peer);
        self.last = None;
    }
}

/// Counters of the called methods, at most one set per method of the program.
pub(super) struct Counters {
    inbox: Arc<Inbox>,
    all: Vec<Arc<MethodCounters>>,
    /// Index in `all` by the method's hash.
    index: BTreeMap<u64, u32>,
    /// Cached last result, because successive calls often use the same method.
    last: Option<(&'static MethodName, u32)>,
}

impl Counters {
    pub(super) fn new(inbox: &Arc<Inbox>) -> Self {
        Self { inbox: Arc::clone(inbox), all: Vec::new(), index: BTreeMap::new(), last: None }
    }

    /// Returns the index of a method's counters.
    #[inline]
    pub(super) fn index(&mut self, method: &'static MethodName) -> u32 {
        match self.last {
            Some((last, index)) if ptr::eq(last, method) => index,
            _ => self.find(method),
        }
    }

    #[inline(never)]
    fn find(&mut self, method: &'static MethodName) -> u32 {
        let Self { inbox, all, index, last } = self;
        let index = *index.entry(method.hash).or_insert_with(|| {
            all.push(inbox.called().add(method));
            u32::try_from(all.len() - 1).unwrap_or(u32::MAX)
        });
        *last = Some((method, index));
        index
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> Option<&MethodCounters> {
        self.all.get(index as usize).map(|counters| &**counters)
    }

    /// Counts the end of a call to a peer, and records the call if it is sampled.
    #[inline]
    pub(super) fn ended(&self, index: u32, peer: PeerKey, ns: u64) {
        if let Some(counters) = self.at(index)
            && counters.ended(ns)
        {
            self.inbox.recorder().call(counters, peer, ns);
        }
    }

    /// Counts and records the failure of a call.
    #[cold]
    pub(super) fn failed(&self, index: u32, peer: PeerKey, failure: CallFailure, ns: Option<u64>) {
        let Some(counters) = self.at(index) else { return };
        counters.failed(failure);
        self.inbox.recorder().failed(counters, peer, failure, ns);
    }

    pub(super) fn of(&mut self, method: &'static MethodName) -> Option<&MethodCounters> {
        let index = self.index(method);
        self.at(index)
    }

    /// Counts and records a call that fails before its request is passed to the transport.
    #[cold]
    pub(super) fn refused(&mut self, method: &'static MethodName, peer: PeerKey, failure: CallFailure) {
        let index = self.index(method);
        let Some(counters) = self.at(index) else { return };
        counters.refused();
        counters.failed(failure);
        self.inbox.recorder().refused(counters, peer, failure);
    }
}
