//! The seam to TGTs that processes share.
//!
//! A TGT of an XRC domain that a file names has, besides its engine half, a [`SharedTgt`]: it places packets
//! in the SRQs of other processes and publishes the TGT's state. `device::sharing` implements it; the shard
//! uses only this trait. QPs that are not shared do not have one, without any cost.

use super::outbox::MemberOutbox;
use crate::device::objects::async_events::AsyncEvents;
use std::any::Any;
use std::fmt::Debug;
use std::net::IpAddr;
use trunkline_roce::engine::{Placement, PlacementRequest, ReadOutcome, ReadPiece, ResponderState};
use trunkline_verbs::{AsyncEventKind, QpAttributes, QpNumber, Time};

/// Outcome of a packet in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum RemoteOutcome {
    /// A placement as the engine defines it; never `Later`, and never `Drop`, which only the executor
    /// chooses.
    Done(Placement),
    /// The domain has no such SRQ: the executor applies its policy (contract G7).
    UnknownSrq,
}

/// Context of a shared TGT's calls besides its own state: the serial number of the responder's next
/// placement, the time, and the outbox for messages to other processes.
#[derive(Debug)]
pub(in crate::device) struct RemoteCall<'a> {
    pub(in crate::device) tgt: QpNumber,
    pub(in crate::device) serial: u64,
    pub(in crate::device) now: Time,
    pub(in crate::device) outbox: &'a mut MemberOutbox,
}

/// Hooks of a TGT that this process executes and other processes share.
pub(in crate::device) trait SharedTgt: Any + Debug + Send {
    /// Returns true if a placement in another process is pending. Packets that arrive in the meantime are
    /// kept.
    fn is_waiting(&self) -> bool;

    /// Keeps a packet until the pending placement is answered. `joined` is true if it may have the payload of
    /// several packets.
    fn keep(&mut self, packet: &[u8], joined: bool);

    /// Returns the outcome of the packet of this serial number, if it was placed before this process executed
    /// the TGT.
    fn settled(&mut self, serial: u64) -> Option<RemoteOutcome>;

    /// Requests a placement from the owner of the SRQ; returns false unless another process owns the SRQ.
    fn place(&mut self, call: RemoteCall<'_>, request: &PlacementRequest<'_>) -> bool;

    /// Appends bytes for a READ's answer, or requests them from the owner of the SRQ; `None` unless another
    /// process owns it.
    fn read(
        &mut self,
        call: RemoteCall<'_>,
        piece: &ReadPiece,
        out: &mut Vec<u8>,
    ) -> Option<Result<ReadOutcome, RemoteOutcome>>;

    /// Records a placement in this process. Called before the program can see the packet.
    fn note_placed(&self, serial: u64);

    /// Returns true if an ended process has placed this packet, so that it only has to be acknowledged.
    fn was_placed(&self, serial: u64, request: &PlacementRequest<'_>) -> bool;

    /// Publishes the TGT's state. Packets that reveal the new state must be sent afterwards. `image` is
    /// scratch space.
    fn publish(
        &self,
        attributes: &QpAttributes,
        source: Option<IpAddr>,
        responder: &ResponderState,
        image: &mut Vec<u64>,
    );

    /// Queues an event of the TGT for every process that has a handle.
    fn raise(&mut self, kind: AsyncEventKind);

    /// Sends the queued events.
    fn notify(&mut self, tgt: QpNumber, events: &AsyncEvents, outbox: &mut MemberOutbox);

    /// Repeats requests that were not answered.
    fn ask_again(&mut self, tgt: QpNumber, now: Time, outbox: &mut MemberOutbox);

    /// Returns the time of the next [`SharedTgt::ask_again`].
    fn next_timeout(&self) -> Option<Time>;

    /// Drops the message in progress, and requests that the owner end or drop its receive.
    fn end_message(&mut self, tgt: QpNumber, is_error: bool, outbox: &mut MemberOutbox);
}
