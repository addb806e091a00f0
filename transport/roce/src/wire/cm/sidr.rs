//! SIDR_REQ and SIDR_REP, which resolve a service to a QP and its Q_Key.

use super::field::{self, Data, Field};
use super::service::{ADDRESS_HEADER_BYTES, ServiceId};
use crate::wire::mad::MAD_DATA_BYTES;
use trunkline_verbs::{QpNumber, SidrStatus};

/// Length of the private data of a SIDR_REQ in bytes.
pub const SIDR_REQ_PRIVATE_BYTES: usize = 216;
/// Length in bytes of the private data that belongs to the program, after rdma_cm's address header.
pub const SIDR_REQ_USER_BYTES: usize = SIDR_REQ_PRIVATE_BYTES - ADDRESS_HEADER_BYTES;
/// Length of the additional information of a SIDR_REP in bytes.
pub const SIDR_REP_INFO_BYTES: usize = 72;
/// Length of the private data of a SIDR_REP in bytes.
pub const SIDR_REP_PRIVATE_BYTES: usize = 136;

/// Positions of the fields (contract rocev2 9.5).
mod at {
    use super::Field;
    pub(super) const REQUEST_ID: Field = Field::at(0, 32);
    pub(super) const PKEY: Field = Field::at(4, 16);
    pub(super) const RESERVED_6: Field = Field::at(6, 16);
    pub(super) const REQ_SERVICE_ID: Field = Field::at(8, 64);
    pub(super) const REQ_PRIVATE: usize = 16;
    pub(super) const STATUS: Field = Field::at(4, 8);
    pub(super) const INFO_LENGTH: Field = Field::at(5, 8);
    pub(super) const VENDOR_6: Field = Field::at(6, 16);
    pub(super) const QPN: Field = Field::at(8, 24);
    pub(super) const VENDOR_11: Field = Field::at(11, 8);
    pub(super) const REP_SERVICE_ID: Field = Field::at(12, 64);
    pub(super) const QKEY: Field = Field::at(20, 32);
    pub(super) const INFO: usize = 24;
    pub(super) const REP_PRIVATE: usize = 96;
}

/// Request for the QP that serves a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's id for the request.
    pub request_id: u32,
    /// P_Key of the datagrams that will follow.
    pub pkey: u16,
    /// Bytes 6 and 7, reserved.
    pub reserved_6: u16,
    /// The requested service.
    pub service_id: ServiceId,
    /// Private data, which consists of rdma_cm's address header and the program's data.
    pub private: [u8; SIDR_REQ_PRIVATE_BYTES],
}

impl SidrReq {
    pub(super) fn parse(d: &Data) -> Self {
        Self {
            request_id: at::REQUEST_ID.u32(d),
            pkey: at::PKEY.u16(d),
            reserved_6: at::RESERVED_6.u16(d),
            service_id: ServiceId(at::REQ_SERVICE_ID.u64(d)),
            private: field::bytes(d, at::REQ_PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        let d = &mut data;
        at::REQUEST_ID.put(d, self.request_id);
        at::PKEY.put(d, self.pkey);
        at::RESERVED_6.put(d, self.reserved_6);
        at::REQ_SERVICE_ID.put(d, self.service_id.0);
        field::put_bytes(d, at::REQ_PRIVATE, &self.private);
        data
    }
}

/// Answer to a [`SidrReq`], or its refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrRep {
    /// The `request_id` of the [`SidrReq`].
    pub request_id: u32,
    /// Outcome, which is success or the reason for the refusal.
    pub status: SidrStatus,
    /// Number of valid bytes in `info`.
    pub info_length: u8,
    /// Bytes 6 and 7, the upper part of a vendor id.
    pub vendor_6: u16,
    /// The QP that serves the service.
    pub qpn: QpNumber,
    /// Byte 11, the low part of the vendor id.
    pub vendor_11: u8,
    /// The requested service.
    pub service_id: ServiceId,
    /// The Q_Key that datagrams to the QP must carry.
    pub qkey: u32,
    /// Additional information about a refusal.
    pub info: [u8; SIDR_REP_INFO_BYTES],
    /// Private data.
    pub private: [u8; SIDR_REP_PRIVATE_BYTES],
}

impl SidrRep {
    pub(super) fn parse(d: &Data) -> Self {
        Self {
            request_id: at::REQUEST_ID.u32(d),
            status: SidrStatus(at::STATUS.u8(d)),
            info_length: at::INFO_LENGTH.u8(d),
            vendor_6: at::VENDOR_6.u16(d),
            qpn: QpNumber::new(at::QPN.u32(d)),
            vendor_11: at::VENDOR_11.u8(d),
            service_id: ServiceId(at::REP_SERVICE_ID.u64(d)),
            qkey: at::QKEY.u32(d),
            info: field::bytes(d, at::INFO),
            private: field::bytes(d, at::REP_PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        let d = &mut data;
        at::REQUEST_ID.put(d, self.request_id);
        at::STATUS.put(d, self.status.0);
        at::INFO_LENGTH.put(d, self.info_length);
        at::VENDOR_6.put(d, self.vendor_6);
        at::QPN.put(d, self.qpn.get());
        at::VENDOR_11.put(d, self.vendor_11);
        at::REP_SERVICE_ID.put(d, self.service_id.0);
        at::QKEY.put(d, self.qkey);
        field::put_bytes(d, at::INFO, &self.info);
        field::put_bytes(d, at::REP_PRIVATE, &self.private);
        data
    }
}
