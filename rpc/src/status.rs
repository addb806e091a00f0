//! How a call ends when it does not end well.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use trunkline_transport::PeerDown;

/// The status codes, with gRPC's names and numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum Code {
    /// The caller gave up.
    Cancelled = 1,
    /// Of unknown kind.
    Unknown = 2,
    /// The arguments are wrong, whatever the state of the server.
    InvalidArgument = 3,
    /// The deadline passed.
    DeadlineExceeded = 4,
    /// What was asked for is not there.
    NotFound = 5,
    /// What was to be made is there already.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// Something is used up: memory, a queue, a size limit.
    ResourceExhausted = 8,
    /// The server is not in the state that this needs.
    FailedPrecondition = 9,
    /// A conflict with another call; trying the whole again may help.
    Aborted = 10,
    /// Past the valid range.
    OutOfRange = 11,
    /// The server has no such method.
    Unimplemented = 12,
    /// Something that should not be broken is.
    Internal = 13,
    /// The server cannot be reached now.
    Unavailable = 14,
    /// Data was lost.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl Code {
    /// The code of a number on the wire; what is not one is `Unknown`.
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

    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: String,
    details: Bytes,
    may_have_run: bool,
}

impl Status {
    /// A status of a handler's choice.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        // What a handler answers has run.
        Self { code, message: message.into(), details: Bytes::new(), may_have_run: true }
    }

    /// A status of a call that certainly did not reach its handler.
    pub(crate) fn not_run(code: Code, message: impl Into<String>) -> Self {
        Self { may_have_run: false, ..Self::new(code, message) }
    }

    /// What kind of failure.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// What happened, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What the handler adds for programs, in a form that the two sides agree on.
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

    /// Whether the handler may have run. `false` is a guarantee, `true` may be cautious.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

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
