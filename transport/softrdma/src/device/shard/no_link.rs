//! The link of a removed device.
//!
//! Keeps the counters of the link that it replaces. Neither sends nor receives.

use crate::link::{Link, LinkError, ReceiveBatch, SendBatch, Tap};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use trunkline_verbs::{Counter, Time};

/// A link that drops all datagrams.
#[derive(Debug)]
pub(super) struct NoLink {
    name: &'static str,
    counted: Vec<Counter>,
}

impl NoLink {
    /// Creates the replacement for a link, with the link's name and counters.
    pub(super) fn after(tap: &Tap) -> Self {
        let mut counted = Vec::new();
        tap.counters(&mut counted);
        Self { name: tap.wire.link.name(), counted }
    }
}

impl Link for NoLink {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        Err(LinkError::NoSuchAddress { address })
    }

    fn close(&mut self, _address: IpAddr) {}

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        Err(LinkError::NoSuchAddress { address })
    }

    fn send(&mut self, batch: &mut SendBatch, _now: Time) {
        batch.clear();
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        batch.clear();
        0
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        into.extend(self.counted.iter().cloned());
    }
}
