//! Resources of a shard that its QPs use.
//!
//! Owns the shard's reader of the device's tables (memory by key, SRQs), its counters, and the queues for all output of
//! QPs except packets: asynchronous events, messages to other members, and events for control. Each call into a QP
//! borrows all of them.

use super::neighbours::Neighbours;
use super::outbox::ControlEvent;
use super::outbox::MemberOutbox;
use super::paths::Paths;
use crate::device::counters::ShardCounters;
use crate::device::objects::async_events::AsyncEvents;
use crate::device::objects::cq_ring::CqRing;
use crate::device::tables::Tables;
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::keys::KeyView;
use crate::device::tables::srqs::Srq;
use crate::device::tables::srqs::UnknownSrq;
use std::sync::Arc;
use trunkline_machine::rings::readers::{Reader, Reading};
use trunkline_verbs::{AsyncEventKind, AsyncSubject, Completion};

/// Resources of a shard, shared by its QPs.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) index: ShardIndex,
    pub(super) reader: Reader,
    pub(super) tables: Arc<Tables>,
    pub(super) neighbours: Arc<Neighbours>,
    pub(super) counters: ShardCounters,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) unknown_srq: UnknownSrq,
    pub(super) outbox: MemberOutbox,
    pub(super) control_events: Vec<ControlEvent>,
    /// Scratch space for the published state of a shared TGT.
    pub(super) image: Vec<u64>,
    /// Congestion control of the paths to other hosts.
    pub(super) paths: Paths,
}

impl Resources {
    /// Returns the parts that report completions.
    pub(super) fn completer(&mut self) -> Completer<'_> {
        let Self { index, events, counters, tables, .. } = self;
        Completer { index: *index, events, counters, tables }
    }

    /// Returns the resources for receiving, split so that they can be borrowed separately.
    pub(super) fn split(&mut self) -> Split<'_> {
        let Self { index, reader, tables, neighbours, counters, events, outbox, .. } = self;
        // Receives are borrowed in batches only if other shards take from the same SRQs.
        let borrower = neighbours.are_many().then_some(*index);
        Split {
            reading: reader.enter(),
            tables,
            borrower,
            completer: Completer { index: *index, events, counters, tables },
            outbox,
        }
    }
}

/// The parts of [`Resources`] that a call into a QP's receive side needs.
#[derive(Debug)]
pub(super) struct Split<'a> {
    pub(super) reading: Reading<'a>,
    pub(super) tables: &'a Tables,
    /// Shard for which receives are borrowed in batches; `None` if the device has only one shard.
    pub(super) borrower: Option<ShardIndex>,
    pub(super) completer: Completer<'a>,
    pub(super) outbox: &'a mut MemberOutbox,
}

impl<'a> Split<'a> {
    /// Returns the intake, which finds SRQs and memory, and the completer.
    pub(super) fn intake(&mut self) -> (Intake<'_>, &mut Completer<'a>) {
        (Intake::new(self.tables, &self.reading, self.borrower), &mut self.completer)
    }
}

/// Finds the SRQs and the memory of a receive side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intake<'a> {
    tables: &'a Tables,
    reading: &'a Reading<'a>,
    pub(super) borrower: Option<ShardIndex>,
}

impl<'a> Intake<'a> {
    #[inline]
    pub(super) fn new(tables: &'a Tables, reading: &'a Reading<'_>, borrower: Option<ShardIndex>) -> Self {
        Self { tables, reading, borrower }
    }

    #[inline]
    pub(super) fn srq(&self, number: u32) -> Option<&'a Srq> {
        self.tables.srqs.get(self.reading, number)
    }

    /// Returns the registered memory.
    #[inline]
    pub(super) fn keys(&self) -> KeyView<'a> {
        self.tables.keys.view(self.reading)
    }
}

/// Resources for reporting a completion to the program.
#[derive(Debug)]
pub(super) struct Completer<'a> {
    index: ShardIndex,
    pub(super) events: &'a AsyncEvents,
    pub(super) counters: &'a mut ShardCounters,
    tables: &'a Tables,
}

impl Completer<'_> {
    /// Pushes a completion. If the CQ is full, the completion is lost, and an error event for the CQ is raised once
    /// (contract H5).
    #[inline]
    pub(super) fn complete(&mut self, cq: &CqRing, completion: Completion, solicited: bool) {
        if !cq.push(self.index, completion, solicited) {
            self.counters.cq_overflows += 1;
            self.tables.note_overflow();
            self.events.raise(AsyncEventKind::CqError, AsyncSubject::Cq(cq.context()));
        }
    }
}
