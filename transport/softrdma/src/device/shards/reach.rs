//! Control's access to the shards.
//!
//! Owns the turn of the first shard during an operation of control, since most operations need its link. An operation
//! enters another shard only while it needs that shard. Control's lock is held throughout, so that two threads cannot
//! wait for shards in different orders. A thread that works on a shard never waits for another thread.
#![forbid(unsafe_code)]

use super::Shards;
use super::lock::ShardLock;
use crate::device::counters::{QpCounters, ShardCounters};
use crate::device::shard::{ControlEvent, Shard};
use crate::device::tables::directory::{QpDirectory, ShardIndex};
use crate::host::{AreaHandle, MemberId};
use trunkline_machine::rings::owned::Turn;
use trunkline_verbs::{Counter, QpAttributes, QpNumber, Time};

/// Access to the shards during one operation of control.
#[derive(Debug)]
pub(in crate::device) struct Reach<'a> {
    shards: &'a Shards,
    first: Turn<'a, Shard>,
    now: Time,
}

impl<'a> Reach<'a> {
    /// Creates the access. `first` is the turn of the first shard.
    pub(in crate::device) fn new(shards: &'a Shards, first: Turn<'a, Shard>, now: Time) -> Self {
        Self { shards, first, now }
    }

    pub(in crate::device) fn first(&mut self) -> &mut Shard {
        &mut self.first
    }

    /// Returns the directory of QPs by shard.
    pub(in crate::device) fn directory(&self) -> &QpDirectory {
        self.shards.directory()
    }

    /// Runs an operation on a shard, and sends the resulting packets. Packets of the first shard are sent at
    /// the end of control's operation.
    pub(in crate::device) fn at<R>(&mut self, index: ShardIndex, action: impl FnOnce(&mut Shard) -> R) -> R {
        let lock = self.shards.get(index).filter(|_| index != ShardIndex::FIRST);
        let Some(lock) = lock else { return action(&mut self.first) };
        visit(lock, self.now, action)
    }

    /// Runs an operation on each shard.
    pub(in crate::device) fn each(&mut self, mut action: impl FnMut(&mut Shard)) {
        action(&mut self.first);
        for lock in self.shards.others() {
            visit(lock, self.now, &mut action);
        }
    }

    /// Passes a message about shared memory to its shard. The shard handles it immediately, since the message may wake
    /// a thread that sleeps for that shard. Returns false for any other message.
    pub(in crate::device) fn handle_memory_message(
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

    /// Runs an operation on the shard that owns a QP. Returns `None` if the QP does not exist.
    pub(in crate::device) fn of_qp<R>(
        &mut self,
        number: u32,
        action: impl FnOnce(&mut Shard) -> R,
    ) -> Option<R> {
        let home = self.directory().home(number)?;
        Some(self.at(home, action))
    }

    /// Returns the attributes and state of a QP.
    pub(in crate::device) fn attributes(&mut self, number: QpNumber) -> Option<QpAttributes> {
        self.of_qp(number.get(), |shard| shard.attributes(number.get()).copied())?
    }

    /// Takes the events for control from all shards. The events of one shard are in order.
    pub(in crate::device) fn take_control_events(&mut self) -> Vec<ControlEvent> {
        let mut events = self.first.take_control_events();
        for lock in self.shards.others().filter(|lock| lock.take_note()) {
            events.append(&mut lock.shard.enter().take_control_events());
        }
        events
    }

    /// Sends the packets of the first shard.
    pub(in crate::device) fn flush(&mut self, now: Time) {
        self.first.flush(now);
    }

    /// Shuts down all shards of a removed device: disconnects their links, and empties all tables.
    pub(in crate::device) fn shut_down(&mut self) {
        for lock in self.shards.others() {
            visit(lock, self.now, Shard::shut_down);
        }
        self.first.shut_down();
        self.shards.tables().close();
    }

    /// Returns the counters of all shards, of their QPs, and of their links and shared memory.
    pub(in crate::device) fn counters(&mut self) -> (ShardCounters, QpCounters, Vec<Counter>) {
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

/// Runs an operation in a turn of a shard other than the first.
fn visit<R>(lock: &ShardLock, now: Time, action: impl FnOnce(&mut Shard) -> R) -> R {
    let mut shard = lock.shard.enter();
    let result = action(&mut shard);
    shard.flush(now);
    lock.note_control_events(&shard);
    lock.progress.acted(&mut shard, |shard| shard.deadline(now));
    result
}
