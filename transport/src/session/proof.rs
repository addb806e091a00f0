//! Cookies: proof that a peer is at the address that it claims.
//!
//! A request may carry any source address. So the first request of an unknown peer is refused with a cookie,
//! which goes only to the claimed address, and nothing about the request is remembered. Only a request that
//! returns the cookie goes on. A dial-back needs none: it echoes our epoch, which no other peer knows
//! ([`crate::peer::epochs`]). The CM machine owns the cookies. Nothing here does I/O or keeps state per peer.
#![forbid(unsafe_code)]

use super::private_data::{Cookie, Hello};
use crate::peer::secret::{Secret, octets};
use std::net::IpAddr;
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_verbs::Time;

/// Time for which a key makes cookies. It accepts them for the same time again. A handshake takes a few round
/// trips, or some seconds when packets are lost; a collected cookie should not be useful for much longer.
const BUCKET: Duration = Duration::from_secs(10);

/// Maker and verifier of the cookies of one node.
pub(crate) struct Cookies {
    runtime: Runtime,
    /// Keys of the current time bucket and of the previous one.
    keys: [Secret; 2],
    since: Time,
}

impl Cookies {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        let keys = [(); 2].map(|()| Secret::new(runtime));
        Self { runtime: runtime.clone(), keys, since: runtime.clock().now() }
    }

    /// Returns the cookie for a request from an address.
    pub(crate) fn make(&mut self, from: IpAddr, hello: &Hello) -> Cookie {
        self.rotate();
        cookie(self.keys[0], from, hello)
    }

    /// Returns true if a request carries the cookie that was sent to its address.
    pub(crate) fn is_returned(&mut self, from: IpAddr, hello: &Hello) -> bool {
        self.rotate();
        let Some(Cookie(returned)) = hello.cookie else { return false };
        let matches = |key| {
            let Cookie(ours) = cookie(key, from, hello);
            // All bytes are compared, so that the time taken does not reveal how many are right.
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

/// Computes a cookie. It serves all requests of a node's session attempts: the poller is not part of it.
fn cookie(key: Secret, from: IpAddr, hello: &Hello) -> Cookie {
    let port = hello.listener_port.get().to_be_bytes();
    let hash = key.hash(&[&octets(from), &port, &hello.session.epoch.to_be_bytes()]);
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
            is_local: false,
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
}
