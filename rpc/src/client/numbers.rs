//! The numbers that servers have given their methods, as far as one poller has been told.
//!
//! A number is good for the session that it came through and for nothing else: a server that is restarted may give it
//! to another method. So it is forgotten with the session, and a request that has one is bound to the session.

use crate::frame::Number;
use crate::name::MethodName;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr;
use trunkline_transport::{Origin, PeerKey, PeerMap, SessionNumber};

/// A method, and the version of its schema, for which its server has checked it.
type Key = (u64, u32);

fn key(method: &MethodName) -> Key {
    (method.hash, method.service.version)
}

/// What is known of one server.
#[derive(Debug)]
struct Server {
    session: SessionNumber,
    methods: BTreeMap<Key, u16>,
    /// The one that was asked for last: calls come in runs.
    last: Option<(&'static MethodName, u16)>,
}

impl Server {
    fn number(&mut self, method: &'static MethodName) -> Option<u16> {
        if let Some((_, number)) = self.last.filter(|(last, _)| ptr::eq(*last, method)) {
            return Some(number);
        }
        let number = *self.methods.get(&key(method))?;
        self.last = Some((method, number));
        Some(number)
    }
}

#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The methods that were asked for: as many as the program has, and no number of another is kept.
    asked: BTreeSet<Key>,
    servers: PeerMap<Server>,
}

impl Numbers {
    /// The number of a method at a server, and the session that it is good for. If there is none, the method will be
    /// asked for.
    pub(super) fn of(&mut self, peer: PeerKey, method: &'static MethodName) -> Option<(u16, SessionNumber)> {
        let server = self.servers.get_mut(peer);
        let known = server.and_then(|server| Some((server.number(method)?, server.session)));
        if known.is_none() {
            self.asked.insert(key(method));
        }
        known
    }

    /// A server reports a number.
    pub(super) fn learn(&mut self, from: Origin, number: Number) {
        let key = (number.method, number.version);
        if !self.asked.contains(&key) {
            return;
        }
        let new = || Server { session: from.session, methods: BTreeMap::new(), last: None };
        let server = self.servers.get_or_insert_with(from.peer, new);
        if server.session != from.session {
            *server = new();
        }
        server.methods.insert(key, number.number);
        server.last = None;
    }

    /// The session is over, or a number was refused.
    pub(super) fn forget(&mut self, peer: PeerKey) {
        self.servers.remove(peer);
    }
}
