//! The status of a failed call, which contains the cause, the side that ended the call, and whether the call can safely be
//! repeated. This module depends only on metadata and on the transport's reasons for the loss of a peer.

pub(crate) mod call_error;
mod conversions;
pub(crate) mod details;
pub mod nested_status;
pub(crate) mod reason;

use crate::status::reason::{Origin, Reason};
use crate::wire::metadata::{Metadata, ReplyMetadata};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
#[cfg(feature = "identity")]
use trunkline_transport::identity::Refused;
use trunkline_transport::{Body, PeerDown};

/// Maximum length of a message on the wire, in bytes. Longer messages are truncated.
pub(crate) const MOST_MESSAGE_BYTES: usize = 64 << 10;
/// Maximum number of causes of a status.
pub(crate) const MOST_CAUSES: usize = 16;
/// Maximum length of a cause, in bytes. Longer causes are truncated.
pub(crate) const MOST_CAUSE_BYTES: usize = 1024;
/// Maximum size of the details on the wire, in bytes.
pub(crate) const MOST_DETAILS: usize = 1 << 20;

/// The kind of failure in a [`Status`], with gRPC's names and numbers (1 to 16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum Code {
    /// The caller cancelled the call.
    Cancelled = 1,
    /// The cause is unknown. The peer sent a code that this version does not define, or the handler returned this code.
    Unknown = 2,
    /// The arguments are invalid, regardless of the state of the server.
    InvalidArgument = 3,
    /// The deadline passed.
    DeadlineExceeded = 4,
    /// The requested object does not exist.
    NotFound = 5,
    /// The object to create already exists.
    AlreadyExists = 6,
    /// The caller is not permitted to make this call.
    PermissionDenied = 7,
    /// A resource such as memory, queue space or a size limit is exhausted.
    ResourceExhausted = 8,
    /// The server is not in the state that the call requires.
    FailedPrecondition = 9,
    /// The call conflicts with another one. A retry of the whole operation may succeed.
    Aborted = 10,
    /// A position is outside the valid range.
    OutOfRange = 11,
    /// The server does not offer this method.
    Unimplemented = 12,
    /// An invariant is broken. For example, code panicked, or a value cannot be encoded or decoded.
    Internal = 13,
    /// The server cannot be reached now.
    Unavailable = 14,
    /// Data is irrecoverably lost or corrupted.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl Code {
    /// Returns the code with this wire number, or `Unknown` if the number is not assigned.
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

    /// Returns the code's wire number, 1 to 16.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns true if a caller may try again later with the same arguments.
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

/// The error of a call, with a code for programs, a message for humans, and the side that ended the call.
///
/// Handlers return statuses, and nodes create one for each call that they end. A failed call can be repeated if
/// [`Status::may_have_run`] is false.
///
/// ```
/// use trunkline::{Code, Status};
///
/// let status = Status::not_found("no such key").with_cause("the shard is empty");
/// assert_eq!(status.code(), Code::NotFound);
/// assert_eq!(status.to_string(), "NotFound: no such key: the shard is empty");
/// assert!(status.may_have_run(), "a handler that returns a status has run");
/// assert_eq!(status.reason(), None, "no node ended the call");
/// ```
///
/// `docs/book/src/guide/errors.md` describes conversions with `?`, the limits on texts and details, and the meaning of each
/// [`Reason`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: String,
    /// Causes within the limits, the most direct first.
    causes: Vec<String>,
    details: Body,
    origin: Origin,
    reason: Option<Reason>,
    may_have_run: bool,
    /// True if the status represents an error of the method's own type.
    is_own_error: bool,
    /// Metadata of the response; `None` if empty.
    metadata: Option<Box<ReplyMetadata>>,
}

/// Metadata returned for a status without metadata.
static NO_METADATA: Metadata = Metadata::new();

impl Status {
    /// Creates a status for a handler to return. Its [`Status::may_have_run`] is true.
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
            is_own_error: false,
            metadata: None,
        }
    }

    /// Creates a status that represents an error of the method's own type in interceptors.
    #[cold]
    pub(crate) fn of_own_error() -> Self {
        let text = "the handler failed with an error of the service's own";
        Self { is_own_error: true, ..Self::unknown(text) }
    }

    /// Returns true if the status represents an error of the method's own type.
    pub(crate) fn is_own_error(&self) -> bool {
        self.is_own_error
    }

    /// Creates the status of a call that this node ended before its handler ran.
    pub(crate) fn not_run(code: Code, message: impl Into<String>) -> Self {
        Self { may_have_run: false, ..Self::ran(code, message) }
    }

    /// Creates the status of a call that this node ended and whose handler may have run.
    pub(crate) fn ran(code: Code, message: impl Into<String>) -> Self {
        Self { origin: Origin::Local, ..Self::new(code, message) }
    }

    pub(crate) fn because(self, reason: Reason) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// Sets the origin to the handler.
    pub(crate) fn of_handler(self) -> Self {
        Self { origin: Origin::Handler, ..self }
    }

    /// Sets the origin to the server's node.
    pub(crate) fn of_peer(self) -> Self {
        Self { origin: Origin::Peer, ..self }
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns a human-readable description of the failure.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns human-readable causes, the most direct first. Empty by default.
    #[must_use]
    pub fn causes(&self) -> &[String] {
        &self.causes
    }

    /// Appends a cause after the existing ones. At most 16 causes are kept, each truncated to 1 KiB.
    #[must_use]
    pub fn with_cause(mut self, cause: impl fmt::Display) -> Self {
        if self.causes.len() < MOST_CAUSES {
            let mut text = cause.to_string();
            text.truncate(cut(&text, MOST_CAUSE_BYTES).len());
            self.causes.push(text);
        }
        self
    }

    /// Appends an error and its sources as causes.
    #[must_use]
    pub fn caused_by(mut self, error: &dyn std::error::Error) -> Self {
        let mut next = Some(error);
        while let Some(error) = next.filter(|_| self.causes.len() < MOST_CAUSES) {
            self = self.with_cause(error);
            next = error.source();
        }
        self
    }

    /// Appends a cause with the time until the next connection attempt and the remedy. The message omits the time, so that
    /// the same failure always has the same text.
    pub(crate) fn with_next_attempt(self, due_in: Duration) -> Self {
        self.with_cause(format_args!(
            "the next attempt to connect is due in {due_in:.1?}; calls with Connect::Wait wait for it"
        ))
    }

    /// Sets the causes, which must not exceed the limits.
    pub(crate) fn with_causes(mut self, causes: Vec<String>) -> Self {
        self.causes = causes;
        self
    }

    /// Returns the machine-readable data that the handler attached, in a format agreed between client and server. Empty by
    /// default.
    ///
    /// Details larger than 1 MiB are not sent. The status arrives without details, and its last cause contains their size.
    #[must_use]
    pub fn details(&self) -> &Bytes {
        self.details.as_bytes()
    }

    /// Sets the details. `Debug` output shows only their length.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.details = Body::from(details.into());
        self
    }

    /// Returns the metadata sent with the status, at the end of the response. Empty by default.
    ///
    /// A caller gets the metadata that the handler set with
    /// [`Context::set_trailing_metadata`](crate::Context::set_trailing_metadata), followed by the metadata set with
    /// [`Status::with_metadata`].
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.metadata.as_ref().map_or(&NO_METADATA, |metadata| &metadata.trailing)
    }

    /// Sets the metadata sent with the status. If the status is part of an error that is sent
    /// ([`nested_status`](crate::nested_status)), the metadata is part of this error and does not count towards
    /// `metadata_bytes`.
    #[must_use]
    pub fn with_metadata(self, trailing: Metadata) -> Self {
        self.with_reply_metadata(ReplyMetadata { trailing, ..ReplyMetadata::default() })
    }

    /// Sets the metadata of the response that contained the status.
    pub(crate) fn with_reply_metadata(self, metadata: ReplyMetadata) -> Self {
        Self { metadata: (!metadata.is_empty()).then(|| Box::new(metadata)), ..self }
    }

    /// Returns the metadata of the response that contained the status.
    pub(crate) fn reply_metadata(&self) -> Option<&ReplyMetadata> {
        self.metadata.as_deref()
    }

    /// Records that the call may have run.
    pub(crate) fn after_run(self) -> Self {
        Self { may_have_run: true, ..self }
    }

    /// Converts the status to one for a call that an interceptor refused. The handler of this call has not run, even if the
    /// status belongs to another call that has run.
    pub(crate) fn before_run(self) -> Self {
        let is_of_caller = matches!(self.code, Code::Unauthenticated | Code::PermissionDenied);
        let reason = is_of_caller.then_some(Reason::Unauthorised);
        Self { may_have_run: false, origin: Origin::Local, reason, ..self }
    }

    /// Removes details that exceed the wire limit.
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

    /// Returns the side that ended the call.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the reason why a node ended the call in place of the handler. `None` if a handler returned the status or the
    /// program created it.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// Returns true if the handler has run or may have run. `false` guarantees that the handler has not run.
    ///
    /// The value applies to the call that ended with this status, and each node determines it for its own calls. A handler
    /// that returns the status of a nested call has run, even if the nested call has not.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// Prepends the call's name to the message.
    pub(crate) fn of_call(self, call: fmt::Arguments<'_>) -> Self {
        Self { message: format!("{call}: {}", self.message), ..self }
    }

    /// Creates the status of a call whose peer was lost, or whose request could not be sent.
    pub(crate) fn unreachable(call: impl fmt::Display, cause: PeerDown, may_have_run: bool) -> Self {
        let (code, reason) = Self::of(cause);
        Self { may_have_run, ..Self::ran(code, format!("{call}: {cause}")) }.because(reason)
    }

    /// Creates the status of a call whose message could not be sent although the session continues.
    pub(crate) fn not_sent(message: &str, cause: PeerDown) -> Self {
        let (code, reason) = Self::of(cause);
        Self::ran(code, format!("{message} cannot be sent: {cause}")).because(reason)
    }

    /// Returns the code and the reason for a call that ended because of the loss of its peer.
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
            // A retry may succeed.
            #[cfg(feature = "identity")]
            PeerDown::Handshake(failure)
                if matches!(failure.cause(), Refused::TooMany | Refused::TimedOut) =>
            {
                (Code::Unavailable, Reason::Unreachable)
            }
            #[cfg(feature = "identity")]
            PeerDown::Handshake(_) => (Code::Unauthenticated, Reason::Unreachable),
            PeerDown::IdentityRequired => (Code::Unauthenticated, Reason::Unreachable),
            _ => (Code::Unavailable, Reason::Unreachable),
        }
    }
}

/// Returns the longest prefix of a text that has at most `most_bytes` bytes.
pub(crate) fn cut(text: &str, most_bytes: usize) -> &str {
    let end = (0..=most_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

macro_rules! constructors {
    ($($name:ident $code:ident),*) => {
        impl Status {
            $(
                #[doc = concat!("Creates a status with [`Code::", stringify!($code), "`].")]
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

/// Writes the code, the message and the causes. Control characters other than line feeds and tabs are escaped, because a
/// server chooses the texts and could otherwise change what a terminal or a log shows.
///
/// Appends "(the call may have run)" if a node ended the call, the call may have run, and the code is `Cancelled`,
/// `DeadlineExceeded`, `ResourceExhausted`, `Aborted` or `Unavailable`. Callers may retry after these codes.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.code)?;
        write_escaped(f, &self.message)?;
        for cause in &self.causes {
            f.write_str(": ")?;
            write_escaped(f, cause)?;
        }
        if self.may_have_run && self.origin != Origin::Handler && self.code.invites_a_retry() {
            write!(f, " (the call may have run)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Status {}

/// Writes a text with escaped control characters, except line feeds and tabs.
fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let is_escaped = |char: char| char.is_control() && !matches!(char, '\n' | '\t');
    for part in text.split_inclusive(is_escaped) {
        let plain = part.trim_end_matches(is_escaped);
        write!(f, "{plain}{}", part[plain.len()..].escape_default())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_grpc() {
        for number in 1..=16 {
            assert_eq!(Code::from_number(number).number(), number);
        }
        assert_eq!(Code::from_number(0), Code::Unknown);
        assert_eq!(Code::from_number(200), Code::Unknown);
        assert_eq!(Code::Unavailable.number(), 14);
    }

    #[test]
    fn status_text_warns_if_call_may_have_run() {
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
    fn text_of_server_is_printed_without_control_characters() {
        let text = "a\u{1b}[2J\rb\u{9b}\u{0}\n\t\u{e4}\\";
        let escaped = "a\\u{1b}[2J\\rb\\u{9b}\\u{0}\n\t\u{e4}\\";
        let status = Status::aborted(text).with_cause(text);
        assert_eq!(status.to_string(), format!("Aborted: {escaped}: {escaped}"));
        assert_eq!((status.message(), status.causes()), (text, &[text.to_owned()][..]));
    }

    #[test]
    fn causes_are_bounded_chain() {
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
