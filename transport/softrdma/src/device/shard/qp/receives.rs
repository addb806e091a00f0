//! The receive queue that a message uses.
//!
//! Combines a QP's own queue, or an SRQ, with its protection domains and its CQ.

use crate::device::objects::async_events::AsyncEvents;
use crate::device::objects::cq_ring::CqRing;
use crate::device::objects::receive_queue::{ReceiveQueue, Taken};
use crate::device::shard::resources::Intake;
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::domain_table::DomainNumber;
use crate::device::tables::keys::PdNumber;
use crate::device::tables::srqs::Srq;
use trunkline_verbs::SrqNumber;

/// A receive queue, with its protection domains and its CQ.
#[derive(Debug)]
pub(in crate::device::shard) struct Receives<'a> {
    queue: Queue<'a>,
    lkey_pd: PdNumber,
    rkey_pd: PdNumber,
    cq: &'a CqRing,
}

#[derive(Debug)]
enum Queue<'a> {
    Own(&'a mut ReceiveQueue),
    Shared { srq: &'a Srq, borrower: Option<ShardIndex> },
}

impl<'a> Receives<'a> {
    /// Wraps a QP's own queue.
    pub(in crate::device::shard) fn own(queue: &'a mut ReceiveQueue, pd: PdNumber, cq: &'a CqRing) -> Self {
        Self { queue: Queue::Own(queue), lkey_pd: pd, rkey_pd: pd, cq }
    }

    /// Wraps the basic SRQ of a QP with this PD and CQ.
    pub(in crate::device::shard) fn basic(
        intake: Intake<'a>,
        number: u32,
        rkey_pd: PdNumber,
        cq: &'a CqRing,
    ) -> Option<Self> {
        let srq = intake.srq(number)?;
        let queue = Queue::Shared { srq, borrower: intake.borrower };
        Some(Self { queue, lkey_pd: srq.pd(), rkey_pd, cq })
    }

    /// Wraps the SRQ that a packet names, if the SRQ is in the domain.
    #[inline]
    pub(in crate::device::shard) fn in_domain(
        intake: Intake<'a>,
        number: Option<SrqNumber>,
        domain: DomainNumber,
    ) -> Option<Self> {
        let srq = intake.srq(number?.get())?;
        let cq = srq.cq_in(domain)?;
        let queue = Queue::Shared { srq, borrower: intake.borrower };
        Some(Self { queue, lkey_pd: srq.pd(), rkey_pd: srq.pd(), cq })
    }

    /// Returns true if the queue is an SRQ.
    pub(in crate::device::shard) fn is_shared(&self) -> bool {
        matches!(self.queue, Queue::Shared { .. })
    }

    /// Returns the PD that the lkeys of receives must belong to.
    pub(in crate::device::shard) fn lkey_pd(&self) -> PdNumber {
        self.lkey_pd
    }

    /// Returns the PD that the rkeys of messages must belong to.
    pub(in crate::device::shard) fn rkey_pd(&self) -> PdNumber {
        self.rkey_pd
    }

    /// Returns the CQ in which receives complete.
    pub(in crate::device::shard) fn cq(&self) -> &'a CqRing {
        self.cq
    }

    /// Returns true if a receive is posted. Another shard may take the last receive of an SRQ before this shard does.
    pub(in crate::device::shard) fn has_some(&self) -> bool {
        match &self.queue {
            Queue::Own(queue) => queue.len() > 0,
            Queue::Shared { srq, .. } => srq.has_receives(),
        }
    }

    /// Takes a receive for a message, and raises the limit event of an SRQ (contract D6). Returns false if
    /// the queue is empty.
    #[inline]
    pub(in crate::device::shard) fn take(&mut self, taken: &mut Taken, events: &AsyncEvents) -> bool {
        match &mut self.queue {
            Queue::Own(queue) => queue.take(taken),
            Queue::Shared { srq, borrower } => srq.take(*borrower, taken, events),
        }
    }

    /// Takes a receive to flush. Returns false if the queue is empty. Receives of an SRQ are not flushed.
    pub(in crate::device::shard) fn take_to_flush(&mut self, taken: &mut Taken) -> bool {
        match &mut self.queue {
            Queue::Own(queue) => queue.take(taken),
            Queue::Shared { .. } => false,
        }
    }
}
