//! The header that every frame begins with, and the bodies of the transport's frames.
//!
//! Defines the layout; senders and receivers of a poller call it. It never panics on the bytes of a peer and
//! never trusts a length in them: every claim of a frame is checked against the length that the device
//! reports. All fields are little endian. `docs/wire.md` specifies the layout for other implementations.
//!
//! ```text
//!  0 kind (1)  1 flags (1)  2 word (2)
//!  4 grant (2)  6 want (1)  7 target poller (1)     written when the frame is posted
//! ```
//!
//! | kind | length of the header | word | after the header |
//! |---|---|---|---|
//! | below 0x10: the transport's | 8 | | |
//! | 0x01 Credit | 8 | position up to which its sender has released credit | nothing |
//! | 0x02 Fin | 8 | entries | 16 bytes each: number (8), status (8) |
//! | 0x03 Settings | 8 | zero | a list (`settings.rs`) |
//! | 0x04 Bundle | 8 | messages | the messages, each with its length in bytes 4 to 7 of its header |
//! | others: the driver's | 8 times the kind's upper four bits | the driver's | an announcement, if flagged; the rest |
//!
//! The QP that a frame came through identifies its poller, the completion gives its length, and the session
//! its version. Credit positions are sent modulo 2^16.
#![forbid(unsafe_code)]

use crate::wire::BUNDLE_BYTES;
use std::ops::Range;
use trunkline_verbs::Time;

/// Size of the part that all headers share, in bytes. The size of longer headers is a multiple of it.
pub(crate) const HEADER: usize = 8;
/// Offset of the word.
pub(crate) const WORD: usize = 2;
/// Start of the header bytes that are written when the frame is posted.
pub(crate) const SETTLED: usize = 4;
/// Offset of the length of a message in a bundle.
pub(crate) const BUNDLED_LENGTH: usize = SETTLED;
/// Offset of the time left in a header that has one.
pub(crate) const TIME_LEFT: usize = 16;
/// Size of an announcement, in bytes. It lies between the driver's header and the bytes after it.
pub(crate) const ANNOUNCEMENT: usize = 32;
/// Size of one entry of a FIN, in bytes.
pub(crate) const FIN_ENTRY: usize = 16;
/// Maximum number of entries in one FIN.
pub(crate) const FIN_ENTRIES: usize = 12;

/// Flags of all kinds, in the lower four bits; the upper four are the driver's.
pub(crate) mod flags {
    /// A receiver that does not know the kind must not ignore the frame.
    pub(crate) const CRITICAL: u8 = 0x01;
    /// An announcement follows the header: the rest of the message is READ.
    pub(crate) const ANNOUNCES: u8 = 0x02;
    /// The header has a time left, which is written when the frame is posted.
    pub(crate) const TIME_LEFT: u8 = 0x04;
    /// Reserved, and zero.
    pub(super) const RESERVED: u8 = 0x08;
}

const CREDIT: u8 = 0x01;
const FIN: u8 = 0x02;
const SETTINGS: u8 = 0x03;
const BUNDLE: u8 = 0x04;
/// Kind that replaces the kind of a message in a bundle when it is given up.
pub(crate) const VOID: u8 = 0x00;
/// Maximum size of the settings of a lane, in bytes.
const MOST_SETTINGS: usize = 504;

/// Meaning of a frame for the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A whole message of the driver.
    Message,
    /// A message of the driver. The receiver READs most of it.
    Announcement,
    /// Bodies that were READ, or given up.
    Fin,
    /// Credit positions only.
    Credit,
    /// Settings of the sender: the first frame of a lane.
    Settings,
    /// Several messages of the driver.
    Bundle,
    /// A transport kind that this version does not know. It may be ignored.
    Unknown,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FrameKind,
    /// Size of the whole header, in bytes.
    pub(crate) bytes: usize,
    /// Word, whose meaning depends on the kind.
    pub(crate) word: u16,
    /// Position up to which the receiver of this frame may send, modulo 2^16.
    pub(crate) grant: u16,
    /// Number of messages that wait at the sender for credit. The largest value stands for that number or
    /// more.
    pub(crate) want: u8,
    /// Target poller. Over XRC the frame arrives at that poller's SRQ.
    pub(crate) target: u8,
}

/// The part of a header that is written when its frame is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) grant: u16,
    pub(crate) want: u8,
    pub(crate) target: u8,
}

impl Settled {
    /// Encodes the fields, for [`SETTLED`].
    pub(crate) fn emit(self) -> [u8; 4] {
        let [low, high] = self.grant.to_le_bytes();
        [low, high, self.want, self.target]
    }
}

/// The reason why a frame was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The frame breaks the protocol. The text ends up in `PeerDown::Misbehaved`.
    #[error("{0}")]
    Broken(&'static str),
    /// The frame has an unknown kind that must not be ignored.
    #[error("frame of the unknown kind {0:#04x}, which must not be ignored")]
    Kind(u8),
    /// The frame has an unknown setting that must not be ignored.
    #[error("unknown setting {0}, which must not be ignored")]
    Setting(u16),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Returns the header size of a kind, in bytes.
const fn header_bytes(kind: u8) -> usize {
    let eighths = (kind >> 4) as usize;
    if eighths == 0 { HEADER } else { eighths * 8 }
}

/// Returns the header size of a driver's message, in bytes, if the header is valid: its kind is the
/// driver's, it is as long as its kind and flags require, and it sets neither the reserved flag nor the
/// one for an announcement.
#[inline]
pub(crate) fn message_header(head: &[u8]) -> Option<usize> {
    let (&kind, &set) = head.first().zip(head.get(1))?;
    let bytes = header_bytes(kind);
    let may_have = set & (flags::RESERVED | flags::ANNOUNCES) == 0;
    let fits = set & flags::TIME_LEFT == 0 || bytes >= TIME_LEFT + 4;
    (kind >= 0x10 && may_have && fits && head.len() >= bytes).then_some(bytes)
}

/// Returns true if a header of the driver has a time left to be written.
#[inline]
pub(crate) fn has_time_left(head: &[u8]) -> bool {
    head.get(1).is_some_and(|set| set & flags::TIME_LEFT != 0)
}

/// Returns the time left of a message that is about to leave, in microseconds. It is rounded up, so that it
/// is 0 only if the deadline has passed. The largest number stands for no limit, or one of more than 71
/// minutes.
#[inline]
pub(crate) fn time_left(deadline: Option<Time>, now: Time) -> [u8; 4] {
    let left = deadline.map(|deadline| deadline.since(now).div_ceil(1000));
    left.and_then(|left| u32::try_from(left).ok()).unwrap_or(u32::MAX).to_le_bytes()
}

/// Returns the header of a Credit frame, without its positions.
pub(crate) const fn credit() -> [u8; HEADER] {
    [CREDIT, 0, 0, 0, 0, 0, 0, 0]
}

/// Returns the header of Settings, without its positions.
pub(crate) const fn settings() -> [u8; HEADER] {
    [SETTINGS, 0, 0, 0, 0, 0, 0, 0]
}

/// Returns the header of a FIN, without its positions.
pub(crate) fn fin(entries: usize) -> [u8; HEADER] {
    [FIN, 0, u8::try_from(entries).unwrap_or(0), 0, 0, 0, 0, 0]
}

/// Returns the header of a bundle, without its positions.
pub(crate) fn bundle(messages: u16) -> [u8; HEADER] {
    let [low, high] = messages.to_le_bytes();
    [BUNDLE, 0, low, high, 0, 0, 0, 0]
}

/// Place in a bundle, from which its messages follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bundle {
    at: usize,
    left: u16,
}

impl Bundle {
    /// Returns the first place in a bundle of `count` messages.
    pub(crate) fn new(count: u16) -> Self {
        Self { at: HEADER, left: count }
    }

    /// Returns true if no message follows.
    #[inline]
    pub(crate) fn is_over(self) -> bool {
        self.left == 0
    }

    /// Returns the range of the next message in a frame that [`Header::parse`] accepted. Messages that were given up are
    /// left out. After an error, or the last message, returns `None`.
    ///
    /// # Errors
    /// Returns an error if the bundle is malformed.
    #[inline]
    pub(crate) fn next(&mut self, frame: &[u8]) -> Option<Result<Range<usize>, FrameError>> {
        loop {
            if self.at == frame.len() && self.left == 0 {
                return None;
            }
            let message = match bundled_message(&frame[self.at..]) {
                Some(length) if self.left > 0 => self.at..self.at + length,
                _ => {
                    *self = Self { at: frame.len(), left: 0 };
                    return Some(Err(FrameError::Broken("bundle whose messages do not fit it")));
                }
            };
            *self = Self { at: message.end, left: self.left - 1 };
            if frame[message.start] >= 0x10 {
                return Some(Ok(message));
            }
        }
    }
}

/// Returns the ranges of the messages in a bundle, as [`Bundle::next`] does.
pub(crate) fn bundled(frame: &[u8], count: u16) -> impl Iterator<Item = Result<Range<usize>, FrameError>> {
    let mut bundle = Bundle::new(count);
    std::iter::from_fn(move || bundle.next(frame))
}

/// Returns the size of the first of these bundled messages, in bytes, if it is valid.
#[inline]
fn bundled_message(messages: &[u8]) -> Option<usize> {
    let header = messages.first_chunk::<HEADER>()?;
    let length = usize::try_from(u32_at(header, BUNDLED_LENGTH)).ok()?;
    let message = messages.get(..length)?;
    let is_void = header[0] < 0x10 && length >= HEADER;
    (is_void || message_header(message).is_some()).then_some(length)
}

impl Header {
    /// Returns the target poller of a received frame, if the frame is long enough. Nothing else of the frame
    /// was checked.
    pub(crate) fn peek_target(received: &[u8]) -> Option<u8> {
        received.get(..HEADER).map(|header| header[7])
    }

    /// Parses the header of a received frame. `received` is the whole frame as the device delivered it.
    ///
    /// # Errors
    /// The first fault of the header.
    pub(crate) fn parse(received: &[u8]) -> Result<Self, FrameError> {
        let Some(&[kind, set, low, high, grant_low, grant_high, want, target]) =
            received.first_chunk::<HEADER>()
        else {
            return Err(FrameError::Broken("frame shorter than its header"));
        };
        if set & flags::RESERVED != 0 {
            return Err(FrameError::Broken("reserved flag of a frame is set"));
        }
        if matches!(kind, CREDIT | FIN | SETTINGS | BUNDLE) && set & !flags::CRITICAL != 0 {
            return Err(FrameError::Broken("flag that the kind of a frame does not have"));
        }
        let bytes = header_bytes(kind);
        let Some(rest) = received.len().checked_sub(bytes) else {
            return Err(FrameError::Broken("frame shorter than its header"));
        };
        let (word, grant) = (u16::from_le_bytes([low, high]), u16::from_le_bytes([grant_low, grant_high]));
        let kind = match kind {
            0x10.. if set & flags::TIME_LEFT != 0 && bytes < TIME_LEFT + 4 => {
                return Err(FrameError::Broken("flag that the kind of a frame does not have"));
            }
            0x10.. if set & flags::ANNOUNCES != 0 => FrameKind::Announcement,
            0x10.. => FrameKind::Message,
            CREDIT => FrameKind::Credit,
            FIN => FrameKind::Fin,
            SETTINGS => FrameKind::Settings,
            BUNDLE => FrameKind::Bundle,
            _ if set & flags::CRITICAL != 0 => return Err(FrameError::Kind(kind)),
            _ => FrameKind::Unknown,
        };
        let fits = match kind {
            FrameKind::Message | FrameKind::Unknown => true,
            FrameKind::Announcement => rest >= ANNOUNCEMENT,
            FrameKind::Credit => rest == 0,
            FrameKind::Settings => rest <= MOST_SETTINGS,
            FrameKind::Bundle => word > 0 && received.len() <= BUNDLE_BYTES,
            FrameKind::Fin => {
                (1..=FIN_ENTRIES).contains(&usize::from(word)) && rest == usize::from(word) * FIN_ENTRY
            }
        };
        if !fits {
            return Err(FrameError::Broken("frame whose length does not fit its kind"));
        }
        Ok(Self { kind, bytes, word, grant, want, target })
    }

    /// Returns the position up to which the sender has released credit, modulo 2^16. Frames that have one use
    /// no credit: Credit frames, and Settings, before which nothing can have been released.
    pub(crate) fn released(&self) -> Option<u16> {
        match self.kind {
            FrameKind::Credit => Some(self.word),
            FrameKind::Settings => Some(0),
            _ => None,
        }
    }
}

/// Body of an announcement: where to READ the rest of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Number that the sender gave the message. It is returned in the FIN.
    pub(crate) id: u64,
    /// Number of bytes to READ.
    pub(crate) body: u64,
    /// Start of the bytes in the sender's memory.
    pub(crate) address: u64,
    /// Key of the sender's memory.
    pub(crate) rkey: u32,
    /// Time for which the receiver may wait for memory, in milliseconds.
    pub(crate) patience_ms: u32,
}

impl Announcement {
    /// Encodes the announcement.
    pub(crate) fn emit(&self) -> [u8; ANNOUNCEMENT] {
        let mut out = [0; ANNOUNCEMENT];
        out[0..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.body.to_le_bytes());
        out[16..24].copy_from_slice(&self.address.to_le_bytes());
        out[24..28].copy_from_slice(&self.rkey.to_le_bytes());
        out[28..32].copy_from_slice(&self.patience_ms.to_le_bytes());
        out
    }

    /// Decodes the bytes after the header of a frame that [`Header::parse`] accepted.
    pub(crate) fn parse(rest: &[u8]) -> Self {
        Self {
            id: u64_at(rest, 0),
            body: u64_at(rest, 8),
            address: u64_at(rest, 16),
            rkey: u32_at(rest, 24),
            patience_ms: u32_at(rest, 28),
        }
    }
}

/// Outcome of a rendezvous at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinStatus {
    /// The message was READ to the end.
    Read,
    /// No memory became free in time, and the message was dropped.
    Exhausted,
}

/// One entry of a FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fin {
    pub(crate) id: u64,
    pub(crate) status: FinStatus,
}

impl Fin {
    /// Encodes the entry.
    pub(crate) fn emit(&self) -> [u8; FIN_ENTRY] {
        let mut out = [0; FIN_ENTRY];
        out[0..8].copy_from_slice(&self.id.to_le_bytes());
        out[8] = match self.status {
            FinStatus::Read => 0,
            FinStatus::Exhausted => 1,
        };
        out
    }

    /// Parses the entries of a FIN's payload.
    pub(crate) fn parse_all(payload: &[u8]) -> impl Iterator<Item = Result<Self, FrameError>> + '_ {
        payload.chunks_exact(FIN_ENTRY).map(|entry| {
            let status = match u64_at(entry, 8) {
                0 => FinStatus::Read,
                1 => FinStatus::Exhausted,
                _ => return Err(FrameError::Broken("FIN with an unknown status")),
            };
            Ok(Self { id: u64_at(entry, 0), status })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::settings::Settings;
    use std::time::Duration;

    fn frame(kind: u8, set: u8, word: u16, length: usize) -> Vec<u8> {
        let [low, high] = word.to_le_bytes();
        let mut bytes = vec![kind, set, low, high, 0xfe, 0xff, 7, 2];
        bytes.resize(length, 0);
        bytes
    }

    #[test]
    fn each_kind_has_its_lengths() {
        let announces = flags::ANNOUNCES;
        for (kind, set, word, length, expected) in [
            (0x40, flags::TIME_LEFT, 9, 32, FrameKind::Message),
            (0x10, 0, 9, 8, FrameKind::Message),
            (0xf0, 0xf0, 9, 120, FrameKind::Message),
            (0x30, announces, 9, 24 + ANNOUNCEMENT, FrameKind::Announcement),
            (FIN, 0, 2, 40, FrameKind::Fin),
            (CREDIT, 0, 9, 8, FrameKind::Credit),
            (SETTINGS, 0, 9, 8, FrameKind::Settings),
            (BUNDLE, 0, 9, 8, FrameKind::Bundle),
            (0x0f, 0, 9, 8, FrameKind::Unknown),
            (0x00, 0, 9, 8, FrameKind::Unknown),
        ] {
            let bytes = frame(kind, set, word, length);
            let header = Header::parse(&bytes).unwrap();
            assert_eq!((header.kind, header.word, header.bytes), (expected, word, header_bytes(kind)));
            assert_eq!((header.grant, header.want, header.target), (0xfffe, 7, 2));
            let settled = Settled { grant: 0xfffe, want: 7, target: 2 };
            assert_eq!(settled.emit()[..], bytes[SETTLED..8]);
            assert_eq!(Header::peek_target(&bytes), Some(2));
            assert!(Header::parse(&bytes[..length - 1]).is_err(), "a byte short of {expected:?}");
            let has_end = [FrameKind::Fin, FrameKind::Credit].contains(&expected);
            assert_eq!(Header::parse(&frame(kind, set, word, length + 1)).is_err(), has_end);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Header::parse(&[]).is_err() && Header::peek_target(&[0; 7]).is_none());
        for bad in [
            frame(CREDIT, flags::RESERVED, 0, 8),
            frame(CREDIT, flags::TIME_LEFT, 0, 8),
            frame(SETTINGS, 0x80, 0, 8),
            frame(0x20, flags::TIME_LEFT, 0, 64),
            frame(0x40, 0, 0, 31),
            frame(FIN, 0, 0, 8),
            frame(SETTINGS, 0, 0, 9 + MOST_SETTINGS),
            frame(FIN, 0, 13, 8 + 13 * FIN_ENTRY),
            frame(BUNDLE, 0, 0, 8),
            frame(BUNDLE, flags::TIME_LEFT, 1, 16),
            frame(BUNDLE, 0, 1, BUNDLE_BYTES + 1),
        ] {
            assert!(matches!(Header::parse(&bad), Err(FrameError::Broken(_))), "{bad:?}");
        }
        let critical = Header::parse(&frame(0x0c, flags::CRITICAL, 0, 8)).unwrap_err();
        assert_eq!(critical, FrameError::Kind(0x0c));
        assert!(critical.to_string().contains("0x0c"));
        let mut unknown = Fin { id: 1, status: FinStatus::Read }.emit();
        unknown[8] = 2;
        assert!(Fin::parse_all(&unknown).next().unwrap().is_err());
    }

    /// The examples of `docs/wire.md` are parsed and emitted as documented.
    #[test]
    fn the_examples_of_the_document_are_right() {
        let mut kinds = Vec::new();
        for (name, bytes) in trunkline_testkit::wire_examples() {
            let header = Header::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            let Header { kind, word, grant, want, target, .. } = header;
            let (head, rest) = bytes.split_at(header.bytes);
            let mut again = match kind {
                FrameKind::Credit => credit().to_vec(),
                FrameKind::Fin => fin(word.into()).to_vec(),
                FrameKind::Settings => settings().to_vec(),
                FrameKind::Bundle => bundle(word).to_vec(),
                _ => head.to_vec(),
            };
            if let (FrameKind::Credit, Some(released)) = (kind, header.released()) {
                again[WORD..SETTLED].copy_from_slice(&released.to_le_bytes());
            }
            again[SETTLED..HEADER].copy_from_slice(&Settled { grant, want, target }.emit());
            match kind {
                FrameKind::Fin => again.extend(Fin::parse_all(rest).flat_map(|fin| fin.unwrap().emit())),
                FrameKind::Settings => again.extend(Settings::parse(rest).unwrap().emit()),
                FrameKind::Announcement => {
                    again.extend(Announcement::parse(rest).emit());
                    again.extend(&rest[ANNOUNCEMENT..]);
                }
                FrameKind::Bundle => {
                    let messages = bundled(&bytes, word).map(Result::unwrap);
                    again.extend(messages.flat_map(|message| &bytes[message]));
                }
                _ => again.extend(rest),
            }
            assert_eq!(again, bytes, "{name}");
            kinds.push(kind);
        }
        for kind in [
            FrameKind::Credit,
            FrameKind::Fin,
            FrameKind::Settings,
            FrameKind::Message,
            FrameKind::Announcement,
            FrameKind::Bundle,
        ] {
            assert!(kinds.contains(&kind), "no example of {kind:?}");
        }
    }

    /// Returns a message of the given size, in a bundle.
    fn in_bundle(kind: u8, set: u8, length: usize) -> Vec<u8> {
        let mut message = frame(kind, set, 0, length);
        message[BUNDLED_LENGTH..HEADER].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
        message
    }

    fn in_bundles(count: u16, messages: &[Vec<u8>]) -> Result<Vec<Range<usize>>, FrameError> {
        let bytes = [bundle(count).to_vec(), messages.concat()].concat();
        let header = Header::parse(&bytes).unwrap();
        bundled(&bytes, header.word).collect()
    }

    #[test]
    fn a_bundle_has_the_messages_that_were_not_given_up() {
        let (short, long) = (in_bundle(0x10, 0, 8), in_bundle(0x40, flags::TIME_LEFT, 50));
        let void = in_bundle(VOID, flags::TIME_LEFT, 40);
        assert_eq!(in_bundles(1, std::slice::from_ref(&long)), Ok(std::iter::once(8..58).collect()));
        assert_eq!(in_bundles(3, &[short.clone(), void.clone(), long.clone()]), Ok(vec![8..16, 56..106]));
        assert_eq!(in_bundles(1, &[void]), Ok(vec![]));
        for (count, broken) in [
            (1, vec![]),
            (2, vec![long.clone()]),
            (1, vec![long.clone(), short]),
            (1, vec![long[..49].to_vec()]),
            (1, vec![long, vec![0x10; 7]]),
            (1, vec![in_bundle(0x40, 0, 31)]),
            (1, vec![in_bundle(0x40, flags::ANNOUNCES, 80)]),
            (1, vec![in_bundle(0x20, flags::TIME_LEFT, 80)]),
            (1, vec![in_bundle(0x40, flags::RESERVED, 80)]),
            (1, vec![[&[0x10, 0, 0, 0, 7, 0, 0, 0][..], &[0; 8]].concat()]),
            (1, vec![[&[VOID, 0, 0, 0, 0, 0, 0, 0][..], &[0; 8]].concat()]),
        ] {
            assert!(in_bundles(count, &broken).is_err(), "{count} of {broken:?}");
        }
    }

    #[test]
    fn the_time_left_fits_its_field() {
        let (now, after) = (Time(1_000_000), |time| Some(Time(1_000_000) + Duration::from_micros(time)));
        let cases = [
            (None, u32::MAX),
            (Some(Time(0)), 0),
            (after(0), 0),
            (Some(Time(1_000_001)), 1),
            (Some(Time(1_001_000)), 1),
            (Some(Time(1_001_001)), 2),
            (after(5000), 5000),
            (after(4_294_967_294), u32::MAX - 1),
            (after(4_294_967_296), u32::MAX),
        ];
        for (deadline, expected) in cases {
            assert_eq!(u32::from_le_bytes(time_left(deadline, now)), expected, "{deadline:?}");
        }
    }

    #[test]
    fn heads_of_the_driver_are_checked() {
        assert_eq!(message_header(&frame(0x40, flags::TIME_LEFT | 0x80, 0, 40)), Some(32));
        for bad in [
            frame(0x40, 0, 0, 31),
            frame(0x0f, 0, 0, 8),
            frame(0x20, flags::TIME_LEFT, 0, 16),
            frame(0x20, flags::ANNOUNCES, 0, 16),
            vec![0x10],
            vec![],
        ] {
            assert_eq!(message_header(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn bodies_survive_the_round_trip() {
        let request = Announcement { id: 1, body: u64::MAX, address: 3, rkey: 4, patience_ms: 5 };
        assert_eq!(Announcement::parse(&request.emit()), request);
        let fins = [Fin { id: 9, status: FinStatus::Read }, Fin { id: 10, status: FinStatus::Exhausted }];
        let bytes = fins.iter().flat_map(Fin::emit).collect::<Vec<_>>();
        assert!(Fin::parse_all(&bytes).map(Result::unwrap).eq(fins));
    }
}
