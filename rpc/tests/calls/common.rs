//! What the tests share: addresses of their own, a pair of nodes, events with a bound.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trunkline::stub::Service;
use trunkline::{Bytes, Node, NodeBuilder};

/// Long enough for a loaded machine; only a failing test waits for it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A loopback address that no other test uses: by process and by count.
pub(crate) fn fresh_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, b, c, _] = std::process::id().wrapping_mul(0x9e37_79b1).to_be_bytes();
    let (c, d) = (c ^ u8::try_from(count / 250).unwrap(), u8::try_from(count % 250).unwrap() + 2);
    SocketAddr::new(Ipv4Addr::new(127, b.clamp(1, 254), c, d).into(), 7471)
}

/// A node to be, at an address of its own.
pub(crate) fn node() -> NodeBuilder {
    Node::builder().listen(fresh_address())
}

/// A node that offers a service, and one that calls it.
pub(crate) fn pair(service: impl Into<Service>) -> (Node, Node) {
    (node().serve(service).start().unwrap(), node().start().unwrap())
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ seed).collect()
}

/// As `pattern`.
pub(crate) fn shared_pattern(length: usize, seed: u8) -> Bytes {
    pattern(length, seed).into()
}

/// Tells of events in handlers, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Teller<T>(Sender<T>);

/// Waits for events.
#[derive(Debug, Clone)]
pub(crate) struct Events<T>(Arc<Mutex<Receiver<T>>>);

pub(crate) fn events<T>() -> (Teller<T>, Events<T>) {
    let (sender, receiver) = channel();
    (Teller(sender), Events(Arc::new(Mutex::new(receiver))))
}

impl<T> Teller<T> {
    pub(crate) fn tell(&self, event: T) {
        let _ = self.0.send(event);
    }
}

impl<T> Events<T> {
    /// The next event.
    pub(crate) fn next(&self) -> T {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv_timeout(LIMIT).expect("the event comes")
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).try_recv().is_err()
    }
}

/// Tells when it is dropped.
#[derive(Debug)]
pub(crate) struct Guard(pub(crate) Teller<&'static str>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.tell("dropped");
    }
}

/// Tries until it works, or `LIMIT` is over.
pub(crate) fn until<T>(what: &str, mut try_once: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(done) = try_once() {
            return done;
        }
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
