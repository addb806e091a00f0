//! The inboxes of all pollers of a node, and the choice of a channel's first poller.
//!
//! A node owns the list and its channels share it. Inboxes wake their pollers themselves.

use crate::inbox::{Inbox, Work};
use crate::resolved::Resolved;
use crate::route_id::RouteId;
use crate::routes::Pollers;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One inbox for each poller.
pub(crate) struct Inboxes {
    of_pollers: Box<[Arc<Inbox>]>,
    channels: AtomicUsize,
}

impl Inboxes {
    /// With this inbox for each poller, in order; at least one.
    pub(crate) fn new(of_pollers: impl Iterator<Item = Arc<Inbox>>) -> Arc<Self> {
        Arc::new(Self { of_pollers: of_pollers.collect(), channels: AtomicUsize::new(0) })
    }

    /// The first turn of a new channel, clones included: callers that clone their client for each call use all pollers
    /// alike. Each channel counts its further turns by itself, so that calls share no counter.
    pub(crate) fn first_turn(&self) -> usize {
        self.channels.fetch_add(1, Ordering::Relaxed)
    }
}

impl Deref for Inboxes {
    type Target = [Arc<Inbox>];

    fn deref(&self) -> &Self::Target {
        &self.of_pollers
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
