//! DRAINED frames of a draining server, which sends one to each peer whose calls have all been answered.

use super::service::{ECHO, HANG};
use super::{Frame, Peer, World, frame, parse};
use crate::node::Node;
use crate::status::reason::Reason;
use crate::wire::frame::{Header, RepliedBy, RequestHeader};
use crate::wire::name::MethodName;
use std::time::Duration;
use trunkline_transport::PeerKey;

/// Makes a call.
fn ask(node: &Node, peer: &Peer, method: &MethodName, call: u64, time_left: Option<Duration>) {
    let header = RequestHeader { call, one_way: false, opens: false, method_ref: method.into(), metadata: 0 };
    let request = Frame { time_left, ..frame(&Header::Request(header), &[], &[]) };
    peer.post(0, PeerKey::new(node.local_address()), None, &request);
}

/// Takes the frames of a peer. Returns the number of DRAINED frames per poller of the peer, and the number of refusals.
fn told(peer: &Peer) -> (Vec<usize>, usize) {
    let count = |header: &Header| usize::from(*header == Header::Drained);
    let is_refusal = |header: &Header| {
        matches!(
            header,
            Header::Reply { by: RepliedBy::Node { reason: Some(Reason::Draining), ran: false }, .. }
        )
    };
    let lines = peer.lines.iter().map(|line| std::mem::take(&mut line.arrived.borrow_mut().frames));
    let lines = lines.map(|frames| frames.into_iter().map(|(_, message)| parse(&message).0));
    let lines = lines.map(Vec::from_iter).collect::<Vec<_>>();
    let drained = lines.iter().map(|headers| headers.iter().map(count).sum()).collect();
    (drained, lines.iter().flatten().filter(|header| is_refusal(header)).count())
}

#[test]
fn drained_frame_is_sent_to_current_and_later_peers_without_open_calls() {
    let mut world = World::new();
    let node = world.node(|builder| builder);
    let two = |world: &mut World| world.peer_with(|options| options.pollers(2));
    let [unanswered, answered, running] = [(); 3].map(|()| two(&mut world));
    ask(&node, &unanswered, HANG, 1, Some(Duration::from_millis(50)));
    ask(&node, &answered, ECHO, 1, None);
    ask(&node, &running, HANG, 1, None);
    for (wait, handlers) in [(20, 2), (100, 1)] {
        world.wait(Duration::from_millis(wait));
        assert_eq!(world.ledger(&node).driver.handlers, handlers, "the first one ends by its deadline");
    }
    assert_eq!(answered.frames().len(), 1);

    node.begin_shutdown(Duration::from_secs(600));
    world.wait(Duration::from_millis(100));
    assert_eq!(told(&unanswered), (vec![0, 0], 0), "its call has ended without a reply");
    assert_eq!(told(&answered), (vec![1, 1], 0));
    assert_eq!(told(&running), (vec![0, 0], 0), "its call runs");

    let late = two(&mut world);
    ask(&node, &late, ECHO, 1, None);
    world.wait(Duration::from_millis(100));
    assert_eq!(told(&late), (vec![1, 1], 1));

    // The same peer, in a session without an unanswered call.
    let place = world.hosts;
    unanswered.end();
    world.wait(Duration::from_secs(2));
    world.hosts = 1;
    let address = unanswered.address();
    drop(unanswered);
    world.run();
    let again = two(&mut world);
    world.hosts = place;
    assert_eq!(again.address(), address);
    ask(&node, &again, ECHO, 1, None);
    world.wait(Duration::from_millis(100));
    assert_eq!(told(&again), (vec![1, 1], 1));

    running.send(node.local_address(), &Header::Cancel { call: 1 }, &[], &[]);
    world.wait(Duration::from_millis(100));
    assert_eq!(told(&running), (vec![1, 1], 0));
}
