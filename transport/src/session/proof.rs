//! What shows that a peer is at the address that it claims: cookies, and epochs that differ by peer.
//!
//! A request may carry any source address. So a stranger's first one is refused with a cookie, which goes to
//! the claimed address and nowhere else, and nothing is remembered of it; only a request that returns the cookie
//! goes on. A dial-back needs none: it echoes our epoch, which no other peer knows. The CM machine owns the
//! cookies, `NodeShared` the epochs; nothing here does I/O or keeps state by peer.
#![forbid(unsafe_code)]

use super::private_data::{Cookie, Hello};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_verbs::Time;

/// A key makes cookies for so long and accepts them for as long again. A handshake takes a few round trips, or
/// some seconds when packets are lost; a cookie that someone has collected should not be of use much longer.
const BUCKET: Duration = Duration::from_secs(10);

/// A secret of 128 bits.
#[derive(Clone, Copy)]
struct Key(u64, u64);

impl Key {
    fn new(runtime: &Runtime) -> Self {
        Self(runtime.random(), runtime.random())
    }

    fn hasher(self) -> SipHasher24 {
        SipHasher24::new_with_keys(self.0, self.1)
    }
}

/// Makes and checks the cookies of one node.
pub(crate) struct Cookies {
    runtime: Runtime,
    /// Of this bucket of time, and of the one before.
    keys: [Key; 2],
    since: Time,
}

impl Cookies {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        let keys = [(); 2].map(|()| Key::new(runtime));
        Self { runtime: runtime.clone(), keys, since: runtime.clock().now() }
    }

    /// The cookie for a request from an address.
    pub(crate) fn make(&mut self, from: IpAddr, hello: &Hello) -> Cookie {
        self.rotate();
        cookie(self.keys[0], from, hello)
    }

    /// Whether a request returns the cookie that was sent to its address.
    pub(crate) fn is_returned(&mut self, from: IpAddr, hello: &Hello) -> bool {
        self.rotate();
        let Some(Cookie(returned)) = hello.cookie else { return false };
        let matches = |key| {
            let Cookie(ours) = cookie(key, from, hello);
            // All bytes are looked at, so the time taken does not tell how many are right.
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
        let fresh = Key::new(&self.runtime);
        let earlier = if passed < 2 * BUCKET { self.keys[0] } else { Key::new(&self.runtime) };
        (self.keys, self.since) = ([fresh, earlier], now);
    }
}

impl std::fmt::Debug for Cookies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The keys are secret.
        f.debug_struct("Cookies").field("since", &self.since).finish_non_exhaustive()
    }
}

/// One cookie serves all requests of a node's session attempts: their poller is not part of it.
fn cookie(key: Key, from: IpAddr, hello: &Hello) -> Cookie {
    let mut hasher = key.hasher();
    hasher.write(&octets(from));
    hasher.write(&hello.listener_port.get().to_be_bytes());
    hasher.write(&hello.session.epoch.to_be_bytes());
    let hash = hasher.finish128();
    Cookie((u128::from(hash.h1) << 64 | u128::from(hash.h2)).to_be_bytes())
}

/// The epochs of one node: a random number for each peer, always the same one for the same peer.
///
/// A peer that has learned its own cannot echo that of another.
pub(crate) struct Epochs(Option<Key>);

impl Epochs {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self(Some(Key::new(runtime)))
    }

    /// The same for every peer and node: a deliberate fault.
    pub(crate) const fn constant() -> Self {
        Self(None)
    }

    /// The epoch for the peer that listens at `address`; never 0.
    pub(crate) fn of(&self, address: SocketAddr) -> u64 {
        let Some(key) = self.0 else { return 1 };
        let mut hasher = key.hasher();
        hasher.write(&octets(address.ip()));
        hasher.write(&address.port().to_be_bytes());
        hasher.finish128().h1.max(1)
    }
}

impl std::fmt::Debug for Epochs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Epochs")
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
    }
}

#[cfg(test)]
mod tests {
    use super::super::private_data::SessionName;
    use super::*;
    use crate::connections::ConnectionKind;
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
            listener_port: NonZeroU16::new(port).unwrap(),
            session: SessionName { epoch, number: 1 },
            echo: None,
            poller,
            pollers: 8,
            connections: ConnectionKind::Xrc,
            cookie: None,
        }
    }

    fn with(hello: Hello, cookie: Cookie) -> Hello {
        Hello { cookie: Some(cookie), ..hello }
    }

    #[test]
    fn a_cookie_is_good_for_its_sender_and_for_a_while() {
        let clock = VirtualClock::new();
        let runtime = Runtime::simulated(Clock::simulated(Arc::clone(&clock)), Arc::new(Counting::default()));
        let mut cookies = Cookies::new(&runtime);
        let [here, there] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let asked = hello(5, 7, 0);
        assert!(!cookies.is_returned(here, &asked), "there is none");
        let cookie = cookies.make(here, &asked);
        assert!(cookies.is_returned(here, &with(asked, cookie)));
        assert!(cookies.is_returned(here, &with(hello(5, 7, 3), cookie)), "of another poller");
        for (from, other) in [(there, asked), (here, hello(6, 7, 0)), (here, hello(5, 8, 0))] {
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
        let cookie = cookies.make(here, &asked);
        clock.set(clock.now() + 3 * BUCKET);
        assert!(!cookies.is_returned(here, &with(asked, cookie)), "nobody asked for long");
    }

    #[test]
    fn no_peer_learns_the_epoch_of_another() {
        let clock = Clock::simulated(VirtualClock::new());
        let simulator = Arc::new(Counting::default());
        let runtime = Runtime::simulated(clock, simulator);
        let (one, other) = (Epochs::new(&runtime), Epochs::new(&runtime));
        let [a, b] = [7, 8].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        assert_eq!(one.of(a), one.of(a));
        assert_ne!(one.of(a), one.of(b));
        assert_ne!(one.of(a), other.of(a), "of another incarnation");
    }
}
