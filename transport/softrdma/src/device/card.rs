//! The card: control and the shard of a device, together under one lock.
//!
//! Owns the order in which the two work. A thread that polls, posts or connects works on it itself;
//! the background machine does when nobody polls. It must never wait: every call does what can be done
//! now and reports when it wants to be called again.
#![forbid(unsafe_code)]

use super::control::Control;
use super::shard::Shard;
use std::os::fd::RawFd;
use trunkline_verbs::Time;

/// Batches of packets handled before other work gets its turn.
const BATCHES_IN_TURN: usize = 4;

/// The card. It guards nothing between the two, so callers borrow both: control's operations on packets
/// take the shard.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) control: Control,
    pub(super) shard: Shard,
}

impl Card {
    /// Does the work that is due; returns whether more is due at once.
    pub(super) fn work(&mut self, now: Time) -> bool {
        let Self { control, shard } = self;
        if control.is_removed() {
            return false;
        }
        shard.link_mut().poll(now);
        let mut more = false;
        for _ in 0..BATCHES_IN_TURN {
            more = shard.receive(now);
            control.serve_members(shard, now);
            shard.flush(now);
            if !more {
                break;
            }
        }
        shard.run_timers(now);
        control.work(shard, now);
        shard.flush(now);
        more || shard.has_work()
    }

    /// When [`Card::work`] wants to be called although nothing arrives; may have passed.
    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        if self.control.is_removed() {
            return None;
        }
        self.shard.deadline(now).into_iter().chain(self.control.next_timeout()).min()
    }

    /// Notifies the link that a thread is about to sleep on its descriptors; `true` when something
    /// waits already.
    pub(super) fn arm(&mut self) -> bool {
        self.shard.link_mut().arm()
    }

    /// Whether datagrams wait at the link.
    pub(super) fn has_arrivals(&self) -> bool {
        self.shard.link().has_arrivals()
    }

    /// Whether receiving leaves the link armed.
    pub(super) fn stays_armed(&self) -> bool {
        self.shard.link().stays_armed()
    }

    /// The link's descriptors, and a number that changes when they do.
    pub(super) fn descriptors(&self) -> (u64, Vec<RawFd>) {
        (self.descriptors_version(), self.shard.link().descriptors())
    }

    /// The number of [`Card::descriptors`] alone.
    pub(super) fn descriptors_version(&self) -> u64 {
        self.shard.link().descriptors_version()
    }
}
