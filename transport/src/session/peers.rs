//! The node's table of peers, with an index by timer and counts of connections. Half-open connections are counted per
//! host and in total, and all connections are counted per host.
#![forbid(unsafe_code)]

use super::machine::Machine;
use super::private_data::Cookie;
use crate::PeerKey;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::{Mtu, PeerHost, Time};

/// Time after the end of its session at which a peer that the program has not named is removed. A peer without an
/// earlier session is removed immediately.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// Maximum number of half-open connections per host, with peers that the program has not named. It suffices for eight
/// nodes with the maximum number of pollers. Each connection holds a TGT, and a host that proves its address may
/// claim to listen on every port.
pub(super) const HALF_OPEN_OF_HOST: u32 = 256;
/// Maximum number of half-open connections for all hosts, whose TGTs take some tens of megabytes. To reach it, at least
/// 32 hosts must prove their addresses.
pub(super) const HALF_OPEN: u32 = 8_192;

/// Maximum number of unproven sessions per host. In an unproven session, the peer has not proved a name, and the
/// program has not named the peer.
pub(super) const UNPROVEN_OF_HOST: usize = 64;
/// Maximum number of unproven sessions for all hosts. Each takes up to 40 KiB.
const UNPROVEN: usize = 1024;
/// Part of [`UNPROVEN`] for hosts with a peer that has proved a name before.
const UNPROVEN_OF_KNOWN: usize = UNPROVEN / 8;
/// Maximum number of remembered hosts with a proved peer, and of remembered addresses to which large packets are
/// lost.
const REMEMBERED: usize = 4096;
/// Time for which a proved name is remembered.
const PROVED_FOR: Duration = Duration::from_secs(3600);
/// Time for which a path MTU is remembered. Paths change.
const PATH_MTU_FOR: Duration = Duration::from_secs(600);

/// A peer with its machine.
#[derive(Debug)]
pub(super) struct PeerSession {
    pub(super) machine: Machine,
    /// Host to which the peer's connections are counted.
    host: PeerHost,
    /// True if a poller has named the peer by its address.
    pub(super) named: bool,
    /// This node's address on connections with the peer, once determined.
    pub(super) source: Option<IpAddr>,
    /// Cookie that the peer requires in this node's requests.
    pub(super) cookie: Option<Cookie>,
    /// Largest path MTU of this node's requests, from the refusal with the cookie.
    pub(super) path_mtu: Option<Mtu>,
    /// Time of the last probe of the live session for a newcomer.
    pub(super) probed_at: Option<Time>,
    forget_at: Option<Time>,
    /// The peer's timer in the index.
    timer: Option<Time>,
    held: Held,
    /// Time since which the peer has had unproven sessions, and their number, if they are counted.
    unproven: Option<(Time, usize)>,
}

/// Numbers of connections with peers that the program has not named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    /// Connections in sessions that are not up yet.
    half_open: u32,
    /// Connections in all sessions.
    all: u32,
}

/// Unproven sessions of a host.
#[derive(Debug, Default)]
struct Unproven {
    /// Peers with unproven sessions, by age.
    peers: BTreeSet<(Time, PeerKey)>,
    count: usize,
}

/// Place for another unproven session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnprovenPlace {
    Free,
    /// Taken by an unproven session with this peer, which has to end.
    Of(PeerKey),
    None,
}

#[derive(Debug, Default)]
pub(super) struct Peers {
    known: BTreeMap<PeerKey, PeerSession>,
    timers: BTreeSet<(Time, PeerKey)>,
    by_host: HashMap<PeerHost, Held>,
    /// Half-open connections of all hosts.
    half_open: u32,
    /// Unproven sessions of each host, and their total number.
    unproven: BTreeMap<PeerHost, Unproven>,
    unproven_count: usize,
    /// Hosts with a peer that has proved a name.
    proved: Remembered<PeerHost, ()>,
    /// Largest path MTU of sessions with peers on these devices.
    path_mtus: Remembered<SocketAddr, Mtu>,
}

/// Values with the times at which they were added. When there are more than [`REMEMBERED`], the oldest is removed.
#[derive(Debug)]
struct Remembered<K, V> {
    by_key: HashMap<K, (Time, V)>,
    by_time: BTreeSet<(Time, K)>,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self { by_key: HashMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Copy + Eq + Hash + Ord, V: Copy> Remembered<K, V> {
    fn note(&mut self, key: K, value: V, now: Time) {
        if let Some((earlier, _)) = self.by_key.insert(key, (now, value)) {
            self.by_time.remove(&(earlier, key));
        }
        self.by_time.insert((now, key));
        if self.by_key.len() > REMEMBERED
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.by_key.remove(&oldest);
        }
    }

    /// Returns the value if it was added less than `lasts` ago.
    fn get(&self, key: K, lasts: Duration, now: Time) -> Option<V> {
        self.by_key
            .get(&key)
            .filter(|(at, _)| now.saturating_duration_since(*at) < lasts)
            .map(|(_, value)| *value)
    }
}

impl Peers {
    pub(super) fn get(&self, key: PeerKey) -> Option<&PeerSession> {
        self.known.get(&key)
    }

    /// Returns a peer. Call [`Peers::settle`] after each use of its machine.
    pub(super) fn get_mut(&mut self, key: PeerKey) -> Option<&mut PeerSession> {
        self.known.get_mut(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (PeerKey, &PeerSession)> {
        self.known.iter().map(|(&key, peer)| (key, peer))
    }

    pub(super) fn keys(&self) -> Vec<PeerKey> {
        self.known.keys().copied().collect()
    }

    /// Returns the peer with this key, inserted if missing.
    pub(super) fn add(
        &mut self,
        key: PeerKey,
        make: impl FnOnce() -> (Machine, PeerHost),
    ) -> &mut PeerSession {
        self.known.entry(key).or_insert_with(|| {
            let (machine, host) = make();
            PeerSession {
                machine,
                host,
                named: false,
                source: None,
                cookie: None,
                path_mtu: None,
                probed_at: None,
                forget_at: None,
                timer: None,
                held: Held::default(),
                unproven: None,
            }
        })
    }

    /// Updates the indices for a peer.
    pub(super) fn settle(&mut self, key: PeerKey, now: Time) {
        let Some(peer) = self.known.get_mut(&key) else { return };
        if peer.named || !peer.machine.is_idle() {
            peer.forget_at = None;
        } else {
            let pause = if peer.machine.was_up() { FORGET_AFTER } else { Duration::ZERO };
            peer.forget_at.get_or_insert(now + pause);
        }
        let timer = [peer.machine.next_timer(), peer.forget_at].into_iter().flatten().min();
        // Peers that the node's own program named are not limited.
        let held = if peer.named {
            Held::default()
        } else {
            Held { half_open: peer.machine.half_open(), all: peer.machine.connections() }
        };
        let (old_timer, old, host) = (peer.timer, peer.held, peer.host);
        (peer.timer, peer.held) = (timer, held);
        let old_unproven = peer.unproven;
        let since = old_unproven.map_or(now, |(since, _)| since);
        let unproven = Some(peer.machine.unproven_sessions()).filter(|count| *count > 0 && !peer.named);
        peer.unproven = unproven.map(|count| (since, count));
        let unproven = peer.unproven;
        self.time(key, old_timer, timer);
        self.count(host, old, held);
        self.count_unproven(key, host, old_unproven, unproven);
    }

    /// Returns the peers whose timers have expired, which must be settled again, and the peers to remove.
    pub(super) fn due(&mut self, now: Time) -> (Vec<PeerKey>, Vec<PeerKey>) {
        let (mut due, mut gone) = (Vec::new(), Vec::new());
        while let Some(&(at, key)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, key));
            let Some(peer) = self.known.get_mut(&key) else { continue };
            peer.timer = None;
            if peer.forget_at.is_some_and(|at| at <= now) {
                gone.push(key);
            } else {
                due.push(key);
            }
        }
        (due, gone)
    }

    pub(super) fn remove(&mut self, key: PeerKey) -> Option<PeerSession> {
        let peer = self.known.remove(&key)?;
        self.time(key, peer.timer, None);
        self.count(peer.host, peer.held, Held::default());
        self.count_unproven(key, peer.host, peer.unproven, None);
        Some(peer)
    }

    /// Iterates over the peers at an address.
    pub(super) fn at(&self, address: IpAddr) -> impl Iterator<Item = (PeerKey, &PeerSession)> {
        self.known.range(PeerKey::all_at(address)).map(|(&key, peer)| (key, peer))
    }

    /// Returns true if the table has a peer at this address.
    pub(super) fn has_any_at(&self, address: IpAddr) -> bool {
        self.at(address).next().is_some()
    }

    /// Returns the idle peer to remove first.
    pub(super) fn first_to_forget(&self) -> Option<PeerKey> {
        let is_idle = |key: &PeerKey| self.known.get(key).is_some_and(|peer| peer.forget_at.is_some());
        self.timers.iter().map(|(_, key)| *key).find(is_idle)
    }

    /// Returns the time of the next call of [`Peers::due`].
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns true if the half-open sessions of a host, or of all hosts, have reached their maximum number
    /// of connections. They end when the peer does not complete them in time.
    pub(super) fn is_crowded(&self, host: PeerHost) -> bool {
        if mutant!(half_made_sessions_have_no_bound) {
            return false;
        }
        self.of_host(host).half_open >= HALF_OPEN_OF_HOST || self.half_open >= HALF_OPEN
    }

    /// Returns true if the sessions of a host would have more than `most` connections after another session with a
    /// peer. The new session replaces the peer's current one. A host without other sessions is always allowed.
    pub(super) fn is_full(&self, host: PeerHost, key: PeerKey, pollers: u16, most: u32) -> bool {
        if mutant!(sessions_of_a_host_have_no_bound) {
            return false;
        }
        let replaced = self.known.get(&key).filter(|peer| peer.host == host).map_or(0, |peer| peer.held.all);
        let others = self.of_host(host).all.saturating_sub(replaced);
        others > 0 && others.saturating_add(pollers.into()) > most
    }

    /// Decides whether `host` may have another unproven session. If the table is full, a host with fewer
    /// sessions replaces the oldest session of the host with the most.
    pub(super) fn unproven_place(&self, host: PeerHost, now: Time) -> UnprovenPlace {
        if mutant!(unproven_sessions_have_no_bound) {
            return UnprovenPlace::Free;
        }
        let held = self.unproven.get(&host).map_or(0, |unproven| unproven.count);
        if held >= UNPROVEN_OF_HOST {
            return UnprovenPlace::None;
        }
        let kept = if self.has_proved(host, now) { 0 } else { UNPROVEN_OF_KNOWN };
        if self.unproven_count < UNPROVEN - kept {
            return UnprovenPlace::Free;
        }
        let most = self.unproven.values().max_by_key(|unproven| unproven.count);
        let oldest = most.filter(|most| most.count > held + 1).and_then(|most| most.peers.first());
        oldest.map_or(UnprovenPlace::None, |(_, key)| UnprovenPlace::Of(*key))
    }

    /// Records that a peer has proved a name.
    #[cfg_attr(not(feature = "identity"), expect(dead_code, reason = "no peer proves a name"))]
    pub(super) fn proved(&mut self, host: PeerHost, now: Time) {
        self.proved.note(host, (), now);
    }

    /// Records the largest path MTU of sessions with peers on a device. Other UDP ports of its address may belong to
    /// other users.
    pub(super) fn too_large(&mut self, device: SocketAddr, next: Mtu, now: Time) {
        if mutant!(path_mtu_is_forgotten) {
            return;
        }
        let known = self.path_mtu(device, now).unwrap_or(next);
        self.path_mtus.note(device, next.min(known), now);
    }

    /// Returns the largest path MTU of sessions with peers on a device, if large packets were lost in the last 10 minutes.
    pub(super) fn path_mtu(&self, device: SocketAddr, now: Time) -> Option<Mtu> {
        self.path_mtus.get(device, PATH_MTU_FOR, now)
    }

    /// Returns true if a peer of the host has proved a name in the last hour.
    pub(super) fn has_proved(&self, host: PeerHost, now: Time) -> bool {
        self.proved.get(host, PROVED_FOR, now).is_some()
    }

    fn count_unproven(
        &mut self,
        key: PeerKey,
        host: PeerHost,
        old: Option<(Time, usize)>,
        new: Option<(Time, usize)>,
    ) {
        if old == new {
            return;
        }
        let of_host = self.unproven.entry(host).or_default();
        if let Some((since, count)) = old {
            of_host.peers.remove(&(since, key));
            of_host.count -= count;
            self.unproven_count -= count;
        }
        if let Some((since, count)) = new {
            of_host.peers.insert((since, key));
            of_host.count += count;
            self.unproven_count += count;
        }
        if of_host.peers.is_empty() {
            self.unproven.remove(&host);
        }
    }

    fn of_host(&self, host: PeerHost) -> Held {
        self.by_host.get(&host).copied().unwrap_or_default()
    }

    fn time(&mut self, key: PeerKey, old: Option<Time>, new: Option<Time>) {
        if old == new {
            return;
        }
        if let Some(at) = old {
            self.timers.remove(&(at, key));
        }
        if let Some(at) = new {
            self.timers.insert((at, key));
        }
    }

    fn count(&mut self, host: PeerHost, old: Held, new: Held) {
        if old == new {
            return;
        }
        let change = |held: &mut u32, old: u32, new| *held = held.saturating_sub(old).saturating_add(new);
        change(&mut self.half_open, old.half_open, new.half_open);
        let held = self.by_host.entry(host).or_default();
        change(&mut held.half_open, old.half_open, new.half_open);
        change(&mut held.all, old.all, new.all);
        if *held == Held::default() {
            self.by_host.remove(&host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Levels, Numbers};
    use super::super::private_data::{Features, Hello, SessionName};
    use super::*;
    use crate::provider::connections::ConnectionKind;
    use std::net::SocketAddr;
    use std::num::NonZeroU16;

    /// Number of pollers of each peer.
    const POLLERS: u16 = 32;

    fn address(host: u64, port: u64) -> SocketAddr {
        let [high, low] = u16::try_from(host).unwrap().to_be_bytes();
        SocketAddr::from(([10, 0, high, low], u16::try_from(port).unwrap()))
    }

    fn host(number: u64) -> PeerHost {
        PeerHost::Address(address(number, 0).ip())
    }

    /// Adds a peer that dialled but does not answer the dial-back.
    fn half_make(peers: &mut Peers, port: u64, host: u64, now: Time) -> PeerKey {
        half_make_with(peers, Features::NONE, port, host, now)
    }

    fn half_make_with(peers: &mut Peers, features: Features, port: u64, host: u64, now: Time) -> PeerKey {
        let key = PeerKey::new(address(host, port));
        let session = SessionName { epoch: port + 1, number: 1 };
        let listener_port = NonZeroU16::new(7).unwrap();
        let connections = ConnectionKind::Xrc;
        let pollers = POLLERS;
        let hello = Hello {
            features,
            listener_port,
            session,
            echo: None,
            poller: 0,
            pollers,
            connections,
            cookie: None,
            udp_port: 4791,
            is_local: false,
        };
        let machine =
            || (Machine::new(u64::MAX, 1, Levels::Either, Numbers::default()), PeerHost::Address(key.host()));
        let peer = peers.add(key, machine);
        peer.machine.request(now, &hello, &mut Vec::new()).unwrap();
        peers.settle(key, now);
        key
    }

    /// Ticks the machines whose timers have expired. Returns the peers removed by then.
    fn tick(peers: &mut Peers, now: Time) -> Vec<PeerKey> {
        let mut forgotten = Vec::new();
        loop {
            let (due, gone) = peers.due(now);
            if due.is_empty() && gone.is_empty() {
                return forgotten;
            }
            for key in due {
                peers.get_mut(key).unwrap().machine.tick(now, &mut Vec::new());
                peers.settle(key, now);
            }
            for key in gone {
                assert!(peers.remove(key).is_some());
                forgotten.push(key);
            }
        }
    }

    #[test]
    fn half_open_sessions_of_host_are_bounded_until_given_up() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        for key in 0..8 {
            assert!(!peers.is_crowded(host(1)), "{key}");
            half_make(&mut peers, key, 1, now);
        }
        let second = PeerKey::new(address(1, 1));
        assert!(peers.is_crowded(host(1)), "with those that it has announced");
        assert!(!peers.is_crowded(host(2)), "others are not concerned");
        peers.get_mut(second).unwrap().named = true;
        peers.settle(second, now);
        assert!(!peers.is_crowded(host(1)), "whom we named does not count");

        let later = peers.next_timer().unwrap();
        assert_eq!(tick(&mut peers, later).len(), 7, "and the strangers are forgotten at once");
        assert_eq!((peers.by_host.len(), peers.half_open, peers.len()), (0, 0, 1));
    }

    #[test]
    fn sessions_of_host_are_bounded() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        let [first, second] = [0, 1].map(|port| half_make(&mut peers, port, 1, now));
        let [third, elsewhere] = [(1, 2), (2, 0)].map(|(host, port)| PeerKey::new(address(host, port)));
        let held = 2 * u32::from(POLLERS);
        assert!(!peers.is_full(host(1), third, 8, held + 8));
        assert!(peers.is_full(host(1), third, 9, held + 8));
        assert!(!peers.is_full(host(2), elsewhere, 9, 8), "the SRQ judges the only session of a host");
        assert!(!peers.is_full(host(1), first, POLLERS, held), "a restart replaces a session");
        assert!(peers.is_full(host(1), first, POLLERS + 1, held), "by a larger one");
        peers.get_mut(second).unwrap().named = true;
        peers.settle(second, now);
        assert!(!peers.is_full(host(1), third, POLLERS, held), "a peer that we named does not count");
        peers.remove(first).unwrap();
        assert!(!peers.is_full(host(1), third, 9, 8));
    }

    #[test]
    fn half_open_sessions_of_all_hosts_are_bounded() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        let last = u64::from(HALF_OPEN) / u64::from(POLLERS) - 1;
        let mut made = Vec::new();
        for key in 0..=last {
            assert!(!peers.is_crowded(host(1000)), "{key}");
            made.push(half_make(&mut peers, key, key % 40, now));
        }
        assert!(peers.is_crowded(host(1000)));
        peers.remove(made.pop().unwrap()).unwrap();
        assert!(!peers.is_crowded(host(1000)));
    }

    #[test]
    fn unproven_sessions_are_bounded_per_host_and_in_total() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        let make = |peers: &mut Peers, port, host| {
            let made =
                half_make_with(peers, Features::HANDSHAKE, port, host, now + Duration::from_nanos(port));
            assert_eq!(peers.get(made).unwrap().machine.half_open(), 1, "of 32 announced connections");
            made
        };
        let first = make(&mut peers, 0, 1);
        for port in 1..64 {
            assert_eq!(peers.unproven_place(host(1), now), UnprovenPlace::Free);
            make(&mut peers, port, 1);
        }
        assert_eq!(peers.unproven_place(host(1), now), UnprovenPlace::None, "64 of a host");
        for number in 64..896 {
            assert_eq!(peers.unproven_place(host(2), now), UnprovenPlace::Free, "{number}");
            make(&mut peers, number, 100 + number / 50);
        }
        assert_eq!(peers.unproven_place(host(2), now), UnprovenPlace::Of(first), "the host with most");
        assert_eq!(peers.unproven_place(host(102), now), UnprovenPlace::Of(first));
        peers.proved(host(2), now);
        assert_eq!(peers.unproven_place(host(2), now), UnprovenPlace::Free, "of a host with a proof");
        assert_eq!(peers.unproven_place(host(2), now + PROVED_FOR), UnprovenPlace::Of(first), "an hour ago");
        peers.get_mut(first).unwrap().named = true;
        peers.settle(first, now);
        assert_eq!(
            peers.unproven_place(host(1), now),
            UnprovenPlace::Free,
            "a peer that we named does not count"
        );
        for key in peers.keys() {
            peers.remove(key);
        }
        assert_eq!((peers.unproven.len(), peers.unproven_count), (0, 0));
        for number in 0..u64::try_from(REMEMBERED).unwrap() {
            peers.proved(host(1000 + number), now + Duration::from_nanos(number));
        }
        assert!(!peers.has_proved(host(2), now), "the oldest of 4,097 is forgotten");
        assert_eq!((peers.proved.by_key.len(), peers.proved.by_time.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn path_mtu_is_remembered_for_ten_minutes_and_only_falls_meanwhile() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        let device = |ip: u32, port| SocketAddr::new(IpAddr::from(ip.to_be_bytes()), port);
        let address = |number| device(number, 4791);
        peers.too_large(address(1), Mtu::Mtu1024, now);
        assert_eq!(peers.path_mtu(device(1, 5791), now), None, "another user may have the port");
        let later = now + Duration::from_secs(400);
        peers.too_large(address(1), Mtu::Mtu2048, later);
        assert_eq!(
            peers.path_mtu(address(1), later + (PATH_MTU_FOR - Duration::from_nanos(1))),
            Some(Mtu::Mtu1024)
        );
        let over = later + PATH_MTU_FOR;
        assert_eq!((peers.path_mtu(address(1), over), peers.path_mtu(address(2), now)), (None, None));
        peers.too_large(address(1), Mtu::Mtu2048, over);
        assert_eq!(peers.path_mtu(address(1), over), Some(Mtu::Mtu2048));
        for number in 2..2 + u32::try_from(REMEMBERED).unwrap() {
            peers.too_large(address(number), Mtu::Mtu256, over);
        }
        assert_eq!(peers.path_mtus.by_key.len(), REMEMBERED);
    }

    #[test]
    fn only_due_peers_are_visited_and_former_peers_are_kept_until_timeout() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        let early = half_make(&mut peers, 0, 1, now);
        let late = half_make(&mut peers, 1, 1, now + Duration::from_secs(1));
        let first = peers.next_timer().unwrap();
        assert_eq!(peers.first_to_forget(), None, "all are busy");
        assert_eq!(peers.due(first).0, [early]);
        let machine = &mut peers.get_mut(early).unwrap().machine;
        machine.tick(first, &mut Vec::new());
        machine.pretend_it_was_up();
        peers.settle(early, first);
        assert_eq!(peers.first_to_forget(), Some(early));
        assert_eq!(tick(&mut peers, first + FORGET_AFTER / 2), [late]);
        assert_eq!(tick(&mut peers, first + FORGET_AFTER), [early]);
        assert_eq!((peers.len(), peers.timers.len()), (0, 0));
    }
}
