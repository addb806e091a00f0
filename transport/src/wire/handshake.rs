//! Handshake frames, which precede SETTINGS in an encrypted session.
//!
//! A flight is the data that one side sends at one level, and a frame carries one fragment of a flight. This file
//! checks single frames, and `identity/flight.rs` assembles flights. All bytes come from a peer, so this code must
//! not panic.
//!
//! ```text
//!  0 header of all frames (8)   8 exchange (4)   12 level (1)   13 part (1)   14 offset (2)
//! 16 total (2)   18 zero (2)   20 fragment, then a tag (16) at level 1
//! ```
#![forbid(unsafe_code)]

use crate::wire::frame::{FrameError, HEADER, SETTLED, handshake};

/// Size of the largest handshake frame, in bytes, which every receiver accepts.
pub(crate) const HANDSHAKE_FRAME: usize = 2048;
/// Size of the header with the fields of the fragment, in bytes.
pub(crate) const FRAGMENT: usize = 20;
/// Size of the tag of a sealed fragment, in bytes.
const TAG: usize = 16;
/// Maximum size of a TLS flight in clear, which is a ClientHello, in bytes.
pub(crate) const CLEAR_TOTAL: u16 = 4096;
/// Maximum size of a sealed TLS flight, in bytes.
pub(crate) const SEALED_TOTAL: u16 = 12_288;
/// Size of DONE, in bytes.
pub(crate) const DONE_TOTAL: u16 = 32;
/// Size of FAILURE, in bytes. It contains a code (2) and the id of a field of the binding (2).
pub(crate) const FAILURE_TOTAL: u16 = 4;

/// Meaning of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// TLS messages.
    Tls,
    /// The reason why the sender ends the exchange.
    Failure,
    /// Proof that the TLS server has derived the keys.
    Done,
    /// The TLS server's request for another exchange.
    Renew,
    /// The last frame of its lane that is sealed with the keys of the previous exchange.
    Switch,
}

impl Part {
    fn parse(number: u8) -> Option<Self> {
        [Self::Tls, Self::Failure, Self::Done, Self::Renew, Self::Switch].get(usize::from(number)).copied()
    }

    /// Returns the valid sizes of a flight, in bytes. The range is empty if the part does not exist at this level.
    fn totals(self, is_sealed: bool) -> std::ops::Range<u16> {
        match (self, is_sealed) {
            (Self::Tls, false) => 1..CLEAR_TOTAL + 1,
            (Self::Tls, true) => 1..SEALED_TOTAL + 1,
            (Self::Failure, _) => FAILURE_TOTAL..FAILURE_TOTAL + 1,
            (Self::Done, true) => DONE_TOTAL..DONE_TOTAL + 1,
            (Self::Renew | Self::Switch, false) => 0..1,
            (Self::Done, false) | (Self::Renew | Self::Switch, true) => 0..0,
        }
    }
}

/// A fragment of a flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment<'a> {
    /// Number of the exchange; 0 for the first handshake of a session.
    pub(crate) exchange: u32,
    /// True if the fragment is sealed by the handshake keys, at level 1.
    pub(crate) is_sealed: bool,
    pub(crate) part: Part,
    /// Offset of the fragment in the flight, in bytes.
    pub(crate) offset: u16,
    /// Size of the flight, in bytes.
    pub(crate) total: u16,
    /// Bytes of the fragment, without the tag.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Returns the fragments of a flight, in the order in which they are sent.
    pub(crate) fn all(
        exchange: u32,
        is_sealed: bool,
        part: Part,
        flight: &'a [u8],
    ) -> impl Iterator<Item = Self> {
        let largest = HANDSHAKE_FRAME - FRAGMENT - tag(is_sealed);
        let total = u16::try_from(flight.len()).unwrap_or(u16::MAX);
        let starts = (0..flight.len().max(1)).step_by(largest);
        starts.zip(0u16..).map(move |(start, _)| Self {
            exchange,
            is_sealed,
            part,
            offset: u16::try_from(start).unwrap_or(u16::MAX),
            total,
            bytes: &flight[start..flight.len().min(start + largest)],
        })
    }

    /// Encodes the frame, without its positions. At level 1, the fragment is still in clear, and the tag is zero.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(FRAGMENT + self.bytes.len() + TAG);
        frame.extend(handshake());
        frame.extend(self.exchange.to_le_bytes());
        frame.extend([u8::from(self.is_sealed), self.part as u8]);
        frame.extend(self.offset.to_le_bytes());
        frame.extend(self.total.to_le_bytes());
        frame.extend([0; 2]);
        frame.extend(self.bytes);
        frame.resize(frame.len() + tag(self.is_sealed), 0);
        frame
    }

    /// Parses a frame with a handshake header.
    ///
    /// # Errors
    /// Returns the first fault of the fragment. The caller checks that it is the next fragment of its flight.
    pub(crate) fn parse(frame: &'a [u8]) -> Result<Self, FrameError> {
        let Some((&fields, rest)) = frame.split_first_chunk::<FRAGMENT>() else {
            return Err(FrameError::Broken("handshake frame shorter than its header"));
        };
        let [.., e0, e1, e2, e3, level, part, o0, o1, t0, t1, _, _] = fields;
        let (offset, total) = (u16::from_le_bytes([o0, o1]), u16::from_le_bytes([t0, t1]));
        let (is_sealed, Some(part), true) = (level == 1, Part::parse(part), level <= 1) else {
            return Err(FrameError::Broken("handshake frame of an unknown level or part"));
        };
        let Some(bytes) = rest.len().checked_sub(tag(is_sealed)).map(|length| &rest[..length]) else {
            return Err(FrameError::Broken("handshake frame shorter than its tag"));
        };
        if !part.totals(is_sealed).contains(&total) {
            return Err(FrameError::Broken("handshake flight whose length does not fit its part"));
        }
        let end = usize::from(offset) + bytes.len();
        let is_last = end == usize::from(total) && frame.len() <= HANDSHAKE_FRAME;
        let is_middle = end < usize::from(total) && frame.len() == HANDSHAKE_FRAME;
        if !(is_last || is_middle) || (bytes.is_empty() && total > 0) {
            return Err(FrameError::Broken("handshake fragment whose length does not fit its flight"));
        }
        let exchange = u32::from_le_bytes([e0, e1, e2, e3]);
        Ok(Self { exchange, is_sealed, part, offset, total, bytes })
    }
}

/// Returns the associated data of a sealed frame, which is its header except for the bytes that are written when the
/// frame is posted. Bytes beyond the end of a short frame are zero.
pub(crate) fn associated(frame: &[u8]) -> [u8; 16] {
    let fields = frame.first_chunk().unwrap_or(&[0; FRAGMENT]);
    let mut data = [0; FRAGMENT - HEADER + SETTLED];
    data[..SETTLED].copy_from_slice(&fields[..SETTLED]);
    data[SETTLED..].copy_from_slice(&fields[HEADER..]);
    data
}

const fn tag(is_sealed: bool) -> usize {
    if is_sealed { TAG } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(is_sealed: bool, part: Part, length: usize) -> Vec<Vec<u8>> {
        let flight = (0u8..=250).cycle().take(length).collect::<Vec<_>>();
        Fragment::all(7, is_sealed, part, &flight).map(|fragment| fragment.emit()).collect()
    }

    #[test]
    fn flights_round_trip_in_full_frames() {
        for (part, is_sealed, length, count) in [
            (Part::Tls, false, 1, 1),
            (Part::Tls, false, 2028, 1),
            (Part::Tls, false, 2029, 2),
            (Part::Tls, false, 4096, 3),
            (Part::Tls, true, 2012, 1),
            (Part::Tls, true, 12_288, 7),
            (Part::Failure, false, 4, 1),
            (Part::Failure, true, 4, 1),
            (Part::Done, true, 32, 1),
            (Part::Renew, false, 0, 1),
            (Part::Switch, false, 0, 1),
        ] {
            let frames = frames(is_sealed, part, length);
            assert_eq!(frames.len(), count, "{part:?} of {length}");
            let mut offset = 0;
            for frame in &frames {
                let fragment = Fragment::parse(frame).unwrap();
                let Fragment { exchange, total, bytes, .. } = fragment;
                assert_eq!((exchange, fragment.is_sealed, fragment.part), (7, is_sealed, part));
                assert_eq!((usize::from(fragment.offset), usize::from(total)), (offset, length));
                assert_eq!(fragment.emit(), *frame);
                offset += bytes.len();
            }
            assert_eq!(offset, length);
        }
    }

    #[test]
    fn fragments_of_unexpected_length_are_refused() {
        for (is_sealed, last) in [(false, 20 + 72), (true, 36 + 88)] {
            for frame in frames(is_sealed, Part::Tls, 2100) {
                let is_last = Fragment::parse(&frame).unwrap().offset > 0;
                for length in 0..=2100 {
                    let mut other = frame.clone();
                    other.resize(length, 0);
                    let right = if is_last { last } else { HANDSHAKE_FRAME };
                    assert_eq!(
                        Fragment::parse(&other).is_ok(),
                        length == right,
                        "{length} bytes, sealed: {is_sealed}"
                    );
                }
            }
        }
    }

    #[test]
    fn inconsistent_fields_are_refused() {
        let clear = |part, length: u16| {
            let mut frame = frames(false, part, length.into()).remove(0);
            frame[16..18].copy_from_slice(&length.to_le_bytes());
            frame
        };
        for good in [clear(Part::Tls, 100), clear(Part::Failure, 4), clear(Part::Renew, 0)] {
            assert!(Fragment::parse(&good).is_ok());
            // Level, part, offset and total.
            for (at, value) in [(12, 2), (12, 0xff), (13, 5), (14, 1), (15, 0x80), (16, 99), (17, 1)] {
                let mut bad = good.clone();
                bad[at] = value;
                assert!(Fragment::parse(&bad).is_err(), "{value} at {at} of {good:?}");
            }
        }
        for (part, length) in
            [(Part::Tls, 0), (Part::Tls, 4097), (Part::Failure, 3), (Part::Done, 32), (Part::Renew, 1)]
        {
            assert!(Fragment::parse(&clear(part, length)).is_err(), "{part:?} of {length}");
        }
        for (part, length) in [(Part::Tls, 12_289), (Part::Done, 31), (Part::Switch, 0), (Part::Failure, 5)] {
            assert!(Fragment::parse(&frames(true, part, length)[0]).is_err(), "sealed {part:?} of {length}");
        }
        let frame = clear(Part::Tls, 100);
        let good = Fragment::parse(&frame).unwrap();
        let long = Fragment { total: 2029, bytes: &[0; 2029], ..good };
        let empty = Fragment { offset: 100, bytes: &[], ..good };
        for bad in [long, empty] {
            assert!(Fragment::parse(&bad.emit()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn associated_data_excludes_positions() {
        let frame = (0..40).collect::<Vec<u8>>();
        assert_eq!(associated(&frame), [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
        assert_eq!(associated(&frame[..19]), [0; 16]);
    }
}
