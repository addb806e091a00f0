use super::network::address;
use super::*;
use crate::wire::Attribute;
use trunkline_verbs::{QpNumber, RejectReason};

/// A network with one connection; ids of the active and the passive side.
fn connected(mut network: Network, transport: Transport) -> (Network, ConnectionId, ConnectionId) {
    let id = network.connect(transport, 0x17);
    network.run(milliseconds(10));
    let passive = network.nodes[B].requests()[0];
    assert!(network.nodes[A].is_established(id) && network.nodes[B].is_established(passive));
    (network, id, passive)
}

fn ended(network: &Network, node: usize, id: ConnectionId) -> bool {
    let story = network.nodes[node].story(id);
    story.ends_with(&["Established", "Disconnected", "TimewaitExit"])
}

#[test]
fn either_side_disconnects() {
    for transport in [Transport::Rc, Transport::Xrc] {
        for first in [A, B] {
            let (mut network, active, passive) = connected(Network::new(), transport);
            let id = [active, passive][first];
            network.nodes[first].machine.disconnect(network.now, id).unwrap();
            network.run(milliseconds(10));
            assert_eq!(network.nodes[first].machine.disconnect(network.now, id), Ok(()));
            network.settle();
            assert!(ended(&network, A, active) && ended(&network, B, passive));
            assert_eq!(network.nodes[first].sent.last(), Some(&Attribute::DREQ));
            assert_eq!(network.nodes[1 - first].sent.last(), Some(&Attribute::DREP));
            assert_eq!(network.nodes[A].machine.connections() + network.nodes[B].machine.connections(), 0);
        }
    }
}

#[test]
fn both_sides_disconnect_at_once() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Rc);
    let now = network.now;
    network.nodes[A].machine.disconnect(now, active).unwrap();
    network.nodes[B].machine.disconnect(now, passive).unwrap();
    network.settle();
    assert!(ended(&network, A, active) && ended(&network, B, passive));
    for node in &network.nodes {
        assert_eq!(node.sent[node.sent.len() - 2..], [Attribute::DREQ, Attribute::DREP]);
    }
}

#[test]
fn lost_farewells_come_again() {
    for lost in [Attribute::DREQ, Attribute::DREP] {
        for count in [1, 3, u32::MAX] {
            let (mut network, active, passive) = connected(Network::losing(lost, count), Transport::Rc);
            network.nodes[A].machine.disconnect(network.now, active).unwrap();
            network.settle();
            assert!(ended(&network, A, active), "{lost:?} lost {count} times");
            let is_cut = lost == Attribute::DREQ && count == u32::MAX;
            assert_eq!(ended(&network, B, passive), !is_cut);
        }
    }
}

#[test]
fn timewait_lasts_as_long_as_a_packet_may_travel() {
    let (mut network, active, _) = connected(Network::new(), Transport::Rc);
    network.nodes[A].machine.disconnect(network.now, active).unwrap();
    network.run(milliseconds(90));
    assert_eq!(network.nodes[A].story(active).last(), Some(&"Disconnected"));
    network.run(milliseconds(20));
    assert_eq!(network.nodes[A].events.last(), Some(&Event::TimewaitExit(active, QpNumber::new(0x17))));
}

#[test]
fn release_says_farewell_without_events() {
    for side in [A, B] {
        let (mut network, active, passive) = connected(Network::new(), Transport::Rc);
        let (own, other) = ([active, passive][side], [passive, active][side]);
        network.nodes[side].machine.release(network.now, own);
        assert_eq!(network.nodes[side].machine.disconnect(network.now, own), Err(CmError::Unknown));
        network.settle();
        assert!(ended(&network, 1 - side, other));
        assert!(network.nodes[side].story(own).ends_with(&["Established", "TimewaitExit"]));
    }
}

#[test]
fn releasing_a_target_is_not_a_farewell() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    let sent = network.nodes[B].sent.len();
    network.nodes[B].machine.release(network.now, passive);
    network.run(milliseconds(5_000));
    // contract J9
    assert_eq!(network.nodes[B].sent.len(), sent);
    assert!(network.nodes[A].is_established(active));
    network.nodes[A].machine.disconnect(network.now, active).unwrap();
    network.settle();
    assert!(ended(&network, A, active));
    assert_eq!(network.nodes[B].machine.connections(), 0);
}

#[test]
fn a_released_target_is_forgotten_and_still_answers() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    network.nodes[B].machine.release(network.now, passive);
    network.run(milliseconds(40_000));
    assert_eq!(network.nodes[B].machine.connections(), 0);
    network.nodes[A].machine.disconnect(network.now, active).unwrap();
    network.run(milliseconds(10));
    assert_eq!(network.nodes[A].story(active).last(), Some(&"Disconnected"), "no retransmission needed");
}

#[test]
fn a_duplicate_rtu_after_the_target_was_released_does_no_harm() {
    let fate = |_, attribute, _| match attribute {
        Attribute::RTU => vec![milliseconds(1), milliseconds(100)],
        _ => vec![milliseconds(1)],
    };
    let (mut network, active, passive) = connected(Network::with_fate(Box::new(fate)), Transport::Xrc);
    network.nodes[B].machine.release(network.now, passive);
    network.settle();
    assert!(network.nodes[A].is_established(active));
}

#[test]
fn a_reply_that_can_not_be_used_is_refused() {
    let mut network = Network::new();
    network.nodes[A].confirms = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    network.nodes[A].machine.reject(network.now, id, RejectReason::NO_RESOURCES, &[]).unwrap();
    network.settle();
    let passive = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].story(passive), ["ConnectRequest", "Rejected", "TimewaitExit"]);
    assert_eq!(network.nodes[B].rejection(passive), Some(RejectReason::NO_RESOURCES));
    assert_eq!(network.nodes[A].story(id), ["Reply", "TimewaitExit"]);
}

#[test]
fn a_restarted_peer_s_qp_ends_what_it_left_behind() {
    let (mut network, _, passive) = connected(Network::new(), Transport::Xrc);
    network.restart(A, 4711);
    // The new incarnation happens to take the same QP number.
    let again = network.connect(Transport::Xrc, 0x17);
    network.run(milliseconds(20));
    assert_eq!(network.nodes[A].rejection(again), Some(RejectReason::STALE_CONNECTION));
    assert_eq!(network.nodes[B].story(passive).last(), Some(&"Disconnected"));
    let third = network.connect(Transport::Xrc, 0x17);
    network.settle();
    assert!(network.nodes[A].is_established(third));
    assert!(ended(&network, B, passive));
}

#[test]
fn a_restarted_peer_s_comm_id_ends_what_it_left_behind() {
    let (mut network, first, passive) = connected(Network::new(), Transport::Xrc);
    network.restart(A, network::config(A).seed);
    let again = network.connect(Transport::Xrc, 0x18);
    assert_eq!(again, first, "the same seed gives the same ids");
    network.run(milliseconds(20));
    assert_eq!(network.nodes[A].rejection(again), Some(RejectReason::STALE_CONNECTION));
    assert_eq!(network.nodes[B].story(passive).last(), Some(&"Disconnected"));
}

#[test]
fn another_address_can_not_end_a_connection_by_its_names() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    let mut liar = CmMachine::new(network::config(A));
    let elsewhere = "10.0.0.66".parse().unwrap();
    // The same GUID and QP number, even the same ids, from another address.
    let mut connect = connect_to(B, Transport::Xrc, 0x17);
    connect.local.set_ip(elsewhere);
    let id = liar.connect(0, &connect).unwrap();
    assert_eq!(id, active);
    let transmit = liar.poll_transmit().unwrap();
    network.nodes[B].machine.handle_mad(network.now, elsewhere, address(B), &transmit.mad);
    network.settle();
    assert!(network.nodes[B].is_established(passive));
}

#[test]
fn a_request_that_comes_late_again_is_not_a_new_one() {
    let fate = |_, attribute, _| match attribute {
        Attribute::REQ => vec![milliseconds(1), milliseconds(60)],
        _ => vec![milliseconds(1)],
    };
    let (mut network, active, passive) = connected(Network::with_fate(Box::new(fate)), Transport::Rc);
    network.nodes[A].machine.disconnect(network.now, active).unwrap();
    network.settle();
    assert_eq!(network.nodes[B].requests(), [passive]);
    assert_eq!(network.nodes[B].sent.last(), Some(&Attribute::REJ));
    assert!(ended(&network, A, active) && ended(&network, B, passive));
}
