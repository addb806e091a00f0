//! TGTs that processes share through XRC domains.
//!
//! Owns the table of these TGTs, in a separate segment: the domain of each TGT, the member that executes it
//! (its *executor*), the number of handles of each member, and the last published state. `device::sharing`
//! calls it. Handles change under the host's lock. The executor changes by compare-and-swap, from a dead
//! member to a living one. The executor of a number is looked up for each forwarded packet, without a lock
//! and without a system call.
//!
//! ```text
//! record:  number 4, -, domain 8, executor 8, sequence of the image 8, placements 8
//!          handles: for each slot generation 2, count 2
//!          image: two buffers
//! ```
//! The numbers are allocated when a member joins, and a record when it is first used, since the full table would be too
//! large for hosts that do not share TGTs.
//!
//! A record is stored at the place computed from its number, or at one of the next places. Like everything in shared
//! memory, it may contain arbitrary values. The worst result is that a number is not found.
#![forbid(unsafe_code)]

use super::layout::SLOTS;
use crate::host::memory::segment::{HEADER, Word32, Word64};
use crate::host::{Host, HostError, MemberId, Segment};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_machine::rings::published::Published;

const MAGIC: u64 = u64::from_le_bytes(*b"TkTargt4");
/// Maximum number of shared TGTs of a host; a power of two.
const RECORDS: usize = 1 << RECORDS_LOG;
const RECORDS_LOG: u32 = 12;
/// Number of places that may hold a record, starting with the computed one.
const PROBES: usize = 64;
/// Maximum number of words of a published state, including its length.
pub(crate) const BUFFER_WORDS: usize = 832;

/// Offset of the numbers of all records, which are 32-bit words. They are stored together, so that a look-up of
/// a number that does not exist accesses only these pages.
const NUMBERS: usize = HEADER;
/// Offset of the first record.
const TABLE: usize = NUMBERS + 4 * RECORDS;

const DOMAIN: usize = 0;
const EXECUTOR: usize = 8;
const SEQUENCE: usize = 16;
const PLACEMENTS: usize = 24;
const HANDLES: usize = 64;
const BUFFERS: usize = HANDLES + 4 * SLOTS;
const RECORD: usize = BUFFERS + 2 * 8 * BUFFER_WORDS;

/// Number of a place that never had a record. A search ends there.
const NEVER: u32 = 0;
/// Number of a place whose record was freed. A search continues there.
const FREE: u32 = u32::MAX;

/// The table of shared TGTs, as one member accesses it.
#[derive(Debug)]
pub(crate) struct Targets {
    host: Arc<Host>,
    segment: Segment,
}

/// A TGT's place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetRecord {
    number: u32,
    start: usize,
}

/// Handles that remain after one was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Other handles remain.
    Others,
    /// The last handle was closed, and the TGT was destroyed. Contains the executor if it is another live
    /// member, which has to be notified.
    Nobody(Option<MemberId>),
}

impl Targets {
    pub(crate) fn open(host: Arc<Host>) -> Result<Self, HostError> {
        let locked = host.lock()?;
        let segment = host.segment(&locked, "targets", MAGIC, [TABLE + RECORDS * RECORD, TABLE])?;
        drop(locked);
        Ok(Self { host, segment })
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Adds a TGT of this member, with one handle.
    pub(crate) fn create(&self, number: u32, domain: u64) -> Result<TargetRecord, HostError> {
        let _locked = self.host.lock()?;
        let record = match self.vacancy(number) {
            Some(record) => record,
            None => {
                self.free_abandoned(number);
                self.vacancy(number).ok_or(HostError::Full("TGTs that processes share"))?
            }
        };
        self.segment.reserve(record.start, RECORD)?;
        for slot in 0..SLOTS {
            self.handles(record, slot).store(0, Ordering::Relaxed);
        }
        self.word64(record, SEQUENCE).store(0, Ordering::Relaxed);
        self.word64(record, PLACEMENTS).store(0, Ordering::Relaxed);
        self.word64(record, DOMAIN).store(domain, Ordering::Relaxed);
        self.word64(record, EXECUTOR).store(self.host.me().pack(), Ordering::Relaxed);
        self.put_count(record, self.host.me(), 1);
        self.number(record).store(number, Ordering::Release);
        Ok(record)
    }

    /// Adds a handle of this member to a TGT. Returns `None` if the domain does not contain the TGT.
    pub(crate) fn join(&self, number: u32, domain: u64) -> Result<Option<TargetRecord>, HostError> {
        let _locked = self.host.lock()?;
        let found = self.find(number).filter(|record| self.domain(*record) == Some(domain));
        let Some(record) = found else { return Ok(None) };
        // A TGT counts as destroyed if all its handles belong to dead members (contract B5).
        if self.executor(record).is_none_or(|executor| !self.host.is_alive(executor)) && !self.is_held(record)
        {
            self.free(record);
            return Ok(None);
        }
        let count = self.count(record, self.host.me());
        self.put_count(
            record,
            self.host.me(),
            count.checked_add(1).ok_or(HostError::Full("handles on one TGT"))?,
        );
        Ok(Some(record))
    }

    /// Drops a handle of this member (contract C6).
    pub(crate) fn leave(&self, record: TargetRecord) -> Result<Left, HostError> {
        let _locked = self.host.lock()?;
        if !self.exists(record) {
            return Ok(Left::Nobody(None));
        }
        let count = self.count(record, self.host.me());
        self.put_count(record, self.host.me(), count.saturating_sub(1));
        Ok(self.free_unheld(record))
    }

    /// Destroys the TGT unless a living member has a handle on it.
    pub(crate) fn sweep(&self, record: TargetRecord) -> Result<Left, HostError> {
        let _locked = self.host.lock()?;
        Ok(if self.exists(record) { self.free_unheld(record) } else { Left::Nobody(None) })
    }

    fn free_unheld(&self, record: TargetRecord) -> Left {
        if self.is_held(record) {
            return Left::Others;
        }
        let executor = self.executor(record);
        self.free(record);
        Left::Nobody(executor.filter(|executor| *executor != self.host.me() && self.host.is_alive(*executor)))
    }

    /// Returns the record of a TGT by number.
    pub(crate) fn find(&self, number: u32) -> Option<TargetRecord> {
        if number == NEVER || number == FREE {
            return None;
        }
        for start in places(number) {
            match self.segment.word32(number_of(start)).load(Ordering::Acquire) {
                NEVER => return None,
                found if found == number => return Some(TargetRecord { number, start }),
                _ => {}
            }
        }
        None
    }

    /// Returns true if the TGT still exists.
    pub(crate) fn exists(&self, record: TargetRecord) -> bool {
        self.number(record).load(Ordering::Acquire) == record.number
    }

    /// Returns the member that executes the TGT of this number and handles its packets. The member may be
    /// dead.
    pub(crate) fn executor_of(&self, number: u32) -> Option<MemberId> {
        self.executor(self.find(number)?)
    }

    /// Returns the member that executes a TGT. The member may be dead.
    pub(crate) fn executor(&self, record: TargetRecord) -> Option<MemberId> {
        // SYNC: target-executor
        let word = self.word64(record, EXECUTOR).load(Ordering::Acquire);
        MemberId::unpack(word).filter(|_| self.exists(record))
    }

    pub(crate) fn domain(&self, record: TargetRecord) -> Option<u64> {
        let domain = self.word64(record, DOMAIN).load(Ordering::Relaxed);
        self.exists(record).then_some(domain)
    }

    /// Makes this member the executor in place of `dead`. Returns false if another member took over first.
    pub(crate) fn take_over(&self, record: TargetRecord, dead: MemberId) -> bool {
        let me = self.host.me().pack();
        // SYNC: target-executor
        let taken = self.word64(record, EXECUTOR).compare_exchange(
            dead.pack(),
            me,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        taken.is_ok() && self.exists(record)
    }

    /// Returns the published state, which the executor writes and later executors read.
    pub(crate) fn image(&self, record: TargetRecord) -> Published<'_> {
        let buffers = [0, 1].map(|index| self.segment.words64(buffer(record, index), BUFFER_WORDS));
        Published::new(self.word64(record, SEQUENCE).get(), buffers)
    }

    /// Publishes the state. Returns false, without a change, if it does not fit.
    pub(crate) fn publish(&self, record: TargetRecord, image: &[u64]) -> bool {
        // Count the stores of the length, the words and the sequence.
        let stores = image.len() + 2;
        let permitted = self.segment.permit(stores);
        if permitted == stores {
            return self.image(record).publish(image);
        }
        // A simulation may kill this process between two of the following stores.
        let next = self.word64(record, SEQUENCE).load(Ordering::Relaxed).wrapping_add(1);
        let words = self.segment.words64(buffer(record, usize::from(next & 1 != 0)), BUFFER_WORDS);
        let values = std::iter::once(image.len() as u64).chain(image.iter().copied());
        for (word, value) in words.iter().zip(values).take(permitted) {
            word.store(value, Ordering::Relaxed);
        }
        image.len() < BUFFER_WORDS
    }

    /// Records that the placements up to this serial number are done. The member that places a packet calls
    /// this before the message is visible to its program. The placement is thus recorded even if that member
    /// and the TGT's executor die before the state is published.
    pub(crate) fn note_placement(&self, record: TargetRecord, serial: u64) {
        // SYNC: target-placements
        self.word64(record, PLACEMENTS).fetch_max(serial.saturating_add(1), Ordering::Release);
    }

    /// Returns true if the placement of this serial number was recorded.
    pub(crate) fn is_placed(&self, record: TargetRecord, serial: u64) -> bool {
        // SYNC: target-placements
        self.word64(record, PLACEMENTS).load(Ordering::Acquire) > serial && self.exists(record)
    }

    /// Returns the members with handles, including dead members.
    pub(crate) fn holders(&self, record: TargetRecord) -> Vec<MemberId> {
        let slots = (0..SLOTS).filter_map(|slot| u16::try_from(slot).ok());
        let present = slots.filter_map(|slot| self.host.current(slot));
        present.filter(|member| self.count(record, *member) > 0).collect()
    }

    /// Returns true if a member has a handle, or had one when it died.
    pub(crate) fn is_held_by(&self, record: TargetRecord, member: MemberId) -> bool {
        self.count(record, member) > 0
    }

    /// Returns true if a live member has a handle.
    fn is_held(&self, record: TargetRecord) -> bool {
        self.living_holder(record).is_some()
    }

    /// Returns a live member that has a handle.
    pub(crate) fn living_holder(&self, record: TargetRecord) -> Option<MemberId> {
        self.holders(record).into_iter().find(|member| self.host.is_alive(*member))
    }

    fn free(&self, record: TargetRecord) {
        let following = next(record.start);
        let is_last = self.segment.word32(number_of(following)).load(Ordering::Relaxed) == NEVER;
        self.number(record).store(FREE, Ordering::Release);
        if !is_last {
            return;
        }
        // The next place was never used, so searches may end at this place and at the free places before it.
        let mut start = record.start;
        for _ in 0..PROBES {
            let word = self.segment.word32(number_of(start));
            if word.load(Ordering::Relaxed) != FREE {
                break;
            }
            word.store(NEVER, Ordering::Release);
            start = previous(start);
        }
    }

    /// Frees the records at a number's places whose executors are dead, and on which living members do not have a
    /// handle.
    fn free_abandoned(&self, number: u32) {
        for start in places(number) {
            let record = TargetRecord { number: self.number_at(start), start };
            let lives = self.executor(record).is_some_and(|executor| self.host.is_alive(executor));
            if !lives && !matches!(record.number, NEVER | FREE) && !self.is_held(record) {
                self.free(record);
            }
        }
    }

    fn vacancy(&self, number: u32) -> Option<TargetRecord> {
        let vacant = |start: &usize| matches!(self.number_at(*start), NEVER | FREE);
        places(number).find(vacant).map(|start| TargetRecord { number, start })
    }

    fn number_at(&self, start: usize) -> u32 {
        self.segment.word32(number_of(start)).load(Ordering::Acquire)
    }

    fn number(&self, record: TargetRecord) -> Word32<'_> {
        self.segment.word32(number_of(record.start))
    }

    fn word64(&self, record: TargetRecord, field: usize) -> Word64<'_> {
        self.segment.word64(record.start + field)
    }

    fn handles(&self, record: TargetRecord, slot: usize) -> Word32<'_> {
        self.segment.word32(record.start + HANDLES + 4 * slot)
    }

    /// Returns the number of a member's handles. Handles of earlier members in its slot do not count.
    fn count(&self, record: TargetRecord, member: MemberId) -> u16 {
        let [c0, c1, g0, g1] =
            self.handles(record, usize::from(member.slot)).load(Ordering::Relaxed).to_le_bytes();
        let [m0, m1, ..] = member.generation.to_le_bytes();
        if [g0, g1] == [m0, m1] { u16::from_le_bytes([c0, c1]) } else { 0 }
    }

    fn put_count(&self, record: TargetRecord, member: MemberId, count: u16) {
        let ([c0, c1], [g0, g1, ..]) = (count.to_le_bytes(), member.generation.to_le_bytes());
        let word = u32::from_le_bytes([c0, c1, g0, g1]);
        self.handles(record, usize::from(member.slot)).store(word, Ordering::Relaxed);
    }
}

/// Returns the offset of a buffer for the state.
fn buffer(record: TargetRecord, index: usize) -> usize {
    record.start + BUFFERS + index * 8 * BUFFER_WORDS
}

/// Returns the possible places of a record of this number.
fn places(number: u32) -> impl Iterator<Item = usize> {
    let first = (number.wrapping_mul(0x9e37_79b1) >> (32 - RECORDS_LOG)) as usize;
    (0..PROBES).map(move |probe| TABLE + (first + probe) % RECORDS * RECORD)
}

/// Returns the offset of a record's number.
fn number_of(start: usize) -> usize {
    NUMBERS + (start - TABLE) / RECORD * 4
}

fn next(start: usize) -> usize {
    TABLE + ((start - TABLE) / RECORD + 1) % RECORDS * RECORD
}

fn previous(start: usize) -> usize {
    TABLE + ((start - TABLE) / RECORD + RECORDS - 1) % RECORDS * RECORD
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_testkit::Folder;

    fn members(folder: &Folder, count: usize) -> Vec<Targets> {
        let root = folder.join("run");
        (0..count).map(|_| Targets::open(Host::join(Some(&root)).unwrap()).unwrap()).collect()
    }

    #[test]
    fn exactly_one_member_takes_over_from_dead_executor() {
        let folder = Folder::new().unwrap();
        let mut all = members(&folder, 3);
        let record = all[2].create(5, 77).unwrap();
        let dead = all[2].host.me();
        assert!(all[2].publish(record, &[1, 2, 3]));
        for heir in &all[..2] {
            heir.join(5, 77).unwrap().unwrap();
        }
        drop(all.pop());
        let won: Vec<bool> = all.iter().map(|heir| heir.take_over(record, dead)).collect();
        assert_eq!(won, [true, false]);
        assert_eq!(all[1].executor_of(5), Some(all[0].host.me()));
        let mut image = Vec::new();
        assert!(all[0].image(record).load(&mut image, 1));
        assert_eq!(image, [1, 2, 3]);
    }

    #[test]
    fn recorded_placement_is_visible_to_all_until_target_is_recreated() {
        let folder = Folder::new().unwrap();
        let all = members(&folder, 2);
        let record = all[0].create(5, 77).unwrap();
        assert!(!all[1].is_placed(record, 0));
        all[0].note_placement(record, 3);
        all[0].note_placement(record, 2);
        assert!(all[1].is_placed(record, 0) && all[1].is_placed(record, 3) && !all[1].is_placed(record, 4));
        all[0].leave(record).unwrap();
        assert!(!all[1].is_placed(record, 0));
        assert!(!all[1].is_placed(all[0].create(5, 77).unwrap(), 0));
    }

    #[test]
    fn numbers_with_same_place_use_next_places() {
        let folder = Folder::new().unwrap();
        let all = members(&folder, 1);
        let one = &all[0];
        let first_place = |number: &u32| places(*number).next();
        let first = first_place(&1);
        let meeting: Vec<u32> =
            (1..0xff_ffff).filter(|number| first_place(number) == first).take(PROBES).collect();
        let records: Vec<_> = meeting.iter().map(|number| one.create(*number, 1).unwrap()).collect();
        let further =
            (meeting[PROBES - 1] + 1..0xff_ffff).find(|number| first_place(number) == first).unwrap();
        assert!(matches!(one.create(further, 1), Err(HostError::Full(_))));
        one.leave(records[3]).unwrap();
        assert_eq!(one.find(meeting[3]), None);
        assert_eq!(one.find(meeting[PROBES - 1]), Some(records[PROBES - 1]), "after a free place");
        one.create(further, 1).unwrap();
        for record in records {
            one.sweep(record).unwrap();
            one.leave(record).unwrap();
        }
        let left = one.find(further).unwrap();
        one.leave(left).unwrap();
        let never = |start: usize| one.number_at(start) == NEVER;
        assert!(places(1).all(never), "searches are short again");
    }

    #[test]
    fn target_is_not_found_in_garbage_table() {
        let folder = Folder::new().unwrap();
        let all = members(&folder, 1);
        let one = &all[0];
        let record = one.create(9, 1).unwrap();
        for word in [0, u64::MAX, 5 << 16 | 5000] {
            one.word64(record, EXECUTOR).store(word, Ordering::Relaxed);
            assert_eq!(one.executor_of(9), None);
        }
        one.segment.word64(record.start + BUFFERS).store(u64::MAX, Ordering::Relaxed);
        one.word64(record, SEQUENCE).store(2, Ordering::Relaxed);
        assert!(!one.image(record).load(&mut Vec::new(), 3));
        assert_eq!(one.find(NEVER), None);
        assert_eq!(one.find(FREE), None);
    }
}
