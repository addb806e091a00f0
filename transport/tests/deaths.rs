//! What a node sees when the process of its peer is killed, or stopped, and started again.
//!
//! The peer is this test binary once more, as a child process that plays the server.
#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use bytes::Bytes;
use common::{ECHO, TestNode, fresh_address, over_udp, pattern};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use trunkline_transport::{NodeOptions, PeerDown, SendFailure, SendOutcome};

const ADDRESS: &str = "TRUNKLINE_TEST_CHILD_ADDRESS";
/// Within this a death must be reported.
const REPORT_LIMIT: Duration = Duration::from_secs(3);

/// Not a test but the child's program: a server that lives until its standard input ends.
#[test]
fn child() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let _server = TestNode::start(NodeOptions::new().listen(address.parse().unwrap()), 1);
    println!("\nserving");
    let _ = std::io::stdin().read(&mut [0]);
}

struct Server(Child);

impl Server {
    fn start(address: SocketAddr) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "serving"), "the child did not start");
        Self(child)
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_peer_is_reported_and_its_successor_found() {
    let address = fresh_address();
    let server = Server::start(address);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, address);
    client.send(0, peer, &[ECHO], Bytes::new(), 1);
    client.message();
    drop(server);
    let killed = Instant::now();
    // One message that will not be answered, small, and one large: both must end.
    client.send(0, peer, &[ECHO], Bytes::new(), 2);
    client.send(0, peer, &[ECHO], pattern(1 << 20, 0), 3);
    let failure = |cause| SendOutcome::Failed(SendFailure { may_have_arrived: true, cause });
    assert_eq!(client.outcome(2), failure(PeerDown::Died));
    assert_eq!(client.outcome(3), failure(PeerDown::Died));
    assert_eq!(client.down(peer), PeerDown::Died);
    assert!(killed.elapsed() < REPORT_LIMIT, "reported after {:?}", killed.elapsed());
    let _server = Server::start(address);
    client.send(0, peer, &[ECHO], Bytes::from_static(b"again"), 4);
    assert_eq!(&client.message().1[..], b"!again");
}

#[test]
fn a_stopped_peer_is_reported_although_nothing_is_sent() {
    let address = fresh_address();
    let server = Server::start(address);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, address);
    server.signal(nix::sys::signal::Signal::SIGSTOP);
    let stopped = Instant::now();
    assert_eq!(client.down(peer), PeerDown::Died);
    assert!(stopped.elapsed() < REPORT_LIMIT, "reported after {:?}", stopped.elapsed());
    // It comes back, knows nothing of what happened, and is reached again.
    server.signal(nix::sys::signal::Signal::SIGCONT);
    client.send(0, peer, &[ECHO], Bytes::from_static(b"back"), 1);
    assert_eq!(&client.message().1[..], b"!back");
}

#[test]
fn a_client_restarted_at_its_address_is_another_incarnation() {
    let address = fresh_address();
    let mut server = TestNode::start(over_udp(), 1);
    // The child only listens, so the server here dials it.
    let child = Server::start(address);
    let peer = server.connect(0, address);
    drop(child);
    let _child = Server::start(address);
    assert_eq!(server.down(peer), PeerDown::Died);
    assert_eq!(server.connect(0, address), peer, "a key stays the same over reconnects");
}
