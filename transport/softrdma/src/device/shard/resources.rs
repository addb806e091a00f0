//! What the QPs of a shard work on.
//!
//! Owns memory by key, SRQs, counters, and the ways out for what QPs produce besides packets:
//! asynchronous events, messages to other members, and what is control's business. Each call into a QP
//! borrows it whole.

use super::found::Found;
use super::outbox::MemberOutbox;
use super::srq_table::SrqTable;
use crate::device::async_events::AsyncEvents;
use crate::device::counters::ShardCounters;
use crate::device::cq_ring::CqRing;
use crate::device::keys::Keys;
use crate::device::unknown_srq::UnknownSrq;
use std::sync::Arc;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, Completion};

/// See the module.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) keys: Keys,
    pub(super) srqs: SrqTable,
    pub(super) counters: ShardCounters,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) unknown_srq: UnknownSrq,
    pub(super) outbox: MemberOutbox,
    pub(super) found: Vec<Found>,
    /// Scratch space for the image of a shared TGT.
    pub(super) image: Vec<u64>,
}

impl Resources {
    /// The way out for completions alone.
    pub(super) fn completer(&mut self) -> Completer<'_> {
        Completer { events: &self.events, counters: &mut self.counters }
    }
}

/// What a completion needs on its way out.
#[derive(Debug)]
pub(super) struct Completer<'a> {
    pub(super) events: &'a AsyncEvents,
    pub(super) counters: &'a mut ShardCounters,
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
