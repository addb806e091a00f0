//! The headers of the frames of a stream, little-endian. All have a kind, flags, four bytes that the transport writes when
//! the frame leaves, and the call's number.
//!
//! ```text
//! all      0 kind (1)   1 flags (1): 0x10 if the caller sends it   4 the transport's (4)   8 call (8)
//! data     2 number of the item modulo 2^16 (2); followed by the item
//! reset
//! accept   16 reserved (8); followed by the metadata for the start of the response
//! window   16 bytes (4)   20 items (4)
//! end      16 items (8)
//! ```

use super::{FrameError, array};

pub(super) const DATA: u8 = 0x21;
pub(super) const RESET: u8 = 0x22;
pub(super) const ACCEPT: u8 = 0x31;
pub(super) const WINDOW: u8 = 0x32;
pub(super) const END: u8 = 0x33;

/// Size of the header of DATA, in bytes.
pub(crate) const DATA_BYTES: usize = 16;
/// Size of the longest header, in bytes.
const LONGEST: usize = 24;

/// The flag of a frame that the caller sends.
const FROM_CALLER: u8 = 0x10;
/// The flags that no frame of a stream may have.
const RESERVED: u8 = 0xe0;

/// The header of a frame of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamHeader {
    /// The number that the caller gave the call.
    pub(crate) call: u64,
    /// True if the caller sends it.
    pub(crate) from_caller: bool,
    pub(crate) part: StreamPart,
}

/// Content of a frame of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamPart {
    /// An item follows.
    Data {
        /// The number of the item, from 0, modulo 2^16.
        number: u16,
    },
    /// The sender of this frame takes no more items.
    Reset,
    /// The handler has returned its stream. The metadata for the start of the response follows.
    Accept,
    /// The receiver of this frame may send more.
    Window {
        /// Bytes.
        bytes: u32,
        /// Items.
        items: u32,
    },
    /// The sender of this frame has no more items.
    End {
        /// The items that it has sent.
        items: u64,
    },
}

impl StreamHeader {
    /// Returns the header at the start of a message, and its length. An item follows up to the end of the message.
    ///
    /// # Errors
    /// Returns an error if the message is too short, of another kind, or has a reserved flag.
    pub(super) fn parse(message: &[u8]) -> Result<(Self, usize), FrameError> {
        let short = || FrameError::Short(message.len());
        let kind = *message.first().ok_or_else(short)?;
        let length = usize::from(kind >> 4) * 8;
        let mut header = [0; LONGEST];
        let room = header.get_mut(..length).ok_or(FrameError::Kind(kind))?;
        room.copy_from_slice(message.get(..length).ok_or_else(short)?);
        if header[1] & RESERVED != 0 {
            return Err(FrameError::Flags(header[1] & RESERVED));
        }
        let part = match kind {
            DATA => StreamPart::Data { number: u16::from_le_bytes(array(&header, 2)) },
            RESET => StreamPart::Reset,
            ACCEPT => StreamPart::Accept,
            WINDOW => StreamPart::Window {
                bytes: u32::from_le_bytes(array(&header, 16)),
                items: u32::from_le_bytes(array(&header, 20)),
            },
            END => StreamPart::End { items: u64::from_le_bytes(array(&header, 16)) },
            _ => return Err(FrameError::Kind(kind)),
        };
        let (call, from_caller) = (u64::from_le_bytes(array(&header, 8)), header[1] & FROM_CALLER != 0);
        Ok((Self { call, from_caller, part }, length))
    }

    /// Returns the header and the item of a DATA message, as most frames of a stream are. `None` for any other message,
    /// which [`Header::parse`](super::header::Header::parse) handles.
    #[inline]
    pub(crate) fn parse_data(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, item) = message.split_first_chunk::<DATA_BYTES>()?;
        if header[0] != DATA || header[1] & RESERVED != 0 {
            return None;
        }
        let part = StreamPart::Data { number: u16::from_le_bytes(array(header, 2)) };
        let call = u64::from_le_bytes(array(header, 8));
        Some((Self { call, from_caller: header[1] & FROM_CALLER != 0, part }, item))
    }

    /// Appends the header.
    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        let (kind, word, rest) = match self.part {
            StreamPart::Data { number } => (DATA, number, None),
            StreamPart::Reset => (RESET, 0, None),
            StreamPart::Accept => (ACCEPT, 0, Some(0)),
            StreamPart::Window { bytes, items } => {
                (WINDOW, 0, Some(u64::from(bytes) | u64::from(items) << 32))
            }
            StreamPart::End { items } => (END, 0, Some(items)),
        };
        into.extend(self.first(kind, word, 0));
        into.extend(self.call.to_le_bytes());
        into.extend(rest.into_iter().flat_map(u64::to_le_bytes));
    }

    /// Writes the header of DATA in front of an item. It has the number of bytes that the message has in all, or 0,
    /// where a bundle has that.
    #[inline]
    pub(crate) fn emit_data(
        call: u64,
        from_caller: bool,
        number: u16,
        bytes: u32,
        room: &mut [u8; DATA_BYTES],
    ) {
        let header = Self { call, from_caller, part: StreamPart::Data { number } };
        room[..8].copy_from_slice(&header.first(DATA, number, bytes));
        room[8..].copy_from_slice(&call.to_le_bytes());
    }

    #[inline]
    fn first(&self, kind: u8, word: u16, bytes: u32) -> [u8; 8] {
        let flags = if self.from_caller { FROM_CALLER } else { 0 };
        let first = u64::from(kind) | u64::from(flags) << 8 | u64::from(word) << 16 | u64::from(bytes) << 32;
        first.to_le_bytes()
    }
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
    fn headers_survive_a_round_trip_and_are_checked() {
        for (part, length) in PARTS.into_iter().zip([16, 16, 24, 24, 24]) {
            for from_caller in [false, true] {
                let header = StreamHeader { call: 0x0304, from_caller, part };
                let mut bytes = Vec::new();
                header.emit(&mut bytes);
                assert_eq!(bytes.len(), length);
                bytes.extend(b"item");
                assert_eq!(StreamHeader::parse(&bytes), Ok((header, length)));
                let data = matches!(part, StreamPart::Data { .. }).then_some((header, &b"item"[..]));
                assert_eq!(StreamHeader::parse_data(&bytes), data);
                for end in 0..length {
                    assert_eq!(StreamHeader::parse(&bytes[..end]), Err(FrameError::Short(end)));
                    assert_eq!(StreamHeader::parse_data(&bytes[..end]), None);
                }
                bytes[1] |= 0x40;
                assert_eq!(StreamHeader::parse(&bytes), Err(FrameError::Flags(0x40)));
                assert_eq!(StreamHeader::parse_data(&bytes), None);
            }
        }
        assert_eq!(StreamHeader::parse(&[0xf0]), Err(FrameError::Kind(0xf0)));
        assert_eq!(StreamHeader::parse(&[0x34; 24]), Err(FrameError::Flags(0x20)), "flags come first");
    }

    #[test]
    fn the_header_in_front_of_an_item_is_the_same() {
        let header = StreamHeader { call: 77, from_caller: true, part: PARTS[0] };
        let (mut long, mut short) = (Vec::new(), [0; DATA_BYTES]);
        header.emit(&mut long);
        StreamHeader::emit_data(77, true, 0x0102, 0, &mut short);
        assert_eq!(long, short);
        StreamHeader::emit_data(77, true, 0x0102, 20, &mut short);
        assert_eq!(short[4..8], [20, 0, 0, 0]);
    }
}
