//! RTU, DREQ and DREP, which consist of two communication ids and private data.

use super::field::{self, Data, Field};
use crate::wire::mad::MAD_DATA_BYTES;
use trunkline_verbs::QpNumber;

/// Length of the private data of RTU and DREP in bytes.
pub const RTU_PRIVATE_BYTES: usize = 224;
/// Length of the private data of DREQ in bytes.
pub const DREQ_PRIVATE_BYTES: usize = 220;

/// Positions of the fields (contract rocev2 9.5).
mod at {
    use super::Field;
    pub(super) const LOCAL_ID: Field = Field::at(0, 32);
    pub(super) const REMOTE_ID: Field = Field::at(4, 32);
    pub(super) const RTU_PRIVATE: usize = 8;
    pub(super) const QPN: Field = Field::at(8, 24);
    pub(super) const RESERVED_11: Field = Field::at(11, 8);
    pub(super) const DREQ_PRIVATE: usize = 12;
}

/// The content of an RTU (ready to use) and of a DREP (disconnect reply).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
    /// Private data.
    pub private: [u8; RTU_PRIVATE_BYTES],
}

impl Ids {
    pub(super) fn parse(d: &Data) -> Self {
        Self {
            local_id: at::LOCAL_ID.u32(d),
            remote_id: at::REMOTE_ID.u32(d),
            private: field::bytes(d, at::RTU_PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        at::LOCAL_ID.put(&mut data, self.local_id);
        at::REMOTE_ID.put(&mut data, self.remote_id);
        field::put_bytes(&mut data, at::RTU_PRIVATE, &self.private);
        data
    }
}

/// Disconnect request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_id: u32,
    /// The receiver's communication id.
    pub remote_id: u32,
    /// The QP of the DREQ's receiver (contract rocev2 10.4).
    pub qpn: QpNumber,
    /// Byte 11, reserved.
    pub reserved_11: u8,
    /// Private data.
    pub private: [u8; DREQ_PRIVATE_BYTES],
}

impl Dreq {
    pub(super) fn parse(d: &Data) -> Self {
        Self {
            local_id: at::LOCAL_ID.u32(d),
            remote_id: at::REMOTE_ID.u32(d),
            qpn: QpNumber::new(at::QPN.u32(d)),
            reserved_11: at::RESERVED_11.u8(d),
            private: field::bytes(d, at::DREQ_PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        let d = &mut data;
        at::LOCAL_ID.put(d, self.local_id);
        at::REMOTE_ID.put(d, self.remote_id);
        at::QPN.put(d, self.qpn.get());
        at::RESERVED_11.put(d, self.reserved_11);
        field::put_bytes(d, at::DREQ_PRIVATE, &self.private);
        data
    }
}
