//! Plain values of the headers (contract rocev2 1.2, 1.3).

use super::Opcode;
use trunkline_verbs::{IoAddress, Psn, QpNumber, Rkey};

/// Base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver's program is to be woken.
    pub solicited: bool,
    /// Path migration state; senders differ, receivers ignore it.
    pub migrated: bool,
    /// Pad bytes behind the payload, 0 to 3.
    pub pad: u8,
    /// Transport version, 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN, BECN and reserved bits; not covered by the ICRC.
    pub congestion: u8,
    /// Destination QP.
    pub destination: QpNumber,
    /// The sender wants an acknowledgement.
    pub ack_request: bool,
    /// The seven bits beside `ack_request`: 0 from us, kept so that a capture re-emits equal.
    pub reserved: u8,
    /// Sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// Address at the responder.
    pub address: IoAddress,
    /// Key at the responder.
    pub rkey: Rkey,
    /// Bytes of the whole request.
    pub length: u32,
}

/// Atomic extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address at the responder.
    pub address: IoAddress,
    /// Key at the responder.
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
    /// Completed request messages, modulo 2^24.
    pub msn: u32,
}

/// Datagram extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Byte 4, reserved: 0 from us.
    pub reserved: u8,
    /// Sending QP.
    pub source: QpNumber,
}
