//! Asynchronous events of a device.

use crate::QpNumber;

/// What happened (`ibv_event_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the names of ibv_event_type")]
pub enum AsyncEventKind {
    CqError,
    QpFatal,
    QpRequestError,
    QpAccessError,
    CommunicationEstablished,
    SqDrained,
    PathMigrated,
    PathMigrationError,
    DeviceFatal,
    PortActive,
    PortError,
    LidChange,
    PkeyChange,
    SmChange,
    SrqError,
    SrqLimitReached,
    QpLastWqeReached,
    ClientReregister,
    GidChange,
}

/// What it happened to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AsyncSubject {
    /// A QP, by number.
    Qp(QpNumber),
    /// An SRQ, by the `context` it was made with.
    Srq(u64),
    /// A CQ, by the `context` it was made with.
    Cq(u64),
    /// A port.
    Port(u8),
    /// The device.
    Device,
}

/// An asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// To what.
    pub subject: AsyncSubject,
}
