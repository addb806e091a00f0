//! The status of a call that failed: a code, who ended it and why, and whether its handler may have run.
//!
//! Used by every other module; knows of none but the transport's reasons for a lost peer.

use crate::reason::{Origin, Reason};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use trunkline_transport::{Body, PeerDown};

/// Longest message that is sent, in bytes; a longer one is cut.
pub(crate) const MOST_MESSAGE_BYTES: usize = 64 << 10;
/// Most causes of a status, and the longest text of one in bytes; longer ones are cut.
pub(crate) const MOST_CAUSES: usize = 16;
pub(crate) const MOST_CAUSE_BYTES: usize = 1024;
/// Most bytes of details that are sent.
pub(crate) const MOST_DETAILS: usize = 1 << 20;

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

    /// Whether a caller may try again later, with the same arguments.
    fn invites_a_retry(self) -> bool {
        matches!(
            self,
            Self::Cancelled
                | Self::DeadlineExceeded
                | Self::ResourceExhausted
                | Self::Aborted
                | Self::Unavailable
        )
    }
}

/// Why a call failed: a code for programs, a message for humans, who ended it, and optional details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: String,
    /// Within the limits, the nearest first.
    causes: Vec<String>,
    details: Body,
    origin: Origin,
    reason: Option<Reason>,
    may_have_run: bool,
}

impl Status {
    /// A status for a handler to return. [`Status::may_have_run`] is `true`.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
            details: Body::new(),
            origin: Origin::Handler,
            reason: None,
            // A handler that returns a status has run.
            may_have_run: true,
        }
    }

    /// The status of a call whose handler has certainly not run, as this node ends it.
    pub(crate) fn not_run(code: Code, message: impl Into<String>) -> Self {
        Self { may_have_run: false, ..Self::ran(code, message) }
    }

    /// The status of a call whose handler may have run, as this node ends it.
    pub(crate) fn ran(code: Code, message: impl Into<String>) -> Self {
        Self { origin: Origin::Local, ..Self::new(code, message) }
    }

    /// The same with a named reason.
    pub(crate) fn because(self, reason: Reason) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// The same as a handler returned it.
    pub(crate) fn of_handler(self) -> Self {
        Self { origin: Origin::Handler, ..self }
    }

    /// The same as the server's node ended it.
    pub(crate) fn of_peer(self) -> Self {
        Self { origin: Origin::Peer, ..self }
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

    /// What led to it, in a human-readable form, the nearest cause first; empty by default.
    #[must_use]
    pub fn causes(&self) -> &[String] {
        &self.causes
    }

    /// The same status with one more cause, which led to the last one. At most 16 are kept, of 1 KiB each.
    #[must_use]
    pub fn with_cause(mut self, cause: impl fmt::Display) -> Self {
        if self.causes.len() < MOST_CAUSES {
            let mut text = cause.to_string();
            text.truncate(cut(&text, MOST_CAUSE_BYTES).len());
            self.causes.push(text);
        }
        self
    }

    /// The same status with an error and its sources as causes.
    #[must_use]
    pub fn caused_by(mut self, error: &dyn std::error::Error) -> Self {
        let mut next = Some(error);
        while let Some(error) = next.filter(|_| self.causes.len() < MOST_CAUSES) {
            self = self.with_cause(error);
            next = error.source();
        }
        self
    }

    /// The same status with these causes, which are within the limits.
    pub(crate) fn with_causes(mut self, causes: Vec<String>) -> Self {
        self.causes = causes;
        self
    }

    /// Data that the handler attached for programs, in a format that both sides have agreed on; empty by default. More
    /// than 1 MiB is not sent: the status arrives without it, and with a last cause that names its size.
    #[must_use]
    pub fn details(&self) -> &Bytes {
        self.details.as_bytes()
    }

    /// The same status with details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.details = Body::from(details.into());
        self
    }

    /// The same status as it is sent: without details that no receiver takes.
    pub(crate) fn within_limits(mut self) -> Self {
        let bytes = self.details.len();
        if bytes <= MOST_DETAILS {
            return self;
        }
        self.details = Body::new();
        self.causes.truncate(MOST_CAUSES - 1);
        self.with_cause(format_args!(
            "its details of {bytes} bytes were left out: {MOST_DETAILS} at most are sent"
        ))
    }

    /// Who ended the call.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Why a node ended the call in the handler's place. `None` is a status that a handler returned, or that the
    /// program made.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// Whether the handler may have run. `false` is a guarantee that it has not; `true` means that it
    /// has, or that nobody knows.
    ///
    /// It is about the call that ended with this status, and each node decides it for its own calls. A handler
    /// that returns the status of a call that it made has run, whatever became of that call.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// The same, with the call that it is the status of named before the message.
    pub(crate) fn of_call(self, call: fmt::Arguments<'_>) -> Self {
        Self { message: format!("{call}: {}", self.message), ..self }
    }

    /// The status of a call to a peer that was lost, or whose request could not be sent.
    pub(crate) fn unreachable(call: impl fmt::Display, cause: PeerDown, may_have_run: bool) -> Self {
        let (code, reason) = Self::of(cause);
        Self { may_have_run, ..Self::ran(code, format!("{call}: {cause}")) }.because(reason)
    }

    /// What a call ends with for such a cause.
    pub(crate) fn of(cause: PeerDown) -> (Code, Reason) {
        match cause {
            PeerDown::Deadline => (Code::DeadlineExceeded, Reason::Expired),
            PeerDown::TooLarge { .. } => (Code::ResourceExhausted, Reason::TooLarge),
            PeerDown::ResourceExhausted | PeerDown::NotRegistered(_) => {
                (Code::ResourceExhausted, Reason::Overloaded)
            }
            PeerDown::Version { .. }
            | PeerDown::UnknownFrame(_)
            | PeerDown::UnknownSetting(_)
            | PeerDown::SettingRefused(_) => (Code::FailedPrecondition, Reason::OtherProtocol),
            PeerDown::ShuttingDown => (Code::Unavailable, Reason::Draining),
            _ => (Code::Unavailable, Reason::Unreachable),
        }
    }
}

/// The beginning of a text, of so many bytes at most.
pub(crate) fn cut(text: &str, most_bytes: usize) -> &str {
    let end = (0..=most_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
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

/// The code, the message and the causes. "(the call may have run)" follows if a node ended the call, that is so, and the
/// code is one after which callers may try again: `Cancelled`, `DeadlineExceeded`, `ResourceExhausted`, `Aborted` or
/// `Unavailable`. A handler that returned its status has run, which needs no mention.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)?;
        for cause in &self.causes {
            write!(f, ": {cause}")?;
        }
        if self.may_have_run && self.origin != Origin::Handler && self.code.invites_a_retry() {
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

    #[test]
    fn the_text_warns_of_calls_that_may_have_run() {
        const WARNING: &str = "(the call may have run)";
        let warns = |status: Status| status.to_string().ends_with(WARNING);
        for code in [Code::Unavailable, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Aborted] {
            assert!(warns(Status::ran(code, "gone")));
            assert!(warns(Status::ran(code, "gone").of_peer()));
            assert!(!warns(Status::not_run(code, "gone")));
            assert!(!warns(Status::new(code, "a handler's word")), "it has run");
        }
        assert!(!warns(Status::ran(Code::Internal, "a panic")), "nobody tries that again");
    }

    #[test]
    fn causes_are_a_bounded_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("the disk is full")]
        struct Full;
        #[derive(Debug, thiserror::Error)]
        #[error("not saved")]
        struct NotSaved(#[source] Full);
        let status = Status::aborted("no").caused_by(&NotSaved(Full));
        assert_eq!(status.causes(), ["not saved", "the disk is full"]);
        assert_eq!(status.to_string(), "Aborted: no: not saved: the disk is full");
        let many = (0..100).fold(Status::aborted(""), |status, _| status.with_cause("ä".repeat(1000)));
        assert_eq!((many.causes().len(), many.causes()[0].len()), (MOST_CAUSES, MOST_CAUSE_BYTES));
    }
}
