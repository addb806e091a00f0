//! The interface through which a shard uses TGTs that processes share.
//!
//! A TGT of an XRC domain that a file names has a [`SharedTgt`] besides its responder. It places packets in the SRQs of
//! other processes and publishes the TGT's state. `device::sharing` implements the trait, and the shard calls it only
//! through the trait. A QP that is not shared does not have a `SharedTgt`, so sharing does not slow it down.

use super::outbox::MemberOutbox;
use crate::device::objects::async_events::AsyncEvents;
use std::any::Any;
use std::fmt::Debug;
use std::net::IpAddr;
use trunkline_roce::engine::{Placement, PlacementRequest, ReadOutcome, ReadPiece, ResponderState};
use trunkline_verbs::{AsyncEventKind, QpAttributes, QpNumber, Time};

/// Outcome of placing a packet in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum RemoteOutcome {
    /// A placement as defined by the engine; never `Later`, and never `Drop`, which only the executor
    /// chooses.
    Done(Placement),
    /// The domain does not contain the SRQ, so the executor applies its policy (contract G7).
    UnknownSrq,
}

/// Arguments of calls to a shared TGT: the TGT's number, the serial number of the responder's next placement, the time,
/// and the outbox for messages to other processes.
#[derive(Debug)]
pub(in crate::device) struct RemoteCall<'a> {
    pub(in crate::device) tgt: QpNumber,
    pub(in crate::device) serial: u64,
    pub(in crate::device) now: Time,
    pub(in crate::device) outbox: &'a mut MemberOutbox,
}

/// Hooks of a TGT that this process executes and other processes share.
pub(in crate::device) trait SharedTgt: Any + Debug + Send {
    /// Returns true if a placement in another process is pending. Packets that arrive while it is pending are
    /// kept.
    fn is_waiting(&self) -> bool;

    /// Keeps a packet until the pending placement is answered. `joined` is true if the packet may contain the payload
    /// of several packets.
    fn keep(&mut self, packet: &[u8], joined: bool);

    /// Returns the outcome of the packet with this serial number if it was placed before this process took
    /// over the TGT.
    fn settled(&mut self, serial: u64) -> Option<RemoteOutcome>;

    /// Requests a placement from the process that owns the SRQ. Returns false if no other process owns the SRQ.
    fn place(&mut self, call: RemoteCall<'_>, request: &PlacementRequest<'_>) -> bool;

    /// Appends the bytes of a READ response, or requests them from the process that owns the SRQ. Returns
    /// `None` if no other process owns the SRQ.
    fn read(
        &mut self,
        call: RemoteCall<'_>,
        piece: &ReadPiece,
        out: &mut Vec<u8>,
    ) -> Option<Result<ReadOutcome, RemoteOutcome>>;

    /// Records a placement in this process. Called before the program can see the packet.
    fn note_placed(&self, serial: u64);

    /// Returns true if a process that has since ended placed this packet, so that the packet only has to be
    /// acknowledged.
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

    /// Queues an event of the TGT for each process with a handle.
    fn raise(&mut self, kind: AsyncEventKind);

    /// Sends the queued events.
    fn notify(&mut self, tgt: QpNumber, events: &AsyncEvents, outbox: &mut MemberOutbox);

    /// Repeats requests to other processes that were not answered.
    fn ask_again(&mut self, tgt: QpNumber, now: Time, outbox: &mut MemberOutbox);

    /// Returns the time of the next [`SharedTgt::ask_again`], if a request is pending.
    fn next_timeout(&self) -> Option<Time>;

    /// Drops the message in progress, and notifies the SRQ's owner. The owner completes the message's receive with an
    /// error if `is_error` is true, and releases it otherwise.
    fn end_message(&mut self, tgt: QpNumber, is_error: bool, outbox: &mut MemberOutbox);
}
