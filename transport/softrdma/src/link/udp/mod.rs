//! The link over unprivileged UDP sockets.
//!
//! Owns one or two sockets per open address, and the relay to the other processes of the host. The device drives the
//! link as a [`Link`]. It never blocks, and parses a datagram only to determine its addressee. A datagram is dropped
//! and counted if members hold ports at its source address, but not its source port.
//!
//! | file | what it owns |
//! |---|---|
//! | `ports` | the bound ports, the holder of the device's port, and the take-over when it dies |
//! | `transfer` | sending and receiving, and errors of the sockets |
//! | `system` | the operating system's sockets |
//! | `icmp` | ICMP errors reported by the kernel |
//!
//! Sockets are created through the interface in `link::sockets`, so that a simulation can replace them.
#![forbid(unsafe_code)]

mod icmp;
mod ports;
mod system;
#[cfg(test)]
mod tests;
mod transfer;

use super::relay::{Relay, RelayPlace};
use super::sockets::Sockets;
use super::{IcmpError, Judge, Link, LinkError, ReceiveBatch, SendBatch};
use crate::host::{MemberPorts, Members, Targets};
pub(crate) use ports::FirstSockets;
use ports::Ports;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use system::SystemSockets;
pub use system::{RECEIVE_BUFFER_BYTES, SEND_BUFFER_BYTES};
use trunkline_verbs::{Counter, Time};

/// Delay before connections that lacked descriptors or memory are attempted again.
const RESUME_WAIT: Duration = Duration::from_millis(100);

/// A link over UDP.
#[derive(Debug)]
pub(crate) struct UdpLink {
    /// Declared before the relay, so that the device's port is already free when other members detect the end of this
    /// member.
    ports: Ports,
    /// Index of the socket that is read first in the next call, so that a busy address does not starve
    /// others.
    turn: usize,
    losses: transfer::Losses,
    /// Forwards datagrams to the other processes at the addresses of this one.
    relay: Option<Relay>,
    /// Passes datagrams whose source is the device's port to the process that holds the port. `None` for the
    /// first shard.
    outward: Option<Relay>,
    /// Datagrams that this process sends for other processes.
    sent_for_others: SendBatch,
    /// Time of the next attempt to open connections that wait for descriptors or memory; `None` if it is not scheduled.
    resume_at: Option<Time>,
    /// Ports from which members of the registry send.
    sources: Option<MemberPorts>,
}

impl Default for UdpLink {
    fn default() -> Self {
        Self::new()
    }
}

impl UdpLink {
    /// Creates a link without open addresses.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::over(Box::new(SystemSockets::default()))
    }

    /// Creates a link that requests receive buffers of this size, in bytes.
    #[must_use]
    pub(crate) fn with_receive_buffer(bytes: i32) -> Self {
        Self::over(Box::new(SystemSockets::with_receive_buffer(bytes)))
    }

    /// Creates a link over sockets other than the operating system's.
    pub(crate) fn over(sockets: Box<dyn Sockets>) -> Self {
        Self {
            ports: Ports::new(sockets),
            turn: 0,
            losses: transfer::Losses::default(),
            relay: None,
            outward: None,
            sent_for_others: SendBatch::new(),
            resume_at: None,
            sources: None,
        }
    }

    /// Sets the port at which the link receives.
    #[must_use]
    pub(crate) fn at_port(mut self, port: u16) -> Self {
        self.ports.receive_at(port);
        self
    }

    /// Lets the shards of a device send from the sockets of its first shard.
    #[must_use]
    pub(crate) fn with_first(mut self, first: &Arc<FirstSockets>) -> Self {
        self.ports.share_first(first);
        self
    }

    /// Shares the link's addresses with the other members of the host, if there are any, and forwards packets
    /// for shared TGTs to their executors.
    #[must_use]
    pub(crate) fn of_members(
        mut self,
        members: Option<&Arc<Members>>,
        targets: Option<&Arc<Targets>>,
    ) -> Self {
        if let Some(members) = members {
            self.ports.share(Arc::clone(members));
            self.sources = Some(MemberPorts::new(Arc::clone(members)));
            self.relay = Some(Relay::new(Arc::clone(members), targets.cloned()));
        }
        self
    }

    /// Makes this the link of a shard other than the first. The system chooses its ports, and the device's port and the
    /// relay belong to the first shard.
    #[must_use]
    pub(crate) fn of_shard(mut self, members: Option<&Arc<Members>>) -> Self {
        self.ports.leave_roce_port();
        if let Some(members) = members {
            self.ports.share(Arc::clone(members));
            self.sources = Some(MemberPorts::new(Arc::clone(members)));
            self.outward = Some(Relay::new(Arc::clone(members), None));
        }
        self
    }

    /// Returns the relay if its connections wait for descriptors or memory.
    fn waiting_relay(&self) -> Option<&Relay> {
        self.relay.as_ref().filter(|relay| relay.members().is_short())
    }

    #[cfg(test)]
    pub(super) fn relay_for_tests(&self) -> &Relay {
        self.relay.as_ref().expect("the link shares its addresses")
    }

    /// Receives a batch, with a judge if there is one.
    fn receive_with(&mut self, batch: &mut ReceiveBatch, judge: Option<&mut dyn Judge>) -> usize {
        batch.clear();
        self.losses.begin_receive();
        let time = judge.as_ref().map(|judge| judge.now());
        let now = time.unwrap_or_default();
        if let Some(sources) = &mut self.sources {
            sources.follow(now);
        }
        // Slots of forwarded datagrams are free again, but still count as received.
        let mut used = 0;
        if let Some(relay) = &mut self.relay {
            let ports = &self.ports;
            let mut place = RelayPlace {
                batch,
                sent: &mut self.sent_for_others,
                is_open: &|at| at.port() == ports.main_port() && ports.is_open(at.ip()),
                is_main: &|at| ports.holds_main(at),
            };
            if relay.take(&mut place, time) {
                self.ports.attempt_now();
            }
            used = batch.used();
        }
        if !self.sent_for_others.is_empty() {
            transfer::send(&mut self.ports, &mut self.sent_for_others, None, &mut self.losses);
            // The system lacks room for the remaining datagrams. Drop them, since the peers retransmit.
            self.sent_for_others.clear();
        }
        let sockets = self.ports.all_mut();
        let count = sockets.len();
        let mut gate = transfer::Gate {
            relay: self.relay.as_mut(),
            sources: self.sources.as_mut(),
            losses: &mut self.losses,
            judge,
            now,
        };
        let mut drained = true;
        for step in 0..count {
            let bound = &mut sockets[(self.turn + step) % count];
            let mut has_more = true;
            while has_more && !batch.is_full() && used < batch.capacity() {
                match gate.receive(bound, batch) {
                    Some(slots) => used += slots,
                    None => has_more = false,
                }
            }
            drained &= !has_more;
        }
        self.turn = if count == 0 { 0 } else { (self.turn + 1) % count };
        if let Some(relay) = &mut self.relay {
            relay.flush();
        }
        if let Some(sources) = self.sources.as_mut().filter(|_| drained) {
            sources.drained();
        }
        if batch.is_full() { used.max(batch.capacity()) } else { used.max(batch.used()) }
    }
}

impl Link for UdpLink {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn port(&self) -> u16 {
        self.ports.main_port()
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        self.ports.open(address)
    }

    fn close(&mut self, address: IpAddr) {
        self.ports.close(address);
    }

    fn source(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.ports.source(address))
    }

    fn other_source(&mut self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.ports.other_source(address))
    }

    fn is_between_hosts(&self, from: IpAddr, to: IpAddr) -> bool {
        self.ports.sockets().is_between_hosts(from, to)
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        self.ports.sockets().mtu(address)
    }

    fn segment(&mut self, batch: &mut SendBatch) {
        transfer::segment(&mut self.ports, batch, &mut self.losses);
    }

    fn send(&mut self, batch: &mut SendBatch, _now: Time) {
        transfer::segment(&mut self.ports, batch, &mut self.losses);
        let relay = self.relay.as_mut().or(self.outward.as_mut());
        transfer::send(&mut self.ports, batch, relay, &mut self.losses);
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        self.receive_with(batch, None)
    }

    fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
        self.receive_with(batch, Some(judge))
    }

    fn next_icmp_error(&mut self) -> Option<IcmpError> {
        self.losses.next_icmp_error()
    }

    fn arm(&mut self) -> bool {
        // Poll the relay first, so that the next `receive` polls the members even if datagrams are waiting
        // here.
        let mut is_waiting = self.relay.as_mut().is_some_and(Relay::is_readable);
        for bound in self.ports.all_mut() {
            if bound.socket.is_readable() {
                is_waiting = true;
                // A socket with a report stays readable until the report is read.
                self.losses.read_icmp_errors(&mut *bound.socket);
            }
        }
        is_waiting || self.losses.has_icmp_errors()
    }

    fn stays_armed(&self) -> bool {
        true
    }

    fn is_drained(&self) -> bool {
        self.relay.as_ref().is_none_or(Relay::is_drained) && !self.losses.has_icmp_errors()
    }

    fn has_arrivals(&self) -> bool {
        self.relay.as_ref().is_some_and(Relay::has_arrivals)
            || self.ports.all().iter().any(|bound| bound.socket.is_readable())
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let members = self.relay.iter().filter_map(|relay| relay.members().fd());
        self.ports.all().iter().filter_map(|bound| bound.socket.fd()).chain(members).collect()
    }

    fn changes(&self) -> u64 {
        self.ports.changes()
    }

    fn next_timeout(&self) -> Option<Time> {
        let resume = self.waiting_relay().map(|_| self.resume_at.unwrap_or(Time(0)));
        self.ports.next_attempt().into_iter().chain(resume).min()
    }

    fn poll(&mut self, now: Time) {
        self.ports.poll(now);
        let members = self.waiting_relay().map(Relay::members);
        self.resume_at = match (members, self.resume_at) {
            (Some(members), Some(at)) if at <= now => {
                members.resume();
                members.is_short().then_some(now + RESUME_WAIT)
            }
            (Some(_), None) => Some(now + RESUME_WAIT),
            (Some(_), at) => at,
            (None, _) => None,
        };
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        let value = self.ports.all().iter().map(|bound| bound.socket.dropped()).sum();
        into.push(Counter { name: "drop_receive_queue_full", value });
        into.extend(self.losses.counters());
        into.push(Counter { name: "port_taken_over", value: self.ports.taken_over() });
        if let Some(relay) = &self.relay {
            relay.counters(into);
        }
    }
}
