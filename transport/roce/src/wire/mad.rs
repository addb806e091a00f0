//! Management datagrams (MADs), which are 256 bytes after BTH and DETH, to and from QP 1 (contract rocev2 9.1, 9.2).
//!
//! This module handles the common header and the UD packet around it. The CM and the device call it. It never interprets CM
//! messages, which `crate::cm` does.

#![forbid(unsafe_code)]

use super::{BTH_LENGTH, Bth, Deth, Opcode, Operation, Packet, Service};
use trunkline_verbs::{PKEY_DEFAULT, Psn, QpNumber};

/// Length of a MAD in bytes.
pub const MAD_BYTES: usize = 256;
/// Length of a MAD's header in bytes.
pub const MAD_HEADER_BYTES: usize = 24;
/// Length of a MAD's data, after the header, in bytes.
pub const MAD_DATA_BYTES: usize = MAD_BYTES - MAD_HEADER_BYTES;
/// Length of a packet that carries a MAD, without its ICRC, in bytes.
pub const MAD_PACKET_BYTES: usize = BTH_LENGTH + 8 + MAD_BYTES;
/// The general services queue pair.
pub const QP1: QpNumber = QpNumber::new(1);
/// The queue key of QP 1 (contract rocev2 8.6).
pub const QP1_QKEY: u32 = 0x8001_0000;

/// The kind of message in a MAD (contract rocev2 9.3). Any value is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attribute(pub u16);

#[allow(missing_docs, reason = "the names are those of contract rocev2 9.3")]
impl Attribute {
    pub const CLASS_PORT_INFO: Self = Self(0x01);
    pub const REQ: Self = Self(0x10);
    pub const MRA: Self = Self(0x11);
    pub const REJ: Self = Self(0x12);
    pub const REP: Self = Self(0x13);
    pub const RTU: Self = Self(0x14);
    pub const DREQ: Self = Self(0x15);
    pub const DREP: Self = Self(0x16);
    pub const SIDR_REQ: Self = Self(0x17);
    pub const SIDR_REP: Self = Self(0x18);
    pub const LAP: Self = Self(0x19);
    pub const APR: Self = Self(0x1a);
}

/// The header of every MAD, 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of the MAD format, 1.
    pub base_version: u8,
    /// Management class; 7 is communication management.
    pub class: u8,
    /// Version of the class; 2 for communication management.
    pub class_version: u8,
    /// Method. 3 is Send, the only method that the CM uses.
    pub method: u8,
    /// Status; 0 in CM messages.
    pub status: u16,
    /// Class-specific field; 0 in CM messages.
    pub class_specific: u16,
    /// Transaction id of the exchange; receivers of CM messages do not match on it (contract rocev2 9.4).
    pub transaction: u64,
    /// The kind of message in the data.
    pub attribute: Attribute,
    /// Bytes 18 and 19, reserved. This node sends 0.
    pub reserved: u16,
    /// Attribute modifier. This node sends 0.
    pub modifier: u32,
}

impl MadHeader {
    const BASE_VERSION: u8 = 1;
    const CLASS_CM: u8 = 0x07;
    const CLASS_VERSION_CM: u8 = 2;
    const METHOD_SEND: u8 = 0x03;

    /// Creates the header for a CM message.
    #[must_use]
    pub const fn cm(transaction: u64, attribute: Attribute) -> Self {
        Self {
            base_version: Self::BASE_VERSION,
            class: Self::CLASS_CM,
            class_version: Self::CLASS_VERSION_CM,
            method: Self::METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction,
            attribute,
            reserved: 0,
            modifier: 0,
        }
    }

    /// Returns true if the MAD is a CM message of the implemented version.
    #[must_use]
    pub const fn is_cm(&self) -> bool {
        self.base_version == Self::BASE_VERSION
            && self.class == Self::CLASS_CM
            && self.class_version == Self::CLASS_VERSION_CM
            && self.method == Self::METHOD_SEND
    }
}

/// A packet whose beginning an ICMP error quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotedPacket {
    /// The packet is not for QP 1.
    Other,
    /// A MAD, or a packet whose quote is too short to decide.
    Mad {
        /// Transaction id, if the quote contains it.
        transaction: Option<u64>,
    },
}

impl QuotedPacket {
    /// Length of a complete quote, in bytes.
    pub const BYTES: usize = Self::TRANSACTION + 8;
    /// Offset of the transaction id, after BTH, DETH, and the first 8 bytes of the MAD.
    const TRANSACTION: usize = BTH_LENGTH + 8 + 8;

    /// Parses the beginning of a datagram.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        if Bth::parse(bytes).is_ok_and(|bth| bth.destination != QP1) {
            return Self::Other;
        }
        let transaction = bytes.get(Self::TRANSACTION..).and_then(<[u8]>::first_chunk);
        Self::Mad { transaction: transaction.copied().map(u64::from_be_bytes) }
    }
}

/// A MAD, with its header and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mad {
    /// The common MAD header.
    pub header: MadHeader,
    /// The message, in the format of the attribute; see [`super::cm::CmMessage`].
    pub data: [u8; MAD_DATA_BYTES],
}

impl Mad {
    /// Parses the 256 bytes of a MAD. Any bytes are accepted.
    #[must_use]
    pub fn parse(bytes: &[u8; MAD_BYTES]) -> Self {
        let mut data = [0; MAD_DATA_BYTES];
        data.copy_from_slice(&bytes[MAD_HEADER_BYTES..]);
        let (b, u16_at) = (bytes, |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let header = MadHeader {
            base_version: b[0],
            class: b[1],
            class_version: b[2],
            method: b[3],
            status: u16_at(4),
            class_specific: u16_at(6),
            transaction: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
            attribute: Attribute(u16_at(16)),
            reserved: u16_at(18),
            modifier: u32::from_be_bytes([b[20], b[21], b[22], b[23]]),
        };
        Self { header, data }
    }

    /// Returns the 256 bytes, as the inverse of [`Self::parse`].
    #[must_use]
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let h = &self.header;
        let mut bytes = [0; MAD_BYTES];
        bytes[0] = h.base_version;
        bytes[1] = h.class;
        bytes[2] = h.class_version;
        bytes[3] = h.method;
        bytes[4..6].copy_from_slice(&h.status.to_be_bytes());
        bytes[6..8].copy_from_slice(&h.class_specific.to_be_bytes());
        bytes[8..16].copy_from_slice(&h.transaction.to_be_bytes());
        bytes[16..18].copy_from_slice(&h.attribute.0.to_be_bytes());
        bytes[18..20].copy_from_slice(&h.reserved.to_be_bytes());
        bytes[20..24].copy_from_slice(&h.modifier.to_be_bytes());
        bytes[MAD_HEADER_BYTES..].copy_from_slice(&self.data);
        bytes
    }

    /// Returns the MAD in a packet, if the packet is a datagram to QP 1 with QP 1's queue key and exactly
    /// 256 bytes of payload.
    #[must_use]
    pub fn from_packet(packet: &Packet<'_>) -> Option<Self> {
        let deth = packet.deth?;
        let fits = packet.bth.opcode == Opcode::new(Service::UD, Operation::SEND_ONLY)
            && packet.bth.destination == QP1
            && deth.qkey == QP1_QKEY;
        let bytes = packet.payload.try_into().ok().filter(|_| fits)?;
        Some(Self::parse(bytes))
    }
}

/// Returns the packet that carries a MAD from QP 1 to QP 1. `psn` is a counter that the sender increments for every MAD.
#[must_use]
pub const fn mad_packet(psn: Psn, mad: &[u8; MAD_BYTES]) -> Packet<'_> {
    Packet {
        bth: Bth {
            opcode: Opcode::new(Service::UD, Operation::SEND_ONLY),
            solicited: false,
            migrated: true,
            pad: 0,
            version: 0,
            pkey: PKEY_DEFAULT,
            congestion: 0,
            destination: QP1,
            ack_request: false,
            reserved: 0,
            psn,
        },
        xrceth: None,
        deth: Some(Deth { qkey: QP1_QKEY, reserved: 0, source: QP1 }),
        reth: None,
        atomic: None,
        aeth: None,
        atomic_ack: None,
        immediate: None,
        invalidate: None,
        payload: mad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_carries_mad() {
        let mad = Mad { header: MadHeader::cm(0x0102, Attribute::RTU), data: [7; MAD_DATA_BYTES] };
        let bytes = mad.to_bytes();
        assert_eq!(bytes[..20], *b"\x01\x07\x02\x03\0\0\0\0\0\0\0\0\0\0\x01\x02\x00\x14\0\0");
        let packet = mad_packet(Psn::new(5), &bytes);
        assert_eq!((packet.bth.opcode.0, packet.emitted_len()), (0x64, MAD_PACKET_BYTES));
        assert_eq!(Mad::from_packet(&packet), Some(mad));
        assert!(mad.header.is_cm());
    }

    #[test]
    fn packets_of_other_kinds_do_not_carry_mad() {
        let bytes = [0; MAD_BYTES];
        let good = mad_packet(Psn::new(5), &bytes);
        let mut wrong_key = good;
        wrong_key.deth = Some(Deth { qkey: 0x1234, reserved: 0, source: QP1 });
        let mut wrong_qp = good;
        wrong_qp.bth.destination = QpNumber::new(2);
        let mut short = good;
        short.payload = &bytes[..255];
        let mut not_ud = good;
        not_ud.deth = None;
        for packet in [wrong_key, wrong_qp, short, not_ud] {
            assert_eq!(Mad::from_packet(&packet), None);
        }
    }
}
