//! Large messages, which the receiver READs from the sender's memory.
//!
//! ```text
//! sender                               receiver
//! request (head, address, rkey) -----> waits for memory, within the request's patience
//!        <----- READ in pieces --------
//!        <----- FIN -------------------  message passed on
//! source freed, Delivered
//! ```
//!
//! This module keeps the records of both sides for one trunk. The trunk transfers bytes and frames.
#![forbid(unsafe_code)]

use crate::buffer::{Announced, Block, MOST_WRITING};
use crate::messages::DeliveryReport;
use crate::trunk::seal::ContentSeal;
use crate::wire::frame::FrameError;
use crate::{Body, Message, MessageHeader, Screening};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use trunkline_verbs::{IoAddress, ReadAllowance, RemoteAddress, Rkey, Sge, Time};

/// Maximum size of one READ, in bytes.
pub(crate) const PIECE: usize = 256 << 10;
/// Maximum number of a trunk's concurrent READs on a path without congestion control. Later work requests, including
/// small messages, wait until the last READ is sent, so the total size of the READs must be small. With a single
/// READ, the network would be idle while its completion is handled.
const READS_OUT: u32 = 2;
/// Maximum number of a trunk's concurrent READs on a path with congestion control. About four fit in the window of
/// the path.
pub(crate) const MOST_READS: u32 = 8;
const _: () =
    assert!(PIECE * READS_OUT as usize <= 512 << 10, "a small message waits for at most 512 KiB of READs");
const _: () = assert!(MOST_READS as usize <= MOST_WRITING, "a block takes all READs of its trunk");
/// Maximum number of requests without a FIN per lane. Further requests wait in the lane's queue. A receiver refuses a
/// larger number.
pub(crate) const REQUESTS_PER_LANE: u32 = 64;
/// Time for which a receiver may wait for memory when the message has no deadline.
pub(crate) const PATIENCE_MS: u32 = 30_000;

/// A message that is being READ.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) lane: usize,
    /// Number of the message, assigned by the sender.
    pub(crate) id: u64,
    pub(crate) header: MessageHeader,
    pub(crate) time_left_us: u32,
    /// Part of the contents that arrived with the announcement, until memory for the message is allocated.
    pub(crate) head: Option<Message>,
    /// Size of `head`, in bytes.
    pub(crate) head_bytes: usize,
    pub(crate) body_bytes: usize,
    /// Decision of the driver; `None` until the driver decides, within the round in which the frame arrived.
    pub(crate) screening: Option<Screening>,
    pub(crate) from: RemoteAddress,
    /// Time at which the sink stops waiting for memory.
    pub(crate) deadline: Time,
    pub(crate) block: Option<Block>,
    pub(crate) asked: usize,
    pub(crate) read: usize,
    /// Seal of the body; `None` if the body is not sealed.
    pub(crate) seal: Option<ContentSeal>,
    /// Number of decrypted bytes of the body.
    pub(crate) opened: usize,
}

impl Sink {
    /// Returns the size of the whole message, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.head_bytes + self.body_bytes
    }

    /// Returns the number of bytes to READ.
    fn body_to_read(&self) -> usize {
        self.seal.as_ref().map_or(self.body_bytes, |seal| seal.sealed(self.body_bytes))
    }

    /// Returns the memory that the message takes, in bytes.
    fn memory(&self) -> usize {
        self.head_bytes + self.body_to_read()
    }

    /// Returns the number of bytes in complete pieces that were READ and not decrypted yet.
    pub(crate) fn unopened(&self) -> usize {
        let Some(seal) = &self.seal else { return 0 };
        let whole = if self.read == self.body_to_read() {
            self.body_bytes
        } else {
            self.read / seal.sealed(seal.piece()) * seal.piece()
        };
        whole - self.opened
    }

    /// Decrypts pieces of at least `bytes` bytes in total. Each piece moves to its place in the message.
    ///
    /// # Errors
    /// Returns an error if a piece differs from the one that the peer sealed.
    pub(crate) fn open(&mut self, bytes: usize) -> Result<(), FrameError> {
        let end = self.opened + bytes.min(self.unopened());
        let (Some(seal), Some(block)) = (&mut self.seal, &mut self.block) else { return Ok(()) };
        while self.opened < end {
            let length = seal.piece().min(self.body_bytes - self.opened);
            let to = self.head_bytes + self.opened;
            let from = self.head_bytes + seal.sealed(self.opened);
            let piece = to..self.head_bytes + seal.sealed(self.opened + length);
            let opened = block.change(piece, |piece| seal.open(piece, from - to));
            opened.unwrap_or(Err(FrameError::Broken("piece of a large message that is still being READ")))?;
            self.opened += length;
        }
        Ok(())
    }

    /// Takes memory for the whole message, and copies the head into it.
    fn feed(&mut self, block: Block) {
        if let Some(head) = self.head.take() {
            block.write(0, head.as_slice());
        }
        self.block = Some(block);
    }

    /// Returns the size of the next piece to READ, at most `most` bytes.
    fn next_length(&self, most: usize) -> u32 {
        let piece = self.seal.as_ref().map_or(PIECE, |seal| seal.sealed(PIECE));
        let length = (self.body_to_read() - self.asked).min(piece).min(most);
        u32::try_from(length).unwrap_or(0)
    }

    /// Returns the destination and source of the next piece to READ, which has this size.
    fn next_piece(&mut self, length: u32) -> Option<(Sge, RemoteAddress)> {
        if length == 0 {
            return None;
        }
        let sge = self.block.as_mut()?.writable(self.head_bytes + self.asked, length)?;
        let address = IoAddress(self.from.address.0.wrapping_add(self.asked as u64));
        self.asked += length as usize;
        Some((sge, RemoteAddress { address, rkey: Rkey(self.from.rkey.0) }))
    }

    /// Returns true if READs for all pieces were returned by `next_piece`.
    fn is_asked(&self) -> bool {
        self.asked == self.body_to_read()
    }

    /// Counts a completed READ of `bytes` bytes. Returns true if it was the last READ of the message.
    fn piece_read(&mut self, bytes: u32) -> bool {
        if let Some(block) = &mut self.block {
            block.written();
        }
        self.read += bytes as usize;
        self.read == self.body_to_read()
    }
}

/// A READ to post.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Key of the sink, for the completion of the READ.
    pub(crate) sink: usize,
    pub(crate) lane: usize,
    pub(crate) to: Sge,
    pub(crate) from: RemoteAddress,
}

/// All sinks of one trunk.
#[derive(Debug)]
pub(crate) struct Sinks {
    open: Slab<Sink>,
    /// Sinks that wait for memory, in order.
    unfed: VecDeque<usize>,
    /// Sinks with pieces left to READ, in order.
    reading: VecDeque<usize>,
    /// Sinks with pieces that were READ and not decrypted, in order.
    unopened: VecDeque<usize>,
    /// Number of READs that the device has not completed.
    reads_out: u32,
    /// Maximum number of concurrent READs.
    read_depth: u32,
}

impl Sinks {
    /// Creates the sinks of a trunk with at most `read_depth` outstanding READs.
    pub(crate) fn new(read_depth: u32) -> Self {
        let (unfed, reading, unopened) = Default::default();
        Self { open: Slab::new(), unfed, reading, unopened, reads_out: 0, read_depth }
    }

    /// Adds a sink, which waits for memory.
    pub(crate) fn add(&mut self, sink: Sink) {
        let key = self.open.insert(sink);
        self.unfed.push_back(key);
    }

    /// Returns the size of the oldest message that waits for memory, among the messages that `is_it` selects by
    /// their first part.
    pub(crate) fn waiting_bytes(&self, is_it: &dyn Fn(&Message) -> bool) -> Option<usize> {
        let waiting = self.unfed.iter().filter_map(|&key| self.open.get(key));
        let mut chosen = waiting.filter(|sink| sink.head.as_ref().is_some_and(is_it));
        chosen.next().map(Sink::bytes)
    }

    /// Returns the number of sinks for messages from this poller of the peer.
    pub(crate) fn count_of(&self, lane: usize) -> usize {
        self.open.iter().filter(|(_, sink)| sink.lane == lane).count()
    }

    /// Returns the oldest sink that waits for a decision.
    pub(crate) fn unscreened(&mut self) -> Option<&mut Sink> {
        let (_, key) = self.first_unscreened()?;
        self.open.get_mut(key)
    }

    /// Applies a decision to the oldest sink that waits for one. Returns the sink if it is refused.
    pub(crate) fn screened(&mut self, frame: Message, screening: Screening) -> Option<Sink> {
        let (place, key) = self.first_unscreened()?;
        if screening == Screening::Refused {
            self.unfed.remove(place);
            return Some(self.open.remove(key));
        }
        if let Some(sink) = self.open.get_mut(key) {
            (sink.head, sink.screening) = (Some(frame), Some(screening));
        }
        None
    }

    /// Returns the position in `unfed`, and the key, of the oldest sink that waits for a decision.
    fn first_unscreened(&self) -> Option<(usize, usize)> {
        let waits = |key: usize| self.open.get(key).is_some_and(|sink| sink.screening.is_none());
        self.unfed.iter().copied().enumerate().find(|(_, key)| waits(*key))
    }

    /// Assigns memory from `take` to the waiting sinks, in order, until `take` returns `None`.
    pub(crate) fn feed(&mut self, mut take: impl FnMut(usize) -> Option<Block>) {
        while let Some(&key) = self.unfed.front() {
            if let Some(sink) = self.open.get_mut(key) {
                if sink.screening.is_none() {
                    break;
                }
                let Some(block) = take(sink.memory()) else { break };
                sink.feed(block);
                self.reading.push_back(key);
            }
            self.unfed.pop_front();
        }
    }

    /// Returns true if READs are to be posted, and fewer than the maximum are outstanding.
    pub(crate) fn has_next_read(&self) -> bool {
        !self.reading.is_empty() && self.reads_out < self.read_depth
    }

    /// Returns the next READ to post, and counts it as posted. Returns `None` while the outstanding READs have
    /// reached the maximum or the limit of the path. At least one READ is always allowed, so that the device
    /// schedules the transfer.
    pub(crate) fn next_read(&mut self, allowance: &mut Option<ReadAllowance>) -> Option<Piece> {
        let (depth, most) = match allowance {
            None => (READS_OUT.min(self.read_depth), usize::MAX),
            Some(of) => (self.read_depth, of.per_read.saturating_mul(of.packet_bytes) as usize),
        };
        while self.reads_out < depth {
            let &key = self.reading.front()?;
            let sink = self.open.get_mut(key);
            let length = sink.as_ref().map_or(0, |sink| sink.next_length(most));
            if let Some(allowance) = allowance {
                let packets = length.div_ceil(allowance.packet_bytes.max(1));
                if packets > allowance.packets && self.reads_out > 0 {
                    return None;
                }
                allowance.packets = allowance.packets.saturating_sub(packets);
            }
            let piece = sink.and_then(|sink| {
                let lane = sink.lane;
                sink.next_piece(length).map(|(to, from)| Piece { sink: key, lane, to, from })
            });
            if piece.is_none() || self.open.get(key).is_none_or(Sink::is_asked) {
                self.reading.pop_front();
            }
            if piece.is_some() {
                self.reads_out += 1;
                return piece;
            }
        }
        None
    }

    /// Handles a completed READ. Returns the sink if the piece was the last one of its message, and the message is
    /// not sealed.
    pub(crate) fn piece_read(&mut self, sink: usize, bytes: u32, success: bool) -> Option<Sink> {
        self.reads_out = self.reads_out.saturating_sub(1);
        let (key, sink) = (sink, self.open.get_mut(sink)?);
        let whole = sink.piece_read(if success { bytes } else { 0 });
        if sink.seal.is_some() {
            if success && !self.unopened.contains(&key) {
                self.unopened.push_back(key);
            }
            return None;
        }
        (success && whole).then(|| self.open.remove(key))
    }

    /// Returns the oldest sink with pieces that can be decrypted.
    pub(crate) fn opening(&mut self) -> Option<&mut Sink> {
        while let Some(&key) = self.unopened.front() {
            if self.open.get(key).is_some_and(|sink| sink.unopened() > 0) {
                return self.open.get_mut(key);
            }
            self.unopened.pop_front();
        }
        None
    }

    /// Returns the sink from [`Self::opening`] if all of its pieces were decrypted.
    pub(crate) fn opened(&mut self) -> Option<Sink> {
        let &key = self.unopened.front()?;
        let is_whole = self.open.get(key).is_some_and(|sink| sink.opened == sink.body_bytes);
        is_whole.then(|| self.unopened.pop_front()).flatten().map(|key| self.open.remove(key))
    }

    /// Removes the sinks that have waited for memory until their deadline.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<Sink> {
        let is_late = |sink: &Sink| sink.screening.is_some() && sink.block.is_none() && sink.deadline <= now;
        let late = self.unfed.iter().copied().filter(|&key| self.open.get(key).is_some_and(is_late));
        let late = late.collect::<Vec<_>>();
        self.unfed.retain(|key| !late.contains(key));
        late.into_iter().map(|key| self.open.remove(key)).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns true if READs are outstanding, or pieces remain to be decrypted.
    pub(crate) fn is_reading(&self) -> bool {
        self.reads_out > 0 || !self.unopened.is_empty()
    }

    /// Returns true if a sink waits for memory, or for room to post its READs.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.unfed.is_empty() || !self.reading.is_empty()
    }
}

/// Owner of a source's memory.
#[derive(Debug)]
pub(crate) enum Hold {
    /// Registered bytes of the application, whose key is invalidated before they are released.
    Lent { at: Announced, _bytes: Body },
    /// A copy.
    Copied(Block),
}

impl Hold {
    /// Returns the address at which the peer READs the memory.
    pub(crate) fn remote_address(&self) -> RemoteAddress {
        match self {
            Self::Lent { at, .. } => at.remote_address(),
            Self::Copied(block) => block.remote_address(),
        }
    }
}

/// A message that the peer has not READ yet.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) delivery: DeliveryReport,
    pub(crate) lane: usize,
    /// Bytes charged to the peer.
    pub(crate) bytes: usize,
    /// True if ordered small messages wait until this message is READ.
    pub(crate) ordered: bool,
    /// Owner of the memory, which is released on drop.
    pub(crate) _hold: Hold,
}

/// All sources of one trunk, by the number in their requests and FINs.
#[derive(Debug)]
pub(crate) struct Sources {
    open: BTreeMap<u64, Source>,
    next: u64,
}

impl Sources {
    pub(crate) fn new() -> Self {
        Self { open: BTreeMap::new(), next: 1 }
    }

    /// Returns the number of the next source.
    pub(crate) fn next_id(&self) -> u64 {
        self.next
    }

    /// Adds a source, with the number [`Sources::next_id`].
    pub(crate) fn add(&mut self, source: Source) {
        self.open.insert(self.next, source);
        self.next += 1;
    }

    /// Removes a source after the peer has READ, refused or dropped it. Returns `None` if the number is unknown.
    pub(crate) fn finish(&mut self, id: u64) -> Option<Source> {
        self.open.remove(&id)
    }

    /// Removes all sources, in the order of their numbers. Dropping them frees their memory.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Source> + use<> {
        std::mem::take(&mut self.open).into_values()
    }

    /// Returns the number of sources, and their total size in bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.open.len(), self.open.values().map(|source| source.bytes).sum())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::pool;

    /// Returns sinks, with memory, for messages of these sizes, and their device.
    fn sinks(sizes: &[usize]) -> (Sinks, impl Sized + use<>) {
        let (pool, device) = pool();
        let mut sinks = Sinks::new(MOST_READS);
        for (id, bytes) in (0..).zip(sizes) {
            sinks.add(Sink {
                lane: 0,
                id,
                header: MessageHeader { kind: 0x10, flags: 0, word: 0 },
                time_left_us: 0,
                head: None,
                head_bytes: 0,
                body_bytes: *bytes,
                screening: Some(Screening::Undecided),
                from: RemoteAddress::default(),
                deadline: Time::MAX,
                block: None,
                asked: 0,
                read: 0,
                seal: None,
                opened: 0,
            });
        }
        sinks.feed(|bytes| pool.take(bytes, None, None).ok());
        (sinks, (pool, device))
    }

    /// Takes all available READs. Returns their sinks and lengths.
    fn reads(sinks: &mut Sinks, packets: u32) -> Vec<(usize, u32)> {
        let mut allowance = Some(ReadAllowance { packets, per_read: 3, packet_bytes: 1000 });
        let next = || sinks.next_read(&mut allowance).map(|piece| (piece.sink, piece.to.length));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn reads_fit_allowance_unless_none_is_in_flight() {
        let (mut sinks, _device) = sinks(&[7500, 6000]);
        assert_eq!(reads(&mut sinks, 7), [(0, 3000), (0, 3000)]);
        assert_eq!(reads(&mut sinks, 1), [], "the rest has two packets");
        assert_eq!(reads(&mut sinks, 2), [(0, 1500)]);
        for bytes in [3000, 3000] {
            assert!(sinks.piece_read(0, bytes, true).is_none());
            assert_eq!(reads(&mut sinks, 0), []);
        }
        assert!(sinks.piece_read(0, 1500, true).is_some(), "the message is whole");
        assert_eq!(reads(&mut sinks, 0), [(1, 3000)], "one READ waits in the device");
        assert_eq!(reads(&mut sinks, 100), [(1, 3000)]);
        assert!(!sinks.has_next_read());
    }

    #[test]
    fn path_without_congestion_control_has_two_long_reads() {
        let (mut sinks, _device) = sinks(&[3 * PIECE]);
        let lengths = std::iter::from_fn(|| sinks.next_read(&mut None).map(|piece| piece.to.length));
        assert_eq!(lengths.map(|length| length as usize).collect::<Vec<_>>(), [PIECE, PIECE]);
    }
}
