//! The parameters of connections and of SIDR requests, in both directions.

use crate::wire::cm::TransportType;
use std::net::SocketAddr;
use trunkline_verbs::{Mtu, OneFlow, PortSpace, Psn, QpNumber, UdpPorts};

/// Transport service of a connection. With [`Self::Xrc`], the active side has an INI and the passive side a TGT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Extended reliable connection, in one direction.
    Xrc,
}

impl Transport {
    pub(super) const fn wire(self) -> TransportType {
        match self {
            Self::Rc => TransportType::RC,
            Self::Xrc => TransportType::XRC,
        }
    }

    pub(super) const fn from_wire(wire: TransportType) -> Option<Self> {
        match (wire.service, wire.extended) {
            // The extended type counts only with service type 3 (contract rocev2 10.1).
            (0, _) => Some(Self::Rc),
            (3, 1) => Some(Self::Xrc),
            _ => None,
        }
    }
}

/// Parameters of a connection request. The QP is in INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    /// Local address, and the port that the peer sees.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Port space, which identifies the service together with the remote port.
    pub port_space: PortSpace,
    /// RC, or XRC with an INI.
    pub transport: Transport,
    /// Local QP, an INI for XRC.
    pub qpn: QpNumber,
    /// First PSN that the peer uses, which this side announces to it; the local QP's `rq_psn`.
    pub starting_psn: Psn,
    /// MTU in both directions.
    pub mtu: Mtu,
    /// Number of READs and atomics that this side serves at a time; not sent for XRC.
    pub responder_resources: u8,
    /// Maximum number of outstanding READs and atomics of this side.
    pub initiator_depth: u8,
    /// Transport retries, 0 to 7, for both sides of an RC connection; not sent for XRC.
    pub retry_count: u8,
    /// RNR retries, 0 to 7, for the peer's QP; not sent for XRC.
    pub rnr_retry: u8,
    /// Exponent n of the local ACK timeout, 4.096 us * 2^n, of the peer's QP, and of this side's QP unless the peer is
    /// slower.
    pub ack_timeout: u8,
    /// True if the program requests end-to-end flow control. Has no effect here.
    pub flow_control: bool,
    /// Traffic class of the path, for the peer's QP.
    pub traffic_class: u8,
    /// True if the QP has an SRQ; not sent for XRC.
    pub srq: bool,
    /// UDP ports of the packets to the peer.
    pub ports: UdpPorts,
    /// Requested use of one pair of UDP ports.
    pub one_flow: OneFlow,
    /// If true, the request is retransmitted for a while after a report that it was not delivered.
    pub retry_refused: bool,
    /// Private data, up to 56 bytes.
    pub private: &'a [u8],
}

/// Parameters of the answer to a connection request. The QP is in RTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept<'a> {
    /// Local QP, a TGT for XRC.
    pub qpn: QpNumber,
    /// First PSN that the peer uses, which this side announces to it; the local QP's `rq_psn`.
    pub starting_psn: Psn,
    /// Number of READs and atomics that this side serves at a time; the QP's `max_dest_rd_atomic`.
    pub responder_resources: u8,
    /// Maximum number of outstanding READs and atomics of this side. It is reduced to the peer's limit,
    /// [`Peer::initiator_depth`]; reduce the QP's `max_rd_atomic` too. Not sent for XRC.
    pub initiator_depth: u8,
    /// RNR retries, 0 to 7, for the peer's QP.
    pub rnr_retry: u8,
    /// True if the program requests end-to-end flow control. Has no effect here.
    pub flow_control: bool,
    /// True if the QP has an SRQ; always sent as true for XRC.
    pub srq: bool,
    /// Private data, up to 196 bytes.
    pub private: &'a [u8],
}

/// A SIDR request for the QP that serves a port of port space UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask<'a> {
    /// Local address, and the port that the peer sees.
    pub local: SocketAddr,
    /// The peer's address, and the service's port.
    pub remote: SocketAddr,
    /// Same as [`Connect::retry_refused`].
    pub retry_refused: bool,
    /// Private data, up to 180 bytes.
    pub private: &'a [u8],
}

/// The answer to a SIDR request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The QP that serves the port.
    pub qpn: QpNumber,
    /// The Q_Key that datagrams to the QP must carry.
    pub qkey: u32,
    /// Private data, up to 136 bytes.
    pub private: &'a [u8],
}

/// The peer's values from this side's point of view, for the local QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// RC or XRC.
    pub transport: Transport,
    /// `dest_qp_num`, the peer's QP. It is a TGT if this side has the INI.
    pub qpn: QpNumber,
    /// `sq_psn`, the first PSN that this side sends. This side announces `rq_psn`.
    pub send_psn: Psn,
    /// Path MTU, from the REQ.
    pub mtu: Mtu,
    /// `max_dest_rd_atomic`, the maximum number of the peer's outstanding operations (contract rocev2 10.5).
    pub responder_resources: u8,
    /// `max_rd_atomic`, the number of operations that the peer serves at a time.
    pub initiator_depth: u8,
    /// `retry_cnt`.
    pub retry_count: u8,
    /// `rnr_retry`.
    pub rnr_retry: u8,
    /// `timeout`, the exponent n of 4.096 us * 2^n. It is never 0, which would mean no timeout.
    pub ack_timeout: u8,
    /// True if the peer requests end-to-end flow control.
    pub flow_control: bool,
    /// The traffic class of the path, from the REQ.
    pub traffic_class: u8,
    /// The GUID of the peer's adapter.
    pub ca_guid: u64,
    /// [`MadSource::local_port`](super::MadSource::local_port) of the REQ or REP.
    pub local_port: Option<u16>,
    /// UDP ports of the packets to the peer.
    pub ports: UdpPorts,
}
