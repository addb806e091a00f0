//! Network between simulated hosts, which delays datagrams and injects faults.
//!
//! Owns the hosts, the datagrams in transit and the current conditions. Sockets of processes pass datagrams to the
//! [`Wire`]. The scheduler requests the next arrival time and the delivery of datagrams.

mod attacker;
mod bottleneck;
mod firewalls;
mod forged;
mod sent_frames;
pub(crate) mod strangers;
pub(crate) mod tampering;
mod translators;

use crate::coverage::{Coverage, EventKind};
use crate::trace::{Pen, Since};
use attacker::Attacker;
use bottleneck::Link;
pub(crate) use bottleneck::{Bottleneck, Passed};
use firewalls::Firewalls;
use forged::Forged;
use sent_frames::SentFrames;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use strangers::{Request, Strangers};
use tampering::Tamperer;
use translators::Translators;
use trunkline_machine::Runtime;
use trunkline_roce::wire::Bth;
use trunkline_softrdma::link::Datagram;
use trunkline_softrdma::simulation::{self, SimulatedHost};
use trunkline_testkit::{HostilePeer, Hostility, Random};
use trunkline_verbs::{Time, VirtualClock};

/// Maximum number of datagrams in transit. Datagrams beyond it are dropped.
const MOST_UNDER_WAY: usize = 16_384;

/// Delays, and probabilities of faults.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conditions {
    pub(crate) lost: f64,
    pub(crate) doubled: f64,
    pub(crate) overtaken: f64,
    pub(crate) corrupted: f64,
    pub(crate) least_delay: Duration,
    pub(crate) jitter: Duration,
}

#[derive(Debug)]
struct UnderWay {
    source: SocketAddr,
    destination: SocketAddr,
    bytes: Vec<u8>,
    is_marked: bool,
}

struct NetworkState {
    /// Datagrams in transit, by arrival time and sequence number.
    under_way: BTreeMap<(Time, u64), UnderWay>,
    /// Arrival time of the last datagram that was not deliberately delayed, by sender and receiver.
    last: BTreeMap<(IpAddr, IpAddr), Time>,
    conditions: Conditions,
    /// Pairs of addresses that cannot reach each other, with the smaller address first.
    cut: BTreeSet<(IpAddr, IpAddr)>,
    firewalls: Firewalls,
    /// Addresses of both ends of a path that drops large datagrams, and the largest UDP payload on this path, in bytes.
    narrow: Option<(IpAddr, IpAddr, usize)>,
    /// Length of the first datagram in the message of the datagram that is being sent. A message is dropped whole.
    segment_bytes: usize,
    translators: Translators,
    bottleneck: Option<Link>,
    random: fastrand::Rng,
    attacker: Attacker,
    strangers: Strangers,
    /// Modifications to the frames of misbehaving nodes, by node address.
    hostile: BTreeMap<IpAddr, HostilePeer>,
    /// Host on the path between two nodes.
    tamperer: Option<Tamperer>,
    frames: SentFrames,
    sent: u64,
    coverage: Arc<Coverage>,
    /// Writer for the trace, if it is kept.
    pen: Option<Pen>,
    checksum: u64,
}

/// Interface between the hosts and the network.
struct Wire {
    clock: Arc<VirtualClock>,
    state: Mutex<NetworkState>,
}

#[derive(Debug)]
pub(crate) struct Network {
    wire: Arc<Wire>,
    hosts: BTreeMap<IpAddr, Arc<SimulatedHost>>,
}

impl Network {
    /// Creates a network without hosts or faults.
    pub(crate) fn new(
        clock: &Arc<VirtualClock>,
        coverage: &Arc<Coverage>,
        seed: u64,
        pen: Option<Pen>,
    ) -> Self {
        let state = NetworkState {
            under_way: BTreeMap::new(),
            last: BTreeMap::new(),
            conditions: Conditions::default(),
            cut: BTreeSet::new(),
            firewalls: Firewalls::default(),
            narrow: None,
            segment_bytes: 0,
            translators: Translators::default(),
            bottleneck: None,
            random: fastrand::Rng::with_seed(seed),
            attacker: Attacker::new(seed ^ 0x666f_7267),
            strangers: Strangers::default(),
            hostile: BTreeMap::new(),
            tamperer: None,
            frames: SentFrames::default(),
            sent: 0,
            coverage: Arc::clone(coverage),
            pen,
            checksum: 0,
        };
        let wire = Wire { clock: Arc::clone(clock), state: Mutex::new(state) };
        Self { wire: Arc::new(wire), hosts: BTreeMap::new() }
    }

    /// Adds a host with this address. Its random numbers come from the runtime.
    pub(crate) fn add_host(&mut self, address: IpAddr, runtime: Runtime) -> Arc<SimulatedHost> {
        let wire = Arc::<Wire>::clone(&self.wire);
        let host = SimulatedHost::new(runtime, wire, vec![address]);
        self.hosts.insert(address, Arc::clone(&host));
        host
    }

    pub(crate) fn host(&self, address: IpAddr) -> Option<&Arc<SimulatedHost>> {
        self.hosts.get(&address)
    }

    pub(crate) fn set(&self, conditions: Conditions) {
        self.wire.lock().conditions = conditions;
    }

    /// Partitions two addresses until [`Network::join`] is called.
    pub(crate) fn cut(&self, a: IpAddr, b: IpAddr) {
        self.wire.lock().cut.insert((a.min(b), a.max(b)));
    }

    /// Reverses [`Network::cut`].
    pub(crate) fn join(&self, a: IpAddr, b: IpAddr) {
        self.wire.lock().cut.remove(&(a.min(b), a.max(b)));
    }

    /// Puts a host behind a firewall, which drops unsolicited datagrams, until [`Network::unwall`] is called.
    pub(crate) fn wall(&self, host: IpAddr) {
        self.wire.lock().firewalls.add(host);
    }

    /// Puts a host behind an address translator until [`Network::unwall`] is called. The trace and the network's
    /// observers show the addresses that the host sees.
    pub(crate) fn translate(&self, host: IpAddr, translator: IpAddr) {
        self.wire.lock().translators.add(host, translator);
    }

    /// Removes all mappings of the address translators, and all datagrams in transit to and from hosts behind them. An
    /// answer to such a datagram would reveal the new port to the peer.
    pub(crate) fn forget_mappings(&self) {
        let state = &mut *self.wire.lock();
        state.translators.forget();
        let (under_way, translators) = (&mut state.under_way, &state.translators);
        under_way
            .retain(|_, sent| ![sent.source, sent.destination].iter().any(|at| translators.has(at.ip())));
    }

    /// Reverses [`Network::wall`] and [`Network::translate`].
    pub(crate) fn unwall(&self, host: IpAddr) {
        let mut state = self.wire.lock();
        state.firewalls.remove(host);
        state.translators.remove(host);
    }

    /// Limits the UDP payload on the path between two addresses, in bytes. Larger datagrams are dropped. `None` removes the
    /// limit.
    pub(crate) fn set_narrow(&self, narrow: Option<(IpAddr, IpAddr, usize)>) {
        self.wire.lock().narrow = narrow;
    }

    /// Sets or removes a bottleneck in front of a host. Returns the statistics of the previous bottleneck.
    pub(crate) fn set_bottleneck(&self, bottleneck: Option<Bottleneck>) -> Passed {
        let before = std::mem::replace(&mut self.wire.lock().bottleneck, bottleneck.map(Link::new));
        before.map_or_else(Passed::default, |link| link.passed)
    }

    /// Modifies the frames of the node at this address, so that it violates the protocol.
    pub(crate) fn corrupt(&self, address: IpAddr, hostility: Hostility, seed: u64) {
        self.wire.lock().hostile.insert(address, HostilePeer::new(hostility, Random(seed)));
    }

    /// Adds or removes a host on the path between two nodes.
    pub(crate) fn set_tamperer(&self, tamperer: Option<Tamperer>) {
        self.wire.lock().tamperer = tamperer;
    }

    /// Calls `act` with the host on the path. Returns `None` if there is no such host.
    pub(crate) fn with_tamperer<T>(&self, act: impl FnOnce(&mut Tamperer) -> T) -> Option<T> {
        self.wire.lock().tamperer.as_mut().map(act)
    }

    /// Forges a packet in a session, which the attacker sends at time `at`. Does nothing if no packet has been observed.
    pub(crate) fn forge_packet(&self, at: Time) {
        let mut state = self.wire.lock();
        if let Some(forged) = state.attacker.packet() {
            state.coverage.count(EventKind::PacketForged);
            state.launch(self.wire.clock.now(), at, &forged);
        }
    }

    /// Forges a connection manager message, which the attacker sends at time `at`.
    pub(crate) fn forge_message(&self, at: Time) {
        let mut state = self.wire.lock();
        if let Some(forged) = state.attacker.message() {
            state.coverage.count(EventKind::MessageForged);
            state.launch(self.wire.clock.now(), at, &forged);
        }
    }

    /// Sends a stranger's connection request at time `at`.
    pub(crate) fn forge_request(&self, at: Time, request: Request) {
        let mut state = self.wire.lock();
        let forged = state.strangers.forge(request);
        state.coverage.count(EventKind::RequestForged);
        state.launch(self.wire.clock.now(), at, &forged);
    }

    /// Returns the first violation of a rule by an honest node, if any.
    pub(crate) fn broken(&self) -> Option<String> {
        let state = self.wire.lock();
        let broken = state.attacker.broken().or_else(|| state.strangers.broken());
        broken.or_else(|| state.frames.broken()).map(str::to_owned)
    }

    /// Delivers the datagrams that have arrived, and adds their hosts to `reached`.
    pub(crate) fn deliver(&self, now: Time, reached: &mut BTreeSet<IpAddr>) {
        let mut state = self.wire.lock();
        while let Some(first) = state.under_way.first_entry().filter(|first| first.key().0 <= now) {
            let UnderWay { source, destination, bytes, is_marked } = first.remove();
            let datagram = Datagram { source, destination, bytes: &bytes };
            if !state.firewalls.admits(now, &datagram) {
                state.coverage.count(EventKind::PacketWalled);
                state.tell(now, &datagram, format_args!("dropped by a firewall"));
                continue;
            }
            let datagram = Datagram { source: state.translators.outward(now, &datagram), ..datagram };
            let is_taken =
                self.hosts.get(&destination.ip()).is_some_and(|host| host.deliver(datagram, is_marked));
            if is_taken {
                reached.insert(destination.ip());
            } else {
                state.tell(now, &datagram, format_args!("arrives at nobody"));
            }
        }
    }

    /// Returns the time at which the next datagram arrives.
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        self.wire.lock().under_way.keys().next().map(|(at, _)| *at)
    }

    /// Returns a checksum over all datagrams so far and their send times.
    pub(crate) fn checksum(&self) -> u64 {
        self.wire.lock().checksum
    }
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl simulation::Network for Wire {
    fn carry(&self, datagram: Datagram<'_>, segment_bytes: usize) {
        let mut state = self.lock();
        state.segment_bytes = segment_bytes;
        state.send(self.clock.now(), datagram);
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl NetworkState {
    fn send(&mut self, now: Time, datagram: Datagram<'_>) {
        let Some(destination) = self.translators.inward(now, &datagram) else {
            self.coverage.count(EventKind::PacketUntranslated);
            return self.tell(now, &datagram, format_args!("dropped by an address translator"));
        };
        let datagram = Datagram { destination, ..datagram };
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
        if self.hostile.contains_key(&to) {
            self.frames.trades(&datagram);
        }
        self.frames.departs(&datagram);
        let changed = self.changed(&datagram);
        let datagram = Datagram { bytes: changed.as_deref().unwrap_or(datagram.bytes), ..datagram };
        if self.hostile.contains_key(&from) {
            self.frames.trades(&datagram);
        }
        if let Some(answer) = self.strangers.see(&datagram) {
            self.coverage.count(EventKind::CookieReturned);
            self.launch(now, now, &answer);
        }
        self.attacker.observe(&datagram);
        let hash = u64::from(crc32fast::hash(datagram.bytes));
        self.checksum = self.checksum.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash ^ now.0;
        let replaced = self.tamperer.as_mut().and_then(|host| host.pass(&datagram));
        let Some(replaced) = replaced else { return self.carry(now, datagram) };
        self.tell(now, &datagram, format_args!("held or changed on its path"));
        for bytes in &replaced {
            self.carry(now, Datagram { bytes, ..datagram });
        }
    }

    /// Puts a datagram in transit unless it is lost.
    fn carry(&mut self, now: Time, datagram: Datagram<'_>) {
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
        self.sent += 1;
        self.firewalls.departs(now, &datagram);
        if self.cut.contains(&(from.min(to), from.max(to))) {
            self.coverage.count(EventKind::PacketCut);
            return self.tell(now, &datagram, format_args!("cut off by a partition"));
        }
        let length = datagram.bytes.len().max(self.segment_bytes);
        let is_too_large = |(a, b, most)| ((from, to) == (a, b) || (from, to) == (b, a)) && length > most;
        if self.narrow.is_some_and(is_too_large) {
            self.coverage.count(EventKind::PacketTooLarge);
            return self.tell(now, &datagram, format_args!("too large for its path"));
        }
        let conditions = self.conditions;
        if self.random.f64() < conditions.lost {
            self.coverage.count(EventKind::PacketLost);
            return self.tell(now, &datagram, format_args!("lost"));
        }
        let mut bytes = datagram.bytes.to_vec();
        if self.random.f64() < conditions.corrupted && !bytes.is_empty() {
            let at = self.random.usize(..bytes.len());
            bytes[at] ^= 1 << self.random.u8(..8);
            self.coverage.count(EventKind::PacketCorrupted);
            self.tell(now, &datagram, format_args!("corrupted: a bit of byte {at}"));
        }
        let jitter = u64::try_from(conditions.jitter.as_nanos()).unwrap_or(0);
        let passed = match &mut self.bottleneck {
            Some(link) => link.pass(now, to, bytes.len()),
            None => Some((now, false)),
        };
        let Some((passed, is_marked)) = passed else {
            self.coverage.count(EventKind::PacketDropped);
            return self.tell(now, &datagram, format_args!("dropped by a full queue"));
        };
        if is_marked {
            self.coverage.count(EventKind::PacketMarked);
            self.tell(now, &datagram, format_args!("marked by a long queue"));
        }
        let mut arrives = passed + conditions.least_delay;
        if self.random.f64() < conditions.overtaken {
            arrives = arrives.plus_ns(self.random.u64(0..=jitter.saturating_mul(20)));
            self.coverage.count(EventKind::PacketOvertaken);
            self.tell(now, &datagram, format_args!("delayed"));
        } else {
            // Datagrams stay in order unless a fault applies.
            arrives = arrives.plus_ns(self.random.u64(0..=jitter));
            let last = self.last.entry((from, to)).or_default();
            arrives = arrives.max(*last);
            *last = arrives;
        }
        if self.random.f64() < conditions.doubled {
            self.coverage.count(EventKind::PacketDoubled);
            let again = arrives.plus_ns(self.random.u64(0..=jitter.saturating_mul(4)));
            self.tell(now, &datagram, format_args!("doubled, arrives again at {}", Since(again)));
            self.put(again, &datagram, bytes.clone(), is_marked);
        }
        self.tell(now, &datagram, format_args!("sent, arrives at {}", Since(arrives)));
        self.put(arrives, &datagram, bytes, is_marked);
    }

    /// Returns the modified packet if the datagram is to or from a misbehaving node.
    fn changed(&mut self, datagram: &Datagram<'_>) -> Option<Vec<u8>> {
        let Datagram { source, destination, bytes } = *datagram;
        if let Some(sender) = self.hostile.get_mut(&source.ip()) {
            return sender.outgoing(source, destination, bytes);
        }
        self.hostile.get(&destination.ip())?.incoming(source, destination, bytes)
    }

    /// Puts a forged datagram that is sent at time `at` in transit.
    fn launch(&mut self, now: Time, at: Time, forged: &Forged) {
        let Forged { source, destination, bytes } = forged;
        let datagram = Datagram { source: *source, destination: *destination, bytes };
        self.sent += 1;
        let arrives = at + self.conditions.least_delay;
        self.tell(now, &datagram, format_args!("forged, arrives at {}", Since(arrives)));
        self.put(arrives, &datagram, bytes.clone(), false);
    }

    fn put(&mut self, arrives: Time, datagram: &Datagram<'_>, bytes: Vec<u8>, is_marked: bool) {
        if self.under_way.len() >= MOST_UNDER_WAY {
            return;
        }
        let mut key = (arrives, self.sent);
        while self.under_way.contains_key(&key) {
            key.0 = key.0.plus_ns(1);
        }
        let (source, destination) = (datagram.source, datagram.destination);
        self.under_way.insert(key, UnderWay { source, destination, bytes, is_marked });
    }

    fn tell(&self, now: Time, datagram: &Datagram<'_>, what: fmt::Arguments<'_>) {
        let Some(pen) = &self.pen else { return };
        let Datagram { source, destination, bytes } = datagram;
        let packet = describe(bytes);
        pen.line(
            now,
            "network",
            format_args!("{source} -> {destination} {packet}, {} bytes: {what}", bytes.len()),
        );
    }
}

/// Describes a datagram by its operation, destination QP and PSN.
fn describe(bytes: &[u8]) -> String {
    match Bth::parse(bytes) {
        Ok(bth) => {
            let ack = if bth.ack_request { ", asks for an ACK" } else { "" };
            format!("{} to QP {:?}, PSN {:?}{ack}", bth.opcode, bth.destination, bth.psn)
        }
        Err(error) => format!("not RoCE ({error})"),
    }
}
