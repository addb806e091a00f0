//! The inboxes of all pollers of a node, and the choice of a channel's first poller.
//!
//! A node's builder creates the list, its channels share it, and the start of the node fills it. Inboxes wake their
//! pollers themselves.

use crate::budgets::SharedMemory;
use crate::inbox::{Inbox, Work};
use crate::resolved::Resolved;
use crate::route_id::RouteId;
use crate::routes::Pollers;
use crate::stream::{Owner, Stream};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// One inbox for each poller; none before the node starts.
#[derive(Debug, Default)]
pub(crate) struct Inboxes {
    of_pollers: OnceLock<Box<[Arc<Inbox>]>>,
    channels: AtomicUsize,
}

impl Inboxes {
    /// Sets the inbox of each poller, in order; at least one. The node starts once.
    pub(crate) fn open(&self, of_pollers: impl Iterator<Item = Arc<Inbox>>) {
        let _opened_before = self.of_pollers.set(of_pollers.collect());
    }

    /// Refuses all calls, because the node has failed to start.
    pub(crate) fn close(&self) {
        for inbox in self.iter() {
            inbox.lifecycle().begin_end();
            inbox.close();
        }
    }

    /// Returns the first turn of a new channel or clone, so that callers that clone their client for each call use all
    /// pollers alike. Each channel counts its further turns by itself, so that calls share no counter.
    pub(crate) fn first_turn(&self) -> usize {
        self.channels.fetch_add(1, Ordering::Relaxed)
    }
}

impl Deref for Inboxes {
    type Target = [Arc<Inbox>];

    fn deref(&self) -> &Self::Target {
        self.of_pollers.get().map_or(&[], |all| all)
    }
}

impl Pollers for Inboxes {
    fn look(&self, id: RouteId) {
        for inbox in self.iter() {
            let _closed = inbox.push(Work::Route(id));
        }
    }

    fn seek(&self, id: RouteId) {
        if let Some(first) = self.first() {
            let _closed = first.push(Work::Route(id));
        }
    }

    fn resolved(&self, resolved: Resolved) {
        if let Some(first) = self.first() {
            let _closed = first.push(Work::Resolved(Box::new(resolved)));
        }
    }
}

/// The owner of a stream whose call could not be made, because the node has not started.
impl Owner for Inboxes {
    fn stream_changed(&self, _: Arc<Stream>) {}

    fn stream_dropped(&self) {}

    fn wake_others(&self) {}

    fn most_decoded(&self) -> usize {
        0
    }

    fn memory(&self) -> Option<&SharedMemory> {
        None
    }

    fn is_forked(&self) -> bool {
        false
    }
}
