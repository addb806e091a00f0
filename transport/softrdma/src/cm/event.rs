//! What the machine tells the device.

use super::{ConnectionId, ListenerId, Peer};
use std::net::SocketAddr;
use trunkline_verbs::{QpNumber, RejectReason, SidrStatus};

/// A request at a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Where it came in.
    pub listener: ListenerId,
    /// Own address and the service's port.
    pub local: SocketAddr,
    /// The peer's address, and the port that its address header names.
    pub remote: SocketAddr,
    /// What to set on the QP before [`super::CmMachine::accept`].
    pub peer: Peer,
    /// 56 bytes.
    pub private: Vec<u8>,
}

/// A question at a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRequest {
    /// Where it came in.
    pub listener: ListenerId,
    /// Own address and the service's port.
    pub local: SocketAddr,
    /// The peer's address, and the port that its address header names.
    pub remote: SocketAddr,
    /// 180 bytes.
    pub private: Vec<u8>,
}

/// What happened to a connection. After `Rejected`, `Unreachable` and `TimewaitExit` the id
/// means nothing to the machine any more. A released connection reports `TimewaitExit` at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Somebody asks: call `accept` or `reject` (or `release`). It expires as `Unreachable`.
    ConnectRequest(ConnectionId, Box<ConnectRequest>),
    /// Active side: the peer accepted. Bring the QP to RTS and call `confirm`, or `reject`.
    Reply(ConnectionId, Peer),
    /// Connected. The private data is that of the REP (196 bytes, active side) or of the RTU
    /// (224 bytes, passive side; all zero if data came before the RTU).
    Established(ConnectionId, Vec<u8>),
    /// The peer refused, or took its request back; 148 bytes of private data.
    Rejected(ConnectionId, RejectReason, Vec<u8>),
    /// No answer came: from the peer, or from the own program to a request or reply.
    Unreachable(ConnectionId),
    /// It ended, by whichever side: bring the QP to ERR.
    Disconnected(ConnectionId),
    /// Somebody asks for a QP: call `answer` or `decline` (or `release`). It expires as
    /// `Unreachable`.
    ServiceRequest(ConnectionId, Box<ServiceRequest>),
    /// The answer to a question, and its end.
    ServiceReply {
        /// Whose.
        id: ConnectionId,
        /// The QP that serves the service: whatever the peer said.
        qpn: QpNumber,
        /// Its Q_Key.
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
    /// Whose it is.
    #[must_use]
    pub const fn connection(&self) -> ConnectionId {
        match self {
            Self::ConnectRequest(id, _)
            | Self::Reply(id, _)
            | Self::Established(id, _)
            | Self::Rejected(id, ..)
            | Self::Unreachable(id)
            | Self::Disconnected(id)
            | Self::ServiceRequest(id, _)
            | Self::ServiceReply { id, .. }
            | Self::ServiceRefused(id, ..)
            | Self::TimewaitExit(id, _) => *id,
        }
    }
}
