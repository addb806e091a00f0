//! Messages of all sizes between two nodes, over UDP and in process.

use crate::common::{
    ACCEPTED, ECHO, Happened, Job, KEEP, LIMIT, REFUSED, SIZES, TestNode, UNREPORTED, fresh_address,
    over_udp, pattern,
};
use bytes::Bytes;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_transport::{
    Limit, NodeOptions, PeerDown, PeerKey, ProviderChoice, RegisteredBuffer, SendFailure, SendOutcome,
};
use trunkline_verbs::Mtu;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn messages_of_every_size_are_echoed() {
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp(), 1);
    client.echoes(&server, &SIZES);
    let report = client.report();
    // With the feature rdma-core and on the drop-in libraries, a loopback address belongs to a NIC.
    let of = (report.provider, report.link.as_str());
    assert!([("softrdma", "shm"), ("softrdma", "udp"), ("rdma-core", "ethernet")].contains(&of), "{of:?}");
    assert_eq!((report.ini, report.tgt, report.srqs), (1, 1, 1));
    assert_eq!(report.rnr + server.report().rnr, 0);
}

/// Sends echo requests of these sizes in one turn of the client's poller, and checks that the echoes arrive in order.
fn echoes_of_one_turn(client: &mut TestNode, peer: PeerKey, sizes: &[usize]) {
    let (go, wait) = mpsc::channel();
    client.job(0, Job::Wait(wait));
    for (token, &size) in (0..).zip(sizes) {
        client.send(0, peer, &[ECHO], pattern(size, 7), token);
    }
    drop(go);
    for &size in sizes {
        assert_eq!(client.message().1.slice(1..), pattern(size, 7));
    }
    for token in 0..sizes.len() {
        assert_eq!(client.outcome(token as u64), SendOutcome::Delivered);
    }
}

#[test]
fn messages_of_one_turn_share_frames_and_arrive_in_their_order() {
    let hub = Arc::new(Hub::default());
    let options = || {
        let device = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..SoftOptions::default() };
        NodeOptions::new().listen(fresh_address()).device(device)
    };
    let server = TestNode::start(options(), 1);
    let mut client = TestNode::start(options(), 1);
    let peer = client.connect(0, server.address);
    // Some messages are too long for a bundle, or for the room left in one.
    let sizes = (0..300).map(|number| number * 37 % 1500).collect::<Vec<_>>();
    echoes_of_one_turn(&mut client, peer, &sizes);
    let sent = |node: &TestNode| node.report().counter("packets_sent");
    let before = [sent(&client), sent(&server)];
    echoes_of_one_turn(&mut client, peer, &[20; 300]);
    for (before, after) in before.into_iter().zip([sent(&client), sent(&server)]) {
        let packets = after.unwrap() - before.unwrap();
        assert!(packets < 100, "{packets} packets for 300 messages");
    }
    assert_eq!((client.report().rnr, server.report().rnr), (0, 0));
}

/// Sends more requests than fit into one doorbell between a message and another that joins its frame.
#[test]
fn message_joining_earlier_frame_keeps_its_time_left() {
    let mut server = TestNode::start(over_udp(), 2);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    for poller in [0, 1, 0, 1] {
        // Little credit is available until the requests are answered.
        client.job(0, Job::Timed { peer, poller, head: vec![b'w'], body: Bytes::new(), after: MINUTE });
        server.timed();
    }
    let (go, wait) = mpsc::channel();
    client.job(0, Job::Wait(wait));
    let send = |poller, tag, bytes| {
        let body = Bytes::from(vec![1; bytes]);
        client.job(0, Job::Timed { peer, poller, head: vec![tag], body, after: MINUTE });
    };
    send(0, b'a', 5);
    (0..20).for_each(|_| send(1, b'x', 2000));
    send(0, b'b', 5);
    go.send(()).unwrap();
    for _ in 0..22 {
        let (left_us, tag) = server.timed();
        let left = Duration::from_micros(left_us.into());
        assert!(left > MINUTE / 2 && left <= MINUTE, "{left:?} of message {}", char::from(tag));
    }
}

#[test]
fn messages_are_carried_over_ipv6() {
    let hub = Arc::new(Hub::default());
    let options = |address: &str| {
        let device = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..SoftOptions::default() };
        NodeOptions::new().listen(address.parse().unwrap()).device(device).allow_unauthenticated(true)
    };
    let server = TestNode::start(options("[fd00::1]:7471"), 2);
    let mut client = TestNode::start(options("[fd00::2]:7471"), 1);
    client.echoes(&server, &[10, 100_000]);
}

#[test]
fn largest_message_fits() {
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp(), 1);
    client.echoes(&server, &[64 << 20]);
}

#[test]
fn registered_buffer_is_sent_without_copy() {
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    let mut buffer = client.node.as_ref().unwrap().buffer(300_000).unwrap();
    let expected = pattern(300_000, 1);
    buffer.copy_from_slice(&expected);
    let body = buffer.freeze();
    for slice in [0..300_000, 5..200_005] {
        client.send(0, peer, &[ECHO], body.slice(slice.clone()), 1);
        let (_, answer) = client.message();
        assert!(answer.slice(1..) == expected.slice(slice));
        assert_eq!(client.outcome(1), SendOutcome::Delivered);
    }
}

/// Sends more messages than may be announced at a time, in one turn and among other messages.
#[test]
fn refused_messages_are_neither_read_nor_held() {
    const MESSAGES: u64 = 100;
    let mut server = TestNode::start_screening(over_udp());
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    let reads = |node: &TestNode| node.report().counter("read_responses_sent");
    for token in 0..MESSAGES {
        client.send(0, peer, &[REFUSED], pattern(100_000, 3), token);
    }
    (0..MESSAGES).for_each(|token| assert_eq!(client.outcome(token), SendOutcome::Delivered));
    // Only the software device counts READ responses.
    assert!(reads(&client).is_none_or(|reads| reads == 0));
    let (go, wait) = mpsc::channel();
    client.job(0, Job::Wait(wait));
    let kinds = [ACCEPTED, REFUSED, b'u', REFUSED, REFUSED, ACCEPTED];
    for (token, kind) in (0..).zip(kinds) {
        client.send(0, peer, &[kind], pattern(100_000, kind), token);
    }
    drop(go);
    for kind in kinds.into_iter().filter(|kind| *kind != REFUSED) {
        let bytes = server.message().1;
        assert_eq!((bytes[0], bytes.slice(1..)), (kind, pattern(100_000, kind)));
    }
    (0..6).for_each(|token| assert_eq!(client.outcome(token), SendOutcome::Delivered));
    trunkline_testkit::wait_until("nothing is announced", LIMIT, || (server.announced() == 0).then_some(()));
}

#[test]
fn only_message_failing_registration_is_refused() {
    let mut server = TestNode::start(over_udp(), 1);
    // Regions for the slots of the poller, and for two buffers.
    let device = SoftOptions { max_regions: Some(4), ..SoftOptions::default() };
    let mut client = TestNode::start(over_udp().provider(ProviderChoice::Soft).device(device), 1);
    let peer = client.connect(0, server.address);
    let make = |client: &TestNode| client.node.as_ref().unwrap().buffer(100_000);
    let buffers = [make(&client).unwrap(), make(&client).unwrap()];
    assert!(make(&client).is_none(), "the table is full");
    let [first, second] = buffers.map(RegisteredBuffer::freeze);
    for (token, body) in [(1, first.slice(1..)), (2, pattern(50_000, 1))] {
        client.send(0, peer, b"", body, token);
        let SendOutcome::Failed(failure) = client.outcome(token) else { panic!("{token} was registered") };
        assert!(
            !failure.may_have_arrived && matches!(failure.cause, PeerDown::NotRegistered(_)),
            "{failure:?}"
        );
    }
    // The driver is also notified of messages for which it requests no outcome.
    for body in [first.slice(1..), pattern(50_000, 1)] {
        client.send(0, peer, b"item", body, UNREPORTED);
        let (to, head, cause) = client.wait("a message that is not sent", |_, event| match event {
            Happened::NotSent(to, head, cause) => Some((to.peer, head.clone(), *cause)),
            _ => None,
        });
        assert_eq!((to, head), (peer, b"item".to_vec()));
        assert!(matches!(cause, PeerDown::NotRegistered(_)), "{cause:?}");
    }
    // Messages that need no registration continue through the same session.
    for (token, body) in [(3, pattern(10_000, 2)), (4, first.clone())] {
        client.send(0, peer, b"", body.clone(), token);
        assert_eq!((client.outcome(token), server.message().1), (SendOutcome::Delivered, body));
    }
    // The other messages follow as soon as there is room.
    drop(second);
    for (token, body) in [(5, first.slice(1..)), (6, first.slice(..50_000)), (7, pattern(50_000, 3))] {
        client.send(0, peer, b"", body.clone(), token);
        assert_eq!((client.outcome(token), server.message().1), (SendOutcome::Delivered, body));
    }
}

/// One message holds the memory, the next one waits for it, and the last one is announced beyond the budget.
#[test]
fn message_announced_beyond_budget_is_reported_to_receiver() {
    let large = Limit { per_peer: 1, in_all: 8 };
    let options = over_udp().max_message_bytes(640 << 10).rendezvous_bytes(1 << 20).large_messages(large);
    let mut server = TestNode::start(options, 1);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    client.send(0, peer, &[KEEP], pattern(600_000, 1), 1);
    assert_eq!(client.outcome(1), SendOutcome::Delivered);
    client.send(0, peer, b"", pattern(600_000, 2), 2);
    trunkline_testkit::wait_until("it is announced", LIMIT, || (server.announced() == 1).then_some(()));
    client.send(0, peer, b"", pattern(500_000, 3), 3);
    server.wait("a message is given up", |_, event| {
        matches!(event, Happened::GivenUp(bytes) if *bytes == 500_000).then_some(())
    });
    let failure = SendFailure { may_have_arrived: false, cause: PeerDown::ResourceExhausted };
    assert_eq!(client.outcome(3), SendOutcome::Failed(failure));
}

/// The interfaces carry packets of 4,096 bytes, and the path between them carries at most 1,024. Each session that
/// ends lowers the path MTU of the next one by one step.
#[test]
fn sessions_lower_mtu_to_path_mtu() {
    let narrow = || SoftOptions { faults: Some("longest=1990".parse().unwrap()), ..SoftOptions::default() };
    let lost = |mtu, is_told| PeerDown::PathMtu { mtu, is_told };
    let too_large = [Mtu::Mtu4096, Mtu::Mtu2048];
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp().device(narrow()), 1);
    client.echoes(&server, &[100, 1800]);
    for (mtu, size) in too_large.into_iter().zip([2_020, 8_000]) {
        let peer = client.name(0, server.address);
        client.send(0, peer, &[ECHO], pattern(size, 7), 1);
        let SendOutcome::Failed(failure) = client.outcome(1) else {
            panic!("a packet of {} bytes got through", mtu.bytes())
        };
        assert_eq!(failure.cause, lost(mtu, false));
        let (text, next) = (failure.cause.to_string(), mtu.bytes() / 2);
        assert!(
            text.contains("lower the MTU") && text.contains(&format!("path MTU of {next} in place")),
            "{text}"
        );
        assert_eq!(client.down(peer), failure.cause);
    }
    client.echoes(&server, &[8_000, 300_000]);

    // READ responses of the client are lost on their way to the server, which detects this and notifies the
    // client.
    let mut server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp().device(narrow()), 1);
    for mtu in too_large {
        let there = client.connect(0, server.address);
        let here = server.up();
        client.send(0, there, &[ECHO], pattern(300_000, 7), 1);
        assert_eq!((server.down(here), client.down(there)), (lost(mtu, false), lost(mtu, true)));
        let failure = SendFailure { may_have_arrived: true, cause: lost(mtu, true) };
        assert_eq!(client.outcome(1), SendOutcome::Failed(failure));
    }
    client.echoes(&server, &[8_000, 300_000]);
}
