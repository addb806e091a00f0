//! Waits until sessions use shared memory. A session begins on the network, and moves to shared memory after both sides
//! have agreed.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};
use trunkline::Node;

/// Maximum time in which two processes on a busy machine agree.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the node's paths are checked.
const EVERY: Duration = Duration::from_millis(1);

/// Waits until all QPs to the node at this address use shared memory.
///
/// # Errors
/// Returns an error if a QP uses another path, or if the paths are not reported.
pub(crate) fn await_memory(node: &Node, peer: SocketAddr) -> Result<(), String> {
    become_memory(node, peer, PATIENCE)
        .map_err(|why| format!("--link shm: {peer} is not reached through shared memory: {why}"))
}

/// Waits until all QPs to the node at this address use shared memory, for at most `patience`.
///
/// # Errors
/// Returns an error if a QP uses another path, or if the paths are not reported.
pub(crate) fn become_memory(node: &Node, peer: SocketAddr, patience: Duration) -> Result<(), &'static str> {
    let began = Instant::now();
    loop {
        let paths = node.report().paths;
        let mut to_peer = paths.iter().filter(|path| path.address.address() == peer).peekable();
        let is_known = to_peer.peek().is_some();
        match to_peer.find(|path| path.path != "shm") {
            None if is_known => return Ok(()),
            found if began.elapsed() >= patience => {
                return Err(found.map_or("the device does not report its paths", |path| path.why));
            }
            _ => thread::sleep(EVERY),
        }
    }
}
