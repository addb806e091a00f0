//! The events that the machine reports to the device.

use super::{ConnectionId, ListenerId, Peer};
use std::net::SocketAddr;
use trunkline_verbs::{QpNumber, RejectReason, SidrStatus, UnreachableCause};

/// A REQ that arrived at a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The listener that received it.
    pub listener: ListenerId,
    /// This side's address and the service's port.
    pub local: SocketAddr,
    /// The peer's address, and the port in its address header.
    pub remote: SocketAddr,
    /// Attributes to set on the QP before [`super::CmMachine::accept`].
    pub peer: Peer,
    /// Private data, 56 bytes.
    pub private: Vec<u8>,
}

/// A SIDR request that arrived at a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRequest {
    /// The listener that received it.
    pub listener: ListenerId,
    /// This side's address and the service's port.
    pub local: SocketAddr,
    /// The peer's address, and the port in its address header.
    pub remote: SocketAddr,
    /// Private data, 180 bytes.
    pub private: Vec<u8>,
}

/// A change to a connection or a SIDR request. After `Rejected`, `Unreachable` and `TimewaitExit` the id is invalid. A
/// released connection reports `TimewaitExit` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer requests a connection. Call `accept`, `reject` or `release`; otherwise the request expires as `Unreachable`.
    ConnectRequest(ConnectionId, Box<ConnectRequest>),
    /// The peer accepted the request of the active side. Move the QP to RTS and call `confirm`, or call `reject`.
    Reply(ConnectionId, Peer),
    /// The connection is established. The private data comes from the REP on the active side (196 bytes), and from the RTU
    /// on the passive side (224 bytes, all zero if data came before the RTU).
    Established(ConnectionId, Vec<u8>),
    /// The peer refused this side's request or withdrew its own. The private data is 148 bytes long.
    Rejected(ConnectionId, RejectReason, Vec<u8>),
    /// The peer did not answer, or the local program did not answer a request or reply in time.
    Unreachable(ConnectionId, UnreachableCause),
    /// The connection ended. Move the QP to ERR.
    Disconnected {
        /// The connection.
        id: ConnectionId,
        /// True if the peer disconnected, or answered this side's DREQ; false if the peer did not answer.
        is_answered: bool,
        /// Private data of the peer's DREQ, 220 bytes; empty if another message, or none, ended the connection.
        private: Vec<u8>,
    },
    /// A peer requests a QP. Call `answer`, `decline` or `release`; otherwise the request expires as `Unreachable`.
    ServiceRequest(ConnectionId, Box<ServiceRequest>),
    /// The peer answered this side's `SIDR_REQ` with success. The id is invalid afterwards.
    ServiceReply {
        /// Id of the SIDR request.
        id: ConnectionId,
        /// The QP that serves the port. The peer may name any number, including 0 and 1.
        qpn: QpNumber,
        /// Q_Key of that QP.
        qkey: u32,
        /// Private data, 136 bytes.
        private: Vec<u8>,
    },
    /// The peer refused this side's `SIDR_REQ`. The private data is 136 bytes long. The id is invalid afterwards.
    ServiceRefused(ConnectionId, SidrStatus, Vec<u8>),
    /// The QP's number may be used again.
    TimewaitExit(ConnectionId, QpNumber),
}

impl Event {
    /// Returns the id of the event's connection or SIDR request.
    #[must_use]
    pub const fn connection(&self) -> ConnectionId {
        match self {
            Self::ConnectRequest(id, _)
            | Self::Reply(id, _)
            | Self::Established(id, _)
            | Self::Rejected(id, ..)
            | Self::Unreachable(id, _)
            | Self::ServiceRequest(id, _)
            | Self::Disconnected { id, .. }
            | Self::ServiceReply { id, .. }
            | Self::ServiceRefused(id, ..)
            | Self::TimewaitExit(id, _) => *id,
        }
    }
}
