//! However often trunks break: each message has exactly one outcome, those of a session come
//! before its end, and sessions begin and end in turn.

use crate::common::{Happened, LIMIT, TestNode, fresh_address, over_udp, pattern};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use trunkline_transport::{NodeOptions, PeerEvent, SendOutcome};

const MESSAGES: u64 = 2000;
/// The server is replaced after so many outcomes.
const LIFE: u64 = 300;

/// Books of what one poller of the client was told.
#[derive(Default)]
struct Books {
    outcomes: BTreeMap<u64, SendOutcome>,
    up: bool,
    ups: usize,
}

impl Books {
    fn enter(&mut self, event: &Happened) {
        match event {
            Happened::Sent(token, outcome) => {
                assert_eq!(self.outcomes.insert(*token, *outcome), None, "a second outcome of {token}");
            }
            Happened::Peer(_, PeerEvent::Up { .. }) => {
                assert!(!self.up, "up twice");
                self.up = true;
                self.ups += 1;
            }
            Happened::Peer(_, PeerEvent::Down { .. }) => self.up = false,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn each_message_has_one_outcome_while_servers_come_and_go() {
    let options = NodeOptions::new().listen(fresh_address());
    let mut server = TestNode::start(options.clone(), 2);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.name(0, server.address);
    let mut books = Books::default();
    let (mut sent, mut known, mut next_life) = (0, 0, LIFE);
    while known < MESSAGES {
        while sent < MESSAGES && sent < known + 100 {
            let body = pattern(if sent % 40 == 0 { 200_000 } else { 100 }, 1);
            client.send(0, peer, b"x", body, sent);
            sent += 1;
        }
        client.wait("an outcome", |_, event| {
            books.enter(event);
            Some(())
        });
        known = books.outcomes.len() as u64;
        if known >= next_life && known < MESSAGES {
            next_life += LIFE;
            // Without any grace, so that messages are caught in all stages.
            server.node.take().unwrap().shutdown(Duration::ZERO);
            server = TestNode::start(options.clone(), 2);
        }
    }
    let delivered = books.outcomes.values().filter(|&&outcome| outcome == SendOutcome::Delivered).count();
    assert!(delivered > 500, "{delivered} delivered");
    assert!(books.ups > 3, "{} sessions", books.ups);
}

#[test]
fn nodes_that_come_and_go_under_traffic_leave_nothing_behind() {
    let mut server = TestNode::start(over_udp(), 2);
    for round in 0..6 {
        let mut client = TestNode::start(over_udp(), 2);
        let peer = client.connect(0, server.address);
        for token in 0..50 {
            client.send(0, peer, b"x", pattern(if token % 10 == 0 { 300_000 } else { 10 }, 1), token);
        }
        if round % 2 == 0 {
            for token in 0..50 {
                assert_eq!(client.outcome(token), SendOutcome::Delivered);
            }
        }
        client.stop();
        let peer = server.up();
        server.down(peer);
    }
    let until = Instant::now() + LIMIT;
    while server.report().qps() > 0 {
        assert!(Instant::now() < until, "QPs are left: {:?}", server.report());
        std::thread::yield_now();
    }
}
