//! Memory shared by a shard of this process and a shard of another process, with a ring in each direction.
//!
//! Owns the layout of areas, and the state of the peer as this side has read it. Only [`super::LocalPaths`]
//! calls it. Values in the peer's area are checked before use, and an invalid value ends only this pair.
//!
//! ```text
//! area:  produced 8 | consumed 8 | parked 8 | attached 8 | (to 4096) | ring
//!        each word on its own cache line
//! ```
//! `attached` is the number of the peer's area that the owner has mapped. The peer may send once it is set.

use super::Partner;
use super::bell::ShardBell;
use crate::device::tables::keys::{KeyRange, Refused};
use crate::host::{MappedArea, OwnArea};
use std::cell::Cell;
use trunkline_machine::mutant;
use trunkline_machine::rings::shared::{Consumer, LocalArea, PeerArea, Producer, Violation, Wanted, Word};
use trunkline_roce::engine::JOINED_BYTES;
use trunkline_roce::wire::{HEADERS_LENGTH_MAX, is_positive_acknowledge, is_read_response};
use trunkline_verbs::Time;

/// Size of an area, in bytes. Each side of a pair allocates one.
pub(super) const AREA_BYTES: usize = 128 << 10;
/// Offset of the ring in an area, in bytes.
const RING_AT: usize = 4096;
/// Size of the ring, in bytes.
pub(in crate::device::shard) const RING_BYTES: usize = AREA_BYTES - RING_AT;
pub(super) const ATTACHED: usize = 256;

/// Maximum length of a packet, in bytes: headers, payload and pad.
pub(super) const LONGEST: usize = HEADERS_LENGTH_MAX + JOINED_BYTES as usize + 3;

/// Number of bytes of each packet that are copied out of the ring before parsing. They cover all headers, and
/// short packets as a whole.
const HEAD_BYTES: usize = 512;

const _: () = assert!(HEADERS_LENGTH_MAX <= HEAD_BYTES, "headers are checked and used in one copy");

const _: () = assert!(2 * LONGEST < RING_BYTES, "one packet may be written while another is read");

/// Number of unpublished bytes at which packets are published, so that the peer copies them while more are written.
const PUBLISH_AT_BYTES: usize = 8 << 10;

/// Returns the offset of a word in an area, in bytes.
fn offset(word: Word) -> usize {
    match word {
        Word::Produced => 0,
        Word::Consumed => 64,
        Word::Parked => 128,
    }
}

/// The peer's side of a pair.
#[derive(Debug)]
enum Other {
    /// The peer's area has not arrived yet.
    Awaited,
    /// The peer's area, and the area's number.
    Mapped(MappedArea, u64),
    /// This shard itself, which receives the packets that it sends.
    Same,
}

/// A pair of areas.
#[derive(Debug)]
pub(super) struct MemoryPair {
    partner: Partner,
    own: OwnArea,
    /// Number of this side's area.
    number: u64,
    other: Other,
    producer: Producer,
    consumer: Consumer,
    /// True if the peer has mapped this side's area.
    is_attached: bool,
    /// Time at which the pair was created, attached or unparked, or received its last packet.
    heard: Time,
    /// Number of bytes that are written and not published yet.
    unpublished: usize,
    /// True if an unpublished packet is not an acknowledgement.
    is_urgent: bool,
    /// True if the receiver has to be woken for packets that are published already.
    must_wake: bool,
    /// Bell of the peer; `None` if the peer has not sent it.
    pub(super) bell: Option<ShardBell>,
    /// True if this side's bell was sent to the peer.
    pub(super) gave_bell: bool,
    /// Numbers of the QPs that wait for room.
    pub(super) waiting: Vec<u32>,
    /// Time at which the peer was first found to have stopped taking packets, and its position in the ring at that
    /// time. Set only while QPs wait for room or responses.
    full: Option<(Time, u64)>,
    /// True if the peer counts as stopped. It counts as running again when it has emptied the ring.
    is_stalled: bool,
}

/// Payload that was written into the ring before its packet.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::device::shard) struct Written {
    /// Length of the packet's headers, which precede the payload, in bytes.
    at: usize,
    length: usize,
}

/// Place in the ring for the payload of the next packet, which is copied there from registered memory.
#[derive(Debug)]
pub(in crate::device::shard) struct RingPayload<'a> {
    pair: &'a MemoryPair,
    written: Cell<Written>,
}

impl RingPayload<'_> {
    /// Copies `length` bytes from a checked range into the ring. The bytes follow `headers` bytes reserved for the
    /// packet's headers, and any payload that is already there.
    pub(in crate::device::shard) fn append(
        &self,
        headers: usize,
        from: &KeyRange<'_>,
        length: usize,
    ) -> Result<(), Refused> {
        let before = self.written.get();
        // Earlier payload after headers of another length belongs to an abandoned packet.
        let before = if before.at == headers { before.length } else { 0 };
        let MemoryPair { producer, own, .. } = self.pair;
        if mutant!(record_is_published_before_its_bytes) {
            let whole = (headers + before + length).next_multiple_of(4);
            own.store(offset(Word::Produced), producer.position_after(whole));
        }
        let mut at = from.offset;
        for range in producer.ranges(headers + before, length) {
            own.copy_in(RING_AT + range.start, from.memory, at, range.len()).map_err(|_| Refused)?;
            at += range.len();
        }
        self.written.set(Written { at: headers, length: before + length });
        Ok(())
    }

    /// Returns the position and length of the written payload.
    pub(in crate::device::shard) fn written(self) -> Written {
        self.written.get()
    }
}

/// Payload of the packet last taken from the ring. The payload is still in the ring, and is copied to registered
/// memory. The peer may change the payload at any time, so code must not depend on its content.
#[derive(Debug)]
pub(in crate::device::shard) struct ArrivedPayload<'a> {
    pair: &'a MemoryPair,
    /// Offset in the packet of the next byte to copy.
    at: usize,
}

impl ArrivedPayload<'_> {
    /// Copies the next `length` bytes to a checked range.
    pub(in crate::device::shard) fn copy_next(
        &mut self,
        to: &KeyRange<'_>,
        length: usize,
    ) -> Result<(), Refused> {
        let MemoryPair { consumer, other, own, .. } = self.pair;
        let mut at = to.offset;
        for range in consumer.ranges(self.at, length) {
            let (from, length) = (RING_AT + range.start, range.len());
            let copied = match other {
                Other::Mapped(area, _) => area.copy_out(from, to.memory, at, length),
                Other::Same => own.copy_out(from, to.memory, at, length),
                Other::Awaited => return Err(Refused),
            };
            copied.map_err(|_| Refused)?;
            at += length;
        }
        self.at += length;
        Ok(())
    }
}

struct Own<'a>(&'a OwnArea);

impl LocalArea for Own<'_> {
    fn store(&self, word: Word, value: u64) {
        self.0.store(offset(word), value);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.0.write(RING_AT + at, bytes);
    }
}

struct Shown<'a>(&'a Other, &'a OwnArea);

impl PeerArea for Shown<'_> {
    fn load(&self, word: Word) -> u64 {
        match self.0 {
            Other::Awaited => 0,
            Other::Mapped(area, _) => area.load(offset(word)),
            Other::Same => self.1.load(offset(word)),
        }
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        match self.0 {
            Other::Awaited => {}
            Other::Mapped(area, _) => area.read(RING_AT + at, into),
            Other::Same => self.1.read(RING_AT + at, into),
        }
    }
}

impl MemoryPair {
    /// Creates a pair from this side's area. The peer's area arrives later.
    pub(super) fn new(partner: Partner, own: OwnArea, number: u64, now: Time) -> Self {
        Self {
            partner,
            own,
            number,
            other: Other::Awaited,
            producer: Producer::new(RING_BYTES),
            consumer: Consumer::new(RING_BYTES),
            is_attached: false,
            heard: now,
            unpublished: 0,
            is_urgent: false,
            must_wake: false,
            bell: None,
            gave_bell: false,
            waiting: Vec::new(),
            full: None,
            is_stalled: false,
        }
    }

    /// Creates the pair of this shard with itself.
    pub(super) fn with_itself(partner: Partner, own: OwnArea, number: u64, now: Time) -> Self {
        Self { other: Other::Same, is_attached: true, ..Self::new(partner, own, number, now) }
    }

    pub(super) fn partner(&self) -> Partner {
        self.partner
    }

    /// Returns the number of this side's area.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Adds the peer's area, and records its number in this side's area.
    pub(super) fn attach(&mut self, area: MappedArea, number: u64, now: Time) {
        self.other = Other::Mapped(area, number);
        self.own.store(ATTACHED, number);
        self.heard = now;
    }

    /// Returns true if the peer's area is mapped.
    pub(super) fn has_other(&self) -> bool {
        !matches!(self.other, Other::Awaited)
    }

    /// Returns true if the peer's area has this number.
    pub(super) fn is_with(&self, area: u64) -> bool {
        matches!(self.other, Other::Mapped(_, number) if number == area)
    }

    /// Returns true if the peer is this shard itself.
    pub(super) fn is_same(&self) -> bool {
        matches!(self.other, Other::Same)
    }

    /// Checks whether the peer has mapped this side's area. Returns true only in the first call that finds it mapped.
    pub(super) fn has_become_attached(&mut self) -> bool {
        if self.is_attached {
            return false;
        }
        self.is_attached =
            matches!(&self.other, Other::Mapped(area, _) if area.load(ATTACHED) == self.number);
        self.is_attached
    }

    /// Returns true if packets may be sent.
    pub(super) fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Returns true if the peer counts as stopped.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Returns true if the pair does not need checks until a QP waits for room or a response.
    pub(super) fn is_settled(&self) -> bool {
        self.has_other() && self.is_attached && !self.is_stalled && self.waiting.is_empty()
    }

    /// Returns true if the ring has room for a packet of any length.
    pub(super) fn has_room(&mut self) -> Result<bool, Violation> {
        self.producer.has_room(&Shown(&self.other, &self.own), LONGEST)
    }

    /// Returns the place in the ring for the payload of the next packet. Call it only after [`MemoryPair::has_room`]
    /// has returned true.
    pub(super) fn payload(&self) -> RingPayload<'_> {
        RingPayload { pair: self, written: Cell::default() }
    }

    /// Writes a packet whose payload may be in the ring already. Call it only after [`MemoryPair::has_room`] has
    /// returned true. Large amounts of unpublished bytes are published without [`MemoryPair::publish`].
    pub(super) fn push(&mut self, packet: &[u8], Written { at, length }: Written) {
        let (head, tail) = packet.split_at(at.min(packet.len()));
        let whole = packet.len() + length;
        if mutant!(record_is_published_before_its_bytes) {
            self.own.store(offset(Word::Produced), self.producer.position_after(whole));
        }
        self.producer.push(&Own(&self.own), head, length, tail);
        self.unpublished += whole;
        self.is_urgent |= !is_positive_acknowledge(packet);
        if self.unpublished >= PUBLISH_AT_BYTES {
            self.publish_written();
        }
    }

    /// Publishes the written packets. Returns true if the receiver must be woken for these or earlier
    /// packets.
    #[must_use = "a receiver that parked the ring does not look"]
    pub(super) fn publish(&mut self) -> bool {
        self.publish_written();
        std::mem::take(&mut self.must_wake)
    }

    fn publish_written(&mut self) {
        self.unpublished = 0;
        let is_urgent = std::mem::take(&mut self.is_urgent);
        self.must_wake |= self.producer.publish(&Own(&self.own), &Shown(&self.other, &self.own), is_urgent);
    }

    /// Records that the peer could not be woken. The next [`MemoryPair::publish`] returns true again.
    pub(super) fn was_not_woken(&mut self) {
        self.producer.was_not_woken();
    }

    /// Copies the next packet to the front of `into`. Returns its length, or `None` if the ring is empty. The
    /// payload of a READ response may stay in the ring; [`MemoryPair::arrived`] returns it.
    pub(super) fn pop(&mut self, into: &mut Vec<u8>, now: Time) -> Result<Option<usize>, Violation> {
        let shown = Shown(&self.other, &self.own);
        let Some(length) = self.consumer.pop(&shown, LONGEST, HEAD_BYTES, into)? else { return Ok(None) };
        self.heard = now;
        if length > HEAD_BYTES && !is_read_response(into) {
            let mut rest = &mut into[HEAD_BYTES..length];
            for range in self.consumer.ranges(HEAD_BYTES, rest.len()) {
                let (part, later) = rest.split_at_mut(range.len());
                shown.read(range.start, part);
                rest = later;
            }
        }
        Ok(Some(length))
    }

    /// Returns the payload of the packet that was taken last, from byte `at` of the packet.
    pub(super) fn arrived(&self, at: usize) -> ArrivedPayload<'_> {
        ArrivedPayload { pair: self, at }
    }

    /// Releases the space of the taken packets for the sender.
    pub(super) fn release(&mut self) {
        self.consumer.release(&Own(&self.own));
    }

    /// Parks the ring until the peer wakes this side for a `wanted` packet. Returns false, without parking
    /// the ring, if packets have arrived.
    pub(super) fn park(&mut self, wanted: Wanted) -> bool {
        self.consumer.park(&Own(&self.own), &Shown(&self.other, &self.own), wanted)
    }

    /// Returns true if the ring is parked and packets have arrived.
    pub(super) fn is_parked_too_long(&mut self) -> bool {
        self.consumer.is_parked() && self.consumer.has_message(&Shown(&self.other, &self.own))
    }

    /// Resumes polling.
    pub(super) fn unpark(&mut self, now: Time) {
        self.heard = now;
        self.consumer.unpark(&Own(&self.own));
    }

    /// Returns the time at which the pair was created, attached or unparked, or received its last packet.
    pub(super) fn heard(&self) -> Time {
        self.heard
    }

    /// Returns true if the peer has taken all published packets.
    pub(super) fn is_drained(&self) -> bool {
        self.producer.is_drained(&Shown(&self.other, &self.own))
    }

    /// Checks whether the peer takes packets, while QPs wait for room or responses. Returns true when the
    /// peer is found to have stopped.
    pub(super) fn has_stopped(&mut self, now: Time, patience_ns: u64) -> bool {
        let consumed = self.producer.consumed(&Shown(&self.other, &self.own));
        match self.full {
            Some((since, before)) if before == consumed => {
                let stops = !self.is_stalled && now.since(since) >= patience_ns;
                self.is_stalled |= stops;
                stops
            }
            _ => {
                self.full = Some((now, consumed));
                false
            }
        }
    }

    /// Records that QPs no longer wait for room.
    pub(super) fn is_not_full(&mut self) {
        self.full = None;
    }

    /// Returns true if a stopped peer has emptied the ring. The peer then counts as running again.
    pub(super) fn goes_on(&mut self) -> bool {
        if !self.is_stalled || !self.is_drained() {
            return false;
        }
        self.is_stalled = false;
        self.full = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::hosts;
    use crate::host::{Areas, MemberId};
    use trunkline_roce::wire::{Opcode, Operation, Packet, Service};
    use trunkline_verbs::{Memory, Psn, QpNumber};

    /// Number of packets sent, which is enough to go around the ring three times.
    const PACKETS: usize = 24;
    /// Length of a packet's headers, BTH and AETH.
    const HEADERS: usize = 16;

    /// Two pairs that share their areas, as in two processes.
    fn joined() -> [MemoryPair; 2] {
        let (_folder, hosts) = hosts();
        let areas = hosts.map(|host| Areas::new(&host).unwrap());
        let made = areas.each_ref().map(|areas| areas.make(AREA_BYTES).unwrap());
        let [(own_one, handle_one), (own_two, handle_two)] = made;
        let partner = Partner { member: MemberId { slot: 0, generation: 1 }, shard: 0 };
        let [mut one, mut two] =
            [(own_one, 1), (own_two, 2)].map(|(own, number)| MemoryPair::new(partner, own, number, Time(0)));
        one.attach(areas[0].map(handle_two, AREA_BYTES).unwrap(), 2, Time(0));
        two.attach(areas[1].map(handle_one, AREA_BYTES).unwrap(), 1, Time(0));
        [one, two]
    }

    fn answer(payload: &[u8]) -> Vec<u8> {
        let opcode = Opcode::new(Service::XRC, Operation::READ_RESPONSE_ONLY);
        let mut packet = Packet::new(opcode, QpNumber::new(17), Psn::new(5), payload);
        packet.aeth = Some(trunkline_roce::wire::Aeth { syndrome: 0, msn: 1 });
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        bytes
    }

    /// Sends READ responses, and copies the payload of each to two ranges of a memory. If `scribbles` is
    /// true, the sender overwrites its whole ring between the check of the headers and the copy.
    fn answers_arrive(scribbles: bool) {
        let [mut from, mut to] = joined();
        let (memory, mut taken) = (Memory::zeroed(64 << 10).unwrap(), Vec::new());
        let mut expected = vec![0; 64 << 10];
        for number in 1..=PACKETS {
            let mut payload = vec![number.to_le_bytes()[0]; JOINED_BYTES as usize - 4 * number];
            payload[..8].copy_from_slice(&u64::MAX.to_le_bytes());
            let packet = answer(&payload);
            assert_eq!(from.has_room(), Ok(true));
            from.push(&packet, Written::default());
            let _wakes = from.publish();
            assert_eq!(to.pop(&mut taken, Time(1)), Ok(Some(packet.len())));
            assert_eq!(taken[..HEADERS], packet[..HEADERS]);
            if scribbles {
                from.own.write(RING_AT, &[0xee; RING_BYTES]);
                payload.fill(0xee);
            }
            let parsed = Packet::parse_joined(&taken[..packet.len()]).unwrap();
            assert_eq!(parsed.payload.len(), payload.len());
            let mut arrived = to.arrived(HEADERS);
            let (first, rest) = payload.split_at(5000 + number);
            for (offset, part) in [(30_000, first), (1000, rest)] {
                arrived.copy_next(&KeyRange { memory: &memory, offset }, part.len()).unwrap();
                expected[offset..offset + part.len()].copy_from_slice(part);
            }
            let mut found = vec![0; expected.len()];
            memory.read(0, &mut found).unwrap();
            assert!(found == expected, "packet {number}");
            to.release();
        }
    }

    #[test]
    fn read_responses_arrive_in_order_across_end_of_ring() {
        answers_arrive(false);
    }

    #[test]
    fn overwritten_read_response_changes_only_its_target() {
        answers_arrive(true);
    }
}
