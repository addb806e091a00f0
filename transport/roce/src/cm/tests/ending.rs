use super::network::address;
use super::*;
use crate::wire::Attribute;
use trunkline_verbs::{QpNumber, RejectReason};

/// Returns a network with one connection, and its ids on the active and the passive side.
fn connected(mut network: Network, transport: Transport) -> (Network, ConnectionId, ConnectionId) {
    let id = network.connect(transport, 0x17);
    network.run(milliseconds(10));
    let passive = network.nodes[B].requests()[0];
    assert!(network.nodes[A].is_established(id) && network.nodes[B].is_established(passive));
    (network, id, passive)
}

fn ended(network: &Network, node: usize, id: ConnectionId) -> bool {
    let names = network.nodes[node].names(id);
    names.ends_with(&["Established", "Disconnected", "TimewaitExit"])
}

#[test]
fn disconnect_by_either_side_ends_both() {
    for transport in [Transport::Rc, Transport::Xrc] {
        for first in [A, B] {
            let (mut network, active, passive) = connected(Network::new(), transport);
            let id = [active, passive][first];
            network.nodes[first].machine.disconnect(network.now, id, &[]).unwrap();
            network.run(milliseconds(10));
            assert_eq!(network.nodes[first].machine.disconnect(network.now, id, &[]), Ok(()));
            network.settle();
            assert!(ended(&network, A, active) && ended(&network, B, passive));
            assert_eq!(network.nodes[first].sent.last(), Some(&Attribute::DREQ));
            assert_eq!(network.nodes[1 - first].sent.last(), Some(&Attribute::DREP));
            assert_eq!(network.nodes[A].machine.connections() + network.nodes[B].machine.connections(), 0);
        }
    }
}

#[test]
fn death_of_peer_ends_connection_once_without_messages() {
    for transport in [Transport::Rc, Transport::Xrc] {
        for node in [A, B] {
            let (mut network, active, passive) = connected(Network::new(), transport);
            let id = [active, passive][node];
            let sent = network.nodes[node].sent.len();
            for _ in 0..2 {
                network.nodes[node].machine.peer_died(network.now, id);
                network.run(milliseconds(1));
            }
            network.settle();
            assert!(ended(&network, node, id), "{:?}", network.nodes[node].names(id));
            assert_eq!(
                network.nodes[node].names(id).iter().filter(|name| **name == "Disconnected").count(),
                1
            );
            assert_eq!(network.nodes[node].sent.len(), sent);
        }
    }
}

#[test]
fn simultaneous_disconnects_end_both_sides() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Rc);
    let now = network.now;
    network.nodes[A].machine.disconnect(now, active, &[]).unwrap();
    network.nodes[B].machine.disconnect(now, passive, &[]).unwrap();
    network.settle();
    assert!(ended(&network, A, active) && ended(&network, B, passive));
    for node in &network.nodes {
        assert_eq!(node.sent[node.sent.len() - 2..], [Attribute::DREQ, Attribute::DREP]);
    }
}

#[test]
fn lost_dreqs_and_dreps_are_repeated() {
    for lost in [Attribute::DREQ, Attribute::DREP] {
        for count in [1, 3, u32::MAX] {
            let (mut network, active, passive) = connected(Network::losing(lost, count), Transport::Rc);
            network.nodes[A].machine.disconnect(network.now, active, &[]).unwrap();
            network.settle();
            assert!(ended(&network, A, active), "{lost:?} lost {count} times");
            let is_cut = lost == Attribute::DREQ && count == u32::MAX;
            assert_eq!(ended(&network, B, passive), !is_cut);
        }
    }
}

/// Waits for the end of a connection. Returns the duration of the wait, and true if the peer answered.
fn end_of(network: &mut Network, node: usize, id: ConnectionId) -> (u64, bool) {
    let started = network.now;
    loop {
        let end = network.nodes[node].events.iter().find_map(|event| match event {
            Event::Disconnected { id: of, is_answered, .. } if *of == id => Some(*is_answered),
            _ => None,
        });
        if let Some(is_answered) = end {
            return (network.now - started, is_answered);
        }
        network.run(milliseconds(10));
        assert!(network.now < started + milliseconds(200_000));
    }
}

#[test]
fn unanswered_dreq_ends_after_timeouts_of_kernel() {
    // contract rocev2 12.1, 12.6: 16 times 6.144 s on the active side, 4.096 s on the passive one.
    for (side, due_ms) in [(A, 98_304), (B, 65_536)] {
        for lost in [Attribute::DREQ, Attribute::DREP] {
            let (mut network, active, passive) = connected(Network::new(), Transport::Rc);
            let id = [active, passive][side];
            network.set_fate(Box::new(move |_, attribute, _| match attribute {
                _ if attribute == lost => vec![],
                _ => vec![milliseconds(1)],
            }));
            network.nodes[side].machine.disconnect(network.now, id, &[]).unwrap();
            let (after, is_answered) = end_of(&mut network, side, id);
            assert!(!is_answered);
            let due = milliseconds(due_ms)..=milliseconds(due_ms + 10);
            assert!(due.contains(&after), "{lost:?} of {side} lost: ended after {after} ns");
            network.settle();
            assert_eq!(network.nodes[side].machine.connections(), 0);
        }
    }
}

#[test]
fn answered_dreq_is_reported_as_answered() {
    let (mut network, active, passive) = connected(Network::losing(Attribute::DREQ, 3), Transport::Rc);
    network.nodes[A].machine.disconnect(network.now, active, &[]).unwrap();
    for (node, id) in [(B, passive), (A, active)] {
        let (after, is_answered) = end_of(&mut network, node, id);
        assert!(is_answered && after < milliseconds(2_300), "{after}");
    }
}

#[test]
fn released_connection_is_freed_within_2500_ms() {
    for wait_ms in [0, 50_000] {
        let (mut network, active, _) = connected(Network::losing(Attribute::DREQ, u32::MAX), Transport::Rc);
        network.nodes[A].machine.disconnect(network.now, active, &[]).unwrap();
        network.run(milliseconds(wait_ms));
        network.nodes[A].machine.release(network.now, active);
        network.run(milliseconds(2_500));
        assert_eq!(network.nodes[A].machine.connections(), 0);
        assert_eq!(network.nodes[A].names(active).last(), Some(&"TimewaitExit"));
    }
}

#[test]
fn timewait_lasts_about_100_ms() {
    let (mut network, active, _) = connected(Network::new(), Transport::Rc);
    network.nodes[A].machine.disconnect(network.now, active, &[]).unwrap();
    network.run(milliseconds(90));
    assert_eq!(network.nodes[A].names(active).last(), Some(&"Disconnected"));
    network.run(milliseconds(20));
    assert_eq!(network.nodes[A].events.last(), Some(&Event::TimewaitExit(active, QpNumber::new(0x17))));
}

#[test]
fn release_disconnects_without_events() {
    for side in [A, B] {
        let (mut network, active, passive) = connected(Network::new(), Transport::Rc);
        let (own, other) = ([active, passive][side], [passive, active][side]);
        network.nodes[side].machine.release(network.now, own);
        assert_eq!(network.nodes[side].machine.disconnect(network.now, own, &[]), Err(CmError::Unknown));
        network.settle();
        assert!(ended(&network, 1 - side, other));
        assert!(network.nodes[side].names(own).ends_with(&["Established", "TimewaitExit"]));
    }
}

#[test]
fn releasing_target_sends_no_dreq() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    let sent = network.nodes[B].sent.len();
    network.nodes[B].machine.release(network.now, passive);
    network.run(milliseconds(5_000));
    // contract J9
    assert_eq!(network.nodes[B].sent.len(), sent);
    assert!(network.nodes[A].is_established(active));
    network.nodes[A].machine.disconnect(network.now, active, &[]).unwrap();
    network.settle();
    assert!(ended(&network, A, active));
    assert_eq!(network.nodes[B].machine.connections(), 0);
}

#[test]
fn released_target_is_forgotten_and_still_answers_dreq() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    network.nodes[B].machine.release(network.now, passive);
    network.run(milliseconds(40_000));
    assert_eq!(network.nodes[B].machine.connections(), 0);
    network.nodes[A].machine.disconnect(network.now, active, &[]).unwrap();
    network.run(milliseconds(10));
    assert_eq!(network.nodes[A].names(active).last(), Some(&"Disconnected"), "no retransmission needed");
}

#[test]
fn duplicate_rtu_after_release_of_target_is_ignored() {
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
fn unusable_reply_is_refused() {
    let mut network = Network::new();
    network.nodes[A].confirms = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    network.nodes[A].machine.reject(network.now, id, RejectReason::NO_RESOURCES, &[]).unwrap();
    network.settle();
    let passive = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].names(passive), ["ConnectRequest", "Rejected", "TimewaitExit"]);
    assert_eq!(network.nodes[B].rejection(passive), Some(RejectReason::NO_RESOURCES));
    assert_eq!(network.nodes[A].names(id), ["Reply", "TimewaitExit"]);
}

#[test]
fn qp_number_of_restarted_peer_ends_old_connection() {
    let (mut network, _, passive) = connected(Network::new(), Transport::Xrc);
    network.restart(A, 4711);
    // The new incarnation happens to take the same QP number.
    let again = network.connect(Transport::Xrc, 0x17);
    network.run(milliseconds(20));
    assert_eq!(network.nodes[A].rejection(again), Some(RejectReason::STALE_CONNECTION));
    assert_eq!(network.nodes[B].names(passive).last(), Some(&"Disconnected"));
    let third = network.connect(Transport::Xrc, 0x17);
    network.settle();
    assert!(network.nodes[A].is_established(third));
    assert!(ended(&network, B, passive));
}

#[test]
fn comm_id_of_restarted_peer_ends_old_connection() {
    let (mut network, first, passive) = connected(Network::new(), Transport::Xrc);
    network.restart(A, network::config(A).seed);
    let again = network.connect(Transport::Xrc, 0x18);
    assert_eq!(again, first, "the same seed gives the same ids");
    network.run(milliseconds(20));
    assert_eq!(network.nodes[A].rejection(again), Some(RejectReason::STALE_CONNECTION));
    assert_eq!(network.nodes[B].names(passive).last(), Some(&"Disconnected"));
}

/// Sends B a valid REQ from A's address with this QP number and GUID, and a comm id from `seed`. A never sent the REQ.
fn forge_request(network: &mut Network, guid: u64, seed: u64, qpn: u32) {
    let mut forger = CmMachine::new(CmConfig { seed, ..CmConfig::new(guid, seed) });
    forger.connect(network.now, &connect_to(B, Transport::Xrc, qpn)).unwrap();
    let forged = forger.poll_transmit().unwrap();
    network.nodes[B].machine.handle_mad(network.now, address(A), address(B), &forged.mad);
}

#[test]
fn forged_request_with_peer_numbers_does_not_end_connection() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    let own = network::config(A);
    for (seed, qpn) in [(4711, 0x17), (own.seed, 0x99), (own.seed, 0x17)] {
        forge_request(&mut network, own.ca_guid, seed, qpn);
        network.run(milliseconds(500));
    }
    assert!(network.nodes[A].is_established(active) && network.nodes[B].is_established(passive));
    // A connection whose REQ B has not answered yet does not end either.
    network.nodes[B].accepts = false;
    let next = network.connect(Transport::Xrc, 0x18);
    network.run(milliseconds(10));
    forge_request(&mut network, own.ca_guid, 4711, 0x18);
    network.run(milliseconds(10));
    let asked = *network.nodes[B].requests().last().unwrap();
    let now = network.now;
    network.nodes[B].machine.accept(now, asked, &network::accept_with(0x55)).unwrap();
    network.settle();
    assert!(network.nodes[A].is_established(next) && network.nodes[B].is_established(asked));
}

#[test]
fn forged_requests_get_about_one_answer_each() {
    let (mut network, _, _) = connected(Network::new(), Transport::Xrc);
    let (own, start) = (network::config(A), network.now);
    let before = network.nodes[B].machine.counters().sent;
    for number in 0..1000 {
        network.now = start + milliseconds(number);
        forge_request(&mut network, own.ca_guid, 4711 + number, 0x17);
    }
    let sent = network.nodes[B].machine.counters().sent - before;
    assert!((1000..=1011).contains(&sent), "{sent} answers to 1000 requests");
}

#[test]
fn second_request_of_qp_ends_its_first_connection() {
    // contract J11: the requesting side ends the connection, because only that side can verify that it sent the second
    // request.
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    let second = network.connect(Transport::Xrc, 0x17);
    network.settle();
    assert_eq!(network.nodes[A].rejection(second), Some(RejectReason::STALE_CONNECTION));
    for (node, id) in [(A, active), (B, passive)] {
        assert!(network.nodes[node].names(id).contains(&"Disconnected"));
    }
}

#[test]
fn another_address_cannot_end_connection_by_its_ids() {
    let (mut network, active, passive) = connected(Network::new(), Transport::Xrc);
    let mut impostor = CmMachine::new(network::config(A));
    let elsewhere = "10.0.0.66".parse().unwrap();
    // The same GUID, QP number and ids, from another address.
    let mut connect = connect_to(B, Transport::Xrc, 0x17);
    connect.local.set_ip(elsewhere);
    let id = impostor.connect(0, &connect).unwrap();
    assert_eq!(id, active);
    let transmit = impostor.poll_transmit().unwrap();
    network.nodes[B].machine.handle_mad(network.now, elsewhere, address(B), &transmit.mad);
    network.settle();
    assert!(network.nodes[B].is_established(passive));
}

#[test]
fn late_duplicate_request_does_not_open_connection() {
    let fate = |_, attribute, _| match attribute {
        Attribute::REQ => vec![milliseconds(1), milliseconds(60)],
        _ => vec![milliseconds(1)],
    };
    let (mut network, active, passive) = connected(Network::with_fate(Box::new(fate)), Transport::Rc);
    network.nodes[A].machine.disconnect(network.now, active, &[]).unwrap();
    network.settle();
    assert_eq!(network.nodes[B].requests(), [passive]);
    assert_eq!(network.nodes[B].sent.last(), Some(&Attribute::REJ));
    assert!(ended(&network, A, active) && ended(&network, B, passive));
}

#[test]
fn equal_calls_end_connections_in_same_order() {
    let run = || {
        let mut network = Network::new();
        for qpn in 0x100..0x120 {
            network.connect(Transport::Rc, qpn);
        }
        network.run(milliseconds(10));
        let machine = &mut network.nodes[A].machine;
        machine.disconnect_all(network.now);
        std::iter::from_fn(|| machine.poll_transmit()).collect::<Vec<_>>()
    };
    let first = run();
    assert_eq!(first.len(), 32);
    assert!(first == run(), "the order depends on something else than the calls");
}
