//! REJ, which refuses a message, and MRA, which announces a late reply.

use super::field::{self, Data, Field};
use crate::wire::mad::MAD_DATA_BYTES;
use trunkline_verbs::RejectReason;

/// Length of a REJ's additional information in bytes.
pub const REJ_INFO_BYTES: usize = 72;
/// Length of a REJ's private data in bytes.
pub const REJ_PRIVATE_BYTES: usize = 148;
/// Length of an MRA's private data in bytes.
pub const MRA_PRIVATE_BYTES: usize = 222;

/// Positions of the fields (contract rocev2 9.5).
mod at {
    use super::Field;
    pub(super) const LOCAL_ID: Field = Field::at(0, 32);
    pub(super) const REMOTE_ID: Field = Field::at(4, 32);
    pub(super) const MESSAGE: Field = Field::after(8, 0, 2);
    pub(super) const RESERVED_8: Field = Field::after(8, 2, 6);
    pub(super) const INFO_LENGTH: Field = Field::after(9, 0, 7);
    pub(super) const RESERVED_9: Field = Field::after(9, 7, 1);
    pub(super) const REASON: Field = Field::at(10, 16);
    pub(super) const INFO: usize = 12;
    pub(super) const REJ_PRIVATE: usize = 84;
    pub(super) const SERVICE_TIMEOUT: Field = Field::after(9, 0, 5);
    pub(super) const MRA_RESERVED_9: Field = Field::after(9, 5, 3);
    pub(super) const MRA_PRIVATE: usize = 10;
}

/// The kind of message that a REJ or MRA answers, 2 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Answered(pub u8);

impl Answered {
    /// A REQ.
    pub const REQ: Self = Self(0);
    /// A REP.
    pub const REP: Self = Self(1);
    /// No message in particular in a REJ, and a LAP in an MRA.
    pub const OTHER: Self = Self(2);
}

/// Rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rej {
    /// The sender's communication id; 0 if it did not allocate one.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
    /// The kind of message that is rejected.
    pub answered: Answered,
    /// The six reserved bits of byte 8.
    pub reserved_8: u8,
    /// Number of valid bytes in `info`, 7 bits. Any value is possible on the wire.
    pub info_length: u8,
    /// The reserved bit of byte 9.
    pub reserved_9: bool,
    /// The reason for the rejection.
    pub reason: RejectReason,
    /// Additional information, whose format depends on the reason.
    pub info: [u8; REJ_INFO_BYTES],
    /// Private data.
    pub private: [u8; REJ_PRIVATE_BYTES],
}

impl Rej {
    pub(super) fn parse(d: &Data) -> Self {
        Self {
            local_id: at::LOCAL_ID.u32(d),
            remote_id: at::REMOTE_ID.u32(d),
            answered: Answered(at::MESSAGE.u8(d)),
            reserved_8: at::RESERVED_8.u8(d),
            info_length: at::INFO_LENGTH.u8(d),
            reserved_9: at::RESERVED_9.bool(d),
            reason: RejectReason(at::REASON.u16(d)),
            info: field::bytes(d, at::INFO),
            private: field::bytes(d, at::REJ_PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        let d = &mut data;
        at::LOCAL_ID.put(d, self.local_id);
        at::REMOTE_ID.put(d, self.remote_id);
        at::MESSAGE.put(d, self.answered.0);
        at::RESERVED_8.put(d, self.reserved_8);
        at::INFO_LENGTH.put(d, self.info_length);
        at::RESERVED_9.put(d, self.reserved_9);
        at::REASON.put(d, self.reason.0);
        field::put_bytes(d, at::INFO, &self.info);
        field::put_bytes(d, at::REJ_PRIVATE, &self.private);
        data
    }
}

/// Message receipt acknowledgement, which announces that the reply will take longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mra {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
    /// The kind of message that was received.
    pub answered: Answered,
    /// The six reserved bits of byte 8.
    pub reserved_8: u8,
    /// Time that the reply may take, 5 bits; n means 4.096 us * 2^n.
    pub service_timeout: u8,
    /// The three reserved bits of byte 9.
    pub reserved_9: u8,
    /// Private data.
    pub private: [u8; MRA_PRIVATE_BYTES],
}

impl Mra {
    pub(super) fn parse(d: &Data) -> Self {
        Self {
            local_id: at::LOCAL_ID.u32(d),
            remote_id: at::REMOTE_ID.u32(d),
            answered: Answered(at::MESSAGE.u8(d)),
            reserved_8: at::RESERVED_8.u8(d),
            service_timeout: at::SERVICE_TIMEOUT.u8(d),
            reserved_9: at::MRA_RESERVED_9.u8(d),
            private: field::bytes(d, at::MRA_PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        let d = &mut data;
        at::LOCAL_ID.put(d, self.local_id);
        at::REMOTE_ID.put(d, self.remote_id);
        at::MESSAGE.put(d, self.answered.0);
        at::RESERVED_8.put(d, self.reserved_8);
        at::SERVICE_TIMEOUT.put(d, self.service_timeout);
        at::MRA_RESERVED_9.put(d, self.reserved_9);
        field::put_bytes(d, at::MRA_PRIVATE, &self.private);
        data
    }
}
