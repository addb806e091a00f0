//! A path record inside a REQ.

use super::field::{self, Data, Field};
use trunkline_verbs::Gid;

/// Positions of the fields relative to the start of the path (contract rocev2 9.5).
mod at {
    use super::Field;
    pub(super) const LOCAL_LID: Field = Field::at(0, 16);
    pub(super) const REMOTE_LID: Field = Field::at(2, 16);
    pub(super) const LOCAL_GID: usize = 4;
    pub(super) const REMOTE_GID: usize = 20;
    pub(super) const FLOW_LABEL: Field = Field::at(36, 20);
    pub(super) const RESERVED_38: Field = Field::after(38, 4, 6);
    pub(super) const PACKET_RATE: Field = Field::after(38, 10, 6);
    pub(super) const TRAFFIC_CLASS: Field = Field::at(40, 8);
    pub(super) const HOP_LIMIT: Field = Field::at(41, 8);
    pub(super) const SERVICE_LEVEL: Field = Field::after(42, 0, 4);
    pub(super) const SUBNET_LOCAL: Field = Field::after(42, 4, 1);
    pub(super) const RESERVED_42: Field = Field::after(42, 5, 3);
    pub(super) const ACK_TIMEOUT: Field = Field::after(43, 0, 5);
    pub(super) const RESERVED_43: Field = Field::after(43, 5, 3);
}

/// The route between the two sides. *Local* refers to the sender of the REQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Path {
    /// The sender's LID; 0xffff in RoCEv2.
    pub local_lid: u16,
    /// The receiver's LID; 0xffff in RoCEv2.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The six reserved bits after the flow label.
    pub reserved_38: u8,
    /// Packet rate code, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// True if both sides are in the same subnet.
    pub subnet_local: bool,
    /// The three reserved bits of byte 42.
    pub reserved_42: u8,
    /// Local ACK timeout for the receiver's QP, 5 bits; n means 4.096 us * 2^n.
    pub ack_timeout: u8,
    /// The three reserved bits of byte 43.
    pub reserved_43: u8,
}

impl Path {
    pub(super) fn parse(d: &Data, base: usize) -> Self {
        let at = |field: Field| field.shifted(base);
        Self {
            local_lid: at(at::LOCAL_LID).u16(d),
            remote_lid: at(at::REMOTE_LID).u16(d),
            local_gid: field::gid(d, base + at::LOCAL_GID),
            remote_gid: field::gid(d, base + at::REMOTE_GID),
            flow_label: at(at::FLOW_LABEL).u32(d),
            reserved_38: at(at::RESERVED_38).u8(d),
            packet_rate: at(at::PACKET_RATE).u8(d),
            traffic_class: at(at::TRAFFIC_CLASS).u8(d),
            hop_limit: at(at::HOP_LIMIT).u8(d),
            service_level: at(at::SERVICE_LEVEL).u8(d),
            subnet_local: at(at::SUBNET_LOCAL).bool(d),
            reserved_42: at(at::RESERVED_42).u8(d),
            ack_timeout: at(at::ACK_TIMEOUT).u8(d),
            reserved_43: at(at::RESERVED_43).u8(d),
        }
    }

    pub(super) fn emit(&self, d: &mut Data, base: usize) {
        let at = |field: Field| field.shifted(base);
        at(at::LOCAL_LID).put(d, self.local_lid);
        at(at::REMOTE_LID).put(d, self.remote_lid);
        field::put_bytes(d, base + at::LOCAL_GID, &self.local_gid.0);
        field::put_bytes(d, base + at::REMOTE_GID, &self.remote_gid.0);
        at(at::FLOW_LABEL).put(d, self.flow_label);
        at(at::RESERVED_38).put(d, self.reserved_38);
        at(at::PACKET_RATE).put(d, self.packet_rate);
        at(at::TRAFFIC_CLASS).put(d, self.traffic_class);
        at(at::HOP_LIMIT).put(d, self.hop_limit);
        at(at::SERVICE_LEVEL).put(d, self.service_level);
        at(at::SUBNET_LOCAL).put(d, self.subnet_local);
        at(at::RESERVED_42).put(d, self.reserved_42);
        at(at::ACK_TIMEOUT).put(d, self.ack_timeout);
        at(at::RESERVED_43).put(d, self.reserved_43);
    }
}
