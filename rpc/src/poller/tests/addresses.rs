//! Order and times of connection attempts to a server's addresses, and the ends of calls that wait for them.

use super::service::ECHO;
use super::{Peer, World, poll};
use crate::node::Node;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::{CallOptions, Channel, Resolve, Resolving, Target};
use bytes::Bytes;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trunkline_softrdma::device::SoftOptions;
use trunkline_softrdma::link::{Datagram, LinkObserver};
use trunkline_transport::{Connect, PeerKey};
use trunkline_verbs::{Clock, Time};

const MS: Duration = Duration::from_millis(1);

/// An address at which no host answers.
pub(super) fn silent() -> SocketAddr {
    ([10, 0, 0, 200], 7471).into()
}

/// Records the connection requests that a node sends.
#[derive(Debug)]
pub(super) struct Dials {
    clock: Clock,
    sent: Mutex<Vec<(Time, SocketAddr)>>,
}

impl LinkObserver for Dials {
    fn sent(&self, datagram: Datagram<'_>) {
        let bytes = datagram.bytes;
        // IBTA 1.5 §12.6.5: a datagram to QP 1 with the attribute ConnectRequest. The service ID ends with the port.
        if bytes[5..8] == [0, 0, 1] && bytes[36..38] == [0, 0x10] {
            let port = u16::from_be_bytes([bytes[58], bytes[59]]);
            let to = SocketAddr::new(datagram.destination.ip(), port);
            self.sent.lock().unwrap().push((self.clock.now(), to));
        }
    }

    fn received(&self, _: usize) {}
}

impl Dials {
    /// Takes the addresses of the requests since the last call, and the requests' times.
    fn take(&self) -> Vec<(Time, SocketAddr)> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }

    /// Takes the addresses of the requests since the last call.
    pub(super) fn take_addresses(&self) -> Vec<SocketAddr> {
        self.take().into_iter().map(|(_, to)| to).collect()
    }

    /// Takes the intervals between the requests to one address.
    fn take_gaps(&self, of: SocketAddr) -> Vec<Duration> {
        let times = self.take().into_iter().filter(|(_, to)| *to == of).map(|(time, _)| time);
        gaps(&times.collect::<Vec<_>>())
    }
}

fn gaps(times: &[Time]) -> Vec<Duration> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// A caller whose connection requests are recorded, and a peer.
pub(super) struct Rig {
    pub(super) world: World,
    pub(super) node: Node,
    pub(super) dials: Arc<Dials>,
    pub(super) peer: Peer,
}

impl Rig {
    pub(super) fn new() -> Self {
        let mut world = World::new();
        let clock = Clock::simulated(Arc::clone(&world.clock));
        let dials = Arc::new(Dials { clock, sent: Mutex::default() });
        let observer: Arc<dyn LinkObserver> = Arc::<Dials>::clone(&dials);
        let options = world.options_with(|device| SoftOptions { observer: Some(observer), ..device });
        let node = world.node(|builder| builder.transport(options));
        let peer = world.peer();
        Self { world, node, dials, peer }
    }

    /// Returns an address on the peer's host at which nothing listens.
    pub(super) fn dead(&self, port: u16) -> SocketAddr {
        (self.peer.address().ip(), port).into()
    }

    /// Makes a call that does not wait for another round. Returns the call's failure.
    fn fails(&mut self, channel: &Channel) -> Status {
        let options = options(Connect::FailFast);
        let call = channel.call(&options, ECHO, &(), Bytes::new());
        self.world.block_on(call).unwrap_err()
    }
}

pub(super) fn options(connect: Connect) -> CallOptions {
    CallOptions::new().timeout(Duration::from_secs(60)).connect(connect)
}

#[test]
fn next_address_is_tried_after_failure_or_silence() {
    let mut rig = Rig::new();
    let channel = rig.node.channel([silent(), rig.dead(9), rig.peer.address()]);
    let options = options(Connect::FailFast);
    let call = channel.call(&options, ECHO, &(), Bytes::new());
    rig.world.until("the request", || rig.peer.frame());
    let mut dials = rig.dials.take();
    dials.dedup_by_key(|(_, to)| *to);
    let [(begun, first), (patient, second), (at_once, third)] = dials[..] else { panic!("{dials:?}") };
    assert_eq!([first, second, third], [silent(), rig.dead(9), rig.peer.address()]);
    assert!((500 * MS..501 * MS).contains(&(patient - begun)), "{dials:?}");
    assert!(at_once - patient < MS, "{dials:?}");
    drop(call);

    // An address that answers late is used, even if other addresses have been tried since.
    let late = rig.world.peer();
    late.hold(true);
    let channel = rig.node.channel([late.address(), rig.dead(9), silent()]);
    let _call = channel.call(&options, ECHO, &(), Bytes::new());
    rig.world.wait(600 * MS);
    assert!(rig.dials.take_addresses().contains(&silent()));
    late.hold(false);
    rig.world.until("the request", || late.frame());
}

#[test]
fn failed_address_is_retried_within_second_only_for_waiting_call() {
    let mut rig = Rig::new();
    let dead = rig.dead(9);
    let channel = rig.node.channel([dead, silent()]);
    let [fast, patient] = [Connect::FailFast, Connect::Wait].map(options);
    let _fast = channel.call(&fast, ECHO, &(), Bytes::new());
    rig.world.wait(1000 * MS);
    let dials = rig.dials.take_addresses();
    assert_eq!(dials.iter().filter(|to| **to == dead).count(), 1, "{dials:?}");
    assert!(dials.len() > 1, "the round goes on");
    let call = channel.call(&patient, ECHO, &(), Bytes::new());
    rig.world.run();
    assert_eq!(rig.dials.take_addresses(), [dead], "a call waits from now on");
    rig.world.wait(10_000 * MS);
    let gaps = rig.dials.take_gaps(dead);
    assert!(gaps.len() >= 10 && gaps.iter().all(|gap| *gap < 1000 * MS), "{gaps:?}");
    drop(call);
    rig.world.wait(10_000 * MS);
    rig.dials.take();
    rig.world.wait(20_000 * MS);
    assert_eq!(rig.dials.take(), [], "no call waits");
}

/// A resolver that records its lookups. There is one per round.
#[derive(Debug)]
struct Rounds {
    clock: Clock,
    begun: Mutex<Vec<Time>>,
    addresses: Vec<SocketAddr>,
}

impl Resolve for Rounds {
    fn resolve(&self) -> Resolving<'_> {
        self.begun.lock().unwrap().push(self.clock.now());
        Box::pin(async { Ok(self.addresses.iter().copied().map(PeerKey::new).collect()) })
    }
}

#[test]
fn pause_after_failed_round_is_below_second_only_while_call_waits() {
    for (connect, least, most) in [(Connect::Wait, 750, 950), (Connect::FailFast, 1280, 1640)] {
        let mut rig = Rig::new();
        let (clock, addresses) = (rig.dials.clock.clone(), vec![rig.dead(8), rig.dead(9)]);
        let rounds = Arc::new(Rounds { clock, begun: Mutex::default(), addresses });
        let channel = rig.node.channel(Target::resolver(Arc::clone(&rounds)));
        let options = options(connect);
        let mut waiting = pin!(channel.call(&options, ECHO, &(), Bytes::new()));
        for step in 0..1500 {
            if step == 600 {
                rig.dials.take();
                rounds.begun.lock().unwrap().clear();
            }
            rig.world.wait(10 * MS);
            if poll(waiting.as_mut()).is_some() {
                assert_eq!(connect, Connect::FailFast);
                waiting.set(channel.call(&options, ECHO, &(), Bytes::new()));
            }
        }
        let pauses = gaps(&rounds.begun.lock().unwrap());
        assert!(pauses.len() >= 4, "{pauses:?}");
        let are_right = pauses.iter().all(|pause| (least * MS..most * MS).contains(pause));
        assert!(are_right, "{connect:?}: {pauses:?}");
        let requests = rig.dials.take_gaps(rig.dead(8));
        let is_patient = requests.iter().all(|gap| *gap < 1000 * MS);
        assert_eq!(is_patient, connect == Connect::Wait, "{requests:?}");
    }
}

#[test]
fn rounds_of_long_list_try_16_addresses_each_in_rotation() {
    let mut rig = Rig::new();
    let mut all = (1..=40).map(|port| rig.dead(port)).collect::<Vec<_>>();
    let channel = rig.node.channel(all.clone());
    for first in [0, 16, 32] {
        rig.fails(&channel);
        let expected = all.iter().cycle().skip(first).take(16).copied().collect::<Vec<_>>();
        assert_eq!(rig.dials.take_addresses(), expected);
        rig.world.wait(100 * MS);
    }
    // After a session, the search starts at the first address again.
    all[20] = rig.peer.address();
    let channel = rig.node.channel(all.clone());
    rig.fails(&channel);
    rig.world.wait(100 * MS);
    rig.world.block_on(channel.ready()).unwrap();
    rig.peer.end();
    rig.world.wait(5000 * MS);
    rig.dials.take();
    rig.fails(&channel);
    assert_eq!(rig.dials.take_addresses(), all[..16]);
}

#[test]
fn call_expired_while_connecting_names_connection_failure() {
    let mut rig = Rig::new();
    let (dead, second) = (rig.dead(9), Duration::from_secs(1));
    let causes = [
        (dead, 3 * second, "start the node there, or correct the port"),
        (silent(), second / 2, "no connection yet: the first attempt to connect was not answered in time"),
    ];
    for (to, limit, words) in causes {
        let (channel, options) = (rig.node.channel(to), options(Connect::Wait).timeout(limit));
        let call = channel.call(&options, ECHO, &(), Bytes::new());
        let status = rig.world.block_on(call).unwrap_err();
        let kind = (status.code(), status.reason(), status.may_have_run());
        assert_eq!(kind, (Code::DeadlineExceeded, Some(Reason::Expired), false), "{status}");
        assert!(status.message().ends_with(words), "{status}");
    }
    // The time until the next attempt is a cause, and the message stays the same.
    let channel = rig.node.channel(dead);
    let [sooner, later] = [0, 1].map(|_| {
        rig.world.wait(100 * MS);
        rig.fails(&channel)
    });
    assert_eq!(sooner.message(), later.message());
    assert_ne!(sooner.causes(), later.causes());
    for status in [sooner, later] {
        let [cause] = status.causes() else { panic!("{status}") };
        assert!(cause.starts_with("the next attempt to connect is due in "), "{status}");
        assert!(cause.ends_with("; calls with Connect::Wait wait for it"), "{status}");
    }
}

#[test]
fn ready_of_address_list_waits_in_pause_and_fails_in_time_despite_other_dials() {
    let mut rig = Rig::new();
    // The address of the next peer, which is not running yet.
    let next = SocketAddr::from(([10, 0, 0, rig.world.hosts + 1], 7471));
    let dead = rig.dead(9);
    let list = [dead, rig.dead(8)];
    let channel = rig.node.channel(list);
    rig.fails(&channel);
    let mut ready = pin!(channel.ready());
    assert!(poll(ready.as_mut()).is_none(), "the next round decides");
    assert_eq!(rig.world.block_on(ready).unwrap_err().reason(), Some(Reason::Unreachable));
    let alone = rig.node.channel(dead);
    rig.world.block_on(alone.ready()).unwrap_err();
    assert!(poll(pin!(alone.ready())).is_some_and(|outcome| outcome.is_err()), "one address has no other");

    let other = rig.node.channel(list);
    let options = options(Connect::Wait);
    let _dialing = other.call(&options, ECHO, &(), Bytes::new());
    rig.world.wait(10_000 * MS);
    rig.dials.take();
    rig.world.until("an attempt", || (rig.dials.take().last()?.1 == list[1]).then_some(()));
    rig.world.run();
    let channel = rig.node.channel(list);
    let mut ready = pin!(channel.ready());
    assert!(poll(ready.as_mut()).is_none());
    rig.world.run();
    assert!(poll(ready.as_mut()).is_none(), "a round in the pause of each address decides nothing");
    let begun = rig.world.now();
    let status = rig.world.block_on(ready).unwrap_err();
    assert_eq!(status.reason(), Some(Reason::Unreachable), "{status}");
    let waited = rig.world.now() - begun;
    assert!((9_900 * MS..12_000 * MS).contains(&waited), "others may have made no attempt: {waited:?}");

    // The wait ends when a server starts.
    let channel = rig.node.channel([dead, next]);
    rig.fails(&channel);
    let mut ready = pin!(channel.ready());
    assert!(poll(ready.as_mut()).is_none());
    let peer = rig.world.peer();
    assert_eq!(peer.address(), next);
    assert_eq!(rig.world.block_on(ready), Ok(()));
}
