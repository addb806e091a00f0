//! Cookies, by which a peer proves that it receives packets at the address that it claims.
//!
//! A request may carry any source address and port. The first request of an unknown peer is therefore refused with a
//! cookie, which is sent only to the claimed address and port. Only a request that returns the cookie is processed
//! further. A dial-back does not need a cookie, since it echoes this node's epoch, which is secret from other peers
//! ([`crate::peer::epochs`]). Requests leave no state, except for the addresses of a few hosts. A host that does not
//! return its cookie is reported, since packets to it may be blocked. The CM machine owns the cookies. This module
//! performs no I/O.
#![forbid(unsafe_code)]

use super::machine::HANDSHAKE_LIMIT;
use super::private_data::{Cookie, Hello};
use crate::PeerKey;
use crate::peer::secret::{Secret, octets};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_verbs::Time;

/// Time for which a key creates cookies. For the same time after that, the key only verifies them. A handshake takes a
/// few round trips, or some seconds when packets are lost, and a stolen cookie should not be useful for much longer.
const BUCKET: Duration = Duration::from_secs(10);
/// Maximum number of hosts whose cookies are awaited. Cookies for further hosts are not tracked.
const AWAITED: usize = 64;
/// Time after which a cookie counts as not returned. The peer's attempt is then over.
const ANSWER_LIMIT: Duration = HANDSHAKE_LIMIT;

/// Creator and verifier of the cookies of one node.
pub(crate) struct Cookies {
    runtime: Runtime,
    /// Keys of the current time bucket and of the previous one.
    keys: [Secret; 2],
    since: Time,
    /// Peers that have not returned their cookie, at most one per host, in the order in which the cookies were first
    /// sent.
    awaited: VecDeque<(Time, SocketAddr)>,
}

impl Cookies {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        let keys = [(); 2].map(|()| Secret::new(runtime));
        let awaited = VecDeque::with_capacity(AWAITED);
        Self { runtime: runtime.clone(), keys, since: runtime.clock().now(), awaited }
    }

    /// Returns the cookie for a peer's request, and awaits its return.
    pub(crate) fn make(&mut self, from: PeerKey, hello: &Hello) -> Cookie {
        self.rotate();
        if self.awaited.len() < AWAITED && !self.awaited.iter().any(|(_, peer)| peer.ip() == from.host()) {
            self.awaited.push_back((self.runtime.clock().now(), from.address()));
        }
        cookie(self.keys[0], from, hello)
    }

    /// Returns the time of the next call of [`Self::unanswered`].
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.awaited.front().map(|(sent, _)| *sent + ANSWER_LIMIT)
    }

    /// Takes a peer whose host has not returned a cookie within the limit.
    pub(crate) fn unanswered(&mut self, now: Time) -> Option<SocketAddr> {
        self.next_timer().filter(|at| *at <= now)?;
        self.awaited.pop_front().map(|(_, peer)| peer)
    }

    /// Records that packets to a host arrive.
    pub(crate) fn answered(&mut self, host: IpAddr) {
        self.awaited.retain(|(_, peer)| peer.ip() != host);
    }

    /// Returns true if a request carries the cookie that was sent to its address.
    pub(crate) fn is_returned(&mut self, from: PeerKey, hello: &Hello) -> bool {
        self.rotate();
        let is_right = self.is_right(from, hello);
        if is_right {
            self.answered(from.host());
        }
        is_right
    }

    fn is_right(&self, from: PeerKey, hello: &Hello) -> bool {
        let Some(Cookie(returned)) = hello.cookie else { return false };
        let matches = |key| {
            let Cookie(ours) = cookie(key, from, hello);
            // Compare all bytes, so that the time does not reveal how many are correct.
            ours.iter().zip(returned).fold(0, |differ, (ours, other)| differ | (ours ^ other)) == 0
        };
        let [current, earlier] = self.keys.map(matches);
        current | earlier
    }

    fn rotate(&mut self) {
        let now = self.runtime.clock().now();
        let passed = now.saturating_duration_since(self.since);
        if passed < BUCKET {
            return;
        }
        let fresh = Secret::new(&self.runtime);
        let earlier = if passed < 2 * BUCKET { self.keys[0] } else { Secret::new(&self.runtime) };
        (self.keys, self.since) = ([fresh, earlier], now);
    }
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The keys are secret.
        f.debug_struct("Cookies").field("since", &self.since).finish_non_exhaustive()
    }
}

/// Computes the cookie for a peer's request. The cookie does not depend on the poller, so all requests of an attempt
/// can carry it.
fn cookie(key: Secret, from: PeerKey, hello: &Hello) -> Cookie {
    let port = from.address().port().to_be_bytes();
    let udp_port = from.udp_port().unwrap_or_default().to_be_bytes();
    let hash = key.hash(&[&octets(from.host()), &port, &udp_port, &hello.session.epoch.to_be_bytes()]);
    Cookie(hash.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::private_data::{Features, SessionName};
    use super::*;
    use crate::provider::connections::ConnectionKind;
    use std::num::NonZeroU16;
    use std::sync::Arc;
    use trunkline_machine::{MakeMachine, Simulator};
    use trunkline_verbs::{Clock, VirtualClock};

    #[derive(Debug, Default)]
    struct Counting(std::sync::atomic::AtomicU64);

    impl Simulator for Counting {
        fn spawn(&self, _: &str, _: MakeMachine) {}

        fn ring(&self, _: Arc<trunkline_machine::Bell>) {}

        fn random(&self) -> u64 {
            self.0.fetch_add(0x9e37_79b9, std::sync::atomic::Ordering::Relaxed)
        }
    }

    fn hello(epoch: u64, port: u16, poller: u16) -> Hello {
        Hello {
            features: Features::NONE,
            listener_port: NonZeroU16::new(port).unwrap(),
            session: SessionName { epoch, number: 1 },
            echo: None,
            poller,
            pollers: 8,
            connections: ConnectionKind::Xrc,
            cookie: None,
            udp_port: 4791,
            is_local: false,
        }
    }

    fn peer(host: u8) -> PeerKey {
        PeerKey::new(SocketAddr::from(([10, 0, 0, host], 7)))
    }

    fn with(hello: Hello, cookie: Cookie) -> Hello {
        Hello { cookie: Some(cookie), ..hello }
    }

    #[test]
    fn cookie_is_valid_only_for_its_sender_and_limited_time() {
        let clock = VirtualClock::new();
        let runtime = Runtime::simulated(Clock::simulated(Arc::clone(&clock)), Arc::new(Counting::default()));
        let mut cookies = Cookies::new(&runtime);
        let [here, there] = [1, 2].map(peer);
        let elsewhere = here.with_udp_port(Some(40_000));
        let asked = hello(5, 7, 0);
        assert!(!cookies.is_returned(here, &asked), "there is none");
        let cookie = cookies.make(peer(1), &asked);
        assert!(cookies.is_returned(here, &with(asked, cookie)));
        assert!(cookies.is_returned(here, &with(hello(5, 7, 3), cookie)), "of another poller");
        for (from, other) in [(there, asked), (elsewhere, asked), (here, hello(6, 7, 0))] {
            assert!(!cookies.is_returned(from, &with(other, cookie)), "{from} {other:?}");
        }
        for at in 0..16 {
            let Cookie(mut bytes) = cookie;
            bytes[at] ^= 1;
            assert!(!cookies.is_returned(here, &with(asked, Cookie(bytes))));
        }
        clock.set(clock.now() + BUCKET);
        assert!(cookies.is_returned(here, &with(asked, cookie)), "of the bucket before");
        clock.set(clock.now() + BUCKET);
        assert!(!cookies.is_returned(here, &with(asked, cookie)));
        let cookie = cookies.make(peer(1), &asked);
        clock.set(clock.now() + 3 * BUCKET);
        assert!(!cookies.is_returned(here, &with(asked, cookie)), "nobody asked for long");
    }

    #[test]
    fn hosts_without_returned_cookie_are_reported_once() {
        let clock = VirtualClock::new();
        let runtime = Runtime::simulated(Clock::simulated(Arc::clone(&clock)), Arc::new(Counting::default()));
        let mut cookies = Cookies::new(&runtime);
        let asked = hello(5, 7, 0);
        let answer = cookies.make(peer(1), &asked);
        for host in [2, 3, 2] {
            cookies.make(peer(host), &asked);
        }
        assert!(cookies.is_returned(peer(1), &with(asked, answer)));
        cookies.answered(peer(3).host());
        assert_eq!(cookies.unanswered(clock.now()), None, "it may still come");
        let at = cookies.next_timer().expect("one is awaited");
        assert_eq!(at, clock.now() + ANSWER_LIMIT);
        assert_eq!(cookies.unanswered(at), Some(peer(2).address()));
        assert_eq!((cookies.unanswered(at), cookies.next_timer()), (None, None));
        for host in 0..=u8::MAX {
            cookies.make(peer(host), &asked);
        }
        assert_eq!(cookies.awaited.len(), AWAITED, "forged addresses take no more memory");
    }
}
