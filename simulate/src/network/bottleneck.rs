//! A low-bandwidth link to a host. Its queue marks or drops excess datagrams.

use std::net::IpAddr;
use std::time::Duration;
use trunkline_verbs::Time;

/// Parameters of the link to a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bottleneck {
    pub(crate) host: IpAddr,
    /// Transmission time of a byte, in nanoseconds.
    pub(crate) byte_ns: u64,
    /// Capacity of the queue, in bytes.
    pub(crate) queue: u64,
    /// Queue length, in bytes, from which datagrams are marked (ECN).
    pub(crate) marks_from: Option<u64>,
    /// Delay of each datagram after it leaves the queue.
    pub(crate) delay: Duration,
}

/// Statistics of the datagrams that entered a link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Passed {
    pub(crate) all: u64,
    pub(crate) dropped: u64,
    pub(crate) marked: u64,
}

/// A link with its state.
#[derive(Debug)]
pub(super) struct Link {
    of: Bottleneck,
    /// Time at which the link has sent all queued bytes.
    free: Time,
    pub(super) passed: Passed,
}

impl Link {
    pub(super) fn new(of: Bottleneck) -> Self {
        Self { of, free: Time(0), passed: Passed::default() }
    }

    /// Returns the time at which a datagram of this length arrives at the end of the link, and whether it is marked.
    /// Returns `None` if it is dropped.
    pub(super) fn pass(&mut self, now: Time, to: IpAddr, bytes: usize) -> Option<(Time, bool)> {
        if to != self.of.host {
            return Some((now, false));
        }
        self.passed.all += 1;
        let length_ns = self.of.byte_ns * bytes as u64;
        let waiting_ns = self.free.since(now);
        if waiting_ns + length_ns > self.of.queue * self.of.byte_ns {
            self.passed.dropped += 1;
            return None;
        }
        self.free = self.free.max(now).plus_ns(length_ns);
        let is_marked = self.of.marks_from.is_some_and(|from| waiting_ns > from * self.of.byte_ns);
        self.passed.marked += u64::from(is_marked);
        Some((self.free + self.of.delay, is_marked))
    }
}
