//! How completions leave the card.
//!
//! Owns nothing: it pushes into CQs and reports CQs that overflow.

use crate::device::async_events::AsyncEvents;
use crate::device::counters::CardCounters;
use crate::device::cq_ring::CqRing;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, Completion};

/// What a completion needs on its way out.
pub(super) struct Completer<'a> {
    pub(super) events: &'a AsyncEvents,
    pub(super) counters: &'a mut CardCounters,
}

impl Completer<'_> {
    /// Pushes a completion; a CQ without room raises its error event once (contract H5).
    pub(super) fn complete(&mut self, cq: &CqRing, completion: Completion, solicited: bool) {
        if !cq.push(completion, solicited) {
            self.counters.cq_overflows += 1;
            self.events.raise(AsyncEventKind::CqError, AsyncSubject::Cq(cq.context()));
        }
    }
}
