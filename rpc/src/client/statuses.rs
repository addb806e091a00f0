//! Statuses for calls that were refused by the transport or the server, or that reached a limit.

use super::pending_call::PendingCall;
use crate::call::AdmissionClass;
use crate::node::budgets::check_metadata;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::status_body::{self, StatusTexts};
use crate::wire::frame::{FrameError, RepliedBy};
use crate::wire::metadata::{MetadataBytes, ReplyMetadata};
use crate::wire::name::MethodName;
use std::ops::Range;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_transport::{Exhausted, Message, PeerDown, PeerKey, SendError};

pub(super) const GAVE_UP: &str = "the caller gave up";

/// Returns the status of a call whose deadline had passed when it was made.
pub(super) fn expired() -> Status {
    let text = "the deadline had passed when the call was made";
    Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired)
}

/// Returns the status of a call that the transport refused. The caller adds the method name.
pub(super) fn refused(error: SendError) -> Status {
    let (code, reason) = match error {
        SendError::NoPeer => (Code::Unavailable, Reason::Draining),
        SendError::BackingOff { cause, .. } => Status::of(cause),
        SendError::TooLarge { .. } => (Code::ResourceExhausted, Reason::TooLarge),
        _ => (Code::ResourceExhausted, Reason::Overloaded),
    };
    let status = Status::not_run(code, error.to_string()).because(reason);
    match error {
        SendError::BackingOff { due_in, cause } if !cause.is_final() => status.with_next_attempt(due_in),
        _ => status,
    }
}

/// Describes why a request was not sent before its deadline. `is_up` is true if there is a session. `away` is the cause of
/// the last failed attempt to connect, if any.
pub(super) fn not_sent(is_up: bool, away: Option<PeerDown>) -> String {
    match away {
        Some(cause) => format!("no connection yet: {cause}"),
        None if is_up => "the deadline passed before the request was sent".to_owned(),
        None => "no connection yet: the first attempt to connect was not answered in time".to_owned(),
    }
}

/// Decodes the status in a reply. The method name and the server's address are prepended to text from the server's node.
pub(super) fn status_of(
    method: &MethodName,
    server: PeerKey,
    code: Code,
    by: RepliedBy,
    message: Message,
    encoded: Range<usize>,
) -> Status {
    let (bytes, end) = (message.as_slice(), encoded.end);
    let Some(StatusTexts { message: text, causes }) = status_body::parse(&bytes[encoded], bytes.len() - end)
    else {
        let text =
            format!("{method} at {server}: the reply's status, {code:?}, is malformed or exceeds its limits");
        return Status::ran(Code::Internal, text).because(Reason::BadReply);
    };
    let mut status = failed(method, server, code, by, &text);
    if mutant!(error_replies_lose_their_text) {
        status = Status::new(status.code(), "");
    }
    drop(text);
    status.with_causes(causes).with_details(message.bytes_from(end))
}

/// Creates the status of a failed call from the code and text of the reply.
fn failed(method: &MethodName, server: PeerKey, code: Code, by: RepliedBy, text: &str) -> Status {
    let RepliedBy::Node { reason, ran } = by else { return Status::new(code, text) };
    let name = format_args!("{method} at {server}");
    let text = match reason {
        Some(Reason::NoService) => format!("{name}: the server has no such service"),
        Some(Reason::NoMethod) => {
            format!(
                "{name}: the server's service has no such method, sends other parts of it raw, or differs in \
                 whether it is one-way"
            )
        }
        Some(Reason::OtherSchema) => {
            let version = method.service.versions();
            format!(
                "{name}: called with schema version {version}, the server has {text}; `accepts` in the service's \
                 attribute names older versions that one side can do with"
            )
        }
        Some(Reason::OtherCodec) => {
            let codec = method.service.codec();
            format!("{name}: called with codec {codec}, the server's service has {text}")
        }
        Some(Reason::OtherShape) => {
            let difference = method.shape_difference(text);
            format!("{name}: {difference}; change the service's version with its types")
        }
        _ => format!("{name}: {text}"),
    };
    let status = if ran { Status::ran(code, text) } else { Status::not_run(code, text) }.of_peer();
    match reason {
        Some(reason) => status.because(reason),
        None => status,
    }
}

/// Returns the status of an ordered call that was not sent before its session ended. The call fails because earlier calls
/// may be lost.
pub(super) fn out_of_order(cause: PeerDown) -> Status {
    let text = format!("an ordered call cannot follow others to another session: {cause}");
    Status::not_run(Code::Aborted, text).because(Reason::Unreachable)
}

/// Describes why a reply of `bytes` bytes was not received.
pub(super) fn no_memory(bytes: usize) -> String {
    format!(
        "no memory became free here in time for a message of {bytes} bytes: release large messages that are held, \
         or raise rendezvous_bytes_per_peer and rendezvous_bytes"
    )
}

/// Checks and copies the metadata of a reply.
pub(super) fn received(
    metadata: MetadataBytes,
    most: usize,
    message: &Message,
    encoded: usize,
) -> Result<ReplyMetadata, Status> {
    if metadata.is_empty() {
        return Ok(ReplyMetadata::default());
    }
    check_metadata(metadata.sum(), most).map_err(Status::after_run)?;
    ReplyMetadata::parse(metadata, message.as_slice(), encoded).map_err(|error| {
        let text = format!("the reply's metadata cannot be read: {error}");
        Status::ran(Code::Internal, text).because(Reason::BadReply)
    })
}

/// Returns the status of a call that its server did not accept before the session closed.
pub(super) fn missed(pending: &PendingCall, cause: PeerDown) -> Status {
    Status::unreachable(pending.name(), cause, false).because(Reason::Draining)
}

/// Returns the status of a call sent to a server after its DRAINED frame.
#[cold]
pub(super) fn drained() -> Status {
    let text = "the server is draining: it takes no new calls";
    Status::not_run(Code::Unavailable, text).because(Reason::Draining)
}

/// Returns the status of a call whose future was dropped before it was sent.
pub(super) fn gave_up() -> Status {
    Status::not_run(Code::Cancelled, GAVE_UP).because(Reason::Cancelled)
}

/// Returns the status of a call to a server whose proved name differs from the expected one. `why` contains both names.
#[cfg(feature = "identity")]
pub(super) fn other_name(why: &str) -> Status {
    Status::not_run(Code::Unauthenticated, why).because(Reason::Unreachable)
}

/// Returns the status of a call whose deadline passed before its server had another session. `why` is `None` if the server
/// is draining.
pub(super) fn no_session(server: PeerKey, why: Option<String>) -> Status {
    let text = why.unwrap_or_else(|| format!("no connection yet: {server} is draining"));
    Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired)
}

/// Returns the status of a call whose reply cannot be parsed.
pub(super) fn unreadable(call: &str, error: FrameError) -> Status {
    let reason = match error {
        FrameError::UnknownExtension(_) => Reason::UnknownExtension,
        _ => Reason::BadReply,
    };
    Status::ran(Code::Internal, format!("{call}: the reply cannot be read: {error}")).because(reason)
}

/// Describes why a call in flight timed out. `idle` is the idle timeout of a stream, `waiting` is the size of a reply that
/// waits for memory, and `unsent` contains the arguments of [`not_sent`] for an unsent request.
pub(super) fn late(
    idle: Option<&Duration>,
    waiting: Option<usize>,
    unsent: Option<(bool, Option<PeerDown>)>,
) -> String {
    match (idle, waiting, unsent) {
        (Some(limit), ..) => format!("nothing arrived on the stream for its idle_timeout of {limit:?}"),
        (None, Some(bytes), _) => no_memory(bytes),
        (None, None, Some((is_up, away))) => not_sent(is_up, away),
        (None, None, None) => "no answer in time".to_owned(),
    }
}

/// A limit that a call waits for. It determines the status if the call fails.
#[derive(Debug, Clone, Copy)]
pub(super) enum Backpressure {
    /// Limit on calls in flight.
    Calls(Exhausted),
    /// Limit on messages that wait to be sent.
    Queue(Exhausted),
}

impl Backpressure {
    /// Returns the status of a call that does not wait.
    pub(super) fn refusal(self, entry: AdmissionClass) -> Status {
        Status::not_run(Code::ResourceExhausted, self.told(entry)).because(Reason::Overloaded)
    }

    /// Returns the status of a call whose deadline passed while it waited.
    pub(super) fn expired(self) -> Status {
        let why = self.told(AdmissionClass::Waits);
        let text = format!("the deadline passed while the call waited for room: {why}");
        Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired)
    }

    /// Describes the limit and the remedy.
    fn told(self, entry: AdmissionClass) -> String {
        let part = match entry {
            AdmissionClass::Reserved => "",
            AdmissionClass::Waits | AdmissionClass::Tries | AdmissionClass::Exempt => {
                ", but for the part that is reserved for calls of handlers and for replies"
            }
        };
        match self {
            Self::Calls(exhausted) => {
                let part = part.strip_suffix(" and for replies").unwrap_or(part);
                format!("{exhausted}{part}; call_limit raises it")
            }
            Self::Queue(exhausted) => {
                let setting = exhausted.name().replace(' ', "_");
                format!("too much waits to be sent: {exhausted}{part}; {setting} raises it")
            }
        }
    }
}
