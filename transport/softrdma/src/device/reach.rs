//! Control's way to the shards.
//!
//! Owns the turn of the first shard for the length of an operation of control, since most of them need its
//! link; those of other shards are taken as an operation needs them, and let go at once. Made with
//! control's lock held, so that no two threads wait for shards in different orders; a thread at work on a shard
//! waits for nobody.
#![forbid(unsafe_code)]

use super::counters::{QpCounters, ShardCounters};
use super::directory::{QpDirectory, ShardIndex};
use super::shard::{Found, Shard};
use super::shard_lock::ShardLock;
use super::shards::Shards;
use crate::host::{AreaHandle, MemberId};
use trunkline_rings::owned::Turn;
use trunkline_verbs::{Counter, QpAttributes, QpNumber, Time};

/// See the module.
#[derive(Debug)]
pub(super) struct Reach<'a> {
    shards: &'a Shards,
    first: Turn<'a, Shard>,
    now: Time,
}

impl<'a> Reach<'a> {
    /// Starts with the first shard's turn, which the caller has waited for.
    pub(super) fn new(shards: &'a Shards, first: Turn<'a, Shard>, now: Time) -> Self {
        Self { shards, first, now }
    }

    /// The first shard.
    pub(super) fn first(&mut self) -> &mut Shard {
        &mut self.first
    }

    /// Returns the directory of QPs by shard.
    pub(super) fn directory(&self) -> &QpDirectory {
        self.shards.directory()
    }

    /// Does something to a shard, and lets leave what it causes. That of the first one leaves at the end of the
    /// operation.
    pub(super) fn at<R>(&mut self, index: ShardIndex, action: impl FnOnce(&mut Shard) -> R) -> R {
        let lock = self.shards.get(index).filter(|_| index != ShardIndex::FIRST);
        let Some(lock) = lock else { return action(&mut self.first) };
        visit(lock, self.now, action)
    }

    /// Does something to each shard.
    pub(super) fn each(&mut self, mut action: impl FnMut(&mut Shard)) {
        action(&mut self.first);
        for lock in self.shards.others() {
            visit(lock, self.now, &mut action);
        }
    }

    /// Hands a message about shared memory to the shard that it is for, which acts on it at once: a thread that
    /// sleeps there is woken by the thread that has received the message. Returns whether it is such a message.
    pub(super) fn handle_memory_message(
        &mut self,
        from: MemberId,
        message: (u8, &[u8]),
        area: Option<AreaHandle>,
    ) -> bool {
        let now = self.now;
        let to = Shard::memory_message_is_for(message).filter(|to| self.shards.get(*to).is_some());
        self.at(to.unwrap_or(ShardIndex::FIRST), |shard| {
            let is_one = shard.handle_memory_message(from, message, area, now);
            if is_one {
                shard.receive_by_memory(now);
            }
            is_one
        })
    }

    /// Does something to the shard that has a QP; `None` when there is no such QP.
    pub(super) fn of_qp<R>(&mut self, number: u32, action: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        let home = self.directory().home(number)?;
        Some(self.at(home, action))
    }

    /// Attributes and state of a QP.
    pub(super) fn attributes(&mut self, number: QpNumber) -> Option<QpAttributes> {
        self.of_qp(number.get(), |shard| shard.attributes(number.get()).copied())?
    }

    /// Takes what the shards have found for control; findings of one shard are in order.
    pub(super) fn take_found(&mut self) -> Vec<Found> {
        let mut found = self.first.take_found();
        for lock in self.shards.others().filter(|lock| lock.take_note()) {
            found.append(&mut lock.shard.enter().take_found());
        }
        found
    }

    /// Lets leave what was done to the first shard.
    pub(super) fn flush(&mut self, now: Time) {
        self.first.flush(now);
    }

    /// The device is removed: nothing arrives or leaves from now on, and all tables are empty.
    pub(super) fn shut_down(&mut self) {
        for lock in self.shards.others() {
            visit(lock, self.now, Shard::shut_down);
        }
        self.first.shut_down();
        self.shards.tables().close();
    }

    /// The counts of all shards, of their QPs, and of their links and shared memory.
    pub(super) fn counters(&mut self) -> (ShardCounters, QpCounters, Vec<Counter>) {
        let mut link = Vec::new();
        let (own, mut qps) = self.first.counters(&mut link);
        self.first.memory_counters(&mut link);
        let mut counted = own.clone();
        for lock in self.shards.others() {
            let mut of_link = Vec::new();
            let shard = lock.shard.enter();
            let (other, of_qps) = shard.counters(&mut of_link);
            shard.memory_counters(&mut of_link);
            counted.add(other);
            qps.merge(&of_qps);
            for counter in of_link {
                match link.iter_mut().find(|known| known.name == counter.name) {
                    Some(known) => known.value += counter.value,
                    None => link.push(counter),
                }
            }
        }
        (counted, qps, link)
    }
}

/// Has a turn of a shard other than the first.
fn visit<R>(lock: &ShardLock, now: Time, action: impl FnOnce(&mut Shard) -> R) -> R {
    let mut shard = lock.shard.enter();
    let result = action(&mut shard);
    shard.flush(now);
    lock.note_found(&shard);
    lock.progress.acted(&mut shard, |shard| shard.deadline(now));
    result
}
