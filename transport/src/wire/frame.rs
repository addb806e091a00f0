//! The header of every message, and the bodies of the transport's frames.
//!
//! This code never panics on bytes from a peer, and never trusts a length in them. Every length in a frame is checked
//! against the length that the device reports. All fields are little endian. `docs/book/src/why/wire.md` specifies
//! the layout for other implementations.
//!
//! ```text
//!  0 kind (1)  1 flags (1)  2 word (2)
//!  4 grant (2)  6 want (1)  7 target poller (1)     written when the frame is posted
//!    or length of the message (4)                   in a bundle
//!  8 time left (4), if flagged                      written when the frame is posted
//!  then an announcement (32), if flagged, and the contents
//! ```
//!
//! | kind | word | contents |
//! |---|---|---|
//! | 0x01 Credit | position up to which the sender has released credit | nothing |
//! | 0x02 Fin | number of entries | entries of 16 bytes: number (8), status (8) |
//! | 0x03 Settings | zero | a list (`settings.rs`) |
//! | 0x04 Bundle | number of messages | the messages, each with its length in bytes 4 to 7 of its header |
//! | 0x05 Handshake | zero | a fragment (`handshake.rs`) |
//! | others below 0x10 | reserved | |
//! | from 0x10 | defined by the driver | defined by the driver |
//!
//! The QP through which a frame arrives identifies the sending poller. The completion gives the frame's length, and
//! the session gives the protocol version. Credit positions are sent modulo 2^16.
#![forbid(unsafe_code)]

use crate::wire::BUNDLE_BYTES;
use std::ops::Range;
use trunkline_verbs::Time;

/// Size of a header without a time left, in bytes.
pub(crate) const HEADER: usize = 8;
/// Size of a header with a time left, in bytes.
pub(crate) const TIMED_HEADER: usize = 12;
pub(crate) const WORD: usize = 2;
/// Start of the header bytes that are written when the frame is posted.
pub(crate) const SETTLED: usize = 4;
/// Offset of the length of a message in a bundle.
pub(crate) const BUNDLED_LENGTH: usize = SETTLED;
/// Offset of the time left in a header that has one.
pub(crate) const TIME_LEFT: usize = 8;
/// Size of an announcement, in bytes. An announcement lies between the header and the contents.
pub(crate) const ANNOUNCEMENT: usize = 32;
/// Size of one entry of a FIN, in bytes.
pub(crate) const FIN_ENTRY: usize = 16;
/// Maximum number of entries in one FIN.
pub(crate) const FIN_ENTRIES: usize = 12;

/// Flags of all kinds. The transport defines the lower four bits, and the driver the upper four.
pub(crate) mod flags {
    /// Critical. A receiver must reject frames of an unknown kind with this flag.
    pub(crate) const CRITICAL: u8 = 0x01;
    /// An announcement follows the header, and the rest of the message is READ.
    pub(crate) const ANNOUNCES: u8 = 0x02;
    /// The header contains the time left, which is written when the frame is posted.
    pub(crate) const TIME_LEFT: u8 = 0x04;
    /// Key phase of a sealed frame.
    pub(crate) const PHASE: u8 = 0x08;
    /// The flags that the driver sets.
    pub(crate) const OF_DRIVER: u8 = 0xf0 | CRITICAL;
}

/// Flags of the driver's kinds only.
const OF_MESSAGES: u8 = flags::ANNOUNCES | flags::TIME_LEFT;
/// First kind of the driver.
pub(crate) const DRIVER: u8 = 0x10;
const CREDIT: u8 = 0x01;
const FIN: u8 = 0x02;
const SETTINGS: u8 = 0x03;
const BUNDLE: u8 = 0x04;
pub(crate) const HANDSHAKE: u8 = 0x05;
/// Kind that replaces the kind of a message in a bundle when the message is withdrawn.
pub(crate) const VOID: u8 = 0x00;
/// Maximum size of the settings of a lane, in bytes.
const MOST_SETTINGS: usize = 504;

/// The part of a message's header that the driver chooses. `docs/book/src/why/wire.md` lists kinds and flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// Kind, at least 0x10.
    pub kind: u8,
    /// Flags. The driver sets the upper four bits, and bit 0, which marks a message whose kind must not be ignored.
    /// The transport sets the other bits.
    pub flags: u8,
    /// Word, whose meaning depends on the kind.
    pub word: u16,
}

/// Meaning of a frame for the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A whole message of the driver.
    Message,
    /// The announcement of a driver's message, which the receiver READs.
    Announcement,
    /// Outcomes of messages that were announced.
    Fin,
    /// Credit positions only.
    Credit,
    /// Settings of the sender, in the first frame of a lane.
    Settings,
    /// Several messages of the driver.
    Bundle,
    /// A fragment of a handshake.
    Handshake,
    /// An unknown transport kind that may be ignored.
    Unknown,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FrameKind,
    /// Kind, the driver's flags, and word.
    pub(crate) message: MessageHeader,
    /// Time left, in microseconds; 0 without one.
    pub(crate) time_left_us: u32,
    /// Size of the header, in bytes.
    pub(crate) bytes: usize,
    /// Position up to which the receiver of this frame may send, modulo 2^16.
    pub(crate) grant: u16,
    /// Number of messages that wait for credit at the sender, saturated at the maximum.
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
    /// The frame breaks the protocol. `PeerDown::Misbehaved` contains the text.
    #[error("{0}")]
    Broken(&'static str),
    /// A sealed frame, or a part of a sealed message, was altered in transit. `PeerDown::Altered` contains the text.
    #[cfg(feature = "identity")]
    #[error("{0}")]
    Altered(&'static str),
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

/// Returns the size of a message's header with these flags, and the time left in it, in microseconds. Returns `None` if
/// the message is too short. The maximum time left counts as absent, and 0 as 1.
#[inline]
fn time_of(message: &[u8], set: u8) -> Option<(usize, u32)> {
    if set & flags::TIME_LEFT == 0 {
        return Some((HEADER, 0));
    }
    let left = u32::from_le_bytes(*message.get(TIME_LEFT..)?.first_chunk()?);
    Some((TIMED_HEADER, if left == u32::MAX { 0 } else { left.max(1) }))
}

/// Returns true if these are the kind and flags of a driver's message without an announcement.
#[inline]
fn is_message(kind: u8, set: u8) -> bool {
    kind >= DRIVER && set & (flags::PHASE | flags::ANNOUNCES) == 0
}

/// Returns the time left of a message that is about to be sent, in microseconds. The time is rounded up, so 0 means
/// that the deadline has passed. It saturates at 71 minutes.
#[inline]
pub(crate) fn time_left(deadline: Time, now: Time) -> [u8; 4] {
    u32::try_from(deadline.since(now).div_ceil(1000)).unwrap_or(u32::MAX).to_le_bytes()
}

/// Returns the header of a driver's message, as [`TIMED_HEADER`] bytes, and its size. `length` is the message's length
/// field in a bundle.
#[inline]
pub(crate) fn message(
    header: MessageHeader,
    set: u8,
    length: u32,
    left: Option<[u8; 4]>,
) -> ([u8; 12], usize) {
    let MessageHeader { kind, flags: own, word } = header;
    let timed = if left.is_some() { flags::TIME_LEFT } else { 0 };
    let first = u64::from(kind)
        | u64::from(own & flags::OF_DRIVER | set | timed) << 8
        | u64::from(word) << 16
        | u64::from(length) << 32;
    let mut bytes = [0; TIMED_HEADER];
    bytes[..HEADER].copy_from_slice(&first.to_le_bytes());
    bytes[TIME_LEFT..].copy_from_slice(&left.unwrap_or_default());
    (bytes, if left.is_some() { TIMED_HEADER } else { HEADER })
}

/// Returns the header of a frame of the transport, without its positions.
const fn own(kind: u8, word: u16) -> [u8; HEADER] {
    let [low, high] = word.to_le_bytes();
    [kind, 0, low, high, 0, 0, 0, 0]
}

/// Returns the header of a Credit frame, without its positions.
pub(crate) const fn credit() -> [u8; HEADER] {
    own(CREDIT, 0)
}

/// Returns the header of Settings, without its positions.
pub(crate) const fn settings() -> [u8; HEADER] {
    own(SETTINGS, 0)
}

/// Returns the header of a handshake frame, without its positions.
pub(crate) const fn handshake() -> [u8; HEADER] {
    [HANDSHAKE, flags::CRITICAL, 0, 0, 0, 0, 0, 0]
}

/// Returns the header of a FIN, without its positions.
pub(crate) fn fin(entries: usize) -> [u8; HEADER] {
    own(FIN, u16::try_from(entries).unwrap_or(0))
}

/// Returns the header of a bundle, without its positions.
pub(crate) fn bundle(messages: u16) -> [u8; HEADER] {
    own(BUNDLE, messages)
}

/// Position of the next message in a bundle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bundle {
    at: usize,
    left: u16,
}

impl Bundle {
    /// Returns the position of the first message in a bundle of `count` messages.
    pub(crate) fn new(count: u16) -> Self {
        Self { at: HEADER, left: count }
    }

    #[inline]
    pub(crate) fn is_over(self) -> bool {
        self.left == 0
    }

    /// Returns the next message of a frame that [`Header::parse`] accepted, skipping withdrawn messages. Returns `None`
    /// after an error or the last message.
    ///
    /// # Errors
    /// Returns an error if the bundle is malformed.
    #[inline]
    pub(crate) fn next(&mut self, frame: &[u8]) -> Option<Result<Bundled, FrameError>> {
        loop {
            if self.at == frame.len() && self.left == 0 {
                return None;
            }
            let message = match Bundled::parse(frame, self.at) {
                Some(message) if self.left > 0 => message,
                _ => {
                    *self = Self { at: frame.len(), left: 0 };
                    return Some(Err(FrameError::Broken("bundle whose messages do not fit it")));
                }
            };
            *self = Self { at: message.contents.end, left: self.left - 1 };
            if message.header.kind >= DRIVER {
                return Some(Ok(message));
            }
        }
    }
}

/// A message in a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bundled {
    pub(crate) header: MessageHeader,
    /// Time left, in microseconds; 0 without one.
    pub(crate) time_left_us: u32,
    /// Range of the message's contents in the bundle.
    pub(crate) contents: Range<usize>,
}

impl Bundled {
    /// Returns the message that begins at `at`, if it is valid.
    #[inline]
    fn parse(frame: &[u8], at: usize) -> Option<Self> {
        let messages = frame.get(at..)?;
        let &[kind, set, low, high, ref length @ ..] = messages.first_chunk::<HEADER>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let message = messages.get(..length)?;
        let word = u16::from_le_bytes([low, high]);
        let header = MessageHeader { kind, flags: set & flags::OF_DRIVER, word };
        if kind < DRIVER {
            let is_void = length >= HEADER;
            return is_void.then_some(Self { header, time_left_us: 0, contents: at..at + length });
        }
        let (bytes, time_left_us) = time_of(message, set)?;
        let is_valid = is_message(kind, set) && bytes <= length;
        is_valid.then_some(Self { header, time_left_us, contents: at + bytes..at + length })
    }
}

/// Returns the messages in a bundle, as [`Bundle::next`] does.
pub(crate) fn bundled(frame: &[u8], count: u16) -> impl Iterator<Item = Result<Bundled, FrameError>> {
    let mut bundle = Bundle::new(count);
    std::iter::from_fn(move || bundle.next(frame))
}

impl Header {
    /// Returns the target poller of a received frame, if the frame is long enough. The rest of the frame is
    /// unchecked.
    pub(crate) fn peek_target(received: &[u8]) -> Option<u8> {
        received.get(..HEADER).map(|header| header[7])
    }

    /// Returns true if a received frame, which may be sealed, uses credit. The rest of the frame is
    /// unchecked.
    pub(crate) fn peek_uses_credit(received: &[u8]) -> bool {
        !matches!(received.first(), Some(&(CREDIT | SETTINGS)))
    }

    /// Parses the header of a received frame. `received` is the whole frame, unsealed by now.
    ///
    /// # Errors
    /// Returns the first fault of the header.
    pub(crate) fn parse(received: &[u8]) -> Result<Self, FrameError> {
        let Some(&[number, set, low, high, grant_low, grant_high, want, target]) =
            received.first_chunk::<HEADER>()
        else {
            return Err(FrameError::Broken("frame shorter than its header"));
        };
        if set & flags::PHASE != 0 {
            return Err(FrameError::Broken("key phase of a frame that is not sealed"));
        }
        let reserved = if matches!(number, CREDIT | FIN | SETTINGS | BUNDLE | HANDSHAKE) {
            !flags::CRITICAL
        } else {
            OF_MESSAGES
        };
        let is_ignorable = number == HANDSHAKE && set & flags::CRITICAL == 0;
        if number < DRIVER && (set & reserved != 0 || is_ignorable) {
            return Err(FrameError::Broken("flags that do not fit the kind of a frame"));
        }
        let timed = if number < DRIVER { Some((HEADER, 0)) } else { time_of(received, set) };
        let (bytes, time_left_us) = timed.ok_or(FrameError::Broken("frame shorter than its header"))?;
        let rest = received.len() - bytes;
        let (word, grant) = (u16::from_le_bytes([low, high]), u16::from_le_bytes([grant_low, grant_high]));
        let kind = match number {
            DRIVER.. if set & flags::ANNOUNCES != 0 => FrameKind::Announcement,
            DRIVER.. => FrameKind::Message,
            CREDIT => FrameKind::Credit,
            FIN => FrameKind::Fin,
            SETTINGS => FrameKind::Settings,
            BUNDLE => FrameKind::Bundle,
            HANDSHAKE => FrameKind::Handshake,
            _ if set & flags::CRITICAL != 0 => return Err(FrameError::Kind(number)),
            _ => FrameKind::Unknown,
        };
        let fits = match kind {
            FrameKind::Message | FrameKind::Handshake | FrameKind::Unknown => true,
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
        let message = MessageHeader { kind: number, flags: set & flags::OF_DRIVER, word };
        Ok(Self { kind, message, time_left_us, bytes, grant, want, target })
    }

    /// Returns the position up to which the sender has released credit, modulo 2^16. Only Credit and Settings frames
    /// have this position. They use no credit, and Settings precede all releases.
    pub(crate) fn released(&self) -> Option<u16> {
        match self.kind {
            FrameKind::Credit => Some(self.message.word),
            FrameKind::Settings => Some(0),
            _ => None,
        }
    }
}

/// Body of an announcement, with the location of the rest of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Number of the message, assigned by the sender. The FIN returns it.
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
    /// The message was READ completely.
    Read,
    /// Memory was exhausted until the time limit, and the message was dropped.
    Exhausted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fin {
    pub(crate) id: u64,
    pub(crate) status: FinStatus,
}

impl Fin {
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
    use crate::wire::handshake::Fragment;
    use crate::wire::settings::Settings;
    use std::time::Duration;

    fn frame(kind: u8, set: u8, word: u16, length: usize) -> Vec<u8> {
        let [low, high] = word.to_le_bytes();
        let mut bytes = vec![kind, set, low, high, 0xfe, 0xff, 7, 2];
        bytes.resize(length, 0);
        bytes
    }

    #[test]
    fn frames_of_each_kind_need_matching_length() {
        let announces = flags::ANNOUNCES;
        for (kind, set, word, length, expected) in [
            (0x40, flags::TIME_LEFT, 9, 12, FrameKind::Message),
            (0x10, 0, 9, 8, FrameKind::Message),
            (0xf0, 0xf0, 9, 8, FrameKind::Message),
            (0x30, announces, 9, 8 + ANNOUNCEMENT, FrameKind::Announcement),
            (0x40, announces | flags::TIME_LEFT, 9, 12 + ANNOUNCEMENT, FrameKind::Announcement),
            (FIN, 0, 2, 40, FrameKind::Fin),
            (CREDIT, 0, 9, 8, FrameKind::Credit),
            (SETTINGS, 0, 9, 8, FrameKind::Settings),
            (BUNDLE, 0, 9, 8, FrameKind::Bundle),
            (HANDSHAKE, flags::CRITICAL, 9, 8, FrameKind::Handshake),
            (0x0f, 0, 9, 8, FrameKind::Unknown),
            (0x00, 0, 9, 8, FrameKind::Unknown),
        ] {
            let bytes = frame(kind, set, word, length);
            let header = Header::parse(&bytes).unwrap();
            let bytes_of = if set & flags::TIME_LEFT == 0 { HEADER } else { TIMED_HEADER };
            assert_eq!((header.kind, header.bytes), (expected, bytes_of));
            assert_eq!(header.message, MessageHeader { kind, flags: set & flags::OF_DRIVER, word });
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
    fn malformed_frames_are_refused() {
        assert!(Header::parse(&[]).is_err() && Header::peek_target(&[0; 7]).is_none());
        for bad in [
            frame(CREDIT, flags::PHASE, 0, 8),
            frame(CREDIT, flags::TIME_LEFT, 0, 8),
            frame(SETTINGS, 0x80, 0, 8),
            frame(0x0f, flags::TIME_LEFT, 0, 64),
            frame(HANDSHAKE, 0, 0, 24),
            frame(HANDSHAKE, 0x81, 0, 24),
            frame(0x40, flags::TIME_LEFT, 0, 11),
            frame(0x40, 0, 0, 7),
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

    /// The examples of `docs/book/src/why/wire.md` are parsed and emitted as documented.
    #[test]
    fn examples_of_wire_document_parse_and_re_emit() {
        let mut kinds = Vec::new();
        for (name, bytes) in trunkline_testkit::wire_examples() {
            let header = Header::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            let Header { kind, message: MessageHeader { word, .. }, grant, want, target, .. } = header;
            let (head, rest) = bytes.split_at(header.bytes);
            let mut again = match kind {
                FrameKind::Credit => credit().to_vec(),
                FrameKind::Fin => fin(word.into()).to_vec(),
                FrameKind::Settings => settings().to_vec(),
                FrameKind::Bundle => bundle(word).to_vec(),
                FrameKind::Handshake => Fragment::parse(&bytes).unwrap().emit(),
                _ => head.to_vec(),
            };
            if let (FrameKind::Credit, Some(released)) = (kind, header.released()) {
                again[WORD..SETTLED].copy_from_slice(&released.to_le_bytes());
            }
            again[SETTLED..HEADER].copy_from_slice(&Settled { grant, want, target }.emit());
            match kind {
                FrameKind::Fin => again.extend(Fin::parse_all(rest).flat_map(|fin| fin.unwrap().emit())),
                FrameKind::Settings => again.extend(Settings::parse(rest).unwrap().emit()),
                FrameKind::Handshake => {}
                FrameKind::Announcement => {
                    again.extend(Announcement::parse(rest).emit());
                    again.extend(&rest[ANNOUNCEMENT..]);
                }
                FrameKind::Bundle => {
                    for Bundled { header, time_left_us, contents } in
                        bundled(&bytes, word).map(Result::unwrap)
                    {
                        assert_eq!(time_left_us, 0, "no example has one");
                        let length = u32::try_from(HEADER + contents.len()).unwrap();
                        again.extend(&message(header, 0, length, None).0[..HEADER]);
                        again.extend(&bytes[contents]);
                    }
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
            FrameKind::Handshake,
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
        bundled(&bytes, header.message.word).map(|message| message.map(|message| message.contents)).collect()
    }

    #[test]
    fn bundle_omits_cancelled_messages() {
        let (short, long) = (in_bundle(0x10, 0, 8), in_bundle(0x40, flags::TIME_LEFT, 50));
        let void = in_bundle(VOID, flags::TIME_LEFT, 40);
        assert_eq!(in_bundles(1, std::slice::from_ref(&long)), Ok(std::iter::once(20..58).collect()));
        assert_eq!(in_bundles(3, &[short.clone(), void.clone(), long.clone()]), Ok(vec![16..16, 68..106]));
        assert_eq!(in_bundles(1, &[void]), Ok(vec![]));
        for (count, broken) in [
            (1, vec![]),
            (2, vec![long.clone()]),
            (1, vec![long.clone(), short]),
            (1, vec![long[..49].to_vec()]),
            (1, vec![long, vec![0x10; 7]]),
            (1, vec![in_bundle(0x40, flags::TIME_LEFT, 11)]),
            (1, vec![in_bundle(0x40, flags::ANNOUNCES, 80)]),
            (1, vec![in_bundle(0x40, flags::PHASE, 80)]),
            (1, vec![[&[0x10, 0, 0, 0, 7, 0, 0, 0][..], &[0; 8]].concat()]),
            (1, vec![[&[VOID, 0, 0, 0, 0, 0, 0, 0][..], &[0; 8]].concat()]),
        ] {
            assert!(in_bundles(count, &broken).is_err(), "{count} of {broken:?}");
        }
    }

    #[test]
    fn time_left_is_rounded_and_saturated_to_field() {
        let (now, after) = (Time(1_000_000), |time| Time(1_000_000) + Duration::from_micros(time));
        let cases = [
            (Time::MAX, u32::MAX),
            (Time(0), 0),
            (after(0), 0),
            (Time(1_000_001), 1),
            (Time(1_001_000), 1),
            (Time(1_001_001), 2),
            (after(5000), 5000),
            (after(4_294_967_294), u32::MAX - 1),
            (after(4_294_967_296), u32::MAX),
        ];
        for (deadline, expected) in cases {
            assert_eq!(u32::from_le_bytes(time_left(deadline, now)), expected, "{deadline:?}");
        }
    }

    #[test]
    fn message_headers_round_trip() {
        let header = MessageHeader { kind: 0x40, flags: 0x81, word: 0x1234 };
        for (set, left, kind, left_us) in [
            (0, None, FrameKind::Message, 0),
            (0, Some(7), FrameKind::Message, 7),
            (0, Some(0), FrameKind::Message, 1),
            (flags::ANNOUNCES, Some(u32::MAX), FrameKind::Announcement, 0),
        ] {
            let (bytes, size) = message(header, set, 0, left.map(u32::to_le_bytes));
            let parsed = Header::parse(&[&bytes[..size], &[0; ANNOUNCEMENT]].concat()).unwrap();
            assert_eq!((parsed.kind, parsed.message, parsed.time_left_us), (kind, header, left_us));
            assert_eq!(parsed.bytes, size);
        }
        let (bytes, _) = message(MessageHeader { flags: 0xff, ..header }, 0, 0, None);
        assert_eq!(bytes[1], 0xf1, "the transport's flags are its own");
    }

    #[test]
    fn frame_bodies_round_trip() {
        let request = Announcement { id: 1, body: u64::MAX, address: 3, rkey: 4, patience_ms: 5 };
        assert_eq!(Announcement::parse(&request.emit()), request);
        let fins = [Fin { id: 9, status: FinStatus::Read }, Fin { id: 10, status: FinStatus::Exhausted }];
        let bytes = fins.iter().flat_map(Fin::emit).collect::<Vec<_>>();
        assert!(Fin::parse_all(&bytes).map(Result::unwrap).eq(fins));
    }
}
