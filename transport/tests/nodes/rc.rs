//! Nodes over RC connections, on devices with and without XRC. They behave as over XRC.

use crate::common::{ECHO, Job, LIMIT, SIZES, TestNode, over_udp, pattern};
use std::collections::HashSet;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::SoftOptions;
use trunkline_transport::{Connections, NodeOptions, PeerDown, SendOutcome};

/// Returns options for a node on a device without XRC, which `auto` detects.
fn without_xrc() -> NodeOptions {
    over_udp().device(SoftOptions { without_xrc: true, ..SoftOptions::default() })
}

/// Returns options for a node that uses RC on a device with XRC.
fn over_rc() -> NodeOptions {
    over_udp().connections(Connections::Rc)
}

#[test]
fn messages_of_every_size_are_echoed() {
    let server = TestNode::start(without_xrc(), 1);
    let mut client = TestNode::start(over_rc(), 1);
    client.echoes(&server, &SIZES);
    let (here, there) = (client.report(), server.report());
    assert_eq!((here.connections, here.ini, here.tgt, here.srqs), ("rc", 1, 1, 1));
    assert_eq!((there.connections, there.rnr + here.rnr), ("rc", 0));
    assert!(there.connections_why.contains("no XRC"), "{}", there.connections_why);
    assert_eq!(here.connections_why, "asked for");
}

#[test]
fn poller_reaches_every_poller_of_its_peer() {
    for (here, there) in [(2, 2), (1, 3), (3, 1), (3, 2)] {
        let server = TestNode::start(over_rc(), there);
        let mut client = TestNode::start(over_rc(), here);
        for poller in 0..usize::from(here) {
            let peer = client.connect(poller, server.address);
            for token in 0..6 {
                let to = u16::try_from(token).unwrap() % there;
                let body = pattern(20_000 * usize::from(token % 2 == 0), 3);
                client.send_to(poller, peer, Some(to), &[ECHO], body, token, None);
            }
            let answers = (0..6).map(|_| client.message().0.poller.0).collect::<HashSet<_>>();
            assert_eq!(answers, (0..there).collect());
        }
        let (client, server) = (client.report(), server.report());
        assert_eq!((client.ini, client.tgt), (u32::from(here), u32::from(there)));
        assert_eq!((server.ini, server.tgt), (u32::from(there), u32::from(here)));
        assert!(client.traffic.iter().all(|lane| lane.sent == lane.received), "{:?}", client.traffic);
        assert_eq!(client.traffic.len(), usize::from(here * there));
        assert_eq!(client.rnr + server.rnr, 0);
    }
}

/// A poller that does not run for a long time delays only the peers that use it.
#[test]
fn busy_poller_receives_queued_messages_and_does_not_delay_other_poller() {
    let mut server = TestNode::start(over_rc().srq_depth(32), 2);
    let mut clients = [2, 2, 1].map(|pollers| TestNode::start(over_rc(), pollers));
    let peers = clients.each_mut().map(|client| client.connect(0, server.address));
    let (release, wait) = mpsc::channel();
    server.job(1, Job::Wait(wait));
    for (client, peer) in clients.iter_mut().zip(peers) {
        for token in 0..300 {
            client.send_to(0, peer, Some(1), b"x", pattern(500, 1), token, None);
        }
        for token in 300..310 {
            client.send_to(0, peer, Some(0), &[ECHO], pattern(500, 2), token, None);
            assert_eq!(client.message().0.poller.0, 0);
        }
    }
    release.send(()).unwrap();
    for client in &mut clients {
        for token in 0..310 {
            assert_eq!(client.outcome(token), SendOutcome::Delivered);
        }
        assert_eq!(client.report().rnr, 0);
    }
    for _ in 0..900 {
        assert_eq!(server.message().1[1..], pattern(500, 1));
    }
    assert_eq!(server.report().rnr, 0);
}

/// An arrived message for another poller reaches that poller although the session has ended meanwhile, because it was
/// reported to its sender as delivered.
#[test]
fn arrived_messages_are_delivered_before_session_closes() {
    const LAST: u64 = 4;
    let mut server = TestNode::start(over_rc(), 2);
    let mut client = TestNode::start(over_rc(), 1);
    let peer = client.connect(0, server.address);
    // All messages arrive through poller 0. The credit for later messages comes with the first ones.
    for token in 0..20 {
        client.send_to(0, peer, Some(1), &[ECHO], pattern(100, 3), 100 + token, None);
        client.message();
    }
    let (release, wait) = mpsc::channel();
    server.job(0, Job::Wait(wait));
    for token in 0..LAST {
        client.send_to(0, peer, Some(1), b"x", pattern(100, 3), token, None);
    }
    for token in 0..LAST {
        assert_eq!(client.outcome(token), SendOutcome::Delivered);
    }
    client.node.take().unwrap().shutdown(Duration::ZERO);
    let until = Instant::now() + LIMIT;
    while server.report().tgt > 0 {
        assert!(Instant::now() < until, "the session is still there");
        std::thread::yield_now();
    }
    // Poller 1 handles the end of the session in one of these rounds, at the latest.
    for port in [1, 2, 3] {
        server.name(1, ([127, 0, 0, 1], port).into());
    }
    release.send(()).unwrap();
    for _ in 0..LAST {
        assert_eq!(server.message().1[1..], pattern(100, 3));
    }
}

#[test]
fn error_names_difference_of_incompatible_nodes() {
    let xrc = || over_udp().connections(Connections::Xrc);
    for (here, there, remedy) in [(xrc(), over_rc(), "this one with"), (over_rc(), xrc(), "that one with")] {
        let server = TestNode::start(there, 1);
        let mut client = TestNode::start(here, 1);
        let peer = client.name(0, server.address);
        let cause = client.down(peer);
        let PeerDown::Refused(why) = cause else { panic!("{cause}") };
        assert!(why.contains("--connections rc") && why.contains(remedy), "{why}");
        // The other side also detects the difference, on devices that report it.
        let report = server.report();
        assert!(report.other_kind > 0 || report.provider != "softrdma", "{report:?}");
        assert_eq!(client.report().other_kind, 0);
    }
}
