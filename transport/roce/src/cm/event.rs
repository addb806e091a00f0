//! The events that the machine reports to the device.

use super::{ConnectionId, ListenerId, Peer};
use std::net::SocketAddr;
use trunkline_verbs::{QpNumber, RejectReason, SidrStatus, UnreachableCause};

/// A request at a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The listener that it reached.
    pub listener: ListenerId,
    /// Our address and the service's port.
    pub local: SocketAddr,
    /// The peer's address, and the port that its address header names.
    pub remote: SocketAddr,
    /// Attributes to set on the QP before [`super::CmMachine::accept`].
    pub peer: Peer,
    /// 56 bytes.
    pub private: Vec<u8>,
}

/// A question at a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRequest {
    /// The listener that it reached.
    pub listener: ListenerId,
    /// Our address and the service's port.
    pub local: SocketAddr,
    /// The peer's address, and the port that its address header names.
    pub remote: SocketAddr,
    /// 180 bytes.
    pub private: Vec<u8>,
}

/// A change of a connection. After `Rejected`, `Unreachable` and `TimewaitExit` the id is invalid. A released
/// connection reports `TimewaitExit` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer requests a connection: call `accept` or `reject` (or `release`). Expires as `Unreachable`.
    ConnectRequest(ConnectionId, Box<ConnectRequest>),
    /// Active side: the peer accepted. Bring the QP to RTS and call `confirm`, or `reject`.
    Reply(ConnectionId, Peer),
    /// Connected. The private data comes from the REP (196 bytes, active side) or of the RTU
    /// (224 bytes, passive side; all zero if data came before the RTU).
    Established(ConnectionId, Vec<u8>),
    /// The peer refused, or took its request back; 148 bytes of private data.
    Rejected(ConnectionId, RejectReason, Vec<u8>),
    /// No answer came: from the peer, or from our program to a request or reply.
    Unreachable(ConnectionId, UnreachableCause),
    /// The connection ended: bring the QP to ERR.
    Disconnected {
        /// The connection.
        id: ConnectionId,
        /// True if the peer disconnected, or answered our DREQ; false if it answered none of them.
        is_answered: bool,
        /// Private data of the peer's DREQ, 220 bytes; empty if another message, or none, ended the connection.
        private: Vec<u8>,
    },
    /// A peer requests a QP: call `answer` or `decline` (or `release`). Expires as `Unreachable`.
    ServiceRequest(ConnectionId, Box<ServiceRequest>),
    /// The answer to a question, and its end.
    ServiceReply {
        /// The question.
        id: ConnectionId,
        /// The QP that serves the port, unchecked.
        qpn: QpNumber,
        /// Q_Key of that QP.
        qkey: u32,
        /// 136 bytes.
        private: Vec<u8>,
    },
    /// A question was refused, and has ended; 136 bytes of private data.
    ServiceRefused(ConnectionId, SidrStatus, Vec<u8>),
    /// The QP's number may be used again.
    TimewaitExit(ConnectionId, QpNumber),
}

impl Event {
    /// Returns the connection or question of the event.
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
