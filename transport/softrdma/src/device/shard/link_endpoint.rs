//! The shard's end of the link, which sends and receives datagrams.
//!
//! Owns the link, the outgoing and incoming batches, and the list of open addresses. This module must never inspect a
//! packet.

use super::no_link::NoLink;
use super::qp::route::Route;
use crate::link::{IcmpError, Judge, ReceiveBatch, SendBatch, Tap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use trunkline_roce::engine::Transmit;
use trunkline_roce::wire::icrc::{self, Flow};
use trunkline_roce::wire::{IpUdp, Mad, mad_packet};
use trunkline_verbs::{Counter, Mtu, PeerView, Psn, Time, VerbsError};

/// Number of datagrams that one batch from the link can hold.
const RECEIVE_SLOTS: usize = 64;
/// Maximum number of batches that a process forwards before it exits.
const LAST_BATCHES: usize = 64;
/// Minimum interval between polls of the link while packets arrive through memory. A poll takes a system call.
const INTERVAL_NS: u64 = 4_000;
/// Maximum poll interval of an unused link. The interval is an eighth of the time since the last use, so that
/// the delay of a peer's packets is small in relation to the peer's pauses.
const IDLE_INTERVAL_NS: u64 = 2_000_000;
/// The MTU of a link that does not report one.
const DEFAULT_MTU_BYTES: u32 = 1500;

/// The shard's link, with its batches and open addresses.
#[derive(Debug)]
pub(in crate::device) struct LinkEndpoint {
    tap: Tap,
    outgoing: Outgoing,
    /// `None` only while a batch is being handled.
    received: Option<ReceiveBatch>,
    /// Local addresses at which packets are received.
    opened: Vec<IpAddr>,
    /// Incremented when the link's descriptors change.
    descriptors_changed: u64,
    /// Time of the last poll.
    polled: Time,
    /// Time of the last send or arrival.
    used: Time,
    /// True if the sockets were empty when the shard's poller last went to sleep, and descriptors have not woken it
    /// since. The poller watches the descriptors edge-triggered, so later datagrams wake it.
    is_watched: bool,
    /// True after a wake-up not caused by a descriptor, until the next poll.
    woke_quietly: bool,
}

impl LinkEndpoint {
    pub(super) fn new(tap: Tap) -> Self {
        Self {
            tap,
            outgoing: Outgoing { batch: SendBatch::new(), flow: None },
            received: Some(ReceiveBatch::new(RECEIVE_SLOTS)),
            opened: Vec::new(),
            // Starts at 1, since the link may have descriptors from the start.
            descriptors_changed: 1,
            polled: Time(0),
            used: Time(0),
            is_watched: false,
            woke_quietly: false,
        }
    }

    /// Returns the link's name for reports.
    pub(super) fn name(&self) -> &'static str {
        self.tap.wire.link.name()
    }

    /// Returns true if datagrams between these addresses cross a network.
    pub(super) fn is_between_hosts(&self, from: IpAddr, to: IpAddr) -> bool {
        self.tap.wire.link.is_between_hosts(from, to)
    }

    /// Opens an address unless it is open.
    pub(in crate::device) fn open(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        if !self.is_open(address) {
            self.tap.wire.link.open(address)?;
            self.opened.push(address);
            self.descriptors_changed += 1;
            self.is_watched = false;
        }
        Ok(())
    }

    pub(in crate::device) fn close(&mut self, address: IpAddr) {
        if let Some(place) = self.opened.iter().position(|open| *open == address) {
            self.opened.swap_remove(place);
            self.tap.wire.link.close(address);
            self.descriptors_changed += 1;
        }
    }

    pub(super) fn is_open(&self, address: IpAddr) -> bool {
        self.opened.contains(&address)
    }

    /// Returns the UDP port at which the device receives.
    pub(in crate::device) fn port(&self) -> u16 {
        self.tap.wire.link.port()
    }

    /// Returns the source address and port of packets sent from an open address.
    pub(in crate::device) fn source(&self, address: IpAddr) -> SocketAddr {
        self.tap.wire.link.source(address)
    }

    /// Returns a source for packets from an open address. Its port differs from the port at which the device receives.
    pub(super) fn other_source(&mut self, address: IpAddr) -> SocketAddr {
        self.tap.wire.link.other_source(address)
    }

    /// Returns the path MTU that the interface of an address allows.
    pub(in crate::device) fn mtu_of(&self, address: IpAddr) -> Mtu {
        let bytes = self.tap.wire.link.mtu(address).unwrap_or(DEFAULT_MTU_BYTES);
        Mtu::for_link(bytes).unwrap_or(Mtu::Mtu256)
    }

    /// Returns true if a thread must poll the link before it sleeps.
    pub(in crate::device) fn must_poll(&self) -> bool {
        !self.is_watched || !self.tap.wire.link.is_drained()
    }

    /// Records that the thread that slept for the shard is awake. `by_link` is false only if the wake-up was not caused
    /// by a descriptor.
    pub(in crate::device) fn woken(&mut self, by_link: bool) {
        self.is_watched &= !by_link;
        self.woke_quietly = self.is_watched;
    }

    /// Returns true once after a wake-up not caused by a descriptor, if the link is drained.
    pub(super) fn take_quiet_wake(&mut self) -> bool {
        std::mem::take(&mut self.woke_quietly) && self.tap.wire.link.is_drained()
    }

    /// Returns true if the link should be polled while packets arrive through memory.
    pub(super) fn is_due(&self, now: Time) -> bool {
        let interval = (now.since(self.used) / 8).clamp(INTERVAL_NS, IDLE_INTERVAL_NS);
        now.since(self.polled) >= interval
    }

    /// Records a send or an arrival.
    pub(super) fn note_use(&mut self, now: Time) {
        self.used = now;
    }

    /// Handles a timeout of the link, if one has expired.
    pub(in crate::device) fn poll(&mut self, now: Time) {
        self.polled = now;
        if self.tap.next_timeout().is_some_and(|when| when <= now) {
            self.tap.poll(now);
        }
    }

    /// Returns the time of the next [`LinkEndpoint::poll`].
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.tap.next_timeout()
    }

    /// Receives a batch. The flag is true if more datagrams may be waiting. The caller returns the batch to
    /// [`LinkEndpoint::recycle`].
    pub(super) fn receive(&mut self, judge: &mut dyn Judge) -> Option<(ReceiveBatch, bool)> {
        let mut batch = self.received.take()?;
        let count = self.tap.receive_judged(&mut batch, judge);
        if count > 0 {
            self.used = judge.now();
        }
        let more = count >= batch.capacity();
        Some((batch, more))
    }

    /// Takes the next ICMP report on a packet that was not delivered.
    pub(super) fn next_icmp_error(&mut self) -> Option<IcmpError> {
        self.tap.wire.link.next_icmp_error()
    }

    /// Takes back the buffer of a handled batch.
    pub(super) fn recycle(&mut self, batch: ReceiveBatch) {
        self.received = Some(batch);
    }

    /// Forwards received datagrams that are addressed to other processes, and drops datagrams for this process. Called
    /// before this process exits and its sockets close.
    pub(in crate::device) fn forward_last(&mut self) {
        let Some(mut batch) = self.received.take() else { return };
        for _ in 0..LAST_BATCHES {
            if self.tap.receive(&mut batch) == 0 {
                break;
            }
        }
        self.received = Some(batch);
    }

    /// Returns the queue of outgoing packets.
    pub(super) fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    /// Returns true if the queue of outgoing packets is empty.
    pub(super) fn is_idle(&self) -> bool {
        self.outgoing.len() == 0
    }

    /// Passes the queued packets to the link. Returns the number of packets sent.
    pub(super) fn send(&mut self, now: Time) -> usize {
        let before = self.outgoing.len();
        if before > 0 {
            self.tap.send(&mut self.outgoing.batch, now);
            self.used = now;
        }
        before - self.outgoing.len()
    }

    /// Notifies the link that a thread is about to sleep on its descriptors. Returns true if datagrams are
    /// already waiting.
    pub(in crate::device) fn arm(&mut self) -> bool {
        self.tap.wire.link.arm()
    }

    /// Calls [`LinkEndpoint::arm`] for the shard's poller.
    pub(super) fn arm_poller(&mut self) -> bool {
        if !self.must_poll() {
            return false;
        }
        let is_waiting = self.tap.wire.link.arm();
        self.is_watched = !is_waiting && self.tap.wire.link.stays_armed();
        is_waiting
    }

    /// Returns true if datagrams wait at the link.
    pub(in crate::device) fn has_arrivals(&self) -> bool {
        self.tap.wire.link.has_arrivals()
    }

    /// Returns true if the link stays armed while datagrams are received.
    pub(in crate::device) fn stays_armed(&self) -> bool {
        self.tap.wire.link.stays_armed()
    }

    /// Returns the link's descriptors.
    pub(in crate::device) fn descriptors(&self) -> Vec<RawFd> {
        self.tap.wire.link.fds().iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Returns a number that changes with the set of descriptors.
    pub(in crate::device) fn descriptors_version(&self) -> u64 {
        self.descriptors_changed + self.tap.wire.link.changes()
    }

    /// Appends the link's counters.
    pub(in crate::device) fn counters(&self, into: &mut Vec<Counter>) {
        self.tap.counters(into);
    }

    /// Replaces the link with a [`NoLink`].
    pub(super) fn cut(&mut self) {
        self.tap = Tap::new(Box::new(NoLink::after(&self.tap)));
        self.descriptors_changed += 1;
        self.is_watched = false;
        self.outgoing.batch.clear();
    }
}

/// Outgoing packets, each with its ICRC.
#[derive(Debug)]
pub(super) struct Outgoing {
    batch: SendBatch,
    /// Flow of the last added packets.
    flow: Option<Flow>,
}

impl Outgoing {
    pub(super) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Appends packets from `write` until it returns `None`, or `most` packets are added. Returns the number of packets
    /// added.
    pub(super) fn push_run(
        &mut self,
        route: &Route,
        most: usize,
        mut write: impl FnMut(&mut Vec<u8>) -> Option<Transmit>,
    ) -> usize {
        let (source, destination) = (route.source(), route.destination());
        let flow = flow_of(&mut self.flow, route.covered());
        self.batch.push_run(source, destination, route.segmentation(), most, |out| {
            let start = out.len();
            if write(out).is_none() {
                return false;
            }
            let crc = flow.icrc(&out[start..]);
            out.extend_from_slice(&crc.to_le_bytes());
            true
        })
    }

    /// Appends a management datagram.
    pub(super) fn push_mad(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        view: Option<PeerView>,
        psn: Psn,
        mad: &Mad,
    ) {
        let headers = match view {
            Some(PeerView { own, peer }) => IpUdp::new(own, peer),
            None => IpUdp::new(source, destination),
        };
        self.batch.push_with(source, destination, |out| {
            let start = out.len();
            mad_packet(psn, &mad.to_bytes()).emit(out);
            let crc = icrc::icrc(&headers, &out[start..]);
            out.extend_from_slice(&crc.to_le_bytes());
        });
    }
}

/// Returns the flow of these headers from the cache `last`, which is replaced if its headers differ.
fn flow_of(last: &mut Option<Flow>, headers: IpUdp) -> &mut Flow {
    match last {
        Some(flow) if *flow.headers() == headers => {}
        _ => *last = None,
    }
    last.get_or_insert_with(|| Flow::new(&headers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Hub;

    #[test]
    fn poll_interval_grows_with_unused_time_of_link() {
        let mut link = LinkEndpoint::new(Tap::new(Box::new(Hub::new().link().unwrap())));
        let begin = Time(1_000_000_000);
        for (unused_ns, interval_ns) in
            [(0, INTERVAL_NS), (80_000, 10_000), (8_000_000, 1_000_000), (1_000_000_000, IDLE_INTERVAL_NS)]
        {
            let now = begin.plus_ns(unused_ns);
            link.note_use(begin);
            link.poll(Time(now.0 - interval_ns));
            assert!(link.is_due(now), "{unused_ns}");
            link.poll(Time(now.0 - interval_ns + 1));
            assert!(!link.is_due(now), "{unused_ns}");
        }
    }
}
