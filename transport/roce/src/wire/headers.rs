//! The headers as plain structs (contract rocev2 1.2, 1.3).

use super::Opcode;
use super::layout::bth;
use trunkline_verbs::{IoAddress, Psn, QpNumber, Rkey};

/// Base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// Transport service and operation.
    pub opcode: Opcode,
    /// True if the packet requests a solicited event for the receiver's completion.
    pub solicited: bool,
    /// Path migration state. Senders differ in its value, and receivers ignore it.
    pub migrated: bool,
    /// Pad bytes after the payload, 0 to 3.
    pub pad: u8,
    /// Transport version, 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN, BECN and six reserved bits. The ICRC does not cover them.
    pub congestion: u8,
    /// Destination QP.
    pub destination: QpNumber,
    /// True if the sender requests an acknowledgement.
    pub ack_request: bool,
    /// The seven reserved bits next to `ack_request`. This node sends 0, and keeps received bits so that a capture is
    /// emitted unchanged.
    pub reserved: u8,
    /// Packet sequence number, 24 bits.
    pub psn: Psn,
}

impl Bth {
    /// BECN bit in [`Self::congestion`], which reports that a packet in the other direction met congestion.
    pub const BECN: u8 = 0x40;

    /// Returns true if the packet reports congestion in the other direction.
    #[must_use]
    pub const fn has_becn(&self) -> bool {
        self.congestion & Self::BECN != 0
    }

    /// Sets BECN in a packet that starts with the BTH. The packet's ICRC stays valid.
    pub fn set_becn(packet: &mut [u8]) {
        if let Some(congestion) = packet.get_mut(bth::CONGESTION) {
            *congestion |= Self::BECN;
        }
    }
}

/// RDMA extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// Start of the range at the responder.
    pub address: IoAddress,
    /// The responder's key for the range.
    pub rkey: Rkey,
    /// Length of the whole request in bytes.
    pub length: u32,
}

/// Atomic extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicEth {
    /// Start of the range at the responder.
    pub address: IoAddress,
    /// The responder's key for the range.
    pub rkey: Rkey,
    /// New value of a compare-and-swap, addend of a fetch-and-add.
    pub swap_or_add: u64,
    /// Expected value of a compare-and-swap.
    pub compare: u64,
}

/// ACK extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK with its code (contract rocev2 §6).
    pub syndrome: u8,
    /// Number of completed request messages modulo 2^24.
    pub msn: u32,
}

/// Datagram extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Byte 4, reserved. This node sends 0.
    pub reserved: u8,
    /// Sending QP.
    pub source: QpNumber,
}
