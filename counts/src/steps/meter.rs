//! Counter of the traffic of a link.
//!
//! Each node's link has an observer. The stepping program queries the observer for nodes with something to receive, so that
//! no turn is empty.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use trunkline_softrdma::link::{Datagram, LinkObserver};

/// Traffic that one node has sent and received.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    datagrams: AtomicU64,
    bytes: AtomicU64,
    received: AtomicU64,
    longest: Mutex<Vec<u8>>,
}

impl Passed {
    /// Returns the number of sent datagrams.
    pub(crate) fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    /// Returns the number of sent bytes, from BTH to ICRC.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of received datagrams.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Takes the longest datagram since the last call.
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
