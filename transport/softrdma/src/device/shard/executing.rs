//! Operations of other processes on the shard's QPs and SRQs.
//!
//! `device::sharing` calls these methods on the shard; the shard calls `device::sharing` through the trait
//! [`SharedTgt`].

use super::Shard;
use super::outbox::MemberOutbox;
use super::qp::reception::Reception;
use super::qp::target::QpTarget;
use super::shared_tgt::{RemoteOutcome, SharedTgt};
use crate::device::objects::async_events::AsyncEvents;
use crate::device::tables::domain_table::DomainNumber;
use trunkline_roce::engine::{Handled, Placement, PlacementRequest, ReadOutcome, ReadPiece, Target};
use trunkline_roce::wire::Packet;
use trunkline_verbs::{QpNumber, SrqNumber, Time};

impl Shard {
    /// Returns the state for sharing a TGT executed here, if the TGT is shared.
    pub(in crate::device) fn shared_tgt(&mut self, number: u32) -> Option<&mut (dyn SharedTgt + 'static)> {
        self.qps.get_mut(number)?.shared()
    }

    /// Publishes the state of a TGT, if the TGT is shared.
    pub(in crate::device) fn publish(&mut self, number: u32) {
        let Self { qps, resources, .. } = self;
        if let Some(qp) = qps.get(number) {
            qp.publish(resources);
        }
    }

    /// Ends the wait for a placement in another process. Returns true if the message in progress holds a receive.
    pub(in crate::device) fn answer_placement(&mut self, number: u32, outcome: RemoteOutcome) -> bool {
        let Self { qps, resources, .. } = self;
        let placement = match outcome {
            RemoteOutcome::Done(placement) => placement,
            RemoteOutcome::UnknownSrq => {
                resources.counters.unknown_srq += 1;
                resources.unknown_srq.placement()
            }
        };
        qps.get_mut(number).is_some_and(|qp| qp.answer(placement))
    }

    /// Passes a stored request to the responder of a QP; `None` if the QP does not have a responder. `joined` is true
    /// if the request may contain the payload of several packets.
    pub(in crate::device) fn take_kept(
        &mut self,
        number: u32,
        packet: &Packet<'_>,
        joined: bool,
        now: Time,
    ) -> Option<Handled> {
        self.qps.get_mut(number)?.handle_request(packet, joined, now, &mut self.resources)
    }

    /// Requests that another process end the message in progress. Its receive completes with an error if `is_error` is
    /// true, and is released otherwise.
    pub(in crate::device) fn end_remote_message(&mut self, number: u32, is_error: bool) {
        let Self { qps, resources, .. } = self;
        if let Some(qp) = qps.get_mut(number) {
            qp.end_remote_message(is_error, resources);
        }
    }

    /// Places a packet of a TGT that another process executes. `on_placed` is called before the program can observe the
    /// placement.
    pub(in crate::device) fn place_for_member(
        &mut self,
        tgt: QpNumber,
        reception: &mut Reception,
        place: &PlacementRequest<'_>,
        on_placed: &dyn Fn(),
    ) -> Placement {
        QpTarget::for_member(tgt, reception, &mut self.resources, on_placed).place(place)
    }

    /// Appends bytes for a READ response that another process sends.
    pub(in crate::device) fn read_for_member(
        &mut self,
        tgt: QpNumber,
        reception: &mut Reception,
        piece: &ReadPiece,
        out: &mut Vec<u8>,
    ) -> ReadOutcome {
        QpTarget::new(tgt, reception, &mut self.resources).read(piece, out)
    }

    /// Completes with an error the message that a TGT of another process has begun here (contract I2).
    pub(in crate::device) fn flush_for_member(&mut self, tgt: QpNumber, reception: &mut Reception) {
        let mut split = self.resources.split();
        let (intake, completer) = split.intake();
        reception.flush(tgt, intake, completer);
    }

    /// Returns the number of an XRC SRQ's domain on this device, and its number among the members of the host.
    pub(in crate::device) fn domain_of(&mut self, srq: SrqNumber) -> Option<(DomainNumber, Option<u64>)> {
        let super::Resources { reader, tables, .. } = &mut self.resources;
        tables.srqs.domain_of(&reader.enter(), srq)
    }

    /// Returns the queue of messages to other processes.
    pub(in crate::device) fn outbox(&mut self) -> &mut MemberOutbox {
        &mut self.resources.outbox
    }

    /// Returns the device's asynchronous events.
    pub(in crate::device) fn events(&self) -> &AsyncEvents {
        &self.resources.events
    }
}
