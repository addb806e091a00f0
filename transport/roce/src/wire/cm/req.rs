//! REQ, which requests a connection.

use super::field::{self, Data, Field};
use super::service::{ADDRESS_HEADER_BYTES, ServiceId};
use super::{Path, TransportType};
use crate::wire::ROCE_PORT;
use crate::wire::mad::MAD_DATA_BYTES;
use std::net::SocketAddr;
use trunkline_verbs::{PeerView, Psn, QpNumber};

/// Length of the private data in bytes.
pub const REQ_PRIVATE_BYTES: usize = 92;
/// Length in bytes of the private data that belongs to the program, after rdma_cm's address header.
pub const REQ_USER_BYTES: usize = REQ_PRIVATE_BYTES - ADDRESS_HEADER_BYTES;

/// Positions of the fields (contract rocev2 9.5).
mod at {
    use super::Field;
    pub(super) const LOCAL_ID: Field = Field::at(0, 32);
    pub(super) const RESERVED_4: Field = Field::at(4, 8);
    pub(super) const VENDOR_ID: Field = Field::at(5, 24);
    pub(super) const SERVICE_ID: Field = Field::at(8, 64);
    pub(super) const CA_GUID: Field = Field::at(16, 64);
    pub(super) const RESERVED_24: Field = Field::at(24, 32);
    pub(super) const QKEY: Field = Field::at(28, 32);
    pub(super) const QPN: Field = Field::at(32, 24);
    pub(super) const RESPONDER_RESOURCES: Field = Field::at(35, 8);
    pub(super) const EECN: Field = Field::at(36, 24);
    pub(super) const INITIATOR_DEPTH: Field = Field::at(39, 8);
    pub(super) const REMOTE_EECN: Field = Field::at(40, 24);
    pub(super) const REMOTE_TIMEOUT: Field = Field::after(43, 0, 5);
    pub(super) const TRANSPORT: Field = Field::after(43, 5, 2);
    pub(super) const FLOW_CONTROL: Field = Field::after(43, 7, 1);
    pub(super) const STARTING_PSN: Field = Field::at(44, 24);
    pub(super) const LOCAL_TIMEOUT: Field = Field::after(47, 0, 5);
    pub(super) const RETRY_COUNT: Field = Field::after(47, 5, 3);
    pub(super) const PKEY: Field = Field::at(48, 16);
    pub(super) const MTU: Field = Field::after(50, 0, 4);
    pub(super) const RDC_EXISTS: Field = Field::after(50, 4, 1);
    pub(super) const RNR_RETRY: Field = Field::after(50, 5, 3);
    pub(super) const MAX_CM_RETRIES: Field = Field::after(51, 0, 4);
    pub(super) const SRQ: Field = Field::after(51, 4, 1);
    pub(super) const EXTENDED_TRANSPORT: Field = Field::after(51, 5, 3);
    pub(super) const PRIMARY: usize = 52;
    pub(super) const ALTERNATE: usize = 96;
    pub(super) const PRIVATE: usize = 140;
}

/// Request for communication. A field narrower than its type is aligned to the type's low bit. A software device writes byte
/// 4 ([`Req::is_one_flow`]) and bytes 24 to 27 ([`Req::with_ports`]), and sets the other reserved fields to 0. Received
/// values are kept, so that a capture is emitted unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication id.
    pub local_id: u32,
    /// Byte 4, reserved.
    pub reserved_4: u8,
    /// Vendor id, 24 bits.
    pub vendor_id: u32,
    /// The requested service.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub ca_guid: u64,
    /// Bytes 24 to 27, reserved.
    pub reserved_24: u32,
    /// Q_Key, unused by connected services.
    pub qkey: u32,
    /// The sender's QP.
    pub qpn: QpNumber,
    /// Number of READs and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// The sender's EE context, 24 bits.
    pub eecn: u32,
    /// Maximum number of outstanding READs and atomics of the sender.
    pub initiator_depth: u8,
    /// The receiver's EE context, 24 bits.
    pub remote_eecn: u32,
    /// Time within which the receiver should reply, 5 bits; n means 4.096 us * 2^n.
    pub remote_timeout: u8,
    /// RC, UC, RD or XRC.
    pub transport: TransportType,
    /// True if the sender implements end-to-end flow control.
    pub flow_control: bool,
    /// PSN of the first packet that the receiver of this message sends.
    pub starting_psn: Psn,
    /// Time within which the sender will reply, 5 bits; n means 4.096 us * 2^n.
    pub local_timeout: u8,
    /// Transport retries for the receiver's QP, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU code, 4 bits.
    pub mtu: u8,
    /// True if a reliable datagram channel already exists; unused by RC and XRC.
    pub rdc_exists: bool,
    /// RNR retries for the receiver's QP, 3 bits; 7 means no limit.
    pub rnr_retry: u8,
    /// Number of times that the sender repeats a CM message, 4 bits.
    pub max_cm_retries: u8,
    /// True if the sender's QP has an SRQ.
    pub srq: bool,
    /// Primary path.
    pub primary: Path,
    /// Alternate path; all zero without one.
    pub alternate: Path,
    /// Private data; its first 36 bytes are rdma_cm's address header.
    pub private: [u8; REQ_PRIVATE_BYTES],
}

/// Bit of byte 4, set if the sender accepts packets of this connection only in one pair of UDP ports
/// (`docs/book/src/why/wire.md`).
const IS_ONE_FLOW: u8 = 0x01;
/// Bit of byte 4, set if the sender will set [`IS_ONE_FLOW`] in a later request unless it gets an answer.
const TRIES: u8 = 0x02;

/// Returns the UDP port encoded in two bytes.
const fn port_of(bytes: [u8; 2]) -> u16 {
    match u16::from_be_bytes(bytes) {
        0 => ROCE_PORT,
        port => port,
    }
}

impl Req {
    /// Returns true if all packets of the connection must use the pair of UDP ports of this request.
    #[must_use]
    pub const fn is_one_flow(&self) -> bool {
        self.reserved_4 & IS_ONE_FLOW != 0
    }

    /// Sets the value of [`Self::is_one_flow`].
    #[must_use]
    pub const fn with_one_flow(self, is_one_flow: bool) -> Self {
        self.with(IS_ONE_FLOW, is_one_flow)
    }

    /// Returns true if the sender will request one flow unless this request is answered. A refusal must then be sent from a
    /// port other than the request's destination port, so that a firewall does not treat it as an answer.
    #[must_use]
    pub const fn tries(&self) -> bool {
        self.reserved_4 & TRIES != 0
    }

    /// Sets the value of [`Self::tries`].
    #[must_use]
    pub const fn with_tries(self, tries: bool) -> Self {
        self.with(TRIES, tries)
    }

    const fn with(self, bit: u8, is_set: bool) -> Self {
        let others = self.reserved_4 & !bit;
        Self { reserved_4: if is_set { others | bit } else { others }, ..self }
    }

    /// Returns the UDP port at which the sender's software device receives. A request for one flow is sent from that port.
    #[must_use]
    pub const fn udp_port(&self) -> u16 {
        let [_, _, high, low] = self.reserved_24.to_be_bytes();
        port_of([high, low])
    }

    /// Returns the UDP port to which a request for one flow was sent.
    #[must_use]
    pub const fn dialled_port(&self) -> u16 {
        let [high, low, _, _] = self.reserved_24.to_be_bytes();
        port_of([high, low])
    }

    /// Sets the values of [`Self::udp_port`] and [`Self::dialled_port`].
    #[must_use]
    pub fn with_ports(self, own: u16, dialled: u16) -> Self {
        let code = |port| if port == ROCE_PORT { 0 } else { u32::from(port) };
        Self { reserved_24: code(dialled) << 16 | code(own), ..self }
    }

    /// Returns the addresses and UDP ports of this request's packet as sent, if it requests one flow. Other requests do not
    /// contain these ports.
    #[must_use]
    pub fn view(&self) -> Option<PeerView> {
        let Path { local_gid, remote_gid, .. } = self.primary;
        self.is_one_flow().then(|| PeerView {
            own: SocketAddr::new(remote_gid.ip(), self.dialled_port()),
            peer: SocketAddr::new(local_gid.ip(), self.udp_port()),
        })
    }

    pub(super) fn parse(d: &Data) -> Self {
        Self {
            local_id: at::LOCAL_ID.u32(d),
            reserved_4: at::RESERVED_4.u8(d),
            vendor_id: at::VENDOR_ID.u32(d),
            service_id: ServiceId(at::SERVICE_ID.u64(d)),
            ca_guid: at::CA_GUID.u64(d),
            reserved_24: at::RESERVED_24.u32(d),
            qkey: at::QKEY.u32(d),
            qpn: QpNumber::new(at::QPN.u32(d)),
            responder_resources: at::RESPONDER_RESOURCES.u8(d),
            eecn: at::EECN.u32(d),
            initiator_depth: at::INITIATOR_DEPTH.u8(d),
            remote_eecn: at::REMOTE_EECN.u32(d),
            remote_timeout: at::REMOTE_TIMEOUT.u8(d),
            transport: TransportType { service: at::TRANSPORT.u8(d), extended: at::EXTENDED_TRANSPORT.u8(d) },
            flow_control: at::FLOW_CONTROL.bool(d),
            starting_psn: Psn::new(at::STARTING_PSN.u32(d)),
            local_timeout: at::LOCAL_TIMEOUT.u8(d),
            retry_count: at::RETRY_COUNT.u8(d),
            pkey: at::PKEY.u16(d),
            mtu: at::MTU.u8(d),
            rdc_exists: at::RDC_EXISTS.bool(d),
            rnr_retry: at::RNR_RETRY.u8(d),
            max_cm_retries: at::MAX_CM_RETRIES.u8(d),
            srq: at::SRQ.bool(d),
            primary: Path::parse(d, at::PRIMARY),
            alternate: Path::parse(d, at::ALTERNATE),
            private: field::bytes(d, at::PRIVATE),
        }
    }

    pub(super) fn emit(&self) -> Data {
        let mut data = [0; MAD_DATA_BYTES];
        let d = &mut data;
        at::LOCAL_ID.put(d, self.local_id);
        at::RESERVED_4.put(d, self.reserved_4);
        at::VENDOR_ID.put(d, self.vendor_id);
        at::SERVICE_ID.put(d, self.service_id.0);
        at::CA_GUID.put(d, self.ca_guid);
        at::RESERVED_24.put(d, self.reserved_24);
        at::QKEY.put(d, self.qkey);
        at::QPN.put(d, self.qpn.get());
        at::RESPONDER_RESOURCES.put(d, self.responder_resources);
        at::EECN.put(d, self.eecn);
        at::INITIATOR_DEPTH.put(d, self.initiator_depth);
        at::REMOTE_EECN.put(d, self.remote_eecn);
        at::REMOTE_TIMEOUT.put(d, self.remote_timeout);
        at::TRANSPORT.put(d, self.transport.service);
        at::EXTENDED_TRANSPORT.put(d, self.transport.extended);
        at::FLOW_CONTROL.put(d, self.flow_control);
        at::STARTING_PSN.put(d, self.starting_psn.get());
        at::LOCAL_TIMEOUT.put(d, self.local_timeout);
        at::RETRY_COUNT.put(d, self.retry_count);
        at::PKEY.put(d, self.pkey);
        at::MTU.put(d, self.mtu);
        at::RDC_EXISTS.put(d, self.rdc_exists);
        at::RNR_RETRY.put(d, self.rnr_retry);
        at::MAX_CM_RETRIES.put(d, self.max_cm_retries);
        at::SRQ.put(d, self.srq);
        self.primary.emit(d, at::PRIMARY);
        self.alternate.emit(d, at::ALTERNATE);
        field::put_bytes(d, at::PRIVATE, &self.private);
        data
    }
}
