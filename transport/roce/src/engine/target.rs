//! The responder's access to memory and receive queues.

use super::NakCode;
use crate::wire::Packet;
use trunkline_verbs::{IoAddress, Psn, RemoteAddress, SrqNumber};

/// The remote range of a one-sided message, with its start and its whole length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteRange {
    /// Start and rkey, as in the RETH.
    pub start: RemoteAddress,
    /// Bytes of the whole message.
    pub length: u32,
}

impl RemoteRange {
    /// Returns the address `offset` bytes into the range.
    #[must_use]
    pub const fn at(&self, offset: u32) -> IoAddress {
        self.start.address.plus(offset as u64)
    }
}

/// Operation of a request packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work<'a> {
    /// Bytes of a message for a posted receive. On `first`, the target takes a receive and keeps it for the message. On
    /// `last`, it completes the receive with byte length `offset + payload.len()`.
    Send {
        /// Offset of the payload in the message.
        offset: u32,
        /// The bytes.
        payload: &'a [u8],
        /// First packet of the message.
        first: bool,
        /// Last packet of the message.
        last: bool,
        /// Immediate data, on the last packet only.
        immediate: Option<u32>,
    },
    /// Bytes for the target's memory. The whole range is checked on the first packet, so that a message that exceeds its
    /// bounds leaves memory unchanged. A zero-length range needs no rkey check (contract rocev2 7.9).
    Write {
        /// The message's range.
        range: RemoteRange,
        /// Offset of the payload in the range.
        offset: u32,
        /// The bytes.
        payload: &'a [u8],
        /// First packet of the message.
        first: bool,
        /// Last packet of the message.
        last: bool,
        /// Value for a receive that is taken and completed, on the last packet only (contract G9). The byte length is
        /// `range.length`. The receive is checked before the payload is written.
        immediate: Option<u32>,
    },
    /// A check that the range may be read. The bytes are fetched later with [`Target::read`].
    Read {
        /// The message's range.
        range: RemoteRange,
    },
    /// Compare-and-swap of 8 bytes. Answer with [`Placement::Atomic`] and the old value. The address is a multiple of 8.
    CompareSwap {
        /// The address and key.
        remote: RemoteAddress,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Addition to 8 bytes. Answer with [`Placement::Atomic`] and the old value. The address is a multiple of 8.
    FetchAdd {
        /// The address and key.
        remote: RemoteAddress,
        /// Addend.
        add: u64,
    },
}

/// One packet that passed the responder's own checks (state, PSN, opcode sequence, rights of the QP, lengths) and is ready
/// for execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementRequest<'a> {
    /// PSN, unique among the placements of the QP for half the PSN space.
    pub psn: Psn,
    /// SRQ that the packet names; `None` for RC.
    pub srq: Option<SrqNumber>,
    /// True if the sender requested a solicited event. Valid on the packet that completes a receive.
    pub solicited: bool,
    /// Work to do.
    pub work: Work<'a>,
}

impl<'a> PlacementRequest<'a> {
    #[inline]
    pub(super) fn new(packet: &Packet<'_>, work: Work<'a>) -> Self {
        Self {
            psn: packet.bth.psn,
            srq: packet.xrceth.map(|(_, srq)| srq),
            solicited: packet.bth.solicited,
            work,
        }
    }
}

/// The outcome of a [`PlacementRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The data are in place and the receive, if one ended, has completed. The packet is acknowledged.
    Placed,
    /// The atomic is done. Contains the old value.
    Atomic(u64),
    /// The receive queue is empty. An RNR NAK is sent, and nothing is changed.
    Rnr,
    /// The packet is refused. A NAK is sent, and the QP goes to ERR. The target has completed a receive in use with its
    /// error.
    Nak(NakCode),
    /// The packet is ignored as if it had been lost (a policy for unknown SRQs, contract G7).
    Drop,
    /// Another process or poller must decide. The responder accepts no packet until
    /// [`super::ResponderState::answer`].
    Later,
}

/// Payload of one packet of a READ's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPiece {
    /// First PSN of the response.
    pub psn: Psn,
    /// Number of PSNs that the payload covers.
    pub psns: u32,
    /// SRQ that the request named; `None` for RC.
    pub srq: Option<SrqNumber>,
    /// The request's range, which must be checked again (contract rocev2 7.13).
    pub range: RemoteRange,
    /// Offset of the first byte in the range.
    pub offset: u32,
    /// Number of bytes; 0 only for a zero-length READ, which needs no rkey.
    pub length: u32,
}

/// The outcome of [`Target::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Exactly `length` bytes were appended or copied.
    Read,
    /// The READ is refused. A NAK is sent, and the QP goes to ERR.
    Nak(NakCode),
    /// The bytes are being fetched. Poll again after they have arrived. The same piece is then requested again.
    Later,
}

/// The memory, receive queues and SRQs of a responder. The device implements this trait.
///
/// The engine has done the earlier checks. The order of the target's checks is (contract G4, rocev2 7.3): SRQ in the TGT's
/// XRC domain (unknown: `Nak` or `Drop` by policy), receive available (`Rnr`), length of the receive
/// (`Nak(INVALID_REQUEST)`), rkey, PD of the SRQ (RC: of the QP), access, range (`Nak(REMOTE_ACCESS)`), then the bytes.
pub trait Target {
    /// Executes one packet.
    fn place(&mut self, request: &PlacementRequest<'_>) -> Placement;

    /// Appends bytes of an accepted READ to `out`. A device may instead copy them to where it assembles the packet, after
    /// the bytes already in `out`.
    fn read(&mut self, piece: &ReadPiece, out: &mut Vec<u8>) -> ReadOutcome;
}
