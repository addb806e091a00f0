//! Records of members in the registry.
//!
//! Owns writing, reading and removing records. A record belongs to a member and is void without it, so a dead
//! member needs no clean-up: its places are reused for new records. The tag names the owner and is written
//! last, so a member that dies in the middle leaves a void record.
//!
//! ```text
//! tag: sequence 16, member 48        three words of the table's own
//! ```
//! Readers take no lock: they read the tag before and after the words. The sequence
//! distinguishes two records of one member in the same place.
#![forbid(unsafe_code)]

use super::folder_lock::Locked;
use super::layout::Table;
use super::{Host, HostError, MemberId};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const MEMBER: u64 = (1 << 48) - 1;
/// Number of places of a table up to which new records leave those of dead members alone.
const KEPT: usize = 256;

/// A record whose member is in its slot, checked without a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    index: usize,
    tag: u64,
    pub(super) owner: MemberId,
    pub(super) words: [u64; 3],
}

/// A record of this member, removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    host: Arc<Host>,
    table: &'static Table,
    index: usize,
    tag: u64,
}

impl Host {
    /// Returns the records of a table, without a system call.
    pub(super) fn records(&self, table: &'static Table) -> impl Iterator<Item = Record> {
        (0..self.used(table)).filter_map(move |index| self.record(table, index))
    }

    fn record(&self, table: &'static Table, index: usize) -> Option<Record> {
        let at = table.record(index);
        // SYNC: record
        let tag = self.registry.word64(at).load(Ordering::Acquire);
        let owner = MemberId::unpack(tag & MEMBER).filter(|owner| self.is_member(*owner))?;
        let mut words = [0; 3];
        self.registry.read(at + 8, &mut words);
        fence(Ordering::Acquire);
        let same = self.registry.word64(at).load(Ordering::Relaxed) == tag;
        same.then_some(Record { index, tag, owner, words })
    }

    /// Writes a record of this member into the first free place. The records of dead members are overwritten last,
    /// since they show what these members held, until the table has grown to [`KEPT`] places.
    pub(super) fn put(
        &self,
        _locked: &Locked<'_>,
        table: &'static Table,
        words: [u64; 3],
    ) -> Result<Record, HostError> {
        let is_empty =
            |index: &usize| self.registry.word64(table.record(*index)).load(Ordering::Relaxed) & MEMBER == 0;
        let free = || (0..table.capacity).find(|index| self.record(table, *index).is_none());
        let index = match (0..KEPT.min(table.capacity)).find(is_empty).or_else(free) {
            Some(index) => index,
            None => {
                self.sweep();
                free().ok_or(HostError::Full(table.holds))?
            }
        };
        let at = table.record(index);
        let word = self.registry.word64(at);
        let sequence = word.load(Ordering::Relaxed).wrapping_add(MEMBER + 1) & !MEMBER;
        word.store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        self.registry.write(at + 8, &words);
        let tag = sequence | self.me().pack();
        // SYNC: record
        word.store(tag, Ordering::Release);
        let used = self.registry.word64(table.used);
        if used.load(Ordering::Relaxed) <= index as u64 {
            used.store(index as u64 + 1, Ordering::Release);
        }
        Ok(Record { index, tag, owner: self.me(), words })
    }

    /// Writes a record of this member that is removed when the claim is dropped.
    pub(super) fn claim(
        self: &Arc<Self>,
        locked: &Locked<'_>,
        table: &'static Table,
        words: [u64; 3],
    ) -> Result<Claim, HostError> {
        let Record { index, tag, .. } = self.put(locked, table, words)?;
        Ok(Claim { host: Arc::clone(self), table, index, tag })
    }

    /// Returns true if a member that died has left a record for whose words `wanted` is true. The record may
    /// be overwritten at any time.
    pub(super) fn was_left(&self, table: &'static Table, wanted: impl Fn(&[u64; 3]) -> bool) -> bool {
        self.words_of(table).any(|(_, tag, words)| {
            let owner = MemberId::unpack(tag & MEMBER);
            owner.is_some_and(|owner| !self.is_member(owner)) && wanted(&words)
        })
    }

    /// Removes all records for whose words `wanted` is true, also records of dead members. The caller holds
    /// the host's lock.
    pub(super) fn remove_all(&self, table: &'static Table, wanted: impl Fn(&[u64; 3]) -> bool) {
        for (index, tag, words) in self.words_of(table) {
            if tag & MEMBER != 0 && wanted(&words) {
                self.take_out(table, index, tag);
            }
        }
    }

    /// Returns index, tag and words of every record that was ever used, void records included.
    fn words_of(&self, table: &'static Table) -> impl Iterator<Item = (usize, u64, [u64; 3])> {
        (0..self.used(table)).map(move |index| {
            let at = table.record(index);
            let tag = self.registry.word64(at).load(Ordering::Acquire);
            let mut words = [0; 3];
            self.registry.read(at + 8, &mut words);
            (index, tag, words)
        })
    }

    /// Returns an upper bound of the indices of records that were ever used.
    fn used(&self, table: &'static Table) -> usize {
        let used = usize::try_from(self.registry.word64(table.used).load(Ordering::Acquire));
        used.unwrap_or(usize::MAX).min(table.capacity)
    }

    /// Removes a record unless another record has taken its place.
    pub(super) fn remove(&self, table: &'static Table, record: &Record) {
        self.take_out(table, record.index, record.tag);
    }

    /// Sets bits in the last word of a record of this member.
    pub(super) fn mark(&self, table: &'static Table, record: &Record, bits: u64) {
        let last = table.record(record.index) + 8 * record.words.len();
        self.registry.word64(last).fetch_or(bits, Ordering::Relaxed);
    }

    fn take_out(&self, table: &'static Table, index: usize, tag: u64) {
        let word = self.registry.word64(table.record(index));
        let _other = word.compare_exchange(tag, tag & !MEMBER, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Also after a fork: a child that closes an object of its parent closes it for both, as with a
        // kernel's device. A daemon is the child of the process that opened the device.
        self.host.take_out(self.table, self.index, self.tag);
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::PORTS;
    use super::super::testing::Folder;
    use super::*;

    #[test]
    fn records_end_with_their_claim_or_their_member() {
        let folder = Folder::new("records");
        let root = folder.path().join("run");
        let one = Host::join(Some(&root)).unwrap();
        let two = Host::join(Some(&root)).unwrap();
        let claim = one.claim(&one.lock().unwrap(), &PORTS, [1, 2, 3]).unwrap();
        let kept = two.put(&two.lock().unwrap(), &PORTS, [4, 5, 6]).unwrap();
        let seen: Vec<_> = two.records(&PORTS).map(|record| (record.owner, record.words)).collect();
        assert_eq!(seen, [(one.me(), [1, 2, 3]), (two.me(), [4, 5, 6])]);
        drop(claim);
        assert_eq!(one.records(&PORTS).collect::<Vec<_>>(), [kept]);
        drop(two);
        assert_eq!(one.records(&PORTS).count(), 0);
        let next = one.put(&one.lock().unwrap(), &PORTS, [7, 8, 9]).unwrap();
        assert_eq!(next.index, 0, "places are used again");
        one.remove(&PORTS, &kept);
        assert_eq!(one.records(&PORTS).collect::<Vec<_>>(), [next]);
    }

    #[test]
    fn an_old_record_does_not_take_out_its_successor() {
        let folder = Folder::new("successor");
        let host = Host::join(Some(&folder.path().join("run"))).unwrap();
        let old = host.put(&host.lock().unwrap(), &PORTS, [1, 0, 0]).unwrap();
        host.remove(&PORTS, &old);
        let new = host.put(&host.lock().unwrap(), &PORTS, [1, 0, 0]).unwrap();
        assert_eq!(new.index, old.index);
        host.remove(&PORTS, &old);
        assert_eq!(host.records(&PORTS).collect::<Vec<_>>(), [new]);
    }

    #[test]
    fn a_full_table_takes_the_places_of_the_dead() {
        let folder = Folder::new("full");
        let root = folder.path().join("run");
        let host = Host::join(Some(&root)).unwrap();
        let dead = MemberId { slot: 700, generation: 9 };
        std::fs::write(host.directory().unwrap().join("slot-700"), "").unwrap();
        host.registry.word64(super::super::layout::slot(700)).store(9, Ordering::Release);
        host.registry.word64(PORTS.used).store(u64::MAX, Ordering::Release);
        for index in 0..PORTS.capacity {
            host.registry.word64(PORTS.record(index)).store(dead.pack(), Ordering::Release);
        }
        assert_eq!(host.records(&PORTS).count(), PORTS.capacity);
        let put = host.put(&host.lock().unwrap(), &PORTS, [1, 0, 0]).unwrap();
        assert_eq!(host.records(&PORTS).collect::<Vec<_>>(), [put]);
        for _ in 1..PORTS.capacity {
            host.put(&host.lock().unwrap(), &PORTS, [1, 0, 0]).unwrap();
        }
        let error = host.put(&host.lock().unwrap(), &PORTS, [1, 0, 0]).unwrap_err();
        assert!(error.to_string().contains("no more UDP ports"), "{error}");
    }
}
