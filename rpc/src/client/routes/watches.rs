//! Health of the services called through balanced channels, as reported by their servers.
//!
//! A node's channels share the watch of a service at a server. The watch ends when the last of these channels is dropped.
//! Each session with the server has one stream, read by a task on the first poller (`client/health_watch.rs`). A service
//! counts as serving until its server reports otherwise.

use super::id::ExpectedId;
use super::{Link, Routes};
use crate::node::fork_lock::Lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use trunkline_machine::rings::cell::{self, Getter, Setter};
use trunkline_transport::PeerKey;

/// A service at a server that has proved the expected name.
type Key = (PeerKey, ExpectedId, &'static str);

/// The watches of a node.
#[derive(Debug, Default)]
pub(super) struct Watches {
    known: Lock<BTreeMap<Key, Weak<Watched>>>,
    /// Number of watches whose service is not serving. Calls skip the watches while the number is 0.
    not_serving: AtomicUsize,
}

/// The health of a service at a server.
#[derive(Debug)]
pub(crate) struct Watched {
    link: Arc<Link>,
    service: &'static str,
    is_not_serving: AtomicBool,
    /// Sequence number of the last session for which a task was started.
    session: AtomicU64,
    /// Dropped to end the task.
    task: Lock<Option<Setter<()>>>,
}

/// Parameters of the task that watches the health of a service during a session.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) link: Arc<Link>,
    pub(crate) service: &'static str,
    session: u64,
}

impl Watches {
    /// Starts the watches at a node that has a new session or has proved its name.
    pub(super) fn begin(&self, peer: PeerKey) {
        let known = self.known.lock();
        let of_peer = known.range((peer, ExpectedId::ADDRESS, "")..).take_while(|((of, ..), _)| *of == peer);
        let of_peer = of_peer.filter_map(|(_, watched)| watched.upgrade()).collect::<Vec<_>>();
        // Release the lock first, because dropping the last channel takes the lock.
        drop(known);
        of_peer.iter().for_each(Watched::begin);
    }

    /// Returns true if no watched service is reported as not serving.
    #[inline]
    pub(super) fn all_serve(&self) -> bool {
        self.not_serving.load(Ordering::Relaxed) == 0
    }
}

impl Routes {
    /// Returns the watch of a service at a server, and starts it if the server has a session.
    pub(super) fn watch(self: &Arc<Self>, server: &Link, service: &'static str) -> Arc<Watched> {
        let key = (server.server().0, server.expected, service);
        let mut known = self.watches.known.lock();
        if let Some(watched) = known.get(&key).and_then(Weak::upgrade) {
            return watched;
        }
        let watched = Arc::new(Watched {
            link: Link::new(self, server.target.clone()),
            service,
            is_not_serving: AtomicBool::new(false),
            session: AtomicU64::new(0),
            task: Lock::default(),
        });
        known.insert(key, Arc::downgrade(&watched));
        drop(known);
        watched.begin();
        watched
    }
}

impl Watched {
    /// Starts the task of the current session, once.
    fn begin(self: &Arc<Self>) {
        let Some(session) = self.link.session() else { return };
        if self.session.fetch_max(session.serial, Ordering::Relaxed) < session.serial {
            self.link.routes.pollers().watch(Arc::downgrade(self));
        }
    }

    /// Starts watching the health in the current session instead of an earlier one. The future completes when all channels
    /// have dropped the watch, or when a later session is watched.
    pub(crate) fn follow(&self) -> Option<(Following, Getter<()>)> {
        let session = self.link.session()?.serial;
        self.set_serving(true);
        let (setter, over) = cell::pair();
        let earlier = self.task.lock().replace(setter);
        drop(earlier);
        Some((Following { link: Arc::clone(&self.link), service: self.service, session }, over))
    }

    pub(crate) fn set_serving(&self, is_serving: bool) {
        if self.is_not_serving.swap(!is_serving, Ordering::Relaxed) != is_serving {
            return;
        }
        let count = &self.link.routes.watches.not_serving;
        if is_serving {
            count.fetch_sub(1, Ordering::Relaxed);
        } else {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn service(&self) -> &'static str {
        self.service
    }

    pub(super) fn is_serving(&self) -> bool {
        !self.is_not_serving.load(Ordering::Relaxed)
    }
}

impl Following {
    /// Returns true while the watched session is up.
    pub(crate) fn is_current(&self) -> bool {
        self.link.session().is_some_and(|session| session.serial == self.session)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.link.routes.is_forked() {
            return;
        }
        self.set_serving(true);
        let key = (self.link.server().0, self.link.expected, self.service);
        let mut known = self.link.routes.watches.known.lock();
        // Another channel may have started a new watch.
        if known.get(&key).is_some_and(|watched| watched.strong_count() == 0) {
            known.remove(&key);
        }
    }
}
