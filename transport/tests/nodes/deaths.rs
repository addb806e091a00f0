//! What a node sees when the process of its peer is killed, or stopped, and started again.
//!
//! The peer is this test binary once more, as a child process that plays the server.

use crate::common::{ECHO, Job, TestNode, fresh_address, over_udp, pattern};
use bytes::Bytes;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline_testkit::{Input, Process, print_line, same_test};
use trunkline_transport::{NodeOptions, PeerDown, SendError, SendFailure, SendOutcome};

const ADDRESS: &str = "TRUNKLINE_TEST_CHILD_ADDRESS";
/// Within this a death must be reported.
const REPORT_LIMIT: Duration = Duration::from_secs(3);

/// Not a test but the child's program: a server that lives until its standard input ends.
#[test]
fn child() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let _server = TestNode::start(NodeOptions::new().listen(address.parse().unwrap()), 1);
    print_line("serving");
    let _end = Input::open().wait();
}

/// Starts a server in a process of its own and waits until it serves.
fn start_server(address: SocketAddr) -> Process {
    let mut command = same_test(module_path!(), "child");
    command.env(ADDRESS, address.to_string());
    let mut server = Process::start("the server", &mut command).unwrap();
    server.after("serving").unwrap();
    server
}

#[test]
fn a_killed_peer_is_reported_and_its_successor_found() {
    let address = fresh_address();
    let server = start_server(address);
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
    let _server = start_server(address);
    client.send(0, peer, &[ECHO], Bytes::from_static(b"again"), 4);
    assert_eq!(&client.message().1[..], b"!again");
}

#[test]
fn a_stopped_peer_is_reported_although_nothing_is_sent() {
    let address = fresh_address();
    let server = start_server(address);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, address);
    server.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    assert_eq!(client.down(peer), PeerDown::Died);
    assert!(stopped.elapsed() < REPORT_LIMIT, "reported after {:?}", stopped.elapsed());
    // It comes back, knows nothing of what happened, and is reached again.
    server.signal(Signal::SIGCONT);
    client.send(0, peer, &[ECHO], Bytes::from_static(b"back"), 1);
    assert_eq!(&client.message().1[..], b"!back");
}

#[test]
fn a_client_restarted_at_its_address_is_another_incarnation() {
    let address = fresh_address();
    let mut server = TestNode::start(over_udp(), 1);
    // The child only listens, so the server here dials it.
    let child = start_server(address);
    let peer = server.connect(0, address);
    drop(child);
    let _child = start_server(address);
    assert_eq!(server.down(peer), PeerDown::Died);
    assert_eq!(server.connect(0, address), peer, "a key stays the same over reconnects");
}

/// A request may be answered long after the session through which it came, and its successor's numbers
/// of requests are the same.
#[test]
fn an_answer_does_not_reach_the_incarnation_after_the_one_that_asked() {
    let address = fresh_address();
    let mut server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(NodeOptions::new().listen(address), 1);
    let peer = client.connect(0, server.address);
    client.send(0, peer, b"first", Bytes::new(), 1);
    let (first, _) = server.message();
    server.job(0, Job::Answer { to: first, head: b"in time".to_vec(), token: 2 });
    assert_eq!(&client.message().1[..], b"in time");
    assert_eq!(server.outcome(2), SendOutcome::Delivered);
    client.stop();
    server.down(first.peer);
    let mut successor = TestNode::start(NodeOptions::new().listen(address), 1);
    let peer = successor.connect(0, server.address);
    successor.send(0, peer, b"second", Bytes::new(), 3);
    let (second, _) = server.message();
    assert_eq!(second.peer, first.peer, "a key stays the same over reconnects");
    server.job(0, Job::Answer { to: first, head: b"late".to_vec(), token: 4 });
    assert_eq!(server.refusal(4), SendError::SessionOver);
    server.job(0, Job::Answer { to: second, head: b"to the second".to_vec(), token: 5 });
    assert_eq!(&successor.message().1[..], b"to the second");
}
