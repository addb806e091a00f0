//! Batches of datagrams, each in one buffer.
//!
//! Owns the bytes between the engine and a link. The device reuses one batch of each kind, so that packets do
//! not need allocations. A batch grows only with the number of its datagrams. The device limits this number,
//! since it stops serving QPs while 64 packets wait for room on the link.
#![forbid(unsafe_code)]

use super::Verdict;
use std::net::SocketAddr;
use trunkline_roce::wire::ICRC_LENGTH;
use trunkline_roce::wire::icrc::{MAX_SEGMENTS, SegmentDifferences};

/// Maximum length of a datagram on a link, in bytes. A payload of 4,096 bytes with all headers takes at most
/// 4,096 + 96 bytes (contract rocev2 3.3).
pub(crate) const MAX_DATAGRAM_BYTES: usize = 4352;

/// Maximum total length of the segments sent with one call, in bytes, which is the largest UDP payload of an IPv4
/// packet.
const MAX_MESSAGE_BYTES: usize = 65_507;
/// Maximum length of a datagram that passes on each path, in bytes: the payload of the smallest path MTU and all headers. Such
/// a datagram does not share a message with larger ones. A router that gets the message undivided, as on veth interfaces,
/// drops it whole if the first datagram is too large, and the peer's acknowledgements must arrive even then.
const SMALL_BYTES: usize = 256 + 64;
/// Size of a buffer for segments that the kernel has joined, in bytes. It is not a multiple of the page size, so
/// that successive receives do not use the same cache sets.
pub(super) const JOINED_BYTES: usize = 65_536 + 256;
/// Number of these buffers. Together they take less than 2 MiB, so that the kernel does not back them with a
/// mostly unused huge page.
pub(super) const JOINED_SLOTS: usize = 31;

/// A datagram with its source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// The UDP payload, from BTH to ICRC.
    pub bytes: &'a [u8],
}

/// Segmentation of datagrams. One call can send several segmented datagrams, which get the identifications 0,
/// 1, 2 and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segmentation {
    /// Each datagram is sent with a separate call.
    No,
    /// Segmented; the ICRCs do not cover the IPv4 identification.
    Plain,
    /// Segmented; the ICRCs cover the IPv4 identification.
    Numbered,
}

/// Source and destination of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends {
    source: SocketAddr,
    destination: SocketAddr,
    segmentation: Segmentation,
}

impl Ends {
    fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        Self { source, destination, segmentation: Segmentation::No }
    }
}

/// Endpoints of a batch's datagrams, stored once for consecutive datagrams with the same endpoints.
#[derive(Debug, Default)]
struct EndsList(Vec<Ends>);

impl EndsList {
    /// Returns the index of the endpoints, and appends them unless they are the last ones.
    fn index_of(&mut self, ends: Ends) -> usize {
        if self.0.last() != Some(&ends) {
            self.0.push(ends);
        }
        self.0.len() - 1
    }
}

/// Position of a datagram in the bytes of a batch.
#[derive(Debug, Clone, Copy)]
struct DatagramRange {
    /// Index of the datagram's endpoints.
    ends: usize,
    start: usize,
    length: usize,
    /// Number of segments that precede the datagram in its message.
    segment: u16,
    /// Origin of a received datagram.
    origin: Origin,
}

/// Datagrams sent with one call. All have the same length, except that the last may be shorter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) destination: SocketAddr,
    /// The UDP payloads, concatenated.
    pub(crate) bytes: &'a [u8],
    /// Length of the first payload, in bytes.
    pub(crate) segment_bytes: usize,
    /// Number of datagrams.
    pub(crate) count: usize,
}

/// Consecutive datagrams with the same endpoints.
pub(super) struct Run<'a> {
    /// Source address and port.
    pub(super) source: SocketAddr,
    /// Destination address and port.
    pub(super) destination: SocketAddr,
    entries: &'a [DatagramRange],
    bytes: &'a [u8],
}

impl<'a> Run<'a> {
    /// Returns the UDP payloads.
    pub(super) fn payloads(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.entries.iter().map(move |entry| entry.bytes_in(bytes))
    }
}

/// Information from the link about a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    /// True if the source address and port belong to a member of this host's registry.
    pub(crate) is_member: bool,
    /// Result of the ICRC check in the process that received the datagram, if it made one.
    pub(crate) verdict: Option<Verdict>,
    /// True if the network has marked the datagram because of congestion (ECN's CE).
    pub(crate) is_marked: bool,
}

/// Datagrams to send, in order.
#[derive(Debug, Default)]
pub struct SendBatch {
    bytes: Vec<u8>,
    ends: EndsList,
    entries: Vec<DatagramRange>,
    /// Index of the oldest entry. Earlier entries were removed.
    first: usize,
    /// Index of the first entry that [`SendBatch::segment`] has not handled.
    unseen: usize,
    differences: SegmentDifferences,
}

impl SendBatch {
    /// Creates an empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of datagrams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.first
    }

    /// Returns true if the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a datagram. `write` appends the datagram's bytes to the given buffer, and must not change its
    /// existing content.
    pub fn push_with(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut write = Some(write);
        let write = |bytes: &mut Vec<u8>| write.take().map(|write| write(bytes)).is_some();
        self.push_run(source, destination, Segmentation::No, 1, write);
    }

    /// Appends up to `most` datagrams as [`Self::push_with`] does. Stops when `write` returns `false`, and
    /// discards the bytes of that call. Returns the number of datagrams added.
    pub(crate) fn push_run(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        segmentation: Segmentation,
        most: usize,
        mut write: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> usize {
        self.make_room();
        let mut ends = None;
        for count in 0..most {
            let start = self.bytes.len();
            if !write(&mut self.bytes) {
                self.bytes.truncate(start);
                return count;
            }
            debug_assert!(self.bytes.len() >= start, "the writer of a datagram removed others");
            let ends =
                *ends.get_or_insert_with(|| self.ends.index_of(Ends { source, destination, segmentation }));
            let length = self.bytes.len().saturating_sub(start);
            self.entries.push(DatagramRange { ends, start, length, segment: 0, origin: Origin::default() });
        }
        most
    }

    /// Appends a copy of a datagram.
    pub fn push(&mut self, datagram: Datagram<'_>) {
        self.push_with(datagram.source, datagram.destination, |bytes| {
            bytes.extend_from_slice(datagram.bytes)
        });
    }

    /// Returns the datagrams, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> + DoubleEndedIterator {
        self.entries[self.first..].iter().map(|entry| entry.of(&self.ends, &self.bytes))
    }

    /// Returns the datagrams, oldest first, grouped by endpoints.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.entries[self.first..].chunk_by(|one, next| one.ends == next.ends).map(|entries| {
            let Ends { source, destination, .. } = self.ends.0[entries[0].ends];
            Run { source, destination, entries, bytes: &self.bytes }
        })
    }

    /// Returns the datagram at a position; 0 is the oldest.
    #[must_use]
    pub(crate) fn at(&self, position: usize) -> Option<Datagram<'_>> {
        self.entries.get(self.first + position).map(|entry| entry.of(&self.ends, &self.bytes))
    }

    /// Returns the datagrams with their identifications, oldest first.
    pub(super) fn iter_with_identification(&self) -> impl Iterator<Item = (Datagram<'_>, u16)> {
        let entries = &self.entries[self.first..];
        entries.iter().map(|entry| (entry.of(&self.ends, &self.bytes), self.identification(entry)))
    }

    fn identification(&self, entry: &DatagramRange) -> u16 {
        let is_numbered = self.ends.0[entry.ends].segmentation == Segmentation::Numbered;
        if is_numbered { entry.segment } else { 0 }
    }

    /// Combines the datagrams appended since the last call into messages, if their segmentation permits it and
    /// `can_segment` returns true for their source address. Returns the number of datagrams in these messages.
    pub(super) fn segment(&mut self, mut can_segment: impl FnMut(SocketAddr) -> bool) -> usize {
        let mut joined = 0;
        let mut at = self.unseen.max(self.first);
        self.unseen = self.entries.len();
        while at < self.entries.len() {
            let ends = self.entries[at].ends;
            let run = self.entries[at..].iter().take_while(|entry| entry.ends == ends).count();
            let Ends { source, segmentation, .. } = self.ends.0[ends];
            if run > 1 && segmentation != Segmentation::No && can_segment(source) {
                joined += self.segment_run(at, run, segmentation == Segmentation::Numbered);
            }
            at += run;
        }
        joined
    }

    /// Combines datagrams with the same endpoints into messages.
    fn segment_run(&mut self, from: usize, count: usize, is_numbered: bool) -> usize {
        let mut joined = 0;
        let (mut segment, mut segment_bytes, mut message_bytes) = (0, 0, 0);
        for at in from..from + count {
            let DatagramRange { start, length, .. } = self.entries[at];
            // A segment that is shorter than the first can only be the last.
            let is_next = segment > 0
                && segment < MAX_SEGMENTS
                && length <= segment_bytes
                && (length > SMALL_BYTES || segment_bytes <= SMALL_BYTES)
                && message_bytes % segment_bytes == 0
                && message_bytes + length <= MAX_MESSAGE_BYTES;
            if !is_next {
                (segment, segment_bytes, message_bytes) = (0, length.max(1), 0);
            }
            if segment > 0 {
                joined += if segment == 1 { 2 } else { 1 };
                self.entries[at].segment = segment;
                if is_numbered {
                    let difference = self.differences.of(segment, length);
                    add_to_icrc(&mut self.bytes[start..start + length], difference);
                }
            }
            segment += 1;
            message_bytes += length;
        }
        joined
    }

    /// Makes each datagram a separate message again, as before [`SendBatch::segment`].
    pub(super) fn unsegment(&mut self) {
        for at in self.first..self.entries.len() {
            let DatagramRange { start, length, .. } = self.entries[at];
            let identification = self.identification(&self.entries[at]);
            if identification != 0 {
                let difference = self.differences.of(identification, length);
                add_to_icrc(&mut self.bytes[start..start + length], difference);
            }
            self.entries[at].segment = 0;
        }
    }

    /// Returns the messages in the first `count` datagrams, oldest first.
    pub(crate) fn messages(&self, count: usize) -> impl Iterator<Item = Message<'_>> {
        let entries = &self.entries[self.first..self.entries.len().min(self.first + count)];
        entries.chunk_by(|_, next| next.segment > 0).map(|message| {
            let (first, last) = (&message[0], &message[message.len() - 1]);
            Message {
                destination: self.ends.0[first.ends].destination,
                bytes: &self.bytes[first.start..last.start + last.length],
                segment_bytes: first.length,
                count: message.len(),
            }
        })
    }

    /// Returns the number of datagrams in the first message.
    pub(super) fn first_message(&self) -> usize {
        self.messages(usize::from(MAX_SEGMENTS)).next().map_or(0, |message| message.count)
    }

    /// Removes the `count` oldest datagrams.
    pub fn remove_first(&mut self, count: usize) {
        self.first = self.first.saturating_add(count).min(self.entries.len());
        if self.is_empty() {
            self.clear();
        }
    }

    /// Removes all datagrams, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.0.clear();
        self.entries.clear();
        self.first = 0;
        self.unseen = 0;
    }

    /// Moves the entries to the front when at least half of the buffer is unused, so that a batch that is
    /// rarely empty does not grow without limit.
    fn make_room(&mut self) {
        if self.first < 64 || self.first * 2 < self.entries.len() {
            return;
        }
        let Some(&DatagramRange { ends, start, .. }) = self.entries.get(self.first) else {
            return self.clear();
        };
        self.bytes.drain(..start);
        self.ends.0.drain(..ends);
        self.entries.drain(..self.first);
        for entry in &mut self.entries {
            entry.start -= start;
            entry.ends -= ends;
        }
        self.unseen = self.unseen.saturating_sub(self.first);
        self.first = 0;
    }
}

/// Adds the difference of two ICRCs to the ICRC of a packet.
fn add_to_icrc(packet: &mut [u8], difference: u32) {
    if let Some(icrc) = packet.last_chunk_mut::<ICRC_LENGTH>() {
        *icrc = (u32::from_le_bytes(*icrc) ^ difference).to_le_bytes();
    }
}

impl DatagramRange {
    fn of<'a>(&self, ends: &EndsList, bytes: &'a [u8]) -> Datagram<'a> {
        let Ends { source, destination, .. } = ends.0[self.ends];
        Datagram { source, destination, bytes: self.bytes_in(bytes) }
    }

    fn bytes_in<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start..self.start + self.length]
    }
}

/// Alignment of a datagram that is received after a discarded one.
const ALIGNMENT: usize = 64;

/// A received message, which may contain several datagrams.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedBytes {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) length: usize,
    /// Length of each datagram except the last, in bytes.
    pub(super) segment_bytes: usize,
    /// True if the network has marked the datagrams.
    pub(super) is_marked: bool,
}

/// Received datagrams. Their number is limited, except that segments received in one message may exceed it.
#[derive(Debug)]
pub struct ReceiveBatch {
    bytes: Vec<u8>,
    ends: EndsList,
    entries: Vec<DatagramRange>,
    /// Number of bytes in use.
    end: usize,
    /// Number of slots in use, including slots of datagrams that were too long.
    used: usize,
    slots: usize,
    /// Number of free bytes that a receive requires.
    slot_bytes: usize,
}

impl ReceiveBatch {
    /// Creates a batch for up to `slots` datagrams, but at least one.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let slots = slots.max(1);
        Self {
            bytes: vec![0; slots * MAX_DATAGRAM_BYTES],
            ends: EndsList::default(),
            entries: Vec::with_capacity(slots),
            end: 0,
            used: 0,
            slots,
            slot_bytes: MAX_DATAGRAM_BYTES,
        }
    }

    /// Returns the capacity in datagrams.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots
    }

    /// Returns the number of datagrams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the datagrams in the order of their arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        self.entries.iter().map(|entry| entry.of(&self.ends, &self.bytes))
    }

    /// Returns the datagrams with their origins.
    pub(crate) fn iter_with_origin(&self) -> impl ExactSizeIterator<Item = (Datagram<'_>, Origin)> {
        self.entries.iter().map(|entry| (entry.of(&self.ends, &self.bytes), entry.origin))
    }

    /// Removes all datagrams.
    pub fn clear(&mut self) {
        self.ends.0.clear();
        self.entries.clear();
        (self.end, self.used) = (0, 0);
    }

    /// Appends a copy of a datagram. Returns false if the batch is full or the datagram is too long.
    pub fn push(&mut self, datagram: Datagram<'_>) -> bool {
        self.push_from(datagram, Origin::default())
    }

    /// Appends a copy of a datagram with its origin. See [`ReceiveBatch::push`].
    pub(crate) fn push_from(&mut self, datagram: Datagram<'_>, origin: Origin) -> bool {
        let Datagram { source, destination, bytes } = datagram;
        if self.is_full() || bytes.len() > MAX_DATAGRAM_BYTES {
            return false;
        }
        let ends = self.ends.index_of(Ends::new(source, destination));
        self.push_bytes(ends, bytes, origin);
        true
    }

    /// Appends the first datagrams of another batch, up to the number of free slots. A datagram that is too
    /// long for a slot is dropped. Returns the number of datagrams taken, including dropped ones.
    pub(super) fn fill(&mut self, from: &SendBatch) -> usize {
        let before = self.used;
        for run in from.runs() {
            let ends = self.ends.index_of(Ends::new(run.source, run.destination));
            for bytes in run.payloads() {
                if self.is_full() {
                    return self.used - before;
                }
                if bytes.len() > MAX_DATAGRAM_BYTES {
                    self.used += 1;
                } else {
                    self.push_bytes(ends, bytes, Origin::default());
                }
            }
        }
        self.used - before
    }

    /// Copies a datagram to the first free slot.
    fn push_bytes(&mut self, ends: usize, bytes: &[u8], origin: Origin) {
        let (start, length) = (self.end, bytes.len());
        self.bytes[start..start + length].copy_from_slice(bytes);
        self.entries.push(DatagramRange { ends, start, length, segment: 0, origin });
        self.used += 1;
        self.end += MAX_DATAGRAM_BYTES;
    }

    /// Returns the number of slots in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Removes the datagrams from `position` on for which `keep` returns false, and frees the bytes after the
    /// last one that is kept. `keep` may change the origin.
    pub(super) fn retain_from(
        &mut self,
        position: usize,
        mut keep: impl FnMut(Datagram<'_>, &mut Origin) -> bool,
    ) {
        let Some(first) = self.entries.get(position).map(|entry| entry.start) else { return };
        let (mut kept, mut end) = (position, first);
        for at in position..self.entries.len() {
            let mut entry = self.entries[at];
            let mut origin = entry.origin;
            if keep(entry.of(&self.ends, &self.bytes), &mut origin) {
                entry.origin = origin;
                self.entries[kept] = entry;
                kept += 1;
                end = entry.start + entry.length;
            }
        }
        let discarded = self.entries.len() - kept;
        if discarded > 0 {
            self.entries.truncate(kept);
            self.used -= discarded;
            self.end = end.next_multiple_of(ALIGNMENT).min(self.end);
        }
    }

    /// Returns true if further datagrams cannot be received.
    pub(super) fn is_full(&self) -> bool {
        self.room() == 0 || self.bytes.len() - self.end < self.slot_bytes
    }

    /// Returns the number of datagrams that can still be received.
    pub(super) fn room(&self) -> usize {
        self.slots.saturating_sub(self.used)
    }

    /// Reserves address space for [`JOINED_SLOTS`] receives of [`JOINED_BYTES`]. Only touched pages take
    /// memory.
    pub(super) fn make_room_for_joined(&mut self) {
        if self.slot_bytes < JOINED_BYTES {
            let mut bytes = vec![0; JOINED_SLOTS * JOINED_BYTES];
            bytes[..self.end].copy_from_slice(&self.bytes[..self.end]);
            (self.bytes, self.slot_bytes) = (bytes, JOINED_BYTES);
        }
    }

    /// Returns the free bytes, into which a system call writes.
    pub(super) fn free_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Marks the first `slot_bytes` free bytes as used. They contain the datagrams of `received`, or are skipped
    /// if it is `None`. Returns the number of datagrams.
    pub(super) fn take(&mut self, slot_bytes: usize, received: Option<ReceivedBytes>) -> usize {
        let begin = self.end;
        self.end = (begin + slot_bytes).min(self.bytes.len());
        let Some(ReceivedBytes { source, destination, length, segment_bytes, is_marked }) = received else {
            self.used += 1;
            return 1;
        };
        let origin = Origin { is_marked, ..Origin::default() };
        let ends = self.ends.index_of(Ends::new(source, destination));
        let (end, segment_bytes) = (self.end.min(begin + length), segment_bytes.max(1));
        let before = self.entries.len();
        let mut start = begin;
        loop {
            let length = segment_bytes.min(end - start);
            self.entries.push(DatagramRange { ends, start, length, segment: 0, origin });
            start += length;
            if start >= end {
                break;
            }
        }
        let count = self.entries.len() - before;
        self.used += count;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(bytes: &[u8]) -> Datagram<'_> {
        Datagram {
            source: "127.0.0.1:4791".parse().unwrap(),
            destination: "127.0.0.2:4791".parse().unwrap(),
            bytes,
        }
    }

    #[test]
    fn memory_of_never_empty_batch_is_bounded() {
        let mut batch = SendBatch::new();
        let to = |round: u32| SocketAddr::from(([127, 0, 0, 2], round.to_be_bytes()[3].into()));
        batch.push(Datagram { destination: to(0), ..datagram(&[0; 100]) });
        for round in 1..=10_000u32 {
            let byte = round.to_be_bytes()[3];
            batch.push(Datagram { destination: to(round), ..datagram(&[byte; 100]) });
            let first = batch.iter().next().unwrap();
            assert_eq!((first.bytes[0], first.destination), ((round - 1).to_be_bytes()[3], to(round - 1)));
            batch.remove_first(1);
            assert_eq!(batch.push_run(to(1), to(2), Segmentation::No, 9, |_| false), 0);
        }
        assert_eq!(batch.len(), 1);
        assert!(batch.bytes.capacity() < 100_000, "{}", batch.bytes.capacity());
        assert!(batch.ends.0.capacity() < 1_000, "{}", batch.ends.0.capacity());
    }

    #[test]
    fn datagrams_of_one_length_and_destination_become_messages() {
        let (to, other) = (datagram(b"").destination, "127.0.0.3:4791".parse().unwrap());
        let mut batch = SendBatch::new();
        let mut push = |destination, segmentation, lengths: &[usize]| {
            let mut lengths = lengths.iter();
            let source = datagram(b"").source;
            batch.push_run(source, destination, segmentation, lengths.len(), |out| {
                lengths.next().map(|length| out.resize(out.len() + length, 7)).is_some()
            });
        };
        push(to, Segmentation::Numbered, &[100, 100, 60, 60, 100, 100, 104]);
        push(to, Segmentation::No, &[104, 104]);
        push(other, Segmentation::Plain, &[20; 66]);
        push(to, Segmentation::Numbered, &[4112; 16]);
        let before: Vec<_> = batch.iter().map(|datagram| datagram.bytes.to_vec()).collect();
        let counts =
            |batch: &SendBatch| batch.messages(batch.len()).map(|message| message.count).collect::<Vec<_>>();
        assert_eq!(batch.segment(|_| true), 3 + 2 + 66 + 15);
        assert_eq!(counts(&batch), [3, 1, 2, 1, 1, 1, 64, 2, 15, 1]);
        assert_eq!(batch.segment(|_| true), 0, "they were seen");
        let identifications: Vec<_> = batch.iter_with_identification().map(|(_, of)| of).collect();
        assert_eq!(identifications[..9], [0, 1, 2, 0, 0, 1, 0, 0, 0]);
        assert_eq!(identifications[9..75], [0; 66], "not covered");
        assert_eq!(identifications[75..], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0]);
        batch.unsegment();
        assert_eq!(counts(&batch), [1; 91]);
        assert!(batch.iter().map(|datagram| datagram.bytes).eq(before.iter()));
    }

    #[test]
    fn slots_after_last_kept_datagram_are_free_again() {
        let mut batch = ReceiveBatch::new(5);
        for byte in 0..5 {
            assert!(batch.push(datagram(&[byte])));
        }
        batch.retain_from(1, |datagram, _| datagram.bytes[0] % 2 == 0);
        assert_eq!(batch.iter().map(|datagram| datagram.bytes[0]).collect::<Vec<_>>(), [0, 2, 4]);
        assert!(batch.is_full(), "the last one was kept");
        batch.retain_from(1, |datagram, _| datagram.bytes[0] == 2);
        assert_eq!((batch.len(), batch.used()), (2, 2));
        batch.retain_from(2, |_, _| false);
        assert_eq!((batch.len(), batch.used()), (2, 2));
        batch.retain_from(1, |_, _| false);
        assert!(batch.push(datagram(b"x")));
        assert_eq!(batch.iter().map(|datagram| datagram.bytes[0]).collect::<Vec<_>>(), [0, b'x']);
    }

    #[test]
    fn batch_without_room_for_joined_message_is_full() {
        let mut batch = ReceiveBatch::new(64);
        assert!(batch.push(datagram(b"relayed")));
        batch.make_room_for_joined();
        let mut taken = 0;
        while !batch.is_full() {
            assert!(batch.free_bytes().len() >= JOINED_BYTES);
            batch.free_bytes()[..3].copy_from_slice(b"abc");
            let Datagram { source, destination, .. } = datagram(b"");
            let received =
                ReceivedBytes { source, destination, length: 3, segment_bytes: 2, is_marked: false };
            assert_eq!(batch.take(JOINED_BYTES, Some(received)), 2);
            taken += 1;
        }
        assert_eq!(taken, JOINED_SLOTS - 1);
        let content: Vec<_> = batch.iter().map(|datagram| datagram.bytes).collect();
        assert_eq!((content.len(), &content[..3]), (61, &[&b"relayed"[..], b"ab", b"c"][..]));
    }

    #[test]
    fn batch_is_filled_in_order_up_to_number_of_slots() {
        let mut from = SendBatch::new();
        let to = |port| SocketAddr::from(([127, 0, 0, 2], port));
        let too_long = vec![0; MAX_DATAGRAM_BYTES + 1];
        for (port, bytes) in [(1, &b"a"[..]), (1, b"b"), (2, &too_long), (2, b"c"), (1, b"d")] {
            from.push(Datagram { destination: to(port), ..datagram(bytes) });
        }
        let content = |batch: &ReceiveBatch| {
            batch.iter().map(|datagram| (datagram.destination.port(), datagram.bytes[0])).collect::<Vec<_>>()
        };
        let mut batch = ReceiveBatch::new(4);
        assert_eq!(batch.fill(&from), 4);
        assert_eq!(content(&batch), [(1, b'a'), (1, b'b'), (2, b'c')]);
        from.remove_first(4);
        batch.clear();
        assert_eq!(batch.fill(&from), 1);
        assert_eq!(content(&batch), [(1, b'd')]);
    }

    #[test]
    fn receive_batch_holds_one_datagram_per_slot() {
        let mut batch = ReceiveBatch::new(2);
        assert!(batch.push(datagram(b"one")));
        batch.take(MAX_DATAGRAM_BYTES, None);
        assert!(!batch.push(datagram(b"three")), "the ignored slot counts");
        assert_eq!(batch.iter().map(|datagram| datagram.bytes).collect::<Vec<_>>(), [b"one"]);
        batch.clear();
        assert!(!batch.push(datagram(&[0; MAX_DATAGRAM_BYTES + 1])));
        assert!(batch.push(datagram(&[7; MAX_DATAGRAM_BYTES])));
        assert_eq!(batch.iter().next().unwrap().bytes, [7; MAX_DATAGRAM_BYTES]);
    }
}
