//! Counters for the traffic on a link.
//!
//! Each node's link has an observer. The program that steps the nodes uses the observers to find nodes with packets to
//! receive, so that every turn has work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use trunkline_softrdma::link::{Datagram, LinkObserver};

/// Traffic sent and received by one node.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    datagrams: AtomicU64,
    bytes: AtomicU64,
    received: AtomicU64,
    longest: Mutex<Vec<u8>>,
}

impl Passed {
    /// Returns the number of datagrams sent.
    pub(crate) fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes sent, from BTH to ICRC.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of datagrams received.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the longest datagram sent since the last call, and forgets it.
    pub(crate) fn take_longest(&self) -> Vec<u8> {
        std::mem::take(&mut self.longest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LinkObserver for Passed {
    fn sent(&self, datagram: Datagram<'_>) {
        let bytes = datagram.bytes;
        self.datagrams.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut longest = self.longest.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() > longest.len() {
            longest.clear();
            longest.extend_from_slice(bytes);
        }
    }

    fn received(&self, count: usize) {
        self.received.fetch_add(count as u64, Ordering::Relaxed);
    }
}
