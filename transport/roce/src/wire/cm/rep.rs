//! REP, which accepts a REQ.

use super::field::{self, Data, Field};
use crate::wire::mad::MAD_DATA_BYTES;
use trunkline_verbs::{Psn, QpNumber};

/// Length of the private data in bytes.
pub const REP_PRIVATE_BYTES: usize = 196;

/// Positions of the fields (contract rocev2 9.5).
mod at {
    use super::Field;
    pub(super) const LOCAL_ID: Field = Field::at(0, 32);
    pub(super) const REMOTE_ID: Field = Field::at(4, 32);
    pub(super) const QKEY: Field = Field::at(8, 32);
    pub(super) const QPN: Field = Field::at(12, 24);
    pub(super) const VENDOR_15: Field = Field::at(15, 8);
    pub(super) const EECN: Field = Field::at(16, 24);
    pub(super) const VENDOR_19: Field = Field::at(19, 8);
    pub(super) const STARTING_PSN: Field = Field::at(20, 24);
    pub(super) const VENDOR_23: Field = Field::at(23, 8);
    pub(super) const RESPONDER_RESOURCES: Field = Field::at(24, 8);
    pub(super) const INITIATOR_DEPTH: Field = Field::at(25, 8);
    pub(super) const ACK_DELAY: Field = Field::after(26, 0, 5);
    pub(super) const FAILOVER: Field = Field::after(26, 5, 2);
    pub(super) const FLOW_CONTROL: Field = Field::after(26, 7, 1);
    pub(super) const RNR_RETRY: Field = Field::after(27, 0, 3);
    pub(super) const SRQ: Field = Field::after(27, 3, 1);
    pub(super) const RESERVED_27: Field = Field::after(27, 4, 4);
    pub(super) const CA_GUID: Field = Field::at(28, 64);
    pub(super) const PRIVATE: usize = 36;
}

/// Reply to a request for communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication id.
    pub local_id: u32,
    /// The communication id of the REQ's sender.
    pub remote_id: u32,
    /// Q_Key, unused by connected services.
    pub qkey: u32,
    /// The sender's QP; 0 for XRC (contract rocev2 10.3).
    pub qpn: QpNumber,
    /// Byte 15, vendor-specific.
    pub vendor_15: u8,
    /// The sender's EE context. For XRC it is the sender's TGT (contract rocev2 10.3).
    pub eecn: u32,
    /// Byte 19, vendor-specific.
    pub vendor_19: u8,
    /// PSN of the first packet that the receiver of this message sends.
    pub starting_psn: Psn,
    /// Byte 23, vendor-specific.
    pub vendor_23: u8,
    /// Number of READs and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// Maximum number of outstanding READs and atomics of the sender.
    pub initiator_depth: u8,
    /// ACK delay of the sender, 5 bits; n means 4.096 us * 2^n.
    pub ack_delay: u8,
    /// Acceptance of the alternate path, 2 bits.
    pub failover: u8,
    /// True if the sender implements end-to-end flow control.
    pub flow_control: bool,
    /// RNR retries for the receiver's QP, 3 bits.
    pub rnr_retry: u8,
    /// True if the sender's QP has an SRQ; set for XRC.
    pub srq: bool,
    /// The four reserved bits of byte 27.
    pub reserved_27: u8,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Private data.
    pub private: [u8; REP_PRIVATE_BYTES],
}

impl Rep {
    pub(super) fn parse(d: &Data) -> Self {
        Self {
            local_id: at::LOCAL_ID.u32(d),
            remote_id: at::REMOTE_ID.u32(d),
            qkey: at::QKEY.u32(d),
            qpn: QpNumber::new(at::QPN.u32(d)),
            vendor_15: at::VENDOR_15.u8(d),
            eecn: at::EECN.u32(d),
            vendor_19: at::VENDOR_19.u8(d),
            starting_psn: Psn::new(at::STARTING_PSN.u32(d)),
            vendor_23: at::VENDOR_23.u8(d),
            responder_resources: at::RESPONDER_RESOURCES.u8(d),
            initiator_depth: at::INITIATOR_DEPTH.u8(d),
            ack_delay: at::ACK_DELAY.u8(d),
            failover: at::FAILOVER.u8(d),
            flow_control: at::FLOW_CONTROL.bool(d),
            rnr_retry: at::RNR_RETRY.u8(d),
            srq: at::SRQ.bool(d),
            reserved_27: at::RESERVED_27.u8(d),
            ca_guid: at::CA_GUID.u64(d),
            private: field::bytes(d, at::PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        let d = &mut data;
        at::LOCAL_ID.put(d, self.local_id);
        at::REMOTE_ID.put(d, self.remote_id);
        at::QKEY.put(d, self.qkey);
        at::QPN.put(d, self.qpn.get());
        at::VENDOR_15.put(d, self.vendor_15);
        at::EECN.put(d, self.eecn);
        at::VENDOR_19.put(d, self.vendor_19);
        at::STARTING_PSN.put(d, self.starting_psn.get());
        at::VENDOR_23.put(d, self.vendor_23);
        at::RESPONDER_RESOURCES.put(d, self.responder_resources);
        at::INITIATOR_DEPTH.put(d, self.initiator_depth);
        at::ACK_DELAY.put(d, self.ack_delay);
        at::FAILOVER.put(d, self.failover);
        at::FLOW_CONTROL.put(d, self.flow_control);
        at::RNR_RETRY.put(d, self.rnr_retry);
        at::SRQ.put(d, self.srq);
        at::RESERVED_27.put(d, self.reserved_27);
        at::CA_GUID.put(d, self.ca_guid);
        field::put_bytes(d, at::PRIVATE, &self.private);
        data
    }
}
