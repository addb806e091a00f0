//! Records of members in the registry.
//!
//! Owns writing, reading and removing records. A record belongs to a member and is void without it, so dead members
//! need not be cleaned up. Their places are reused for new records. The tag names the owner and is written last, so a
//! member that dies while it writes leaves a void record. Writing and removing do not take a lock. A place is taken by
//! an exchange of its tag. A tag with [`IS_WRITTEN`] reserves the place for its owner until the words are written.
//!
//! ```text
//! tag: sequence 16, member 48        three words that depend on the table
//! ```
//! Readers do not take a lock either. They read the tag before and after the words. The sequence distinguishes two
//! records of one member in the same place.
#![forbid(unsafe_code)]

use super::layout::Table;
use crate::host::files::folder_lock::Locked;
use crate::host::memory::segment::ATTEMPTS;
use crate::host::{Host, HostError, MemberId};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const MEMBER: u64 = (1 << 48) - 1;
/// Bit that is set in a tag while its record is being written. Slot numbers do not use this bit.
const IS_WRITTEN: u64 = 1 << 15;
/// Number of places at the start of a table among which an empty place is preferred to a dead member's record.
const KEPT: usize = 256;

/// A record whose member is in its slot, checked without a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::host) struct Record {
    index: usize,
    tag: u64,
    pub(in crate::host) owner: MemberId,
    pub(in crate::host) words: [u64; 3],
}

/// A record of this member, removed when the claim is dropped.
#[derive(Debug)]
pub(in crate::host) struct Claim {
    host: Arc<Host>,
    table: &'static Table,
    index: usize,
    tag: u64,
}

impl Host {
    /// Returns the records of a table, without a system call.
    pub(in crate::host) fn records(&self, table: &'static Table) -> impl Iterator<Item = Record> {
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

    /// Writes a record of this member into an empty place among the first [`KEPT`], or else into the first
    /// free place. Records of dead members are thus kept for a while, so that [`Host::was_left`] can find them.
    pub(in crate::host) fn put(&self, table: &'static Table, words: [u64; 3]) -> Result<Record, HostError> {
        let is_empty =
            |index: &usize| self.registry.word64(table.record(*index)).load(Ordering::Relaxed) & MEMBER == 0;
        let free = || {
            (0..table.capacity).find(|index| {
                self.is_free(self.registry.word64(table.record(*index)).load(Ordering::Relaxed))
            })
        };
        for _ in 0..ATTEMPTS {
            let index = match (0..KEPT.min(table.capacity)).find(is_empty).or_else(free) {
                Some(index) => index,
                None => {
                    self.sweep();
                    free().ok_or(HostError::Full(table.holds))?
                }
            };
            if let Some(record) = self.put_at(table, index, words) {
                return Ok(record);
            }
        }
        Err(HostError::Full(table.holds))
    }

    /// Writes a record of this member into a place, unless another member takes the place first.
    fn put_at(&self, table: &'static Table, index: usize, words: [u64; 3]) -> Option<Record> {
        let at = table.record(index);
        let word = self.registry.word64(at);
        let before = word.load(Ordering::Acquire);
        if !self.is_free(before) {
            return None;
        }
        let tag = before.wrapping_add(MEMBER + 1) & !MEMBER | self.me().pack();
        let written = tag | IS_WRITTEN;
        word.compare_exchange(before, written, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        fence(Ordering::Release);
        self.registry.write(at + 8, &words);
        // SYNC: record
        word.compare_exchange(written, tag, Ordering::Release, Ordering::Relaxed).ok()?;
        self.registry.word64(table.used).fetch_max(index as u64 + 1, Ordering::Release);
        Some(Record { index, tag, owner: self.me(), words })
    }

    /// Returns true if the place with this tag neither contains a member's record nor is being written by a member.
    fn is_free(&self, tag: u64) -> bool {
        MemberId::unpack(tag & MEMBER & !IS_WRITTEN).is_none_or(|owner| !self.is_member(owner))
    }

    /// Writes a record of this member that is removed when the claim is dropped. The caller has checked, under the
    /// lock, that other records do not exclude it.
    pub(in crate::host) fn claim(
        self: &Arc<Self>,
        _locked: &Locked<'_>,
        table: &'static Table,
        words: [u64; 3],
    ) -> Result<Claim, HostError> {
        let Record { index, tag, .. } = self.put(table, words)?;
        Ok(Claim { host: Arc::clone(self), table, index, tag })
    }

    /// Returns true if there is a record of a dead member whose words satisfy `wanted`. Such a record may be
    /// overwritten at any time.
    pub(in crate::host) fn was_left(
        &self,
        table: &'static Table,
        wanted: impl Fn(&[u64; 3]) -> bool,
    ) -> bool {
        self.words_of(table).any(|(_, tag, words)| {
            let owner = MemberId::unpack(tag & MEMBER);
            owner.is_some_and(|owner| !self.is_member(owner)) && wanted(&words)
        })
    }

    /// Removes all records whose words satisfy `wanted`, including records of dead members.
    pub(in crate::host) fn remove_all(&self, table: &'static Table, wanted: impl Fn(&[u64; 3]) -> bool) {
        for (index, tag, words) in self.words_of(table) {
            let is_being_written = tag & IS_WRITTEN != 0 && !self.is_free(tag);
            if tag & MEMBER != 0 && !is_being_written && wanted(&words) {
                self.take_out(table, index, tag);
            }
        }
    }

    /// Returns the index, tag and words of all places that were ever used, including void records.
    fn words_of(&self, table: &'static Table) -> impl Iterator<Item = (usize, u64, [u64; 3])> {
        (0..self.used(table)).map(move |index| {
            let at = table.record(index);
            let tag = self.registry.word64(at).load(Ordering::Acquire);
            let mut words = [0; 3];
            self.registry.read(at + 8, &mut words);
            (index, tag, words)
        })
    }

    /// Returns an upper bound on the indices of records that were ever used.
    fn used(&self, table: &'static Table) -> usize {
        let used = usize::try_from(self.registry.word64(table.used).load(Ordering::Acquire));
        used.unwrap_or(usize::MAX).min(table.capacity)
    }

    /// Removes a record unless another record has replaced it.
    pub(in crate::host) fn remove(&self, table: &'static Table, record: &Record) {
        self.take_out(table, record.index, record.tag);
    }

    /// Sets bits in the last word of a record of this member.
    pub(in crate::host) fn mark(&self, table: &'static Table, record: &Record, bits: u64) {
        let last = table.record(record.index) + 8 * record.words.len();
        self.registry.word64(last).fetch_or(bits, Ordering::Relaxed);
    }

    /// Clears bits in the last word of a record of this member.
    pub(in crate::host) fn unmark(&self, table: &'static Table, record: &Record, bits: u64) {
        let last = table.record(record.index) + 8 * record.words.len();
        self.registry.word64(last).fetch_and(!bits, Ordering::Release);
    }

    fn take_out(&self, table: &'static Table, index: usize, tag: u64) {
        let word = self.registry.word64(table.record(index));
        let _other = word.compare_exchange(tag, tag & !MEMBER, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Remove the record in a forked child, too. If a child closes an object of its parent, the object is
        // closed for both, as with a kernel device. A daemon is a child of the process that opened the device.
        self.host.take_out(self.table, self.index, self.tag);
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::PORTS;
    use super::*;
    use crate::host::Life;
    use crate::host::memory::simulated::HostMemory;
    use crate::host::testing::hosts;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc;
    use std::time::Duration;
    use trunkline_machine::Runtime;

    #[test]
    fn records_end_with_their_claim_or_their_member() {
        let (_folder, [one, two]) = hosts();
        let claim = one.claim(&one.lock().unwrap(), &PORTS, [1, 2, 3]).unwrap();
        let kept = two.put(&PORTS, [4, 5, 6]).unwrap();
        let seen: Vec<_> = two.records(&PORTS).map(|record| (record.owner, record.words)).collect();
        assert_eq!(seen, [(one.me(), [1, 2, 3]), (two.me(), [4, 5, 6])]);
        drop(claim);
        assert_eq!(one.records(&PORTS).collect::<Vec<_>>(), [kept]);
        drop(two);
        assert_eq!(one.records(&PORTS).count(), 0);
        let next = one.put(&PORTS, [7, 8, 9]).unwrap();
        assert_eq!(next.index, 0, "places are used again");
        one.remove(&PORTS, &kept);
        assert_eq!(one.records(&PORTS).collect::<Vec<_>>(), [next]);
    }

    /// A member that was stopped under the lock may continue after another member has replaced the lock.
    #[test]
    fn records_of_concurrent_writers_are_not_overwritten() {
        const EACH: u64 = 200;
        let (_folder, hosts) = hosts::<2>();
        let mut taken = [const { Vec::new() }; 2];
        let arrived = AtomicU64::new(0);
        #[expect(clippy::disallowed_methods, reason = "real threads")]
        std::thread::scope(|scope| {
            for (host, taken) in hosts.iter().zip(&mut taken) {
                // Returns in both threads at about the same time.
                let meet = || {
                    let before = arrived.fetch_add(1, Ordering::AcqRel);
                    while arrived.load(Ordering::Acquire) < (before | 1) + 1 {
                        std::thread::yield_now();
                    }
                };
                scope.spawn(move || {
                    for value in 0..EACH {
                        meet();
                        let put = host.put(&PORTS, [value, !value, host.me().pack()]);
                        meet();
                        taken.push((put, host.take_block(0)));
                    }
                });
            }
        });
        let mut blocks = BTreeSet::new();
        for (put, block) in taken.into_iter().flatten() {
            put.unwrap();
            assert!(blocks.insert(block.unwrap().start), "each block has one owner");
        }
        for host in &hosts {
            let own = hosts[0].records(&PORTS).filter(|record| record.owner == host.me());
            let words: Vec<_> = own.map(|record| record.words).collect();
            assert_eq!(words.len() as u64, EACH);
            assert!(words.iter().all(|[one, other, me]| *one == !other && *me == host.me().pack()));
        }
    }

    /// A member that was stopped while it wrote a record completes the record when it continues.
    #[test]
    fn unfinished_record_of_living_member_is_not_taken() {
        let (_folder, [one, stopped]) = hosts();
        let written = stopped.me().pack() | IS_WRITTEN;
        one.registry.word64(PORTS.record(0)).store(written, Ordering::Release);
        one.registry.word64(PORTS.used).store(1, Ordering::Release);
        one.remove_all(&PORTS, |_| true);
        assert_eq!(one.put_at(&PORTS, 0, [1, 0, 0]), None);
        assert_eq!(one.put(&PORTS, [1, 0, 0]).unwrap().index, 1);
        drop(stopped);
        assert!(one.put_at(&PORTS, 0, [1, 0, 0]).is_some(), "its writer is dead");
    }

    #[test]
    fn killed_simulated_process_does_not_block_in_registry() {
        let memory = HostMemory::new(Runtime::threads());
        let (done, waits) = mpsc::channel();
        #[expect(clippy::disallowed_methods, reason = "without the bound it never returns")]
        std::thread::spawn(move || {
            for stores in 0..8 {
                let life = Life::new();
                let host = Host::in_memory(&memory, &life, 4791).unwrap();
                life.kill_after_stores(stores);
                let _refused = host.put(&PORTS, [1, 0, 0]);
                let _again = host.put(&PORTS, [1, 0, 0]);
                let _joined = Host::in_memory(&memory, &life, 4791);
                assert!(!life.is_alive(), "all its stores were made");
            }
            done.send(()).unwrap();
        });
        waits.recv_timeout(Duration::from_secs(60)).expect("a killed process waits for a place");
    }

    #[test]
    fn removing_old_record_keeps_its_successor() {
        let (_folder, [host]) = hosts();
        let old = host.put(&PORTS, [1, 0, 0]).unwrap();
        host.remove(&PORTS, &old);
        let new = host.put(&PORTS, [1, 0, 0]).unwrap();
        assert_eq!(new.index, old.index);
        host.remove(&PORTS, &old);
        assert_eq!(host.records(&PORTS).collect::<Vec<_>>(), [new]);
    }

    #[test]
    fn full_table_reuses_records_of_dead_members() {
        let (_folder, [host]) = hosts();
        let dead = MemberId { slot: 700, generation: 9 };
        std::fs::write(host.directory().unwrap().join("slot-700"), "").unwrap();
        host.registry.word64(super::super::layout::slot(700)).store(9, Ordering::Release);
        host.registry.word64(PORTS.used).store(u64::MAX, Ordering::Release);
        for index in 0..PORTS.capacity {
            host.registry.word64(PORTS.record(index)).store(dead.pack(), Ordering::Release);
        }
        assert_eq!(host.records(&PORTS).count(), PORTS.capacity);
        let put = host.put(&PORTS, [1, 0, 0]).unwrap();
        assert_eq!(host.records(&PORTS).collect::<Vec<_>>(), [put]);
        for _ in 1..PORTS.capacity {
            host.put(&PORTS, [1, 0, 0]).unwrap();
        }
        let error = host.put(&PORTS, [1, 0, 0]).unwrap_err();
        assert!(error.to_string().contains("no more UDP ports"), "{error}");
    }
}
