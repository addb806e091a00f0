//! The QPs of the shard: by number, in service order, by deadline.
//!
//! Owns the QPs, the list of QPs that want service, each at most once, and their timers. It keeps the
//! device's directory of QPs up to date.

use super::neighbours::Neighbours;
use super::qp::Qp;
use super::timers::{Scheduled, Timers};
use crate::device::counters::{QpCounters, ShardCounters};
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::numbers::NumberMap;
use std::collections::VecDeque;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_roce::wire::{Bth, Service};
use trunkline_verbs::{QpType, Time};

/// A QP with its state in the lists.
#[derive(Debug)]
struct ScheduledQp {
    qp: Qp,
    /// True if the QP is in `ready`.
    is_ready: bool,
    scheduled: Scheduled,
}

/// Adds a QP to the list of QPs that want service.
#[derive(Debug)]
pub(super) struct ReadyMark<'a> {
    number: u32,
    is_ready: &'a mut bool,
    ready: &'a mut VecDeque<u32>,
}

impl ReadyMark<'_> {
    /// Adds the QP to the list unless it is there.
    pub(super) fn set(self) {
        if !std::mem::replace(self.is_ready, true) {
            self.ready.push_back(self.number);
        }
    }
}

/// The QPs of a shard.
#[derive(Debug)]
pub(in crate::device) struct QpTable {
    index: ShardIndex,
    neighbours: Arc<Neighbours>,
    entries: NumberMap<Box<ScheduledQp>>,
    ready: VecDeque<u32>,
    timers: Timers,
    /// Counters of QPs that were destroyed.
    retired: QpCounters,
}

impl QpTable {
    pub(super) fn new(index: ShardIndex, neighbours: Arc<Neighbours>) -> Self {
        Self {
            index,
            neighbours,
            entries: NumberMap::default(),
            ready: VecDeque::new(),
            timers: Timers::default(),
            retired: QpCounters::default(),
        }
    }

    /// Adds a QP.
    pub(super) fn insert(&mut self, number: u32, qp: Qp) {
        self.entries
            .insert(number, Box::new(ScheduledQp { qp, is_ready: false, scheduled: Scheduled::default() }));
        self.neighbours.directory().enter(number, self.index);
    }

    /// Removes a QP.
    pub(super) fn remove(&mut self, number: u32) {
        if let Some(entry) = self.entries.remove(number) {
            self.neighbours.directory().leave(number);
            let (requester, responder) = entry.qp.counters();
            self.retired.add(requester, responder);
        }
    }

    /// Returns true if the table has the QP.
    #[inline]
    pub(super) fn contains(&self, number: u32) -> bool {
        self.entries.contains(number)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Qp> {
        self.entries.get(number).map(|entry| &entry.qp)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Qp> {
        self.entries.get_mut(number).map(|entry| &mut entry.qp)
    }

    /// Returns all numbers, in order.
    pub(in crate::device) fn numbers(&self) -> Vec<u32> {
        self.entries.numbers()
    }

    /// Returns the QP that a packet names, with its mark for the service list, if `is_connected` accepts the
    /// packet.
    pub(super) fn addressed(
        &mut self,
        bth: &Bth,
        counters: &mut ShardCounters,
        is_connected: impl FnOnce(&mut Qp) -> bool,
    ) -> Option<(&mut Qp, ReadyMark<'_>)> {
        let Self { entries, ready, .. } = self;
        let number = bth.destination.get();
        let Some(ScheduledQp { qp, is_ready, .. }) = entries.get_mut(number).map(|entry| &mut **entry) else {
            counters.unknown_qp += 1;
            return None;
        };
        if !is_connected(qp) {
            counters.wrong_address += 1;
            return None;
        }
        let service = match qp.attributes().qp_type {
            QpType::Rc => Service::RC,
            QpType::XrcIni | QpType::XrcTgt => Service::XRC,
        };
        if bth.opcode.service() != service {
            counters.wrong_service += 1;
            return None;
        }
        Some((qp, ReadyMark { number, is_ready, ready }))
    }

    /// Adds a QP to the list of QPs that want service.
    pub(in crate::device) fn mark_ready(&mut self, number: u32) {
        if let Some(entry) = self.entries.get_mut(number) {
            ReadyMark { number, is_ready: &mut entry.is_ready, ready: &mut self.ready }.set();
        }
    }

    /// Returns the number of QPs that want service.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next QP that wants service; it may have been destroyed.
    pub(super) fn pop_ready(&mut self) -> Option<u32> {
        let number = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(number) {
            entry.is_ready = false;
        }
        Some(number)
    }

    /// Schedules the QP's next timeout.
    pub(super) fn schedule(&mut self, number: u32) {
        if let Some(ScheduledQp { qp, scheduled, .. }) =
            self.entries.get_mut(number).map(|entry| &mut **entry)
        {
            self.timers.schedule(number, scheduled, qp.next_timeout());
        }
    }

    /// Returns the time of the first timer.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Takes the next QP whose timer has expired.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<u32> {
        while let Some(due) = self.timers.pop_due(now) {
            if mutant!(timers_do_not_fire) {
                continue;
            }
            if self.entries.get_mut(due.number).is_some_and(|entry| due.accept(&mut entry.scheduled)) {
                return Some(due.number);
            }
        }
        None
    }

    /// Returns the sums of all QPs' counters, including destroyed QPs.
    pub(super) fn counters(&self) -> QpCounters {
        let mut sum = self.retired.clone();
        for entry in self.entries.values() {
            let (requester, responder) = entry.qp.counters();
            sum.add(requester, responder);
        }
        sum
    }
}
