//! The header of a frame: version 1 of the RPC protocol, little-endian.
//!
//! ```text
//! all      0 kind   1 version   2 code (reply)   3 reason (reply)   4..8 length of the encoded part   8..16 call id
//! request  16..24 service hash   24..32 method hash   32..36 schema version   36..40 zero
//!          40..48 time left, in microseconds, 0 for none
//! followed by  the encoded part, then the body up to the end of the message
//! ```
//!
//! Parsing checks the bytes and returns a plain value; it never panics.

use std::ops::Range;

/// Length of a reply's and a cancellation's header.
const SHORT: usize = 16;
/// Length of a request's header.
const LONG: usize = 48;
/// Version of the protocol.
const VERSION: u8 = 1;

const REQUEST: u8 = 1;
const ONE_WAY: u8 = 2;
const REPLY: u8 = 3;
const CANCEL: u8 = 4;

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
        /// Whether the handler replied, or why the server did in its place.
        reason: Reason,
    },
    /// The caller gave up.
    Cancel {
        /// The number that the caller gave the call.
        call: u64,
    },
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// The number that the caller gave the call.
    pub(crate) call: u64,
    /// Whether the caller wants no reply.
    pub(crate) one_way: bool,
    /// Hash of the service's name.
    pub(crate) service: u64,
    /// Hash of the service's and the method's name.
    pub(crate) method: u64,
    /// Version of the schema.
    pub(crate) version: u32,
    /// Time until the caller gives up, in microseconds; 0 for no limit.
    pub(crate) time_left_us: u64,
}

/// Whether the handler replied, or why the server did in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reason(pub(crate) u8);

impl Reason {
    /// The handler replied.
    pub(crate) const HANDLER: Self = Self(0);
    /// The node has no such service.
    pub(crate) const NO_SERVICE: Self = Self(1);
    /// The service has no such method.
    pub(crate) const NO_METHOD: Self = Self(2);
    /// The service has another schema version; the status message is that version.
    pub(crate) const OTHER_VERSION: Self = Self(3);
    /// The request did not reach the handler, for another reason.
    pub(crate) const NOT_RUN: Self = Self(4);
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FrameError {
    /// There are fewer bytes than the header needs.
    #[error("a frame of {0} bytes is too short")]
    Short(usize),
    /// The protocol version is not ours.
    #[error("protocol version {0} is unknown")]
    Version(u8),
    /// The kind is not assigned.
    #[error("frame kind {0} is unknown")]
    Kind(u8),
    /// The encoded part would extend beyond the end of the message.
    #[error("the encoded part does not fit the message")]
    Length,
}

impl Header {
    /// Appends the header of a frame whose encoded part has `encoded` bytes.
    pub(crate) fn emit(&self, encoded: u32, into: &mut Vec<u8>) {
        let (kind, code, reason, call) = match *self {
            Self::Request(RequestHeader { call, one_way, .. }) => {
                (if one_way { ONE_WAY } else { REQUEST }, 0, 0, call)
            }
            Self::Reply { call, code, reason } => (REPLY, code, reason.0, call),
            Self::Cancel { call } => (CANCEL, 0, 0, call),
        };
        into.extend([kind, VERSION, code, reason]);
        into.extend(encoded.to_le_bytes());
        into.extend(call.to_le_bytes());
        if let Self::Request(request) = self {
            into.extend(request.service.to_le_bytes());
            into.extend(request.method.to_le_bytes());
            into.extend(request.version.to_le_bytes());
            into.extend([0; 4]);
            into.extend(request.time_left_us.to_le_bytes());
        }
    }

    /// The header at the start of a message, and the range of the encoded part; the body follows it.
    ///
    /// # Errors
    /// The first check that failed.
    pub(crate) fn parse(message: &[u8]) -> Result<(Self, Range<usize>), FrameError> {
        let short = || FrameError::Short(message.len());
        let (&kind, &version) = message.first().zip(message.get(1)).ok_or_else(short)?;
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let length = match kind {
            REQUEST | ONE_WAY => LONG,
            REPLY | CANCEL => SHORT,
            other => return Err(FrameError::Kind(other)),
        };
        let header = message.get(..length).ok_or_else(short)?;
        let call = word(header, 8);
        let parsed = match kind {
            REPLY => Self::Reply { call, code: header[2], reason: Reason(header[3]) },
            CANCEL => Self::Cancel { call },
            _ => Self::Request(RequestHeader {
                call,
                one_way: kind == ONE_WAY,
                service: word(header, 16),
                method: word(header, 24),
                version: half_word(header, 32),
                time_left_us: word(header, 40),
            }),
        };
        let encoded = usize::try_from(half_word(header, 4)).map_err(|_| FrameError::Length)?;
        let end =
            length.checked_add(encoded).filter(|end| *end <= message.len()).ok_or(FrameError::Length)?;
        Ok((parsed, length..end))
    }
}

/// Eight bytes of a header whose length was checked.
fn word(header: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn half_word(header: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&header[at..at + 4]);
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST_HEADER: Header = Header::Request(RequestHeader {
        call: 0x0102_0304_0506_0708,
        one_way: true,
        service: 11,
        method: 12,
        version: 13,
        time_left_us: 14,
    });

    #[test]
    fn headers_survive_a_round_trip() {
        let all = [
            REQUEST_HEADER,
            Header::Reply { call: 5, code: 14, reason: Reason::NO_METHOD },
            Header::Cancel { call: u64::MAX },
        ];
        for header in all {
            let mut bytes = Vec::new();
            header.emit(3, &mut bytes);
            let length = bytes.len();
            bytes.extend(b"abcbody");
            assert_eq!(Header::parse(&bytes), Ok((header, length..length + 3)));
            assert_eq!(Header::parse(&bytes[..length + 2]), Err(FrameError::Length));
            assert_eq!(Header::parse(&bytes[..length - 1]), Err(FrameError::Short(length - 1)));
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        assert_eq!(Header::parse(&[]), Err(FrameError::Short(0)));
        assert_eq!(Header::parse(&[9, 1]), Err(FrameError::Kind(9)));
        assert_eq!(Header::parse(&[1, 9]), Err(FrameError::Version(9)));
        let mut bytes = Vec::new();
        REQUEST_HEADER.emit(u32::MAX, &mut bytes);
        assert_eq!(Header::parse(&bytes), Err(FrameError::Length));
    }
}
