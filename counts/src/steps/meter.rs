//! Counter of the traffic of a link.
//!
//! A meter wraps the link of each node. The stepping program asks it which node has something to receive, so that no
//! turn is empty.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_softrdma::link::{Judge, Link, LinkError, ReceiveBatch, SendBatch};
use trunkline_verbs::{Counter, Time};

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

    fn sent(&self, bytes: &[u8]) {
        self.datagrams.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut longest = self.longest.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() > longest.len() {
            longest.clear();
            longest.extend_from_slice(bytes);
        }
    }
}

/// A link with its counts.
#[derive(Debug)]
pub(crate) struct Meter {
    link: Box<dyn Link>,
    passed: Arc<Passed>,
}

impl Meter {
    /// Wraps a link and counts its traffic.
    pub(crate) fn new(link: Box<dyn Link>, passed: Arc<Passed>) -> Self {
        Self { link, passed }
    }

    fn took(&self, datagrams: usize) -> usize {
        self.passed.received.fetch_add(datagrams as u64, Ordering::Relaxed);
        datagrams
    }
}

impl Link for Meter {
    fn name(&self) -> &'static str {
        self.link.name()
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        self.link.open(address)
    }

    fn close(&mut self, address: IpAddr) {
        self.link.close(address);
    }

    fn source(&self, address: IpAddr) -> SocketAddr {
        self.link.source(address)
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        self.link.mtu(address)
    }

    fn send(&mut self, batch: &mut SendBatch, now: Time) {
        // A datagram that does not fit in the socket's buffer would be counted again, which does not happen on these links.
        for datagram in batch.iter() {
            self.passed.sent(datagram.bytes);
        }
        self.link.send(batch, now);
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        let taken = self.link.receive(batch);
        self.took(taken)
    }

    fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
        let taken = self.link.receive_judged(batch, judge);
        self.took(taken)
    }

    fn arm(&mut self) -> bool {
        self.link.arm()
    }

    fn stays_armed(&self) -> bool {
        self.link.stays_armed()
    }

    fn has_arrivals(&self) -> bool {
        self.link.has_arrivals()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.link.fds()
    }

    fn changes(&self) -> u64 {
        self.link.changes()
    }

    fn next_timeout(&self) -> Option<Time> {
        self.link.next_timeout()
    }

    fn poll(&mut self, now: Time) {
        self.link.poll(now);
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        self.link.counters(into);
    }
}
