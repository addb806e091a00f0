//! The receive side of a QP.
//!
//! Owns the source of receives, and the receive that a message in progress holds. `target` decides how a
//! packet uses that receive.

use super::receives::Receives;
use crate::device::objects::async_events::AsyncEvents;
use crate::device::objects::cq_ring::CqRing;
use crate::device::objects::receive_queue::{ReceiveQueue, Taken};
use crate::device::shard::resources::{Completer, Intake};
use crate::device::tables::domain_table::DomainNumber;
use crate::device::tables::keys::PdNumber;
use std::sync::Arc;
use trunkline_verbs::{Completion, CompletionOpcode, CompletionStatus, QpNumber, SrqNumber};

/// Source of a QP's receives.
#[derive(Debug)]
pub(in crate::device::shard) enum ReceiveSource {
    /// An INI, which does not receive.
    None,
    /// An RC QP with a separate queue.
    Own { queue: ReceiveQueue, pd: PdNumber, cq: Arc<CqRing> },
    /// An RC QP with a basic SRQ.
    Basic { srq: u32, pd: PdNumber, cq: Arc<CqRing> },
    /// A TGT, which may use any XRC SRQ of the domain.
    Xrc { domain: DomainNumber },
}

/// The receive side of a QP.
#[derive(Debug)]
pub(in crate::device) struct Reception {
    source: ReceiveSource,
    held: HeldReceive,
}

/// The receive of the message in progress.
#[derive(Debug, Default)]
pub(in crate::device::shard) struct HeldReceive {
    /// The receive if `in_use` is true, otherwise a buffer for the next one.
    taken: Taken,
    in_use: bool,
    /// The SRQ that the message names; `None` if the QP is not a TGT.
    srq: Option<SrqNumber>,
}

impl HeldReceive {
    /// Returns `Some` if a message in progress holds a receive. The inner value is the SRQ that the message names.
    pub(in crate::device::shard) fn message(&self) -> Option<Option<SrqNumber>> {
        self.in_use.then_some(self.srq)
    }

    /// Drops the message in progress without completing its receive.
    pub(in crate::device::shard) fn drop_message(&mut self) {
        self.in_use = false;
    }

    /// Takes a receive for a message that names `srq`. Returns false if the queue is empty.
    pub(in crate::device::shard) fn begin(
        &mut self,
        receives: &mut Receives<'_>,
        srq: Option<SrqNumber>,
        events: &AsyncEvents,
    ) -> bool {
        if !receives.take(&mut self.taken, events) {
            return false;
        }
        self.in_use = true;
        self.srq = srq;
        true
    }

    /// Ends the message in progress. Returns the `wr_id` of its receive.
    pub(in crate::device::shard) fn end(&mut self) -> u64 {
        self.in_use = false;
        self.taken.wr_id
    }

    pub(in crate::device::shard) fn taken(&self) -> &Taken {
        &self.taken
    }
}

impl ReceiveSource {
    #[inline]
    fn select<'a>(&'a mut self, intake: Intake<'a>, srq: Option<SrqNumber>) -> Option<Receives<'a>> {
        match self {
            Self::None => None,
            Self::Own { queue, pd, cq } => Some(Receives::own(queue, *pd, cq)),
            Self::Basic { srq, pd, cq } => Receives::basic(intake, *srq, *pd, cq),
            Self::Xrc { domain } => Receives::in_domain(intake, srq, *domain),
        }
    }

    /// Returns true if the receive CQ has lost a completion. Always false for a TGT, whose SRQs have separate
    /// CQs.
    pub(in crate::device::shard) fn is_overflowed(&self) -> bool {
        match self {
            Self::Own { cq, .. } | Self::Basic { cq, .. } => cq.is_overflowed(),
            Self::None | Self::Xrc { .. } => false,
        }
    }
}

impl Reception {
    /// Creates the receive side of a TGT of the domain.
    pub(in crate::device) fn of_domain(domain: DomainNumber) -> Self {
        Self::new(ReceiveSource::Xrc { domain })
    }

    pub(in crate::device::shard) fn new(source: ReceiveSource) -> Self {
        Self { source, held: HeldReceive::default() }
    }

    /// Completes the receive of a message in progress with an error when the QP goes to ERR (contract I2),
    /// and flushes the QP's own receive queue.
    pub(in crate::device::shard) fn flush(
        &mut self,
        number: QpNumber,
        intake: Intake<'_>,
        completer: &mut Completer<'_>,
    ) {
        let Self { source, held: HeldReceive { taken, in_use, srq } } = self;
        let Some(mut receives) = source.select(intake, *srq) else {
            *in_use = false;
            return;
        };
        let flushed = |wr_id| Completion {
            wr_id,
            status: CompletionStatus::WorkRequestFlushed,
            opcode: CompletionOpcode::Receive,
            qp_number: number,
            ..Completion::default()
        };
        if std::mem::take(in_use) {
            completer.complete(receives.cq(), flushed(taken.wr_id), false);
        }
        if !receives.is_shared() {
            while receives.take_to_flush(taken) {
                completer.complete(receives.cq(), flushed(taken.wr_id), false);
            }
        }
    }

    /// Drops the message in progress without completing its receive.
    pub(in crate::device::shard) fn drop_message(&mut self) {
        self.held.drop_message();
    }

    /// Returns the source of receives.
    pub(in crate::device::shard) fn source(&self) -> &ReceiveSource {
        &self.source
    }

    /// Returns the QP's own receive queue, if it has one.
    pub(in crate::device::shard) fn own_queue(&mut self) -> Option<&mut ReceiveQueue> {
        match &mut self.source {
            ReceiveSource::Own { queue, .. } => Some(queue),
            _ => None,
        }
    }

    /// Returns the receive queue for a message that names `srq`, and the state of the message in progress.
    #[inline]
    pub(in crate::device::shard) fn select<'a>(
        &'a mut self,
        intake: Intake<'a>,
        srq: Option<SrqNumber>,
    ) -> Option<(Receives<'a>, &'a mut HeldReceive)> {
        let receives = self.source.select(intake, srq)?;
        Some((receives, &mut self.held))
    }

    /// Completes the receive of the message in progress with `completion`, whose `wr_id` this function sets.
    pub(in crate::device::shard) fn fail(
        &mut self,
        intake: Intake<'_>,
        completer: &mut Completer<'_>,
        completion: Completion,
    ) {
        let Self { source, held } = self;
        let completion = Completion { wr_id: held.end(), ..completion };
        if let Some(receives) = source.select(intake, held.srq) {
            completer.complete(receives.cq(), completion, false);
        }
    }

    /// Drops all receives without completions, since the QP goes to RESET.
    pub(in crate::device) fn reset(&mut self) {
        self.held.drop_message();
        if let ReceiveSource::Own { queue, .. } = &mut self.source {
            queue.clear();
        }
    }
}
