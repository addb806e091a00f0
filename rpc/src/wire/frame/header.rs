//! The contents of messages, little-endian. The transport's header contains kind, flags, word and time left.
//!
//! ```text
//!          word                        contents
//! all                                  0 call (8), except in drained
//! request  number of the method,       8 length of the encoded part (4)   12 length of the extensions (2)
//!          0xffff: in an extension     14 reserved (2)
//! reply    code (1), by (1)            as request
//! cancel   reserved
//! drained  reserved
//! number   length of the extensions
//! open     as request; the frames of streams are in `streams`
//! followed by  the extensions, the metadata, the encoded part, then the body up to the end of the message
//! ```
//!
//! Parsing checks the bytes, returns a plain value and never panics.

use super::extensions::{self, Extensions, Method, Number, emit_metadata};
use super::streams::{self, StreamHeader};
use super::{FrameError, array};
use crate::status::reason::Reason;
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use std::ops::Range;
use trunkline_transport::MessageHeader;

/// Size of the contents of a request or reply before its extensions, in bytes.
pub(super) const FIXED: usize = 16;

const DRAINED: u8 = 0x10;
const CANCEL: u8 = 0x20;
const NUMBER: u8 = 0x23;
pub(crate) const REPLY: u8 = 0x30;
pub(crate) const REQUEST: u8 = 0x40;
const ONE_WAY: u8 = 0x41;
const OPEN: u8 = 0x42;

/// The flag of a message that a receiver must not ignore.
const CRITICAL: u8 = 0x01;
/// The flags that each kind may define. None is in use.
const RESERVED: u8 = 0xf0;
/// Size of a call's number, in bytes.
const CALL: usize = 8;
/// Offset of the length of the extensions in a request or reply.
const EXTENSIONS: usize = 12;
/// Marks a missing method number.
const UNASSIGNED: u16 = 0xffff;

/// The contents of a message that precede its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// Run a method.
    Request(RequestHeader),
    /// The reply to a request.
    Reply {
        /// The caller's number for the call.
        call: u64,
        /// 0 for success. Any other value is a status code, and the encoded part then contains the texts of the status.
        code: u8,
        /// The side that replied.
        by: RepliedBy,
        /// The number of the method if the request identified the method by hash.
        number: Option<Number>,
        /// Sizes of the metadata, which precedes the encoded part.
        metadata: MetadataBytes,
    },
    /// The number assigned to the method of a one-way call, which has no reply.
    Number {
        /// The caller's number for the call.
        call: u64,
        number: Number,
    },
    /// The caller no longer waits for the call.
    Cancel {
        /// The caller's number for the call.
        call: u64,
    },
    /// The poller has answered all calls from the receiver of this frame, and accepts no further calls from it.
    Drained,
    /// A frame of a stream.
    Stream(StreamHeader),
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// The caller's number for the call.
    pub(crate) call: u64,
    /// True if the call has no reply.
    pub(crate) one_way: bool,
    /// True if the call streams items.
    pub(crate) opens: bool,
    pub(crate) method_ref: MethodRef,
    /// Size in bytes of the metadata, which precedes the encoded part.
    pub(crate) metadata: u32,
}

/// Identifies the method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MethodRef {
    /// Number assigned by the server in this session.
    Number(u16),
    /// Hashes of the names, with the schema.
    Method(Method),
}

impl From<&MethodName> for MethodRef {
    fn from(name: &MethodName) -> Self {
        Self::Method(Method {
            method: name.hash,
            service: name.service.hash,
            schema: name.service.schema(),
            streams: name.streams,
            shapes: name.shapes,
        })
    }
}

/// A frame that cannot be parsed and whose sender waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unparsed {
    /// A request, or a frame of an unknown kind that must not be ignored.
    Request {
        /// The caller's number for the call.
        call: u64,
        /// True if the call has no reply.
        one_way: bool,
    },
    /// The reply to a call.
    Reply {
        /// The caller's number for the call.
        call: u64,
    },
}

/// The side that replied, encoded in one byte. The byte is 0 for the handler. For the node, bit 7 is set if the handler may
/// have run, and the other bits contain the number of the reason, or 0x7f.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepliedBy {
    /// The handler.
    Handler,
    /// The node, in place of the handler.
    Node {
        /// The reason; `None` if it is unknown to this version.
        reason: Option<Reason>,
        /// True if the handler may have run.
        ran: bool,
    },
}

impl RepliedBy {
    const UNKNOWN: u8 = 0x7f;
    const RAN: u8 = 0x80;

    #[inline]
    fn number(self) -> u8 {
        match self {
            Self::Handler => 0,
            Self::Node { reason, ran } => {
                reason.map_or(Self::UNKNOWN, Reason::number) | if ran { Self::RAN } else { 0 }
            }
        }
    }

    pub(crate) fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Handler,
            _ => {
                let reason = Reason::from_number(number & Self::UNKNOWN);
                Self::Node { reason, ran: number & Self::RAN != 0 }
            }
        }
    }
}

/// The header of a request or a reply without extensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Short {
    pub(super) header: MessageHeader,
    call: u64,
}

impl Short {
    /// Returns the header of a reply.
    #[inline]
    pub(crate) fn reply(call: u64, code: u8, by: RepliedBy) -> Self {
        let word = u16::from_le_bytes([code, by.number()]);
        Self { header: MessageHeader { kind: REPLY, flags: 0, word }, call }
    }

    /// Returns the bytes before the encoded part, whose size is `encoded` bytes.
    #[inline]
    pub(super) fn fixed(self, encoded: u32) -> [u8; FIXED] {
        fixed(self.call, encoded)
    }
}

/// Returns the first bytes of the contents of a request or reply.
#[inline]
fn fixed(call: u64, encoded: u32) -> [u8; FIXED] {
    (u128::from(call) | u128::from(encoded) << 64).to_le_bytes()
}

impl RequestHeader {
    /// Returns the header if it has no extensions.
    #[inline]
    pub(crate) fn short(&self) -> Option<Short> {
        let has_number = matches!(self.method_ref, MethodRef::Number(_));
        (has_number && self.metadata == 0).then(|| self.fixed())
    }

    /// Returns the part of the header that all requests have.
    #[inline]
    fn fixed(&self) -> Short {
        let Self { call, one_way, opens, method_ref, .. } = *self;
        let word = if let MethodRef::Number(number) = method_ref { number } else { UNASSIGNED };
        let kind = if one_way { ONE_WAY } else { REQUEST };
        // A node that does not support streams must refuse the call.
        let (kind, flags) = if opens { (OPEN, CRITICAL) } else { (kind, 0) };
        Short { header: MessageHeader { kind, flags, word }, call }
    }
}

impl Header {
    /// Appends the bytes that precede the metadata of a message whose encoded part has `encoded` bytes. Returns the
    /// message's header.
    pub(crate) fn emit(&self, encoded: u32, into: &mut Vec<u8>) -> MessageHeader {
        let at = into.len();
        match *self {
            Self::Request(request @ RequestHeader { one_way, method_ref, metadata, .. }) => {
                let Short { header, call } = request.fixed();
                into.extend(fixed(call, encoded));
                if let MethodRef::Method(method) = method_ref {
                    method.emit(one_way, into);
                }
                emit_metadata(MetadataBytes::of_request(metadata), into);
                set_extensions(at, into);
                header
            }
            Self::Reply { call, code, by, number, metadata } => {
                let Short { header, call } = Short::reply(call, code, by);
                into.extend(fixed(call, encoded));
                if let Some(number) = number {
                    number.emit(into);
                }
                emit_metadata(metadata, into);
                set_extensions(at, into);
                header
            }
            Self::Number { call, number } => {
                into.extend(call.to_le_bytes());
                number.emit(into);
                let word = u16::try_from(into.len() - at - CALL).unwrap_or_default();
                MessageHeader { kind: NUMBER, flags: 0, word }
            }
            Self::Cancel { call } => {
                into.extend(call.to_le_bytes());
                MessageHeader { kind: CANCEL, flags: 0, word: 0 }
            }
            Self::Drained => MessageHeader { kind: DRAINED, flags: 0, word: 0 },
            Self::Stream(header) => header.emit(into),
        }
    }

    /// Returns the header of a message that has no extensions and may have an encoded part.
    pub(crate) fn short(&self) -> Option<Short> {
        match *self {
            Self::Request(request) => request.short(),
            Self::Reply { call, code, by, number: None, metadata } if metadata.is_empty() => {
                Some(Short::reply(call, code, by))
            }
            _ => None,
        }
    }

    /// Returns the size in bytes of the metadata, which precedes the encoded part.
    pub(crate) fn metadata_bytes(&self) -> usize {
        match *self {
            Self::Request(request) => MetadataBytes::of_request(request.metadata).sum(),
            Self::Reply { metadata, .. } => metadata.sum(),
            Self::Number { .. } | Self::Cancel { .. } | Self::Drained | Self::Stream(_) => 0,
        }
    }

    /// Parses the header of a message. Returns the header and the range of the encoded part in the contents. The body
    /// follows the encoded part.
    ///
    /// # Errors
    /// Returns the error of the first check that failed.
    pub(crate) fn parse(header: MessageHeader, contents: &[u8]) -> Result<(Self, Range<usize>), FrameError> {
        let short = || FrameError::Short(contents.len());
        let call = || contents.first_chunk().copied().map(u64::from_le_bytes).ok_or_else(short);
        match header.kind {
            REQUEST | ONE_WAY | OPEN => {
                Self::parse_request(header, contents.first_chunk().ok_or_else(short)?, contents)
            }
            streams::DATA | streams::RESET | streams::ACCEPT | streams::WINDOW | streams::END => {
                let (header, length) = StreamHeader::parse(header, contents)?;
                Ok((Self::Stream(header), length..length))
            }
            REPLY => Self::parse_reply(header, contents.first_chunk().ok_or_else(short)?, contents),
            CANCEL => {
                check_flags(header.flags)?;
                Ok((Self::Cancel { call: call()? }, CALL..CALL))
            }
            NUMBER => {
                check_flags(header.flags)?;
                let call = call()?;
                let (extensions, encoded) = parts(contents, CALL, header.word, 0, false)?;
                let number = extensions.number.filter(|_| extensions.metadata.is_empty());
                let number = number.ok_or(FrameError::Extensions)?;
                Ok((Self::Number { call, number }, encoded))
            }
            DRAINED => {
                check_flags(header.flags)?;
                Ok((Self::Drained, 0..0))
            }
            other => Err(FrameError::Kind(other)),
        }
    }

    /// Parses the header of an announced request of which only `part` has arrived. Returns the header and the bytes up to
    /// the end of the metadata. Returns `None` if the message is of another kind or malformed, or if its metadata has not
    /// arrived.
    pub(crate) fn parse_announced(header: MessageHeader, part: &[u8]) -> Option<(RequestHeader, Vec<u8>)> {
        let mut head = part.to_vec();
        let fixed = head.first_chunk_mut::<FIXED>()?;
        // Sets the length of the arguments to zero, because they have not arrived.
        fixed[8..12].fill(0);
        match Self::parse(header, &head) {
            Ok((Self::Request(request), arguments)) => {
                head.truncate(arguments.start);
                Some((request, head))
            }
            _ => None,
        }
    }

    #[inline]
    fn parse_request(
        header: MessageHeader,
        fixed: &[u8; FIXED],
        contents: &[u8],
    ) -> Result<(Self, Range<usize>), FrameError> {
        check_flags(header.flags)?;
        let (one_way, opens) = (header.kind == ONE_WAY, header.kind == OPEN);
        let (call, encoded, extensions) = fields(fixed);
        let (extensions, encoded) = parts(contents, FIXED, extensions, encoded, one_way)?;
        let method_ref = match (header.word, extensions.method) {
            (UNASSIGNED, Some(method)) if method.streams.any() != opens => {
                return Err(FrameError::MethodKind(method.kind(one_way)));
            }
            (UNASSIGNED, Some(method)) => MethodRef::Method(method),
            (UNASSIGNED, None) | (_, Some(_)) => return Err(FrameError::Method),
            (number, None) => MethodRef::Number(number),
        };
        let MetadataBytes { initial: metadata, trailing: 0 } = extensions.metadata else {
            return Err(FrameError::Extensions);
        };
        Ok((Self::Request(RequestHeader { call, one_way, opens, method_ref, metadata }), encoded))
    }

    #[inline]
    fn parse_reply(
        header: MessageHeader,
        fixed: &[u8; FIXED],
        contents: &[u8],
    ) -> Result<(Self, Range<usize>), FrameError> {
        check_flags(header.flags)?;
        let (call, encoded, extensions) = fields(fixed);
        let (Extensions { number, metadata, .. }, encoded) =
            parts(contents, FIXED, extensions, encoded, false)?;
        let [code, by] = header.word.to_le_bytes();
        Ok((Self::Reply { call, code, by: RepliedBy::from_number(by), number, metadata }, encoded))
    }

    /// Fast path for a message of kind [`REPLY`]. Returns the call and the range of the encoded part if a handler replied
    /// with success and there are no extensions. Returns `None` for any other message, which needs [`Header::parse`].
    #[inline]
    pub(crate) fn parse_success(header: MessageHeader, contents: &[u8]) -> Option<(u64, Range<usize>)> {
        let (call, encoded, extensions) = fields(contents.first_chunk()?);
        let encoded = usize::try_from(encoded).ok()?;
        let is_plain = header.flags == 0 && header.word == 0 && extensions == 0;
        (is_plain && encoded <= contents.len() - FIXED).then_some((call, FIXED..FIXED + encoded))
    }

    /// Fast path for a message of kind [`REQUEST`] with a method number and without extensions. Returns `None` for any other
    /// message, which needs [`Header::parse`].
    #[inline]
    pub(crate) fn parse_numbered(
        header: MessageHeader,
        contents: &[u8],
    ) -> Option<(RequestHeader, Range<usize>)> {
        let (call, encoded, extensions) = fields(contents.first_chunk()?);
        let encoded = usize::try_from(encoded).ok()?;
        let is_plain = header.flags == 0 && header.word != UNASSIGNED && extensions == 0;
        if !is_plain || encoded > contents.len() - FIXED {
            return None;
        }
        let method_ref = MethodRef::Number(header.word);
        let request = RequestHeader { call, one_way: false, opens: false, method_ref, metadata: 0 };
        Some((request, FIXED..FIXED + encoded))
    }

    /// Returns the fingerprints of the types in a request that [`Header::parse`] has checked. Empty if there are none.
    #[cold]
    pub(crate) fn shapes(contents: &[u8]) -> Vec<u32> {
        let Some(fixed) = contents.first_chunk() else { return Vec::new() };
        let (.., extensions) = fields(fixed);
        contents.get(FIXED..FIXED + usize::from(extensions)).map(extensions::shapes).unwrap_or_default()
    }

    /// Returns the call that waits for an answer to a message refused by [`Header::parse`], if the message identifies the
    /// call.
    pub(crate) fn unparsed(header: MessageHeader, contents: &[u8]) -> Option<Unparsed> {
        let call = u64::from_le_bytes(*contents.first_chunk()?);
        match header.kind {
            REPLY => Some(Unparsed::Reply { call }),
            kind @ (REQUEST | ONE_WAY | OPEN) => Some(Unparsed::Request { call, one_way: kind == ONE_WAY }),
            CANCEL | NUMBER | DRAINED => None,
            streams::DATA | streams::RESET | streams::ACCEPT | streams::WINDOW | streams::END => None,
            _ => (header.flags & CRITICAL != 0).then_some(Unparsed::Request { call, one_way: false }),
        }
    }
}

/// Returns the call, the length of the encoded part and the length of the extensions.
#[inline]
fn fields(fixed: &[u8; FIXED]) -> (u64, u32, u16) {
    let call = u64::from_le_bytes(array(fixed, 0));
    (call, u32::from_le_bytes(array(fixed, 8)), u16::from_le_bytes(array(fixed, EXTENSIONS)))
}

/// Sets the length of the extensions in a request or reply that begins at `start` and ends here.
fn set_extensions(start: usize, into: &mut [u8]) {
    let bytes = u16::try_from(into.len() - start - FIXED).unwrap_or_default();
    into[start + EXTENSIONS..start + EXTENSIONS + 2].copy_from_slice(&bytes.to_le_bytes());
}

/// Returns an error for flags that no kind defines.
#[inline]
fn check_flags(flags: u8) -> Result<(), FrameError> {
    if flags & RESERVED == 0 { Ok(()) } else { Err(FrameError::Flags(flags & RESERVED)) }
}

/// Returns the extensions, which follow the first `length` bytes of the contents, and the range of the encoded part, which
/// follows the metadata.
#[inline]
fn parts(
    contents: &[u8],
    length: usize,
    extensions: u16,
    encoded: u32,
    one_way: bool,
) -> Result<(Extensions, Range<usize>), FrameError> {
    let start = length + usize::from(extensions);
    let encoded = usize::try_from(encoded).map_err(|_| FrameError::Length)?;
    let extensions = match contents.get(length..start).ok_or(FrameError::Length)? {
        [] => Extensions::default(),
        extensions => Extensions::parse(extensions, one_way)?,
    };
    let start = start.checked_add(extensions.metadata.sum()).ok_or(FrameError::Length)?;
    let end = start.checked_add(encoded).filter(|end| *end <= contents.len()).ok_or(FrameError::Length)?;
    Ok((extensions, start..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::name::Schema;
    use crate::wire::name::Streams;

    const REQUEST_HEADER: Header = Header::Request(RequestHeader {
        call: 0x0102_0304_0506_0708,
        one_way: true,
        opens: false,
        method_ref: MethodRef::Method(Method {
            service: 11,
            method: 12,
            schema: SCHEMA,
            streams: Streams::Neither,
            shapes: None,
        }),
        metadata: 0,
    });
    const SCHEMA: Schema = Schema { version: 13, older: 2, codec: 1 };
    const NUMBERED: Number = Number { number: 3, schema: SCHEMA, method: 12 };

    #[test]
    fn headers_round_trip() {
        let all = [
            REQUEST_HEADER,
            Header::Request(RequestHeader {
                call: 6,
                one_way: false,
                opens: false,
                method_ref: MethodRef::Number(7),
                metadata: 0,
            }),
            Header::Request(RequestHeader {
                call: 6,
                one_way: false,
                opens: true,
                method_ref: MethodRef::Method(Method {
                    service: 11,
                    method: 12,
                    schema: SCHEMA,
                    streams: Streams::Both,
                    shapes: None,
                }),
                metadata: 0,
            }),
            Header::Reply {
                call: 5,
                code: 14,
                by: RepliedBy::Handler,
                number: None,
                metadata: MetadataBytes::default(),
            },
            Header::Reply {
                call: 5,
                code: 14,
                by: RepliedBy::Node { reason: Some(Reason::NoMethod), ran: false },
                number: Some(NUMBERED),
                metadata: MetadataBytes::default(),
            },
            Header::Reply {
                call: 5,
                code: 14,
                by: RepliedBy::Node { reason: None, ran: true },
                number: None,
                metadata: MetadataBytes::default(),
            },
        ];
        for header in all {
            let (received, mut message) = emitted(&header, 3);
            let length = message.len();
            message.extend(b"abcbody");
            assert_eq!(Header::parse(received, &message), Ok((header, length..length + 3)));
            assert_eq!(Header::parse(received, &message[..length + 2]), Err(FrameError::Length));
            assert_eq!(Header::parse(received, &message[..FIXED - 1]), Err(FrameError::Short(FIXED - 1)));
        }
        for (header, length) in [
            (Header::Cancel { call: u64::MAX }, 8),
            (Header::Number { call: 4, number: NUMBERED }, 28),
            (Header::Drained, 0),
        ] {
            let (received, message) = emitted(&header, 0);
            assert_eq!(
                (Header::parse(received, &message), message.len()),
                (Ok((header, length..length)), length)
            );
            if length > 0 {
                assert_eq!(Header::parse(received, &message[..7]), Err(FrameError::Short(7)));
            }
        }
    }

    fn emitted(header: &Header, encoded: u32) -> (MessageHeader, Vec<u8>) {
        let mut message = Vec::new();
        (header.emit(encoded, &mut message), message)
    }

    #[test]
    fn metadata_precedes_encoded_part() {
        let metadata = MetadataBytes { initial: 2, trailing: 1 };
        let reply =
            Header::Reply { call: 5, code: 0, by: RepliedBy::Handler, number: Some(NUMBERED), metadata };
        let method_ref = MethodRef::Number(7);
        let request =
            Header::Request(RequestHeader { call: 6, one_way: false, opens: false, method_ref, metadata: 3 });
        for header in [reply, request] {
            let (received, mut message) = emitted(&header, 3);
            assert!(header.short().is_none() && header.metadata_bytes() == 3);
            message.extend(b"iitabcbody");
            let encoded = message.len() - 7..message.len() - 4;
            assert_eq!(Header::parse(received, &message), Ok((header, encoded.clone())));
            assert_eq!(Header::parse(received, &message[..encoded.end - 1]), Err(FrameError::Length));
            assert_eq!(Header::parse_success(received, &message), None);
            assert_eq!(Header::parse_numbered(received, &message), None);
        }
        // A request cannot contain metadata for the end, and a NUMBER cannot contain any metadata.
        let (received, mut bytes) = emitted(&request, 0);
        bytes[24] = 1;
        bytes.extend(b"iiit");
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Extensions));
        let (mut received, mut bytes) = emitted(&Header::Number { call: 4, number: NUMBERED }, 0);
        emit_metadata(metadata, &mut bytes);
        received.word += 12;
        bytes.extend(b"iit");
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Extensions));
        let (received, mut bytes) = emitted(&REQUEST_HEADER, 0);
        emit_metadata(MetadataBytes::of_request(u32::MAX), &mut bytes);
        set_extensions(0, &mut bytes);
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Length));
    }

    /// Parses and emits the examples for the RPC layer in `docs/book/src/why/wire.md`.
    #[test]
    fn examples_of_wire_document_parse_and_re_emit() {
        let (mut seen, mut shapes) = (Vec::new(), 0);
        for (name, frame) in
            trunkline_testkit::wire_examples().into_iter().filter(|(_, frame)| frame[0] >= 0x10)
        {
            let ([kind, flags, low, high], contents) = trunkline_testkit::message_in(&frame);
            let received = MessageHeader { kind, flags, word: u16::from_le_bytes([low, high]) };
            // The example of a large message omits the part that is fetched by RDMA READ.
            let missing = if frame[1] & 2 == 0 { 0 } else { 20 };
            let contents = [contents, &vec![0; missing]].concat();
            let (header, encoded) =
                Header::parse(received, &contents).unwrap_or_else(|error| panic!("{name}: {error}"));
            let (header_again, mut again) = emitted(&header, u32::try_from(encoded.len()).unwrap());
            if let fingerprints @ [_, ..] = &*Header::shapes(&contents)
                && kind == REQUEST
            {
                assert_eq!(fingerprints, [5, 0, 0, 0x0403_0201], "{name}");
                again.extend([8, 0, 16, 0]);
                again.extend(fingerprints.iter().flat_map(|fingerprint| fingerprint.to_le_bytes()));
                set_extensions(0, &mut again);
                shapes += 1;
            }
            assert_eq!(header_again, received, "{name}");
            assert_eq!(again, contents[..encoded.start - header.metadata_bytes()], "{name}");
            seen.push(kind);
        }
        assert_eq!(shapes, 1, "examples with shapes");
        for kind in [
            REQUEST,
            ONE_WAY,
            OPEN,
            REPLY,
            CANCEL,
            NUMBER,
            streams::DATA,
            streams::RESET,
            streams::ACCEPT,
            streams::WINDOW,
            streams::END,
        ] {
            assert!(seen.contains(&kind), "no example of {kind:#x}");
        }
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let unknown = MessageHeader { kind: 0x11, flags: 0, word: 0 };
        assert_eq!(Header::parse(unknown, &[9, 1]), Err(FrameError::Kind(0x11)));
        let (mut received, mut bytes) = emitted(&REQUEST_HEADER, u32::MAX);
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Length));
        bytes[8..12].fill(0);
        assert!(Header::parse(received, &bytes).is_ok());
        received.flags = 0x90;
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Flags(0x90)));
        (received.flags, received.word) = (0, 0);
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Method), "by a number and its hash");
        received.word = UNASSIGNED;
        bytes[EXTENSIONS] = 1;
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Extensions));
        bytes[EXTENSIONS..FIXED].fill(0);
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Method), "by neither");
        bytes[EXTENSIONS..FIXED].fill(0xff);
        assert_eq!(Header::parse(received, &bytes), Err(FrameError::Length));
    }

    #[test]
    fn unreadable_messages_are_answered_if_caller_waits() {
        let (_, bytes) = emitted(&REQUEST_HEADER, 0);
        let call = 0x0102_0304_0506_0708;
        let unparsed = |kind: u8, flags: u8| Header::unparsed(MessageHeader { kind, flags, word: 0 }, &bytes);
        assert_eq!(unparsed(ONE_WAY, 0), Some(Unparsed::Request { call, one_way: true }));
        assert_eq!(unparsed(REQUEST, 0), Some(Unparsed::Request { call, one_way: false }));
        assert_eq!(unparsed(0x43, CRITICAL), Some(Unparsed::Request { call, one_way: false }));
        assert_eq!(unparsed(REPLY, 0), Some(Unparsed::Reply { call }));
        assert_eq!([unparsed(0x43, 0), unparsed(0x21, CRITICAL), unparsed(0x10, CRITICAL)], [None; 3]);
        assert_eq!(unparsed(OPEN, CRITICAL), Some(Unparsed::Request { call, one_way: false }));
        let request = MessageHeader { kind: REQUEST, flags: 0, word: 0 };
        assert_eq!(Header::unparsed(request, &bytes[..7]), None);
    }

    /// The shortcuts for frequent messages must not accept messages that [`Header::parse`] refuses or parses differently.
    #[test]
    fn shortcuts_agree_with_full_parser() {
        let method_ref = MethodRef::Number(7);
        let request =
            Header::Request(RequestHeader { call: 6, one_way: false, opens: false, method_ref, metadata: 0 });
        let metadata = MetadataBytes::default();
        let reply = Header::Reply { call: 5, code: 0, by: RepliedBy::Handler, number: None, metadata };
        let mut taken = 0;
        for header in [request, reply, REQUEST_HEADER] {
            let (MessageHeader { kind, flags, word }, contents) = emitted(&header, 3);
            let [low, high] = word.to_le_bytes();
            let message = [&[kind, flags, low, high], &*contents, b"abcbody"].concat();
            for (bit, length) in (8..message.len() * 8).flat_map(|bit| [(bit, 21), (bit, 33), (bit, 99)]) {
                let mut bytes = message.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes.truncate(length);
                let word = u16::from_le_bytes([bytes[2], bytes[3]]);
                let (header, contents) = (MessageHeader { kind, flags: bytes[1], word }, &bytes[4..]);
                let whole = Header::parse(header, contents);
                if kind == REPLY
                    && let Some((call, encoded)) = Header::parse_success(header, contents)
                {
                    let reply =
                        Header::Reply { call, code: 0, by: RepliedBy::Handler, number: None, metadata };
                    assert_eq!(whole, Ok((reply, encoded)));
                    taken += 1;
                } else if kind == REQUEST
                    && let Some((request, encoded)) = Header::parse_numbered(header, contents)
                {
                    assert_eq!(whole, Ok((Header::Request(request), encoded)));
                    taken += 1;
                }
            }
        }
        assert!(taken > 300, "{taken}");
    }
}
