//! The peers that a node knows, with what the CM machine looks for them by: which of them wants the
//! time, and how much of the depth of our SRQs the half-made sessions of one host hold.
#![forbid(unsafe_code)]

use super::machine::Machine;
use crate::PeerKey;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_verbs::Time;

/// A peer that nobody here named is forgotten when it was down for this long.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// Half-made sessions of one host may hold the depth divided by this.
const SHARE: u32 = 4;

/// A peer with its machine.
#[derive(Debug)]
pub(super) struct PeerSession {
    pub(super) address: SocketAddr,
    pub(super) machine: Machine,
    /// Some poller knows it by its address.
    pub(super) named: bool,
    /// Our address on connections with it, once known.
    pub(super) source: Option<IpAddr>,
    forget_at: Option<Time>,
    /// What the indices say of it.
    timer: Option<Time>,
    half_made: u32,
}

/// All peers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: BTreeMap<PeerKey, PeerSession>,
    timers: BTreeSet<(Time, PeerKey)>,
    /// Connections accepted for sessions that are not up yet, by host.
    half_made: HashMap<IpAddr, u32>,
}

impl Peers {
    pub(super) fn get(&self, key: PeerKey) -> Option<&PeerSession> {
        self.known.get(&key)
    }

    /// Call [`Peers::settle`] after its machine was fed.
    pub(super) fn get_mut(&mut self, key: PeerKey) -> Option<&mut PeerSession> {
        self.known.get_mut(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn keys(&self) -> Vec<PeerKey> {
        self.known.keys().copied().collect()
    }

    /// The peer with this key, made if it is not there.
    pub(super) fn add(
        &mut self,
        key: PeerKey,
        address: SocketAddr,
        machine: impl FnOnce() -> Machine,
    ) -> &mut PeerSession {
        self.known.entry(key).or_insert_with(|| PeerSession {
            address,
            machine: machine(),
            named: false,
            source: None,
            forget_at: None,
            timer: None,
            half_made: 0,
        })
    }

    /// Brings the indices up to date with a peer.
    pub(super) fn settle(&mut self, key: PeerKey, now: Time) {
        let Some(peer) = self.known.get_mut(&key) else { return };
        if peer.named || !peer.machine.is_idle() {
            peer.forget_at = None;
        } else {
            peer.forget_at.get_or_insert(now + FORGET_AFTER);
        }
        let timer = [peer.machine.next_timer(), peer.forget_at].into_iter().flatten().min();
        // Whom our own program named is not a stranger.
        let half_made = if peer.named { 0 } else { peer.machine.half_made() };
        let (old_timer, old) = (peer.timer, peer.half_made);
        (peer.timer, peer.half_made) = (timer, half_made);
        let host = peer.address.ip();
        self.time(key, old_timer, timer);
        self.count(host, old, half_made);
    }

    /// Takes out the peers whose time has come, and those that are to be forgotten. The former
    /// must be settled again.
    pub(super) fn due(&mut self, now: Time) -> (Vec<PeerKey>, Vec<(PeerKey, PeerSession)>) {
        let (mut due, mut gone) = (Vec::new(), Vec::new());
        while let Some(&(at, key)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, key));
            let Some(peer) = self.known.get_mut(&key) else { continue };
            peer.timer = None;
            if peer.forget_at.is_some_and(|at| at <= now) {
                let (host, held) = (peer.address.ip(), peer.half_made);
                gone.extend(self.known.remove(&key).map(|peer| (key, peer)));
                self.count(host, held, 0);
            } else {
                due.push(key);
            }
        }
        (due, gone)
    }

    /// When [`Peers::due`] has something.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether the half-made sessions of a host hold all that they may of SRQs of this depth. Each
    /// connection holds its base credit until the session is up or given up, so that a host that
    /// claims to listen at many ports would else shut out all others.
    pub(super) fn is_crowded(&self, host: IpAddr, depth: u32) -> bool {
        self.half_made.get(&host).is_some_and(|held| *held >= (depth / SHARE).max(1))
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

    fn count(&mut self, host: IpAddr, old: u32, new: u32) {
        if old == new {
            return;
        }
        let held = self.half_made.entry(host).or_default();
        *held = held.saturating_sub(old).saturating_add(new);
        if *held == 0 {
            self.half_made.remove(&host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::private_data::{Hello, SessionName};
    use super::*;
    use crate::connections::ConnectionKind;
    use std::num::NonZeroU16;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// A peer whose one poller has dialled us, and that answers nothing.
    fn half_make(peers: &mut Peers, key: PeerKey, now: Time) {
        let session = SessionName { epoch: key.0 + 1, number: 1 };
        let listener_port = NonZeroU16::new(7).unwrap();
        let connections = ConnectionKind::Xrc;
        let hello = Hello { listener_port, session, echo: None, poller: 0, pollers: 1, connections };
        let port = u16::try_from(key.0).unwrap();
        let peer = peers.add(key, address(port), || Machine::new(9, 1));
        peer.machine.request(now, &hello, &mut Vec::new()).unwrap();
        peers.settle(key, now);
    }

    #[test]
    fn a_host_may_hold_its_share_until_its_sessions_are_given_up() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        for number in 0..4 {
            assert!(!peers.is_crowded(address(0).ip(), 16), "{number}");
            half_make(&mut peers, PeerKey(number), now);
        }
        assert!(peers.is_crowded(address(0).ip(), 16));
        assert!(!peers.is_crowded([10, 0, 0, 2].into(), 16), "others are not concerned");
        peers.get_mut(PeerKey(1)).unwrap().named = true;
        peers.settle(PeerKey(1), now);
        assert!(!peers.is_crowded(address(0).ip(), 16), "whom we named does not count");

        let later = peers.next_timer().unwrap();
        let (due, gone) = peers.due(later);
        assert_eq!((due.len(), gone.len()), (4, 0));
        for key in due {
            peers.get_mut(key).unwrap().machine.tick(later, &mut Vec::new());
            peers.settle(key, later);
        }
        assert_eq!(peers.half_made, HashMap::new());
    }

    #[test]
    fn strangers_are_forgotten_and_only_whose_time_has_come_is_looked_at() {
        let (mut peers, now) = (Peers::default(), Time(1_000_000));
        half_make(&mut peers, PeerKey(0), now);
        half_make(&mut peers, PeerKey(1), now + Duration::from_secs(1));
        let first = peers.next_timer().unwrap();
        assert_eq!(peers.due(first).0, [PeerKey(0)]);
        peers.get_mut(PeerKey(0)).unwrap().machine.tick(first, &mut Vec::new());
        peers.settle(PeerKey(0), first);
        let (due, gone) = peers.due(first + FORGET_AFTER);
        assert_eq!(due, [PeerKey(1)]);
        assert_eq!(gone.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [PeerKey(0)]);
        assert_eq!(peers.len(), 1);
    }
}
