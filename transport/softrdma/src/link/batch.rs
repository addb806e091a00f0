//! Many datagrams in one buffer.
//!
//! Owns the bytes between the engine and a link. The device keeps one batch of each kind and reuses it, so
//! that a packet needs no allocation. A batch grows only with its datagrams. The device bounds sends: it
//! asks its QPs for no more packets once 64 wait that the link has no room for.
#![forbid(unsafe_code)]

use super::Verdict;
use std::net::SocketAddr;

/// Maximum length of a datagram on a link, in bytes: a payload of 4,096 bytes with all headers is at most
/// 4,096 + 96 (contract rocev2 3.3).
pub(crate) const MAX_DATAGRAM_BYTES: usize = 4352;

/// One datagram: its UDP payload, source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source address and port. A received datagram has its true source port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// The UDP payload, from BTH to ICRC.
    pub bytes: &'a [u8],
}

/// Source and destination of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends {
    source: SocketAddr,
    destination: SocketAddr,
}

/// The ends of a batch's datagrams. Consecutive datagrams mostly have the same ends, which are stored once.
#[derive(Debug, Default)]
struct EndsList(Vec<Ends>);

impl EndsList {
    /// Returns the index of the ends, for a datagram appended to the batch.
    fn index_of(&mut self, ends: Ends) -> usize {
        if self.0.last() != Some(&ends) {
            self.0.push(ends);
        }
        self.0.len() - 1
    }
}

/// Place of a datagram in the bytes of a batch.
#[derive(Debug, Clone, Copy)]
struct DatagramRange {
    /// Index of the datagram's ends.
    ends: usize,
    start: usize,
    length: usize,
    /// Origin of a received datagram.
    origin: Origin,
}

/// Consecutive datagrams with the same ends.
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

/// Sender of a received datagram, as the link knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    /// True if the sender is a member of this host's registry, by its address and port.
    pub(crate) is_member: bool,
    /// Verdict on the ICRC by the process that received the datagram, if there is one.
    pub(crate) verdict: Option<Verdict>,
}

/// Datagrams to send, in order.
#[derive(Debug, Default)]
pub struct SendBatch {
    bytes: Vec<u8>,
    ends: EndsList,
    entries: Vec<DatagramRange>,
    /// Index of the oldest entry; the entries before it were removed.
    first: usize,
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

    /// Appends a datagram whose bytes `write` appends to the given buffer; it must not change the existing
    /// bytes.
    pub fn push_with(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut write = Some(write);
        self.push_run(source, destination, 1, |bytes| write.take().map(|write| write(bytes)).is_some());
    }

    /// Like [`Self::push_with`], for up to `most` datagrams. Ends when the writer returns `false`, in which
    /// case its bytes are discarded. Returns the number of datagrams added.
    pub(crate) fn push_run(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
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
            let ends = *ends.get_or_insert_with(|| self.ends.index_of(Ends { source, destination }));
            let length = self.bytes.len().saturating_sub(start);
            self.entries.push(DatagramRange { ends, start, length, origin: Origin::default() });
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

    /// Returns the datagrams, oldest first, grouped by their ends.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        self.entries[self.first..].chunk_by(|one, next| one.ends == next.ends).map(|entries| {
            let Ends { source, destination } = self.ends.0[entries[0].ends];
            Run { source, destination, entries, bytes: &self.bytes }
        })
    }

    /// Returns the datagram at a position; 0 is the oldest.
    #[must_use]
    pub(crate) fn at(&self, position: usize) -> Option<Datagram<'_>> {
        self.entries.get(self.first + position).map(|entry| entry.of(&self.ends, &self.bytes))
    }

    /// Removes the `count` oldest datagrams.
    pub fn remove_first(&mut self, count: usize) {
        self.first = self.first.saturating_add(count).min(self.entries.len());
        if self.is_empty() {
            self.clear();
        }
    }

    /// Removes all datagrams, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.0.clear();
        self.entries.clear();
        self.first = 0;
    }

    /// Moves the entries to the front once more than half of the buffer is unused, so that a batch that is
    /// rarely empty does not grow indefinitely.
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
        self.first = 0;
    }
}

impl DatagramRange {
    fn of<'a>(&self, ends: &EndsList, bytes: &'a [u8]) -> Datagram<'a> {
        let Ends { source, destination } = ends.0[self.ends];
        Datagram { source, destination, bytes: self.bytes_in(bytes) }
    }

    fn bytes_in<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start..self.start + self.length]
    }
}

/// Received datagrams: a fixed number of slots of `MAX_DATAGRAM_BYTES`.
#[derive(Debug)]
pub struct ReceiveBatch {
    bytes: Vec<u8>,
    ends: EndsList,
    entries: Vec<DatagramRange>,
    /// Number of slots in use, including slots of discarded datagrams.
    used: usize,
    slots: usize,
}

impl ReceiveBatch {
    /// Creates a batch of up to `slots` datagrams.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let slots = slots.max(1);
        Self {
            bytes: vec![0; slots * MAX_DATAGRAM_BYTES],
            ends: EndsList::default(),
            entries: Vec::with_capacity(slots),
            used: 0,
            slots,
        }
    }

    /// Returns the maximum number of datagrams.
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
        self.used = 0;
    }

    /// Appends a copy of a datagram; returns false if the batch is full. For links and tests.
    pub fn push(&mut self, datagram: Datagram<'_>) -> bool {
        self.push_from(datagram, Origin::default())
    }

    /// Like [`Self::push`], with the datagram's origin.
    pub(super) fn push_from(&mut self, datagram: Datagram<'_>, origin: Origin) -> bool {
        let Datagram { source, destination, bytes } = datagram;
        if self.is_full() || bytes.len() > MAX_DATAGRAM_BYTES {
            return false;
        }
        let ends = self.ends.index_of(Ends { source, destination });
        self.push_bytes(ends, bytes, origin);
        true
    }

    /// Appends the first datagrams of another batch, up to the number of free slots. Returns the number
    /// taken. A datagram that is too long for its slot is left out.
    pub(super) fn fill(&mut self, from: &SendBatch) -> usize {
        let before = self.used;
        for run in from.runs() {
            let ends = self.ends.index_of(Ends { source: run.source, destination: run.destination });
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
        let (start, length) = (self.used * MAX_DATAGRAM_BYTES, bytes.len());
        self.bytes[start..start + length].copy_from_slice(bytes);
        self.entries.push(DatagramRange { ends, start, length, origin });
        self.used += 1;
    }

    /// Returns the number of slots in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Removes the datagrams from a position on for which `keep` returns false, and frees the slots after the
    /// last kept one. `keep` may change the origin.
    pub(super) fn retain_from(
        &mut self,
        position: usize,
        mut keep: impl FnMut(Datagram<'_>, &mut Origin) -> bool,
    ) {
        let first = self.entries.get(position).map(|entry| entry.start);
        let mut kept = position;
        for at in position..self.entries.len() {
            let mut entry = self.entries[at];
            let mut origin = entry.origin;
            if keep(entry.of(&self.ends, &self.bytes), &mut origin) {
                entry.origin = origin;
                self.entries[kept] = entry;
                kept += 1;
            }
        }
        self.entries.truncate(kept);
        let Some(first) = first else { return };
        let end = match self.entries.get(position..).and_then(<[DatagramRange]>::last) {
            Some(last) => last.start + MAX_DATAGRAM_BYTES,
            None => first,
        };
        self.used = end / MAX_DATAGRAM_BYTES;
    }

    /// Returns true if no slot is free.
    pub(super) fn is_full(&self) -> bool {
        self.used == self.slots
    }

    /// Returns the free slots, for a system call to write into.
    pub(super) fn free_slots(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used * MAX_DATAGRAM_BYTES..]
    }

    /// Takes the first free slot: it holds the described datagram, or data to ignore.
    pub(super) fn take_slot(&mut self, content: Option<(SocketAddr, SocketAddr, usize)>) {
        if self.is_full() {
            return;
        }
        if let Some((source, destination, length)) = content {
            let ends = self.ends.index_of(Ends { source, destination });
            let (start, length) = (self.used * MAX_DATAGRAM_BYTES, length.min(MAX_DATAGRAM_BYTES));
            self.entries.push(DatagramRange { ends, start, length, origin: Origin::default() });
        }
        self.used += 1;
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
    fn batch_that_is_never_empty_does_not_grow() {
        let mut batch = SendBatch::new();
        let to = |round: u32| SocketAddr::from(([127, 0, 0, 2], round.to_be_bytes()[3].into()));
        batch.push(Datagram { destination: to(0), ..datagram(&[0; 100]) });
        for round in 1..=10_000u32 {
            let byte = round.to_be_bytes()[3];
            batch.push(Datagram { destination: to(round), ..datagram(&[byte; 100]) });
            let first = batch.iter().next().unwrap();
            assert_eq!((first.bytes[0], first.destination), ((round - 1).to_be_bytes()[3], to(round - 1)));
            batch.remove_first(1);
            assert_eq!(batch.push_run(to(1), to(2), 9, |_| false), 0);
        }
        assert_eq!(batch.len(), 1);
        assert!(batch.bytes.capacity() < 100_000, "{}", batch.bytes.capacity());
        assert!(batch.ends.0.capacity() < 1_000, "{}", batch.ends.0.capacity());
    }

    #[test]
    fn slots_after_last_kept_datagram_are_free_again() {
        let mut batch = ReceiveBatch::new(5);
        for byte in 0..5 {
            assert!(batch.push(datagram(&[byte])));
        }
        batch.retain_from(1, |datagram, _| datagram.bytes[0] % 2 == 0);
        assert_eq!(batch.iter().map(|datagram| datagram.bytes[0]).collect::<Vec<_>>(), [0, 2, 4]);
        assert!(batch.is_full());
        batch.retain_from(1, |datagram, _| datagram.bytes[0] == 2);
        assert_eq!((batch.len(), batch.used()), (2, 3));
        batch.retain_from(2, |_, _| false);
        assert_eq!((batch.len(), batch.used()), (2, 3));
        batch.retain_from(1, |_, _| false);
        assert!(batch.push(datagram(b"x")));
        assert_eq!(batch.iter().map(|datagram| datagram.bytes[0]).collect::<Vec<_>>(), [0, b'x']);
    }

    #[test]
    fn batch_is_filled_in_order_and_as_far_as_it_has_slots() {
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
        batch.take_slot(None);
        assert!(!batch.push(datagram(b"three")), "the ignored slot counts");
        assert_eq!(batch.iter().map(|datagram| datagram.bytes).collect::<Vec<_>>(), [b"one"]);
        batch.clear();
        assert!(!batch.push(datagram(&[0; MAX_DATAGRAM_BYTES + 1])));
        assert!(batch.push(datagram(&[7; MAX_DATAGRAM_BYTES])));
        assert_eq!(batch.iter().next().unwrap().bytes, [7; MAX_DATAGRAM_BYTES]);
    }
}
