//! The status of a call that failed: a code, a message, and whether its handler may have run.
//!
//! Used by every other module; knows of none but the transport's reasons for a lost peer.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use trunkline_transport::PeerDown;

/// What kind of failure a [`Status`] is, with gRPC's names and numbers (1 to 16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum Code {
    /// The caller gave up.
    Cancelled = 1,
    /// The kind is unknown: the peer sent a code that this version does not know, or the handler chose this one.
    Unknown = 2,
    /// The arguments are wrong, whatever the state of the server.
    InvalidArgument = 3,
    /// The deadline passed.
    DeadlineExceeded = 4,
    /// What was asked for does not exist.
    NotFound = 5,
    /// What the call was to create exists already.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A resource is exhausted: memory, the room in a queue, or a size limit.
    ResourceExhausted = 8,
    /// The server is not in the state that the call needs.
    FailedPrecondition = 9,
    /// The call conflicts with another one; retrying the whole operation may help.
    Aborted = 10,
    /// A position is past the end of the valid range.
    OutOfRange = 11,
    /// The server does not offer this method.
    Unimplemented = 12,
    /// An invariant is broken: a panic, or a value that cannot be encoded or decoded.
    Internal = 13,
    /// The server cannot be reached at present.
    Unavailable = 14,
    /// Data is lost or corrupted beyond repair.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number on the wire; `Unknown` for a number that is not assigned.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Cancelled,
            3 => Self::InvalidArgument,
            4 => Self::DeadlineExceeded,
            5 => Self::NotFound,
            6 => Self::AlreadyExists,
            7 => Self::PermissionDenied,
            8 => Self::ResourceExhausted,
            9 => Self::FailedPrecondition,
            10 => Self::Aborted,
            11 => Self::OutOfRange,
            12 => Self::Unimplemented,
            13 => Self::Internal,
            14 => Self::Unavailable,
            15 => Self::DataLoss,
            16 => Self::Unauthenticated,
            _ => Self::Unknown,
        }
    }

    /// The number on the wire, 1 to 16.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// Why a call failed: a code for programs, a message for humans, and optional details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: String,
    details: Bytes,
    may_have_run: bool,
}

impl Status {
    /// A status for a handler to return. [`Status::may_have_run`] is `true`.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        // A handler that returns a status has run.
        Self { code, message: message.into(), details: Bytes::new(), may_have_run: true }
    }

    /// The status of a call whose handler has certainly not run.
    pub(crate) fn not_run(code: Code, message: impl Into<String>) -> Self {
        Self { may_have_run: false, ..Self::new(code, message) }
    }

    /// The kind of failure.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// What happened, in a human-readable form.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Data that the handler attached for programs, in a format that both sides have agreed on; empty by default.
    #[must_use]
    pub fn details(&self) -> &Bytes {
        &self.details
    }

    /// The same status with details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.details = details.into();
        self
    }

    /// Whether the handler may have run. `false` is a guarantee that it has not; `true` means that it
    /// has, or that nobody knows.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// The status of a call to a peer that was lost, or whose request could not be sent.
    pub(crate) fn unreachable(peer: impl fmt::Display, cause: PeerDown, may_have_run: bool) -> Self {
        let code = match cause {
            PeerDown::Deadline => Code::DeadlineExceeded,
            PeerDown::Cancelled => Code::Cancelled,
            PeerDown::ResourceExhausted => Code::ResourceExhausted,
            _ => Code::Unavailable,
        };
        Self { may_have_run, ..Self::new(code, format!("{peer}: {cause}")) }
    }
}

macro_rules! constructors {
    ($($name:ident $code:ident),*) => {
        impl Status {
            $(
                #[doc = concat!("A status with [`Code::", stringify!($code), "`].")]
                #[must_use]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors!(
    cancelled Cancelled, unknown Unknown, invalid_argument InvalidArgument, deadline_exceeded DeadlineExceeded,
    not_found NotFound, already_exists AlreadyExists, permission_denied PermissionDenied,
    resource_exhausted ResourceExhausted, failed_precondition FailedPrecondition, aborted Aborted,
    out_of_range OutOfRange, unimplemented Unimplemented, internal Internal, unavailable Unavailable,
    data_loss DataLoss, unauthenticated Unauthenticated
);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)?;
        if self.code == Code::Unavailable && self.may_have_run {
            write!(f, " (the call may have run)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_grpc() {
        for number in 1..=16 {
            assert_eq!(Code::from_number(number).number(), number);
        }
        assert_eq!(Code::from_number(0), Code::Unknown);
        assert_eq!(Code::from_number(200), Code::Unknown);
        assert_eq!(Code::Unavailable.number(), 14);
    }
}
