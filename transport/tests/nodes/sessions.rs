//! The beginning and end of sessions, including goodbyes, restarts and refusals.

use crate::common::{ECHO, Happened, Job, KEEP, LIMIT, TestNode, fresh_address, over_udp, pattern};
use bytes::Bytes;
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use trunkline_machine::{Machine, Turn};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, ROCE_PORT};
use trunkline_transport::{
    Connections, DriverFailure, NicOptions, Node, NodeOptions, PeerDown, PeerEvent, ProviderChoice,
    SendError, SendFailure, SendOutcome, StartError,
};
use trunkline_verbs::Time;

fn failed(may_have_arrived: bool, cause: PeerDown) -> SendOutcome {
    SendOutcome::Failed(SendFailure { may_have_arrived, cause })
}

#[test]
fn end_of_client_is_reported_to_server() {
    let mut server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(NodeOptions::new(), 1);
    client.connect(0, server.address);
    let peer = server.up();
    client.stop();
    assert_eq!(server.down(peer), PeerDown::Closed);
    let deadline = Instant::now() + LIMIT;
    while server.report().qps() > 0 {
        assert!(Instant::now() < deadline, "QPs are left: {:?}", server.report());
        std::thread::yield_now();
    }
}

/// A busy poller later finds the end of a session and the messages before it at the same time.
#[test]
fn messages_before_shutdown_of_sender_are_delivered() {
    for connections in [Connections::Xrc, Connections::Rc] {
        let mut server = TestNode::start(over_udp().connections(connections), 1);
        let mut client = TestNode::start(over_udp().connections(connections), 1);
        let there = client.connect(0, server.address);
        let here = server.up();
        let (release, wait) = mpsc::channel();
        server.job(0, Job::Wait(wait));
        client.send(0, there, b"x", pattern(100, 5), 1);
        assert_eq!(client.outcome(1), SendOutcome::Delivered);
        client.stop();
        let deadline = Instant::now() + LIMIT;
        while server.report().tgt > 0 {
            assert!(Instant::now() < deadline, "the session is still there: {:?}", server.report());
            std::thread::yield_now();
        }
        release.send(()).unwrap();
        let first = server.wait("message or end", |_, event| match event {
            Happened::Message(from, bytes) => Some((from.peer, Some(bytes.clone()))),
            Happened::Peer(peer, PeerEvent::Down { .. }) => Some((*peer, None)),
            _ => None,
        });
        assert_eq!(first, (here, Some([&b"x"[..], &pattern(100, 5)].concat().into())));
        assert_eq!(server.down(here), PeerDown::Closed);
    }
}

/// Returns the failure of a message. It fails with its connection attempt, or immediately because the peer is known to
/// be away.
fn failure(node: &mut TestNode, token: u64) -> Result<SendFailure, SendError> {
    node.wait("failure", |_, event| match event {
        Happened::Sent(of, SendOutcome::Failed(failure)) if *of == token => Some(Ok(*failure)),
        Happened::Refused(of, error) if *of == token => Some(Err(*error)),
        _ => None,
    })
}

#[test]
fn address_without_listener_is_reported_as_not_listening() {
    // Two programs bind before the device lists the host's sockets. One does not answer, and for the other the kernel
    // refuses datagrams from all addresses except the connected one.
    let [silent, refusing] = [(); 2].map(|()| fresh_address());
    let bind = |address: SocketAddr| UdpSocket::bind((address.ip(), ROCE_PORT)).unwrap();
    let (_silent, connected) = (bind(silent), bind(refusing));
    connected.connect(silent).unwrap();
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp(), 1);
    let mut elsewhere = server.address;
    elsewhere.set_port(1);
    let peer = client.name(0, elsewhere);
    assert_eq!(client.down(peer), PeerDown::NotListening);
    client.send(0, peer, b"x", Bytes::new(), 1);
    let cause = match failure(&mut client, 1) {
        Ok(SendFailure { may_have_arrived: false, cause }) | Err(SendError::BackingOff { cause, .. }) => {
            cause
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(cause, PeerDown::NotListening);
    // The host's list of sockets shows the first, and an ICMP error reports the second.
    for address in [fresh_address(), refusing] {
        let peer = client.name(0, address);
        let cause = client.down(peer);
        // With the feature rdma-core and on the drop-in libraries, the error is a rejection, as programs expect it.
        let is_soft = client.report().provider == "softrdma";
        let device = SocketAddr::new(address.ip(), ROCE_PORT);
        let expected = if is_soft { PeerDown::PortUnreachable(device) } else { PeerDown::NotListening };
        assert_eq!(cause, expected);
    }
    let peer = client.name(0, silent);
    client.send(0, peer, b"x", Bytes::new(), 2);
    assert_eq!(client.outcome(2), failed(false, PeerDown::Unreachable));
}

/// Each remote poller needs a credit of the SRQ, and sessions can use half of the credits.
#[test]
fn session_without_room_at_this_node_is_not_reported_as_refused_by_peer() {
    let mut server = TestNode::start(over_udp(), 16);
    let mut client = TestNode::start(over_udp().srq_depth(16).srq_depth_limit(16), 1);
    let peer = client.name(0, server.address);
    let cause = client.down(peer);
    assert!(matches!(cause, PeerDown::RefusedHere(_)), "{cause}");
    assert!(cause.to_string().starts_with("this node refused the session: "), "{cause}");
    assert!(cause.to_string().contains("NodeBuilder::srq_depth"), "{cause}");
    client.stop();
    server.stop();
}

#[test]
fn peer_of_other_address_family_is_refused_with_reason() {
    let rows =
        [("127.0.0.1:0", "[::1]:7471", "no IPv6 address"), ("[::1]:0", "127.0.0.1:7471", "no IPv4 address")];
    for (listen, peer, reason) in rows {
        // Use a network inside the process, because other programs may hold the device's port at these addresses.
        let link = LinkChoice::InProcess(Hub::new());
        let device = SoftOptions { link, ..SoftOptions::default() };
        let options = NodeOptions::new().provider(ProviderChoice::Soft).device(device);
        let mut client = TestNode::start(options.listen(listen.parse().unwrap()), 1);
        let peer = client.name(0, peer.parse().unwrap());
        let cause = PeerDown::NoAddress { listens_on: client.address };
        assert_eq!(client.down(peer), cause);
        assert!(cause.to_string().contains(reason), "{cause}");
    }
}

#[test]
fn peer_beyond_this_host_is_refused_from_loopback_address_with_reason() {
    let mut client = TestNode::start(over_udp(), 1);
    // A documentation address, which is never in use.
    let peer = client.name(0, "192.0.2.1:7471".parse().unwrap());
    let PeerDown::NoRoute(error) = client.down(peer) else { panic!("another cause") };
    // Without any network the host has no route, from any source address.
    let text = error.to_string();
    assert!(text.contains("loopback") || text.contains("unreachable"), "{text}");
}

#[test]
fn message_without_free_memory_at_receiver_fails_alone() {
    let small = over_udp().max_message_bytes(1 << 20).rendezvous_bytes((1 << 20) + (64 << 10));
    let server = TestNode::start(small, 1);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    client.send(0, peer, &[KEEP], pattern(900_000, 1), 1);
    assert_eq!(client.outcome(1), SendOutcome::Delivered);
    client.send_to(0, peer, None, &[KEEP], pattern(900_000, 2), 2, Some(Duration::from_secs(2)));
    assert_eq!(client.outcome(2), failed(false, PeerDown::ResourceExhausted));
    client.send(0, peer, &[ECHO], Bytes::new(), 3);
    client.message();
    // A waiting message is delivered once memory is free.
    client.send(0, peer, &[KEEP], pattern(900_000, 3), 4);
    server.job(0, Job::LetGo);
    assert_eq!(client.outcome(4), SendOutcome::Delivered);
    client.send(0, peer, &[ECHO], pattern(2 << 20, 0), 5);
    client.wait("refusal", |_, event| match event {
        Happened::Refused(5, SendError::TooLarge { limit: 1_048_576, .. }) => Some(()),
        _ => None,
    });
}

/// A request may be answered long after the end of its session, when a successor of the caller uses the same request
/// numbers.
#[test]
fn answer_does_not_reach_next_incarnation_of_caller() {
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

#[test]
fn idle_session_stays_up() {
    let server = TestNode::start(over_udp().idle_keepalive(Duration::from_millis(500)), 1);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    let sent = |node: &TestNode| {
        let report = node.report();
        let sent = ["packets_sent", "shm_packets_sent"].into_iter().filter_map(|name| report.counter(name));
        sent.reduce(|one, other| one + other)
    };
    // Several rounds of keepalive pass, and the same session still answers.
    match sent(&server) {
        Some(before) => {
            let deadline = Instant::now() + LIMIT;
            while sent(&server) < Some(before + 3) {
                assert!(Instant::now() < deadline, "no keepalive was sent");
                std::thread::yield_now();
            }
        }
        // A device opened through libibverbs may not count its packets, so wait for a fixed time.
        None => std::thread::sleep(Duration::from_millis(500)),
    }
    client.send(0, peer, &[ECHO], Bytes::new(), 1);
    client.message();
    assert_eq!(client.outcome(1), SendOutcome::Delivered);
    assert_eq!((client.report().ini, client.report().tgt), (1, 1));
}

#[test]
fn node_with_panicked_handler_leaves_peers_at_once() {
    let mut server = TestNode::start(over_udp(), 2);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    server.job(1, Job::Panic);
    let cause = client.down(peer);
    // A packet from the client may arrive after the SRQ is destroyed and before the request to disconnect arrives.
    assert!([PeerDown::Closed, PeerDown::AccessRefused].contains(&cause), "{cause}");
    // The other parts of the node can be stopped.
    server.stop();
}

#[test]
fn impossible_options_are_refused_at_start() {
    let start =
        |options| Node::start(options, |_| -> Result<Never, DriverFailure> { unreachable!() }).map(drop);
    let tight = NodeOptions::new().max_message_bytes(1 << 20).rendezvous_bytes(1 << 20);
    assert!(matches!(start(tight), Err(StartError::BadOption { option: "rendezvous_bytes", .. })));
    // The authentication tags of a sealed message also need memory.
    let tight =
        crate::identity::any_node().max_message_bytes(1 << 20).rendezvous_bytes((1 << 20) + (64 << 10));
    assert!(matches!(start(tight), Err(StartError::BadOption { option: "rendezvous_bytes", .. })));
    // No NIC of the machine has this name.
    let nic = NicOptions { device: Some("no-such-nic".to_owned()), gid_index: None };
    let hardware = NodeOptions::new().provider("require".parse().unwrap()).nic(nic);
    assert!(matches!(start(hardware), Err(StartError::NoHardware(_))));
}

/// A driver that no test starts.
struct Never;

impl Machine for Never {
    fn turn(&mut self) -> Turn {
        Turn::Done
    }

    fn sleep(&mut self, _: Option<Time>) {}

    fn is_woken(&self) -> bool {
        true
    }
}
