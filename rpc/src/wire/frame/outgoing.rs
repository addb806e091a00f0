//! Sends frames.

use super::Encoded;
use super::header::{FIXED, Header, Short};
use std::mem;
use trunkline_transport::{
    Accepted, Body, Connect, Destination, Leaves, MessageHeader, Outgoing, PeerKey, Report, SendError,
    SessionNumber, Small, Token, Transport,
};
use trunkline_verbs::Time;

/// Maximum size of an encoded part, in bytes, that is copied behind the header. A larger part is passed on as the body.
const COPIED: usize = 4096;
/// Maximum size of a head, in bytes, that is sent with the announcement of a large message.
const ANNOUNCED: usize = 4096;
/// Placeholder for a header, which [`send`] sets.
pub(crate) const UNSET: MessageHeader = MessageHeader { kind: 0, flags: 0, word: 0 };

/// The token of messages without a waiting call.
pub(crate) const NOBODY: Token = Token(u64::MAX);

/// Destination and properties of a message that may be bundled with the last message.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) peer: PeerKey,
    pub(crate) destination: Destination,
    pub(crate) session: Option<SessionNumber>,
    pub(crate) ordered: bool,
    pub(crate) token: Token,
    pub(crate) report: Report,
    pub(crate) deadline: Option<Time>,
}

impl Joined {
    /// Returns the message for sending without bundling.
    pub(crate) fn outgoing(&self, connect: Connect, body: Body, leaves: Leaves) -> Outgoing<'static> {
        let Self { peer, destination, session, ordered, token, report, deadline } = *self;
        Outgoing {
            peer,
            destination,
            session,
            connect,
            ordered,
            header: UNSET,
            head: &[],
            announced: 0,
            body,
            token,
            report,
            deadline,
            leaves,
        }
    }
}

/// Returns a frame that has no body and no waiting call.
#[inline]
pub(crate) fn without_call(
    peer: PeerKey,
    destination: Destination,
    session: Option<SessionNumber>,
    ordered: bool,
) -> Outgoing<'static> {
    Outgoing {
        peer,
        destination,
        session,
        connect: Connect::FailFast,
        ordered,
        header: UNSET,
        head: &[],
        announced: 0,
        body: Body::new(),
        token: NOBODY,
        report: Report::Never,
        deadline: None,
        leaves: Leaves::Nothing,
    }
}

/// Bundles a message without extensions with the last message, if possible, as [`Transport::join`] describes. The encoded
/// part and the body are copied. Returns `None` if bundling is not possible; use [`send`] then.
#[inline]
pub(crate) fn join(
    transport: &mut Transport,
    header: Option<Short>,
    encoded: &Encoded,
    body: &[u8],
    to: &Joined,
) -> Option<Accepted> {
    let short = header.filter(|_| transport.has_staged())?;
    let Joined { peer, destination, session, ordered, token, report, deadline } = *to;
    let (header, fixed) = (short.header, short.fixed(u32::try_from(encoded.len()).ok()?));
    let parts = [&fixed[..], encoded.part(), body];
    transport.join(peer, destination, session, &Small { header, parts, ordered, token, report, deadline })
}

/// Passes a frame to the transport. `out` contains the whole frame except the head; its body follows the encoded part. On
/// success, the memory of a large encoded part is moved to the transport.
///
/// # Errors
/// Returns the transport's error. The body and the encoded part are then unchanged.
#[inline]
pub(crate) fn send<'a>(
    transport: &mut Transport,
    header: &Header,
    encoded: &'a mut Encoded,
    scratch: &'a mut Vec<u8>,
    out: &mut Outgoing<'a>,
) -> Result<Accepted, SendError> {
    if let Some(short) = header.short()
        && encoded.len() <= COPIED
    {
        (out.header, out.head) = encoded.with_header(short);
        out.announced = FIXED;
        return transport.send(out);
    }
    send_long(transport, header, encoded, scratch, out)
}

/// Sends a frame that has extensions or a large encoded part.
#[inline(never)]
fn send_long<'a>(
    transport: &mut Transport,
    header: &Header,
    encoded: &'a mut Encoded,
    scratch: &'a mut Vec<u8>,
    out: &mut Outgoing<'a>,
) -> Result<Accepted, SendError> {
    let Ok(length) = u32::try_from(encoded.len().saturating_sub(header.metadata_bytes())) else {
        let bytes = encoded.len().saturating_add(out.body.len());
        return Err(SendError::TooLarge { bytes, limit: transport.max_message_bytes() });
    };
    // The receiver joins head and body, so they may be divided anywhere.
    if out.body.is_empty() && encoded.len() > COPIED {
        return send_as_body(transport, header, encoded, length, scratch, out);
    }
    if let Some(short) = header.short() {
        (out.header, out.head) = encoded.with_header(short);
        out.announced = FIXED;
    } else {
        scratch.clear();
        out.header = header.emit(length, scratch);
        out.announced = scratch.len() + announced_metadata(header, scratch.len());
        scratch.extend_from_slice(encoded.part());
        out.head = scratch;
    }
    transport.send(out)
}

/// Returns the size of the metadata that is sent with the announcement of a large message, after `before` bytes. It is the
/// size of all metadata, or 0 if the metadata does not fit. With the metadata, the receiver can decide about a request
/// before it fetches the arguments.
fn announced_metadata(header: &Header, before: usize) -> usize {
    Some(header.metadata_bytes())
        .filter(|metadata| before.saturating_add(*metadata) <= ANNOUNCED)
        .unwrap_or(0)
}

/// Sends a large encoded part without copying it. `length` bytes follow the metadata.
fn send_as_body<'a>(
    transport: &mut Transport,
    header: &Header,
    encoded: &mut Encoded,
    length: u32,
    scratch: &'a mut Vec<u8>,
    out: &mut Outgoing<'a>,
) -> Result<Accepted, SendError> {
    scratch.clear();
    out.header = header.emit(length, scratch);
    let metadata = announced_metadata(header, scratch.len());
    let (buffer, mut part) = mem::take(encoded).into_bytes();
    scratch.extend_from_slice(&part.split_to(metadata.min(part.len())));
    out.announced = scratch.len();
    out.head = scratch;
    out.body = part.into();
    transport.send(out).inspect_err(|_| {
        out.body = Body::new();
        *encoded = Encoded::from_bytes(buffer);
    })
}
