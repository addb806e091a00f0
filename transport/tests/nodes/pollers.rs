//! Nodes with several pollers. The tests check which pollers reach each other, and the number of QPs.

use crate::common::{ECHO, TestNode, over_udp};
use bytes::Bytes;
use std::collections::HashSet;

#[test]
fn messages_of_one_trunk_reach_every_poller_of_peer() {
    let server = TestNode::start(over_udp(), 2);
    let mut client = TestNode::start(over_udp(), 2);
    for poller in 0..2 {
        let peer = client.connect(poller, server.address);
        for token in 0..20 {
            client.send_to(poller, peer, Some(u16::from(token % 2 == 0)), &[ECHO], Bytes::new(), token, None);
        }
        let answers = (0..20).map(|_| client.message().0.poller).collect::<HashSet<_>>();
        assert_eq!(answers.len(), 2);
    }
    for report in [client.report(), server.report()] {
        assert_eq!((report.ini, report.tgt, report.qps(), report.srqs), (2, 2, 4, 2));
    }
    let lanes = client.report().traffic;
    assert_eq!(lanes.len(), 4, "{lanes:?}");
    assert!(lanes.iter().all(|lane| lane.sent == 10 && lane.received == 10), "{lanes:?}");
}

#[test]
fn messages_for_any_poller_go_to_counterpart_or_in_turn() {
    for (here, there, reached) in [(2, 2, 1), (2, 1, 1), (1, 3, 3), (2, 4, 2), (3, 2, 2)] {
        let server = TestNode::start(over_udp(), there);
        let mut client = TestNode::start(over_udp(), here);
        for poller in 0..here {
            let peer = client.connect(poller.into(), server.address);
            for token in 0..12 {
                client.send(poller.into(), peer, &[ECHO], Bytes::new(), token);
            }
            let answers = (0..12).map(|_| client.message().0.poller.0).collect::<HashSet<_>>();
            assert_eq!(answers.len(), reached, "{here} to {there}: {answers:?}");
            assert!(answers.contains(&(poller % there)), "{here} to {there}: {answers:?}");
        }
    }
}

#[test]
fn nodes_with_different_numbers_of_pollers_communicate() {
    let server = TestNode::start(over_udp(), 3);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    for poller in 0..3 {
        client.send_to(0, peer, Some(poller), &[ECHO], Bytes::new(), u64::from(poller), None);
        assert_eq!(client.message().0.poller.0, poller);
    }
    let (here, there) = (client.report(), server.report());
    assert_eq!((here.ini, here.tgt), (1, 3));
    assert_eq!((there.ini, there.tgt), (3, 1));
}
