//! Helpers shared by the tests: a pair of nodes, and bounded waits for events.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trunkline::stub::Service;
use trunkline::{Bytes, Node, NodeBuilder};
pub(crate) use trunkline_testkit::{fresh_address, pattern};

/// A time limit that allows for a loaded machine. Only a failing test reaches it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Returns the builder of a node at a new address.
pub(crate) fn node() -> NodeBuilder {
    Node::builder().listen(fresh_address())
}

/// Starts a node that serves a service, and a node to call it.
pub(crate) fn pair(service: impl Into<Service>) -> (Node, Node) {
    (node().serve(service).start().unwrap(), node().start().unwrap())
}

/// Returns `pattern` as `Bytes`.
pub(crate) fn shared_pattern(length: usize, seed: u8) -> Bytes {
    pattern(length, seed).into()
}

/// Reports events from handlers, on any thread.
#[derive(Debug, Clone)]
pub(crate) struct Reporter<T>(Sender<T>);

/// Receives the reported events.
#[derive(Debug, Clone)]
pub(crate) struct Events<T>(Arc<Mutex<Receiver<T>>>);

pub(crate) fn events<T>() -> (Reporter<T>, Events<T>) {
    let (sender, receiver) = channel();
    (Reporter(sender), Events(Arc::new(Mutex::new(receiver))))
}

impl<T> Reporter<T> {
    pub(crate) fn tell(&self, event: T) {
        let _ = self.0.send(event);
    }
}

impl<T> Events<T> {
    /// Waits for the next event.
    pub(crate) fn next(&self) -> T {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv_timeout(LIMIT).expect("the event comes")
    }

    /// Waits for an event. Returns true if one arrives within the time limit.
    pub(crate) fn is_told(&self) -> bool {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv_timeout(LIMIT).is_ok()
    }

    /// Returns the next event if it has arrived.
    pub(crate) fn try_next(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).try_recv().ok()
    }

    /// Returns true if there are no events. Otherwise takes one.
    pub(crate) fn is_empty(&self) -> bool {
        self.try_next().is_none()
    }
}

/// Reports when it is dropped.
#[derive(Debug)]
pub(crate) struct Guard(pub(crate) Reporter<&'static str>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.tell("dropped");
    }
}

/// Retries until `try_once` returns a value. Fails after [`LIMIT`].
pub(crate) fn until<T>(what: &str, try_once: impl FnMut() -> Option<T>) -> T {
    trunkline_testkit::wait_until(what, LIMIT, try_once)
}
