//! The QPs of a shard, by number, by order of service and by deadline.
//!
//! Owns the QPs, their timers, and the list of ready QPs, which contains a QP at most once. Updates the
//! device's directory of QPs.

use super::neighbours::Neighbours;
use super::qp::Qp;
use super::timers::{Scheduled, Timers};
use crate::device::counters::{QpCounters, ShardCounters};
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::numbers::NumberMap;
use slab::Slab;
use std::collections::VecDeque;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_roce::wire::{Bth, Service};
use trunkline_verbs::{QpType, Time};

/// A QP, and its state in the list of ready QPs.
#[derive(Debug)]
struct ScheduledQp {
    number: u32,
    qp: Qp,
    /// True if the QP is in `ready`.
    is_ready: bool,
    scheduled: Scheduled,
}

/// Access to the list of ready QPs, for adding one QP.
#[derive(Debug)]
pub(super) struct ReadyMark<'a> {
    slot: usize,
    is_ready: &'a mut bool,
    ready: &'a mut VecDeque<usize>,
}

impl ReadyMark<'_> {
    /// Adds the QP to the list unless it is already in it.
    pub(super) fn set(self) {
        if !std::mem::replace(self.is_ready, true) {
            self.ready.push_back(self.slot);
        }
    }
}

/// A QP taken from the list of ready QPs.
#[derive(Debug)]
pub(super) struct ServedQp<'a> {
    pub(super) number: u32,
    pub(super) qp: &'a mut Qp,
    scheduled: &'a mut Scheduled,
    timers: &'a mut Timers,
    mark: ReadyMark<'a>,
}

impl ServedQp<'_> {
    /// Schedules the QP's next timeout. Adds the QP to the list again if it has more to send.
    pub(super) fn finish(self, has_more: bool) {
        self.timers.schedule(self.number, self.scheduled, self.qp.next_timeout());
        if has_more {
            self.mark.set();
        }
    }
}

/// The QPs of a shard.
#[derive(Debug)]
pub(in crate::device) struct QpTable {
    index: ShardIndex,
    neighbours: Arc<Neighbours>,
    /// Indices in `entries` by QP number.
    slots: NumberMap<usize>,
    entries: Slab<Box<ScheduledQp>>,
    /// Indices in `entries` of the ready QPs, in order of service.
    ready: VecDeque<usize>,
    timers: Timers,
    /// Sums of the counters of destroyed QPs.
    retired: QpCounters,
}

impl QpTable {
    pub(super) fn new(index: ShardIndex, neighbours: Arc<Neighbours>) -> Self {
        Self {
            index,
            neighbours,
            slots: NumberMap::default(),
            entries: Slab::new(),
            ready: VecDeque::new(),
            timers: Timers::default(),
            retired: QpCounters::default(),
        }
    }

    pub(super) fn insert(&mut self, number: u32, qp: Qp) {
        let scheduled = Scheduled::default();
        let slot = self.entries.insert(Box::new(ScheduledQp { number, qp, is_ready: false, scheduled }));
        self.slots.insert(number, slot);
        self.neighbours.directory().enter(number, self.index);
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(slot) = self.slots.remove(number) {
            let entry = self.entries.remove(slot);
            if entry.is_ready {
                self.ready.retain(|ready| *ready != slot);
            }
            self.neighbours.directory().leave(number);
            let (requester, responder) = entry.qp.counters();
            self.retired.add(requester, responder);
        }
    }

    /// Returns true if the table contains the QP.
    #[inline]
    pub(super) fn contains(&self, number: u32) -> bool {
        self.slots.contains(number)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Qp> {
        self.slots.get(number).map(|slot| &self.entries[*slot].qp)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Qp> {
        self.slots.get(number).map(|slot| &mut self.entries[*slot].qp)
    }

    /// Returns a QP. The [`ReadyMark`] adds the QP to the list of ready QPs.
    pub(super) fn get_marked(&mut self, number: u32) -> Option<(&mut Qp, ReadyMark<'_>)> {
        let slot = *self.slots.get(number)?;
        let ScheduledQp { qp, is_ready, .. } = &mut *self.entries[slot];
        Some((qp, ReadyMark { slot, is_ready, ready: &mut self.ready }))
    }

    /// Returns the numbers of all QPs, in ascending order.
    pub(in crate::device) fn numbers(&self) -> Vec<u32> {
        self.slots.numbers()
    }

    /// Returns the QP to which a packet is addressed, if `is_connected` accepts the packet. The [`ReadyMark`] adds the
    /// QP to the list of ready QPs.
    pub(super) fn addressed(
        &mut self,
        bth: &Bth,
        counters: &mut ShardCounters,
        is_connected: impl FnOnce(&mut Qp) -> bool,
    ) -> Option<(&mut Qp, ReadyMark<'_>)> {
        let Some((qp, mark)) = self.get_marked(bth.destination.get()) else {
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
        Some((qp, mark))
    }

    /// Adds a QP to the list of ready QPs.
    pub(in crate::device) fn mark_ready(&mut self, number: u32) {
        if let Some((_, mark)) = self.get_marked(number) {
            mark.set();
        }
    }

    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next ready QP.
    pub(super) fn pop_ready(&mut self) -> Option<ServedQp<'_>> {
        let Self { entries, ready, timers, .. } = self;
        let slot = ready.pop_front()?;
        let ScheduledQp { number, qp, is_ready, scheduled } = &mut *entries[slot];
        *is_ready = false;
        Some(ServedQp { number: *number, qp, scheduled, timers, mark: ReadyMark { slot, is_ready, ready } })
    }

    /// Returns the time of the first timer, if any is set.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Takes the next QP whose timer has expired.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<u32> {
        while let Some(due) = self.timers.pop_due(now) {
            if mutant!(timers_do_not_fire) {
                continue;
            }
            let slot = self.slots.get(due.number);
            if slot.is_some_and(|slot| due.accept(&mut self.entries[*slot].scheduled)) {
                return Some(due.number);
            }
        }
        None
    }

    /// Returns the sums of the counters of all QPs, including destroyed QPs.
    pub(super) fn counters(&self) -> QpCounters {
        let mut sum = self.retired.clone();
        for (_, entry) in &self.entries {
            let (requester, responder) = entry.qp.counters();
            sum.add(requester, responder);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::shard::{QpParts, ReceiveSide};
    use crate::device::tables::directory::QpDirectory;
    use crate::device::tables::numbers::Numbers;
    use crate::device::tables::random::Random;
    use trunkline_verbs::{QpNumber, QueueCapacities};

    fn qp(number: u32) -> Qp {
        let parts = QpParts {
            qp_type: QpType::XrcIni,
            pd: None,
            send_cq: None,
            receive: ReceiveSide::None,
            capacities: QueueCapacities::default(),
            signal_all: false,
        };
        Qp::new(QpNumber::new(number), parts, None)
    }

    #[test]
    fn removed_qp_is_absent_from_service_list() {
        let directory = QpDirectory::new(Numbers::new(&mut Random::new(1), None));
        let mut qps = QpTable::new(ShardIndex::FIRST, Neighbours::new(directory));
        qps.insert(5, qp(5));
        qps.insert(6, qp(6));
        for number in [5, 6, 6] {
            qps.mark_ready(number);
        }
        qps.remove(5);
        // The new QP reuses the slot of the removed one.
        qps.insert(7, qp(7));
        assert_eq!(qps.ready(), 1);
        assert_eq!(qps.pop_ready().map(|served| served.number), Some(6));
        assert!(qps.pop_ready().is_none());
        qps.mark_ready(7);
        assert_eq!(qps.pop_ready().map(|served| served.number), Some(7));
    }
}
