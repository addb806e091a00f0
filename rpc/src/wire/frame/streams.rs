//! The frames of a stream, little-endian. The transport's header contains kind, flags and word. Flag 0x10 is set if the
//! caller sends the frame.
//!
//! ```text
//! all      0 call (8)
//! data     word: number of the item modulo 2^16   followed by the item
//! reset
//! accept   followed by the metadata for the start of the response
//! window   8 bytes (4)   12 items (4)
//! end      8 items (8)
//! ```

use super::{FrameError, array};
use trunkline_transport::MessageHeader;

pub(crate) const DATA: u8 = 0x21;
pub(super) const RESET: u8 = 0x22;
pub(super) const ACCEPT: u8 = 0x31;
pub(super) const WINDOW: u8 = 0x32;
pub(super) const END: u8 = 0x33;

/// Number of bytes before the item in a DATA frame.
pub(crate) const DATA_BYTES: usize = 8;

/// The flag of frames that the caller sends.
const FROM_CALLER: u8 = 0x10;
/// Flags that are invalid in stream frames.
const RESERVED: u8 = 0xe0;

/// The header of a stream frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamHeader {
    /// The caller's number for the call.
    pub(crate) call: u64,
    /// True if the caller sends the frame.
    pub(crate) from_caller: bool,
    pub(crate) part: StreamPart,
}

/// Content of a stream frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamPart {
    /// An item follows.
    Data {
        /// The number of the item, counted from 0, modulo 2^16.
        number: u16,
    },
    /// The sender of this frame does not accept more items.
    Reset,
    /// The handler has returned its stream. The metadata for the start of the response follows.
    Accept,
    /// The receiver of this frame may send more items.
    Window {
        /// Number of additional bytes.
        bytes: u32,
        /// Number of additional items.
        items: u32,
    },
    /// The sender of this frame has no more items.
    End {
        /// Number of items sent.
        items: u64,
    },
}

impl StreamHeader {
    /// Parses the header and returns it with its length. An item or metadata follows, up to the end of the message.
    ///
    /// # Errors
    /// Returns an error if the message is too short, has another kind, or has a reserved flag.
    pub(super) fn parse(header: MessageHeader, contents: &[u8]) -> Result<(Self, usize), FrameError> {
        let short = || FrameError::Short(contents.len());
        let (call, rest) = contents.split_first_chunk::<DATA_BYTES>().ok_or_else(short)?;
        if header.flags & RESERVED != 0 {
            return Err(FrameError::Flags(header.flags & RESERVED));
        }
        let fixed = || rest.first_chunk().copied().map(u64::from_le_bytes).ok_or_else(short);
        let (part, length) = match header.kind {
            DATA => (StreamPart::Data { number: header.word }, 0),
            RESET => (StreamPart::Reset, 0),
            ACCEPT => (StreamPart::Accept, 0),
            WINDOW => {
                let room = rest.first_chunk::<8>().ok_or_else(short)?;
                let [bytes, items] = [0, 4].map(|at| u32::from_le_bytes(array(room, at)));
                (StreamPart::Window { bytes, items }, 8)
            }
            END => (StreamPart::End { items: fixed()? }, 8),
            kind => return Err(FrameError::Kind(kind)),
        };
        let from_caller = header.flags & FROM_CALLER != 0;
        Ok((Self { call: u64::from_le_bytes(*call), from_caller, part }, DATA_BYTES + length))
    }

    /// Fast path for a message of kind [`DATA`]. Returns its header and item, or `None` for a malformed message, which
    /// [`Header::parse`](super::header::Header::parse) refuses.
    #[inline]
    pub(crate) fn parse_data(header: MessageHeader, contents: &[u8]) -> Option<(Self, &[u8])> {
        let (call, item) = contents.split_first_chunk::<DATA_BYTES>()?;
        if header.flags & RESERVED != 0 {
            return None;
        }
        let (part, from_caller) = (StreamPart::Data { number: header.word }, header.flags & FROM_CALLER != 0);
        Some((Self { call: u64::from_le_bytes(*call), from_caller, part }, item))
    }

    /// Appends the bytes that precede an item or metadata. Returns the message's header.
    pub(super) fn emit(&self, into: &mut Vec<u8>) -> MessageHeader {
        let (kind, word, rest) = match self.part {
            StreamPart::Data { number } => (DATA, number, None),
            StreamPart::Reset => (RESET, 0, None),
            StreamPart::Accept => (ACCEPT, 0, None),
            StreamPart::Window { bytes, items } => {
                (WINDOW, 0, Some(u64::from(bytes) | u64::from(items) << 32))
            }
            StreamPart::End { items } => (END, 0, Some(items)),
        };
        into.extend(self.call.to_le_bytes());
        into.extend(rest.into_iter().flat_map(u64::to_le_bytes));
        header(kind, self.from_caller, word)
    }

    /// Writes the bytes that precede an item to `room`. Returns the message's header.
    #[inline]
    pub(crate) fn emit_data(
        call: u64,
        from_caller: bool,
        number: u16,
        room: &mut [u8; DATA_BYTES],
    ) -> MessageHeader {
        *room = call.to_le_bytes();
        header(DATA, from_caller, number)
    }
}

#[inline]
fn header(kind: u8, from_caller: bool, word: u16) -> MessageHeader {
    MessageHeader { kind, flags: if from_caller { FROM_CALLER } else { 0 }, word }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [StreamPart; 5] = [
        StreamPart::Data { number: 0x0102 },
        StreamPart::Reset,
        StreamPart::Accept,
        StreamPart::Window { bytes: 1, items: 2 },
        StreamPart::End { items: u64::MAX - 1 },
    ];

    #[test]
    fn stream_frames_round_trip_and_invalid_frames_are_refused() {
        for (part, length) in PARTS.into_iter().zip([8, 8, 8, 16, 16]) {
            for from_caller in [false, true] {
                let frame = StreamHeader { call: 0x0304, from_caller, part };
                let mut bytes = Vec::new();
                let mut header = frame.emit(&mut bytes);
                assert_eq!(bytes.len(), length);
                bytes.extend(b"item");
                assert_eq!(StreamHeader::parse(header, &bytes), Ok((frame, length)));
                if header.kind == DATA {
                    assert_eq!(StreamHeader::parse_data(header, &bytes), Some((frame, &b"item"[..])));
                    let mut room = [0; DATA_BYTES];
                    assert_eq!(StreamHeader::emit_data(0x0304, from_caller, 0x0102, &mut room), header);
                    assert_eq!(room[..], bytes[..DATA_BYTES]);
                }
                for end in 0..length {
                    assert_eq!(StreamHeader::parse(header, &bytes[..end]), Err(FrameError::Short(end)));
                }
                header.flags |= 0x40;
                assert_eq!(StreamHeader::parse(header, &bytes), Err(FrameError::Flags(0x40)));
                assert_eq!(StreamHeader::parse_data(header, &bytes), None);
            }
        }
        let unknown = MessageHeader { kind: 0x34, flags: 0, word: 0 };
        assert_eq!(StreamHeader::parse(unknown, &[0; 8]), Err(FrameError::Kind(0x34)));
    }
}
