//! The network between simulated nodes: datagrams with delays, and everything that happens to
//! datagrams on the way.
//!
//! Owns what is on the way and the faults in force. A node's device reaches it through a
//! [`SimLink`]; the scheduler asks when the next datagram arrives.

use crate::coverage::{Coverage, Kind};
use crate::trace::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_roce::wire::Bth;
use trunkline_softrdma::link::{Datagram, Link, LinkError, ReceiveBatch, SendBatch};
use trunkline_verbs::{Counter, Time, VirtualClock};

/// Datagrams that wait at one address before further ones are dropped.
const QUEUE_DATAGRAMS: usize = 4096;
/// The MTU of every link, with IP headers.
const MTU_BYTES: u32 = 4096 + 256;

/// How likely it is that something happens to a datagram, and how long it is on the way.
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
struct Waiting {
    source: SocketAddr,
    destination: SocketAddr,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Place {
    /// By arrival, and by number among those that arrive at once.
    waiting: BTreeMap<(Time, u64), Waiting>,
    /// When the last datagram that was not delayed on purpose arrives, by its sender.
    last: BTreeMap<IpAddr, Time>,
    dropped: u64,
}

struct State {
    places: BTreeMap<IpAddr, Place>,
    conditions: Conditions,
    /// Pairs of addresses that cannot reach each other, smaller first.
    cut: BTreeSet<(IpAddr, IpAddr)>,
    random: fastrand::Rng,
    sent: u64,
    coverage: Arc<Coverage>,
    /// Lines for the trace, which only the scheduler's thread may write.
    lines: Option<Vec<(Time, String)>>,
    checksum: u64,
}

/// A network. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Network {
    clock: Arc<VirtualClock>,
    state: Arc<Mutex<State>>,
}

impl Network {
    /// A network without faults.
    pub(crate) fn new(
        clock: &Arc<VirtualClock>,
        coverage: &Arc<Coverage>,
        seed: u64,
        is_traced: bool,
    ) -> Self {
        let state = State {
            places: BTreeMap::new(),
            conditions: Conditions::default(),
            cut: BTreeSet::new(),
            random: fastrand::Rng::with_seed(seed),
            sent: 0,
            coverage: Arc::clone(coverage),
            lines: is_traced.then(Vec::new),
            checksum: 0,
        };
        Self { clock: Arc::clone(clock), state: Arc::new(Mutex::new(state)) }
    }

    /// The conditions from now on.
    pub(crate) fn set(&self, conditions: Conditions) {
        self.lock().conditions = conditions;
    }

    /// Two addresses cannot reach each other until [`Network::join`].
    pub(crate) fn cut(&self, a: IpAddr, b: IpAddr) {
        self.lock().cut.insert((a.min(b), a.max(b)));
    }

    /// Ends [`Network::cut`].
    pub(crate) fn join(&self, a: IpAddr, b: IpAddr) {
        self.lock().cut.remove(&(a.min(b), a.max(b)));
    }

    /// A process was killed: nothing leaves its address any more, and nothing waits there.
    pub(crate) fn kill(&self, address: IpAddr) {
        self.lock().places.remove(&address);
    }

    /// When the next datagram arrives anywhere after `now`.
    pub(crate) fn next_arrival(&self, now: Time) -> Option<Time> {
        let after = (now.plus_ns(1), 0);
        let state = self.lock();
        let next = |place: &Place| place.waiting.range(after..).next().map(|((at, _), _)| *at);
        state.places.values().filter_map(next).min()
    }

    /// All datagrams so far, and when they were sent, as one number.
    pub(crate) fn checksum(&self) -> u64 {
        self.lock().checksum
    }

    /// Moves what happened to datagrams into the trace.
    pub(crate) fn tell(&self, trace: &Trace) {
        let mut state = self.lock();
        if let Some(lines) = &mut state.lines {
            for (at, line) in lines.drain(..) {
                trace.line(at, "network", format_args!("{line}"));
            }
        }
    }

    /// A link for the device of one process.
    pub(crate) fn link(&self) -> SimLink {
        SimLink { network: self.clone(), addresses: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Network")
    }
}

impl State {
    fn send(&mut self, now: Time, datagram: Datagram<'_>) {
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
        self.sent += 1;
        let hash = u64::from(crc32fast::hash(datagram.bytes));
        self.checksum = self.checksum.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ hash ^ now.0;
        if !self.places.contains_key(&to) {
            return self.tell(now, &datagram, "to nobody");
        }
        if self.cut.contains(&(from.min(to), from.max(to))) {
            self.coverage.count(Kind::PacketCut);
            return self.tell(now, &datagram, "cut off");
        }
        let conditions = self.conditions;
        if self.random.f64() < conditions.lost {
            self.coverage.count(Kind::PacketLost);
            return self.tell(now, &datagram, "lost");
        }
        let mut bytes = datagram.bytes.to_vec();
        if self.random.f64() < conditions.corrupted && !bytes.is_empty() {
            let at = self.random.usize(..bytes.len());
            bytes[at] ^= 1 << self.random.u8(..8);
            self.coverage.count(Kind::PacketCorrupted);
            self.tell(now, &datagram, "corrupted");
        }
        let jitter = u64::try_from(conditions.jitter.as_nanos()).unwrap_or(0);
        let mut arrives = now + conditions.least_delay;
        if self.random.f64() < conditions.overtaken {
            arrives = arrives.plus_ns(self.random.u64(0..=jitter.saturating_mul(20)));
            self.coverage.count(Kind::PacketOvertaken);
            self.tell(now, &datagram, "delayed");
        } else {
            // Datagrams stay in order unless something happens to them.
            arrives = arrives.plus_ns(self.random.u64(0..=jitter));
            if let Some(place) = self.places.get_mut(&to) {
                let last = place.last.entry(from).or_default();
                arrives = arrives.max(*last);
                *last = arrives;
            }
        }
        if self.random.f64() < conditions.doubled {
            self.coverage.count(Kind::PacketDoubled);
            self.tell(now, &datagram, "doubled");
            let again = arrives.plus_ns(self.random.u64(0..=jitter.saturating_mul(4)));
            self.put(again, &datagram, bytes.clone());
        }
        self.tell(now, &datagram, "sent");
        self.put(arrives, &datagram, bytes);
    }

    fn put(&mut self, arrives: Time, datagram: &Datagram<'_>, bytes: Vec<u8>) {
        let number = self.sent;
        let Some(place) = self.places.get_mut(&datagram.destination.ip()) else { return };
        if place.waiting.len() >= QUEUE_DATAGRAMS {
            place.dropped += 1;
            return;
        }
        let mut key = (arrives, number);
        while place.waiting.contains_key(&key) {
            key.0 = key.0.plus_ns(1);
        }
        place
            .waiting
            .insert(key, Waiting { source: datagram.source, destination: datagram.destination, bytes });
    }

    fn tell(&mut self, now: Time, datagram: &Datagram<'_>, what: &str) {
        let Some(lines) = &mut self.lines else { return };
        let header = match Bth::parse(datagram.bytes) {
            Ok(bth) => format!("{:?} qp {:?} psn {:?}", bth.opcode, bth.destination, bth.psn),
            Err(error) => format!("not RoCE ({error})"),
        };
        lines.push((
            now,
            format!(
                "{} -> {} {header}, {} bytes: {what}",
                datagram.source,
                datagram.destination,
                datagram.bytes.len()
            ),
        ));
    }
}

/// One device's attachment to the network.
#[derive(Debug)]
pub(crate) struct SimLink {
    network: Network,
    addresses: Vec<IpAddr>,
}

impl Link for SimLink {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        if self.addresses.contains(&address) {
            return Ok(());
        }
        let mut state = self.network.lock();
        if state.places.contains_key(&address) {
            return Err(LinkError::AddressInUse { address });
        }
        state.places.insert(address, Place::default());
        drop(state);
        self.addresses.push(address);
        Ok(())
    }

    fn close(&mut self, address: IpAddr) {
        if let Some(position) = self.addresses.iter().position(|open| *open == address) {
            self.addresses.swap_remove(position);
            self.network.kill(address);
        }
    }

    fn mtu(&self, _address: IpAddr) -> Result<u32, LinkError> {
        Ok(MTU_BYTES)
    }

    fn send(&mut self, batch: &mut SendBatch, now: Time) {
        let mut state = self.network.lock();
        for datagram in batch.iter() {
            if state.places.contains_key(&datagram.source.ip()) {
                state.send(now, datagram);
            }
        }
        drop(state);
        batch.clear();
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        batch.clear();
        let now = self.network.clock.now();
        let mut state = self.network.lock();
        let mut taken = 0;
        for address in &self.addresses {
            let Some(place) = state.places.get_mut(address) else { continue };
            while taken < batch.capacity() {
                let Some(first) = place.waiting.first_entry().filter(|first| first.key().0 <= now) else {
                    break;
                };
                let waiting = first.remove();
                batch.push(Datagram {
                    source: waiting.source,
                    destination: waiting.destination,
                    bytes: &waiting.bytes,
                });
                taken += 1;
            }
        }
        taken
    }

    fn arm(&mut self) -> bool {
        self.has_arrivals()
    }

    fn stays_armed(&self) -> bool {
        true
    }

    fn has_arrivals(&self) -> bool {
        let now = self.network.clock.now();
        let state = self.network.lock();
        let arrived = |address: &IpAddr| {
            let first = state.places.get(address).and_then(|place| place.waiting.keys().next());
            first.is_some_and(|(at, _)| *at <= now)
        };
        self.addresses.iter().any(arrived)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        let state = self.network.lock();
        let dropped = self.addresses.iter().filter_map(|address| state.places.get(address));
        into.push(Counter {
            name: "drop_receive_queue_full",
            value: dropped.map(|place| place.dropped).sum(),
        });
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        for address in std::mem::take(&mut self.addresses) {
            self.network.kill(address);
        }
    }
}
