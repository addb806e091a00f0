//! Hosts with many sessions, complete or not, do not shut out other hosts.

use crate::common::{ECHO, Happened, LIMIT, TestNode, fresh_address, over_udp};
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Instant;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::frame::{self, CREDIT, SETTINGS};
use trunkline_testkit::{Crowd, Decision, HandMadePeer};
use trunkline_transport::{NodeOptions, ProviderChoice, SendError, SendOutcome};

/// Minimum depth of an SRQ, which has 15 base credits.
const DEPTH: u32 = 16;
/// Number of sessions that the crowding host requests.
const ASKED: u16 = 280;

/// Waits until each dial was accepted or refused. Returns the number accepted.
fn accepted(crowd: &mut Crowd) -> usize {
    /// Reason of a refusal after which a node tries again.
    const CROWDED: u8 = 8;
    let (until, mut accepted, mut refused) = (Instant::now() + LIMIT, 0, 0);
    while accepted + refused < usize::from(ASKED) {
        assert!(Instant::now() < until, "{accepted} accepted, {refused} refused");
        match crowd.next_decision().unwrap() {
            Some(Decision::Accepted) => accepted += 1,
            Some(Decision::Refused(CROWDED)) => refused += 1,
            Some(other) => panic!("{other:?}"),
            None => std::thread::yield_now(),
        }
    }
    accepted
}

#[test]
fn frames_of_half_open_sessions_do_not_harm_established_sessions() {
    // Settings with entries of an unknown type may be sent early. Credit frames may not.
    let settings = frame::build(SETTINGS, 0, 0, &[9, 0, 0, 0].repeat(8));
    let credits = vec![frame::build(CREDIT, 0, 0, &[]); 7];
    for frames in [vec![settings.clone()], [vec![settings.clone()], credits].concat()] {
        let node = TestNode::start(over_udp().srq_depth(DEPTH), 1);
        let mut honest = TestNode::start(over_udp(), 1);
        let peer = honest.connect(0, node.address);
        let host = fresh_address().ip();
        let options = SoftOptions { addresses: vec![host], ..SoftOptions::default() };
        let dialer = HandMadePeer::new(SoftDevice::open(options).unwrap(), host).unwrap();
        let mut crowd = Crowd::dial(dialer, node.address, ASKED, 5, frames).unwrap();
        let accepted = accepted(&mut crowd);
        // Sessions that end because of their frames make room for further sessions.
        assert!(accepted >= 200, "{accepted}");
        for token in 0..200 {
            honest.send(0, peer, &[ECHO], Bytes::from_static(b"still there?"), token);
            honest.message();
            assert_eq!(honest.outcome(token), SendOutcome::Delivered);
        }
    }
}

#[test]
fn nodes_of_one_host_take_at_most_half_of_srq() {
    /// Number of pollers of each node. The SRQ has room for 15 pollers of other nodes.
    const POLLERS: u16 = 4;
    // Only the software device distinguishes this user's nodes on other addresses from strangers on this host.
    let soft = || over_udp().provider(ProviderChoice::Soft);
    let node = TestNode::start(soft().srq_depth(DEPTH).srq_depth_limit(DEPTH), 1);
    let address = fresh_address();
    let at =
        |port| NodeOptions::new().provider(ProviderChoice::Soft).listen(SocketAddr::new(address.ip(), port));
    let [mut first, mut second] =
        [address.port(), address.port() + 1].map(|port| TestNode::start(at(port), POLLERS));
    first.connect(0, node.address);
    let peer = second.name(0, node.address);
    second.send(0, peer, &[ECHO], Bytes::from_static(b"?"), 1);
    let cause = second.wait("a refusal", |_, event| match event {
        Happened::Sent(1, SendOutcome::Failed(failure)) => Some(failure.cause),
        Happened::Sent(1, SendOutcome::Delivered) => panic!("the second session of the host is up"),
        Happened::Refused(1, SendError::BackingOff { cause, .. }) => Some(*cause),
        _ => None,
    });
    assert!(cause.to_string().contains("this host has too many sessions with it"), "{cause}");
    let mut elsewhere = TestNode::start(soft(), POLLERS);
    elsewhere.echoes(&node, &[100]);
    first.stop();
    second.send_waiting(peer, &[ECHO], 2, LIMIT);
    assert_eq!(second.outcome(2), SendOutcome::Delivered);
}
