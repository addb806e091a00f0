//! The header of a frame, little-endian. All frames have a kind, flags, four bytes that the transport writes when the frame
//! leaves, and the call's number. The upper four bits of the kind give the header's length in units of 8 bytes.
//!
//! ```text
//! all      0 kind (1)   1 flags (1)   4 the transport's (4)   8 call (8), except in drained
//! request  2 number of the method (2), 0xffff: in an extension   16 time left in microseconds (4), if flagged
//!          20 length of the encoded part (4)   24 length of the extensions (2)   26 reserved (6)
//! reply    2 code (1)   3 by (1)   16 length of the encoded part (4)   20 length of the extensions (2)   22 reserved (2)
//! cancel   2 reserved (2)
//! drained  2 reserved (2)
//! number   2 length of the extensions (2)
//! open     as request; the frames of streams are in `streams`
//! followed by  the extensions, the metadata, the encoded part, then the body up to the end of the message
//! ```
//!
//! Parsing checks the bytes and returns a plain value; it never panics.

use super::extensions::{self, Extensions, Method, Number, emit_metadata};
use super::streams::{self, StreamHeader};
use super::{FrameError, array};
use crate::status::reason::Reason;
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use std::ops::Range;

/// Size of the longest header without extensions, in bytes.
pub(super) const LONGEST: usize = 32;
const REPLY_BYTES: usize = 24;

const DRAINED: u8 = 0x10;
const CANCEL: u8 = 0x20;
const NUMBER: u8 = 0x23;
const REPLY: u8 = 0x30;
const REQUEST: u8 = 0x40;
const ONE_WAY: u8 = 0x41;
const OPEN: u8 = 0x42;

/// The flag of a frame that must not be ignored.
const CRITICAL: u8 = 0x01;
/// The flag of a header with a time left, which the transport writes.
const HAS_TIME_LEFT: u8 = 0x04;
/// The flags that each kind may define. No kind has any yet.
const RESERVED: u8 = 0xf0;
/// Time left of a call without a limit.
const NO_LIMIT: u32 = u32::MAX;
/// The number of a method that the server has not given one.
const UNASSIGNED: u16 = 0xffff;

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// Run a method.
    Request(RequestHeader),
    /// The reply to a request.
    Reply {
        /// The number that the caller gave the call.
        call: u64,
        /// 0 for success, otherwise a status code; the encoded part is then the status message.
        code: u8,
        /// The side that replied.
        by: RepliedBy,
        /// The number of the method, if the request has named it by its hash.
        number: Option<Number>,
        /// Sizes of the metadata, which precedes the encoded part.
        metadata: MetadataBytes,
    },
    /// The number of the method of a one-way call, which has no reply.
    Number {
        /// The number that the caller gave the call.
        call: u64,
        number: Number,
    },
    /// The caller gave up.
    Cancel {
        /// The number that the caller gave the call.
        call: u64,
    },
    /// The poller has answered all calls that it has run for the receiver, and runs no more.
    Drained,
    /// A frame of a stream.
    Stream(StreamHeader),
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// The number that the caller gave the call.
    pub(crate) call: u64,
    /// True if the call has no reply.
    pub(crate) one_way: bool,
    /// True if the call streams items.
    pub(crate) opens: bool,
    /// The method.
    pub(crate) method_ref: MethodRef,
    /// Time until the caller gives up, in microseconds; 0 for no limit. In an outgoing frame any other value is a
    /// placeholder: the transport writes the time.
    pub(crate) time_left_us: u32,
    /// Size of the metadata, which precedes the encoded part, in bytes.
    pub(crate) metadata: u32,
}

/// Reference to a method in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MethodRef {
    /// Number that the server has assigned, known in this session.
    Number(u16),
    /// Hash.
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

/// A frame that cannot be parsed, and whose sender waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unparsed {
    /// A request, or a frame of an unknown kind that must not be ignored.
    Request {
        /// The number that the caller gave the call.
        call: u64,
        /// True if the call has no reply.
        one_way: bool,
    },
    /// The reply to a call.
    Reply {
        /// The number that the caller gave the call.
        call: u64,
    },
}

/// The side that replied, in one byte: 0 for the handler. For the node, bit 7 is set if the handler may have run, and the
/// other bits are the number of the reason, or 0x7f.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RepliedBy {
    /// The handler.
    Handler,
    /// The node, in place of the handler.
    Node {
        /// The reason; `None` if this version does not know it.
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

impl Header {
    /// Appends the header of a frame whose encoded part has `encoded` bytes, and its extensions. The metadata follows.
    pub(crate) fn emit(&self, encoded: u32, into: &mut Vec<u8>) {
        match *self {
            Self::Request(RequestHeader { one_way, method_ref, metadata, .. }) => {
                let at = into.len();
                let mut header = [0; LONGEST];
                let length = self.emit_short(encoded, 0, &mut header);
                into.extend_from_slice(&header[LONGEST - length..]);
                if let MethodRef::Method(method) = method_ref {
                    method.emit(one_way, into);
                }
                emit_metadata(MetadataBytes::of_request(metadata), into);
                set_length(at + 24, at + 32, into);
            }
            Self::Reply { number, metadata, .. } => {
                let at = into.len();
                let mut header = [0; LONGEST];
                let length = self.emit_short(encoded, 0, &mut header);
                into.extend_from_slice(&header[LONGEST - length..]);
                if let Some(number) = number {
                    number.emit(into);
                }
                emit_metadata(metadata, into);
                set_length(at + 20, at + 24, into);
            }
            Self::Number { call, number } => {
                let at = into.len();
                into.extend([NUMBER, 0, 0, 0, 0, 0, 0, 0]);
                into.extend(call.to_le_bytes());
                number.emit(into);
                set_length(at + 2, at + 16, into);
            }
            Self::Cancel { call } => {
                into.extend([CANCEL, 0, 0, 0, 0, 0, 0, 0]);
                into.extend(call.to_le_bytes());
            }
            Self::Drained => into.extend([DRAINED, 0, 0, 0, 0, 0, 0, 0]),
            Self::Stream(header) => header.emit(into),
        }
    }

    /// Returns true for a header without extensions, whose frame may have an encoded part.
    pub(super) fn is_short(&self) -> bool {
        match self {
            Self::Request(request) => {
                matches!(request.method_ref, MethodRef::Number(_)) && request.metadata == 0
            }
            Self::Reply { number, metadata, .. } => number.is_none() && metadata.is_empty(),
            Self::Number { .. } | Self::Cancel { .. } | Self::Drained | Self::Stream(_) => false,
        }
    }

    /// Returns the size of the metadata that precedes the encoded part, in bytes.
    pub(crate) fn metadata_bytes(&self) -> usize {
        match *self {
            Self::Request(request) => MetadataBytes::of_request(request.metadata).sum(),
            Self::Reply { metadata, .. } => metadata.sum(),
            Self::Number { .. } | Self::Cancel { .. } | Self::Drained | Self::Stream(_) => 0,
        }
    }

    /// Returns its size without extensions, in bytes.
    #[inline]
    pub(super) fn short_bytes(&self) -> usize {
        if let Self::Request(_) = self { LONGEST } else { REPLY_BYTES }
    }

    /// Writes the header of a request or a reply, without its extensions, to the end of `room`. Returns its length. `bytes`
    /// is the length of the whole message, or 0, and goes where a bundle has that length.
    #[inline]
    pub(super) fn emit_short(&self, encoded: u32, bytes: u32, room: &mut [u8; LONGEST]) -> usize {
        match *self {
            Self::Request(RequestHeader { call, one_way, opens, method_ref, time_left_us, .. }) => {
                let number = if let MethodRef::Number(number) = method_ref { number } else { UNASSIGNED };
                let kind = if one_way { ONE_WAY } else { REQUEST };
                let flags = if time_left_us > 0 { HAS_TIME_LEFT } else { 0 };
                // A node that does not know streams refuses the call.
                let (kind, flags) = if opens { (OPEN, flags | CRITICAL) } else { (kind, flags) };
                let first = u64::from(kind) | u64::from(flags) << 8 | u64::from(number) << 16;
                let third = u64::from(time_left_us) | u64::from(encoded) << 32;
                put(room, [first | u64::from(bytes) << 32, call, third, 0])
            }
            Self::Reply { call, code, by, .. } => {
                let first = u64::from(REPLY) | u64::from(code) << 16 | u64::from(by.number()) << 24;
                put(room, [first | u64::from(bytes) << 32, call, u64::from(encoded)])
            }
            Self::Number { .. } | Self::Cancel { .. } | Self::Drained | Self::Stream(_) => 0,
        }
    }

    /// Returns the header at the start of a message, and the range of the encoded part. The body follows that part.
    ///
    /// # Errors
    /// Returns the first check that failed.
    pub(crate) fn parse(message: &[u8]) -> Result<(Self, Range<usize>), FrameError> {
        let short = || FrameError::Short(message.len());
        match *message.first().ok_or_else(short)? {
            REQUEST | ONE_WAY | OPEN => {
                Self::parse_request(message.first_chunk().ok_or_else(short)?, message)
            }
            streams::DATA | streams::RESET | streams::ACCEPT | streams::WINDOW | streams::END => {
                let (header, length) = StreamHeader::parse(message)?;
                Ok((Self::Stream(header), length..length))
            }
            REPLY => Self::parse_reply(message.first_chunk().ok_or_else(short)?, message),
            CANCEL => {
                let header = message.first_chunk::<16>().ok_or_else(short)?;
                check_flags(header[1])?;
                Ok((Self::Cancel { call: u64::from_le_bytes(array(header, 8)) }, header.len()..header.len()))
            }
            NUMBER => {
                let header = message.first_chunk::<16>().ok_or_else(short)?;
                check_flags(header[1])?;
                let extensions = u16::from_le_bytes(array(header, 2));
                let (extensions, encoded) = parts(message, header.len(), extensions, 0, false)?;
                let number = extensions.number.filter(|_| extensions.metadata.is_empty());
                let number = number.ok_or(FrameError::Extensions)?;
                Ok((Self::Number { call: u64::from_le_bytes(array(header, 8)), number }, encoded))
            }
            DRAINED => {
                let header = message.first_chunk::<8>().ok_or_else(short)?;
                check_flags(header[1])?;
                Ok((Self::Drained, header.len()..header.len()))
            }
            other => Err(FrameError::Kind(other)),
        }
    }

    /// Returns a request of which only the header and the part of an announcing frame after it have arrived, with the bytes
    /// up to the end of its metadata. `None` for any other message, a malformed one, or one whose metadata has not arrived.
    pub(crate) fn parse_announced(header: &[u8], part: &[u8]) -> Option<(RequestHeader, Vec<u8>)> {
        let mut message = [header, part].concat();
        let first = message
            .first_chunk_mut::<LONGEST>()
            .filter(|first| [REQUEST, ONE_WAY, OPEN].contains(&first[0]))?;
        // The arguments have not arrived.
        first[20..24].fill(0);
        match Self::parse(&message) {
            Ok((Self::Request(request), arguments)) => {
                message.truncate(arguments.start);
                Some((request, message))
            }
            _ => None,
        }
    }

    #[inline]
    fn parse_request(header: &[u8; LONGEST], message: &[u8]) -> Result<(Self, Range<usize>), FrameError> {
        check_flags(header[1])?;
        let (one_way, opens) = (header[0] == ONE_WAY, header[0] == OPEN);
        let encoded = u32::from_le_bytes(array(header, 20));
        let extensions = u16::from_le_bytes(array(header, 24));
        let (extensions, encoded) = parts(message, header.len(), extensions, encoded, one_way)?;
        let method_ref = match (u16::from_le_bytes(array(header, 2)), extensions.method) {
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
        let time_left_us = time_left(header);
        let call = u64::from_le_bytes(array(header, 8));
        Ok((
            Self::Request(RequestHeader { call, one_way, opens, method_ref, time_left_us, metadata }),
            encoded,
        ))
    }

    #[inline]
    fn parse_reply(header: &[u8; REPLY_BYTES], message: &[u8]) -> Result<(Self, Range<usize>), FrameError> {
        check_flags(header[1])?;
        let encoded = u32::from_le_bytes(array(header, 16));
        let extensions = u16::from_le_bytes(array(header, 20));
        let (extensions, encoded) = parts(message, header.len(), extensions, encoded, false)?;
        let (call, by) = (u64::from_le_bytes(array(header, 8)), RepliedBy::from_number(header[3]));
        let Extensions { number, metadata, .. } = extensions;
        Ok((Self::Reply { call, code: header[2], by, number, metadata }, encoded))
    }

    /// Returns the call and the range of the encoded part of a handler's successful reply without extensions, as most
    /// replies are. `None` for any other message, which [`Header::parse`] handles.
    #[inline]
    pub(crate) fn parse_success(message: &[u8]) -> Option<(u64, Range<usize>)> {
        let header = message.first_chunk::<REPLY_BYTES>()?;
        let is_plain = header[..4] == [REPLY, 0, 0, 0] && header[20..22] == [0, 0];
        let encoded = usize::try_from(u32::from_le_bytes(array(header, 16))).ok()?;
        let is_right = is_plain && encoded <= message.len() - REPLY_BYTES;
        is_right.then(|| (u64::from_le_bytes(array(header, 8)), REPLY_BYTES..REPLY_BYTES + encoded))
    }

    /// Returns a request that has a number for its method and no extensions, as most requests are. `None` for any other
    /// message, which [`Header::parse`] handles.
    #[inline]
    pub(crate) fn parse_numbered(message: &[u8]) -> Option<(RequestHeader, Range<usize>)> {
        let header = message.first_chunk::<LONGEST>()?;
        let number = u16::from_le_bytes(array(header, 2));
        let is_plain = header[0] == REQUEST && header[1] & !HAS_TIME_LEFT == 0 && header[24..26] == [0, 0];
        let encoded = usize::try_from(u32::from_le_bytes(array(header, 20))).ok()?;
        if !is_plain || number == UNASSIGNED || encoded > message.len() - LONGEST {
            return None;
        }
        let call = u64::from_le_bytes(array(header, 8));
        let time_left_us = time_left(header);
        let method_ref = MethodRef::Number(number);
        let request =
            RequestHeader { call, one_way: false, opens: false, method_ref, time_left_us, metadata: 0 };
        Some((request, LONGEST..LONGEST + encoded))
    }

    /// Returns the fingerprints of a request's types, which [`Header::parse`] has checked. Empty if it has none.
    #[cold]
    pub(crate) fn shapes(message: &[u8]) -> Vec<u32> {
        let Some(header) = message.first_chunk::<LONGEST>() else { return Vec::new() };
        let end = LONGEST + usize::from(u16::from_le_bytes(array(header, 24)));
        message.get(LONGEST..end).map(extensions::shapes).unwrap_or_default()
    }

    /// Returns the caller that waits for an answer to bytes that [`Header::parse`] refused, if the bytes identify it.
    pub(crate) fn unparsed(message: &[u8]) -> Option<Unparsed> {
        let (&kind, &flags) = message.first().zip(message.get(1))?;
        let header = message.get(..usize::from(kind >> 4) * 8)?;
        let call = u64::from_le_bytes(*header.get(8..16)?.first_chunk()?);
        match kind {
            REPLY => Some(Unparsed::Reply { call }),
            REQUEST | ONE_WAY | OPEN => Some(Unparsed::Request { call, one_way: kind == ONE_WAY }),
            CANCEL | NUMBER | DRAINED => None,
            streams::DATA | streams::RESET | streams::ACCEPT | streams::WINDOW | streams::END => None,
            _ => (flags & CRITICAL != 0).then_some(Unparsed::Request { call, one_way: false }),
        }
    }
}

/// Returns the time left in a request's header, in microseconds; 0 for no limit.
#[inline]
fn time_left(header: &[u8; LONGEST]) -> u32 {
    match u32::from_le_bytes(array(header, 16)) {
        _ if header[1] & HAS_TIME_LEFT == 0 => 0,
        NO_LIMIT => 0,
        left => left.max(1),
    }
}

/// Writes words to the end of `room`. Returns their size in bytes.
#[inline]
fn put<const N: usize>(room: &mut [u8; LONGEST], words: [u64; N]) -> usize {
    for (bytes, word) in room[LONGEST - N * 8..].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    N * 8
}

/// Writes the length of the extensions, which begin at `start` and end here, to `at`.
fn set_length(at: usize, start: usize, into: &mut [u8]) {
    let bytes = u16::try_from(into.len() - start).unwrap_or_default();
    into[at..at + 2].copy_from_slice(&bytes.to_le_bytes());
}

/// Refuses flags that no kind has.
#[inline]
fn check_flags(flags: u8) -> Result<(), FrameError> {
    if flags & RESERVED == 0 { Ok(()) } else { Err(FrameError::Flags(flags & RESERVED)) }
}

/// Returns the extensions after a header of `length` bytes, and the range of the encoded part, which the metadata
/// precedes.
#[inline]
fn parts(
    message: &[u8],
    length: usize,
    extensions: u16,
    encoded: u32,
    one_way: bool,
) -> Result<(Extensions, Range<usize>), FrameError> {
    let start = length + usize::from(extensions);
    let encoded = usize::try_from(encoded).map_err(|_| FrameError::Length)?;
    let extensions = match message.get(length..start).ok_or(FrameError::Length)? {
        [] => Extensions::default(),
        extensions => Extensions::parse(extensions, one_way)?,
    };
    let start = start.checked_add(extensions.metadata.sum()).ok_or(FrameError::Length)?;
    let end = start.checked_add(encoded).filter(|end| *end <= message.len()).ok_or(FrameError::Length)?;
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
        time_left_us: 14,
        metadata: 0,
    });
    const SCHEMA: Schema = Schema { version: 13, older: 2, codec: 1 };
    const NUMBERED: Number = Number { number: 3, schema: SCHEMA, method: 12 };

    #[test]
    fn headers_survive_a_round_trip() {
        let all = [
            REQUEST_HEADER,
            Header::Request(RequestHeader {
                call: 6,
                one_way: false,
                opens: false,
                method_ref: MethodRef::Number(7),
                time_left_us: 0,
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
                time_left_us: 3,
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
        for (header, bytes) in all.into_iter().zip([32, 32, 32, 24, 24, 24]) {
            let mut message = Vec::new();
            header.emit(3, &mut message);
            let length = message.len();
            message.extend(b"abcbody");
            assert_eq!(Header::parse(&message), Ok((header, length..length + 3)));
            assert_eq!(Header::parse(&message[..length + 2]), Err(FrameError::Length));
            assert_eq!(Header::parse(&message[..bytes - 1]), Err(FrameError::Short(bytes - 1)));
            assert_eq!(message[4..8], [0; 4], "the transport's");
            message[4..8].fill(0xff);
            assert_eq!(Header::parse(&message), Ok((header, length..length + 3)));
        }
        let (mut cancel, header) = (Vec::new(), Header::Cancel { call: u64::MAX });
        header.emit(0, &mut cancel);
        assert_eq!((Header::parse(&cancel), cancel.len()), (Ok((header, 16..16)), 16));
        let (mut number, header) = (Vec::new(), Header::Number { call: 4, number: NUMBERED });
        header.emit(0, &mut number);
        assert_eq!((Header::parse(&number), number.len()), (Ok((header, 36..36)), 36));
        let mut drained = Vec::new();
        Header::Drained.emit(0, &mut drained);
        assert_eq!((Header::parse(&drained), drained.len()), (Ok((Header::Drained, 8..8)), 8));
        assert_eq!(Header::parse(&drained[..7]), Err(FrameError::Short(7)));
    }

    #[test]
    fn metadata_precedes_the_encoded_part() {
        let metadata = MetadataBytes { initial: 2, trailing: 1 };
        let reply =
            Header::Reply { call: 5, code: 0, by: RepliedBy::Handler, number: Some(NUMBERED), metadata };
        let method_ref = MethodRef::Number(7);
        let request = Header::Request(RequestHeader {
            call: 6,
            one_way: false,
            opens: false,
            method_ref,
            time_left_us: 0,
            metadata: 3,
        });
        for header in [reply, request] {
            let mut message = Vec::new();
            header.emit(3, &mut message);
            assert!(!header.is_short() && header.metadata_bytes() == 3);
            message.extend(b"iitabcbody");
            let encoded = message.len() - 7..message.len() - 4;
            assert_eq!(Header::parse(&message), Ok((header, encoded.clone())));
            assert_eq!(Header::parse(&message[..encoded.end - 1]), Err(FrameError::Length));
            assert_eq!((Header::parse_success(&message), Header::parse_numbered(&message)), (None, None));
        }
        // A request has nothing for the end, and a NUMBER no metadata.
        let mut bytes = Vec::new();
        request.emit(0, &mut bytes);
        bytes[40] = 1;
        bytes.extend(b"iiit");
        assert_eq!(Header::parse(&bytes), Err(FrameError::Extensions));
        bytes.clear();
        Header::Number { call: 4, number: NUMBERED }.emit(0, &mut bytes);
        emit_metadata(metadata, &mut bytes);
        bytes[2] += 12;
        bytes.extend(b"iit");
        assert_eq!(Header::parse(&bytes), Err(FrameError::Extensions));
        bytes.clear();
        REQUEST_HEADER.emit(0, &mut bytes);
        let end = bytes.len();
        emit_metadata(MetadataBytes::of_request(u32::MAX), &mut bytes);
        bytes[24] += u8::try_from(bytes.len() - end).unwrap();
        assert_eq!(Header::parse(&bytes), Err(FrameError::Length));
    }

    #[test]
    fn the_time_left_is_what_the_transport_has_written() {
        let mut bytes = Vec::new();
        REQUEST_HEADER.emit(0, &mut bytes);
        let mut left = |flags, us: u32| {
            bytes[1] = flags;
            bytes[16..20].copy_from_slice(&us.to_le_bytes());
            let Ok((Header::Request(header), _)) = Header::parse(&bytes) else { panic!("a request") };
            header.time_left_us
        };
        assert_eq!([left(0, 9), left(HAS_TIME_LEFT, 9)], [0, 9]);
        assert_eq!([left(HAS_TIME_LEFT, 0), left(HAS_TIME_LEFT, NO_LIMIT)], [1, 0]);
    }

    /// The examples of `docs/wire.md` that are the RPC layer's, as they are parsed and emitted here.
    #[test]
    fn the_examples_of_the_document_are_right() {
        let (mut seen, mut shapes) = (Vec::new(), 0);
        for (name, mut bytes) in trunkline_testkit::wire_examples() {
            if bytes[0] < 0x10 {
                continue;
            }
            if bytes[1] & 2 != 0 {
                // The frame lacks the part that is READ; the transport removes the flag and the announcement.
                bytes[1] &= !2;
                let header = usize::from(bytes[0] >> 4) * 8;
                bytes.drain(header..header + 32);
                bytes.extend([0; 20]);
            }
            let (header, encoded) = Header::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut again = Vec::new();
            header.emit(u32::try_from(encoded.len()).unwrap(), &mut again);
            if let fingerprints @ [_, ..] = &*Header::shapes(&bytes) {
                assert_eq!((bytes[0], fingerprints), (REQUEST, &[5, 0, 0, 0x0403_0201][..]), "{name}");
                again.extend([8, 0, 16, 0]);
                again.extend(fingerprints.iter().flat_map(|fingerprint| fingerprint.to_le_bytes()));
                again[24] += 20;
                shapes += 1;
            }
            again[4..8].copy_from_slice(&bytes[4..8]);
            assert_eq!(again, bytes[..encoded.start - header.metadata_bytes()], "{name}");
            seen.push(bytes[0]);
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
    fn malformed_headers_are_rejected() {
        assert_eq!(Header::parse(&[]), Err(FrameError::Short(0)));
        assert_eq!(Header::parse(&[9, 1]), Err(FrameError::Kind(9)));
        let mut bytes = Vec::new();
        REQUEST_HEADER.emit(u32::MAX, &mut bytes);
        assert_eq!(Header::parse(&bytes), Err(FrameError::Length));
        bytes[20..24].fill(0);
        assert!(Header::parse(&bytes).is_ok());
        bytes[1] |= 0x90;
        assert_eq!(Header::parse(&bytes), Err(FrameError::Flags(0x90)));
        bytes[1] &= 0x0f;
        bytes[2..4].fill(0);
        assert_eq!(Header::parse(&bytes), Err(FrameError::Method), "by a number and its hash");
        bytes[2..4].fill(0xff);
        bytes[24] = 1;
        assert_eq!(Header::parse(&bytes), Err(FrameError::Extensions));
        bytes[24..26].fill(0);
        assert_eq!(Header::parse(&bytes), Err(FrameError::Method), "by neither");
        bytes[24..26].fill(0xff);
        assert_eq!(Header::parse(&bytes), Err(FrameError::Length));
    }

    #[test]
    fn frames_that_cannot_be_read_are_answered_if_somebody_waits() {
        let mut bytes = Vec::new();
        REQUEST_HEADER.emit(0, &mut bytes);
        let call = 0x0102_0304_0506_0708;
        let mut unparsed = |kind: u8, flags: u8| {
            [bytes[0], bytes[1]] = [kind, flags];
            Header::unparsed(&bytes)
        };
        assert_eq!(unparsed(ONE_WAY, 0), Some(Unparsed::Request { call, one_way: true }));
        assert_eq!(unparsed(REQUEST, 0), Some(Unparsed::Request { call, one_way: false }));
        assert_eq!(unparsed(0x43, CRITICAL), Some(Unparsed::Request { call, one_way: false }));
        assert_eq!(unparsed(REPLY, 0), Some(Unparsed::Reply { call }));
        assert_eq!(
            [unparsed(0x43, 0), unparsed(0x21, CRITICAL), unparsed(0x10, CRITICAL), unparsed(0xf0, CRITICAL)],
            [None; 4]
        );
        assert_eq!(unparsed(OPEN, CRITICAL), Some(Unparsed::Request { call, one_way: false }));
        assert_eq!((Header::unparsed(&[REQUEST, 0]), Header::unparsed(&[])), (None, None));
    }

    /// The shortcuts for most messages must accept none that [`Header::parse`] refuses or reads otherwise.
    #[test]
    fn the_short_ways_parse_what_the_long_one_does() {
        let request = Header::Request(RequestHeader {
            call: 6,
            one_way: false,
            opens: false,
            method_ref: MethodRef::Number(7),
            time_left_us: 9,
            metadata: 0,
        });
        let reply = Header::Reply {
            call: 5,
            code: 0,
            by: RepliedBy::Handler,
            number: None,
            metadata: MetadataBytes::default(),
        };
        let mut taken = 0;
        for header in [request, reply, REQUEST_HEADER] {
            let mut message = Vec::new();
            header.emit(3, &mut message);
            message.extend(b"abcbody");
            for (bit, length) in (0..message.len() * 8).flat_map(|bit| [(bit, 24), (bit, 33), (bit, 99)]) {
                let mut bytes = message.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes.truncate(length);
                if let Some((call, encoded)) = Header::parse_success(&bytes) {
                    let whole = Header::Reply {
                        call,
                        code: 0,
                        by: RepliedBy::Handler,
                        number: None,
                        metadata: MetadataBytes::default(),
                    };
                    assert_eq!(Header::parse(&bytes), Ok((whole, encoded)));
                    taken += 1;
                }
                if let Some((request, encoded)) = Header::parse_numbered(&bytes) {
                    assert_eq!(Header::parse(&bytes), Ok((Header::Request(request), encoded)));
                    taken += 1;
                }
            }
        }
        assert!(taken > 300, "{taken}");
    }
}
