//! Asynchronous events of a device.

use crate::QpNumber;

/// The kind of an asynchronous event (`ibv_event_type`).
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

/// The object that an asynchronous event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AsyncSubject {
    /// A QP, identified by its number.
    Qp(QpNumber),
    /// An SRQ, identified by the `context` of its [`crate::SrqInit`].
    Srq(u64),
    /// A CQ, identified by the `context` of its [`crate::CqInit`].
    Cq(u64),
    /// A port, identified by its number. The first port is 1.
    Port(u8),
    /// The device itself.
    Device,
}

/// An asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// The kind of event.
    pub kind: AsyncEventKind,
    /// The object that the event is about.
    pub subject: AsyncSubject,
}
