use super::*;
use crate::wire::Attribute;
use crate::wire::cm::CmMessage;
use trunkline_verbs::{QpNumber, RejectReason};

fn both_established(network: &Network, active: ConnectionId) -> bool {
    let passive = network.nodes[B].requests();
    passive.len() == 1
        && network.nodes[A].is_established(active)
        && network.nodes[B].is_established(passive[0])
}

#[test]
fn each_lost_message_is_repeated() {
    for transport in [Transport::Rc, Transport::Xrc] {
        for lost in [Attribute::REQ, Attribute::REP, Attribute::RTU] {
            for count in [1, 3] {
                let mut network = Network::losing(lost, count);
                let id = network.connect(transport, 0x17);
                network.settle();
                assert!(both_established(&network, id), "{lost:?} lost {count} times");
            }
        }
    }
}

#[test]
fn duplicate_messages_have_no_effect() {
    let mut network = Network::with_fate(Box::new(|_, _, _| vec![milliseconds(1), milliseconds(2)]));
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(500));
    assert!(both_established(&network, id));
    network.nodes[A].machine.disconnect(network.now, id, &[]).unwrap();
    network.settle();
    let passive = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[A].names(id), ["Reply", "Established", "Disconnected", "TimewaitExit"]);
    assert_eq!(
        network.nodes[B].names(passive),
        ["ConnectRequest", "Established", "Disconnected", "TimewaitExit"]
    );
}

#[test]
fn request_to_dead_peer_is_repeated_every_600_ms_and_times_out() {
    let mut network = Network::losing(Attribute::REQ, u32::MAX);
    let id = network.connect(Transport::Xrc, 0x17);
    let requests =
        |network: &Network| network.nodes[A].sent.iter().filter(|sent| **sent == Attribute::REQ).count();
    for sent in 4..=6 {
        network.run(milliseconds(600));
        assert_eq!(requests(&network), sent);
    }
    assert!(network.nodes[A].names(id).is_empty());
    network.run(milliseconds(600));
    assert_eq!(network.nodes[A].names(id), ["Unreachable"]);
    assert_eq!(requests(&network), 6);
    assert_eq!(network.nodes[A].machine.connections(), 0);
}

#[test]
fn withdrawn_request_ends_at_peer() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    network.nodes[A].machine.release(network.now, id);
    network.settle();
    let request = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].names(request), ["ConnectRequest", "Rejected"]);
    assert_eq!(network.nodes[B].rejection(request), Some(RejectReason::TIMEOUT));
    assert_eq!(network.nodes[B].machine.connections(), 0);
}

#[test]
fn answer_to_withdrawn_request_ends_at_peer() {
    // The REJ is lost as well, so only the REP reveals the withdrawal.
    let mut network = Network::losing(Attribute::REJ, 1);
    network.nodes[B].accepts = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    network.nodes[A].machine.release(network.now, id);
    let request = network.nodes[B].requests()[0];
    network.drain();
    network.nodes[B].machine.accept(network.now, request, &network::accept_with(5)).unwrap();
    network.settle();
    assert_eq!(network.nodes[B].names(request), ["ConnectRequest", "Rejected", "TimewaitExit"]);
    assert_eq!(network.nodes[B].rejection(request), Some(RejectReason::INVALID_COMM_ID));
}

#[test]
fn wait_for_slow_program_is_bounded() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(8_000));
    assert!(network.nodes[A].names(id).is_empty(), "MRA holds the REQ's timer");
    assert!(network.nodes[B].sent.contains(&Attribute::MRA));
    let request = network.nodes[B].requests()[0];
    network.run(milliseconds(30_000));
    assert_eq!(network.nodes[B].names(request), ["ConnectRequest", "Unreachable"]);
    assert_eq!(network.nodes[A].names(id), ["Rejected"]);
    assert_eq!(network.nodes[A].rejection(id), Some(RejectReason::TIMEOUT));
}

#[test]
fn mra_extends_wait_for_bounded_time() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    network.nodes[B].machine = CmMachine::new(CmConfig { decision_ns: u64::MAX, ..network::config(B) });
    network.nodes[B].listen(Transport::Rc, 16);
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(59_000));
    assert!(network.nodes[A].names(id).is_empty());
    network.run(milliseconds(5_000));
    assert_eq!(network.nodes[A].names(id), ["Unreachable"]);
}

#[test]
fn connection_waits_for_slow_confirmation() {
    let mut network = Network::new();
    network.nodes[A].confirms = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(8_000));
    network.nodes[A].machine.confirm(id).unwrap();
    network.settle();
    assert!(both_established(&network, id));
}

#[test]
fn first_packet_replaces_lost_rtu() {
    let mut network = Network::losing(Attribute::RTU, u32::MAX);
    let id = network.connect(Transport::Xrc, 0x17);
    network.run(milliseconds(10));
    let passive = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].names(passive), ["ConnectRequest"]);
    network.nodes[B].machine.communication_established(QpNumber::new(0x999));
    network.nodes[B].machine.communication_established(QpNumber::new(0x101));
    network.nodes[B].machine.communication_established(QpNumber::new(0x101));
    network.settle();
    assert!(both_established(&network, id));
}

#[test]
fn missing_rtu_ends_connection_at_both_sides() {
    let mut network = Network::losing(Attribute::RTU, u32::MAX);
    let id = network.connect(Transport::Rc, 0x17);
    network.settle();
    let passive = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].names(passive), ["ConnectRequest", "Unreachable", "TimewaitExit"]);
    assert_eq!(network.nodes[A].names(id), ["Reply", "Established", "Disconnected", "TimewaitExit"]);
}

#[test]
fn delayed_rtu_to_restarted_peer_ends_connection() {
    let mut network = Network::with_fate(Box::new(|_, attribute, _| {
        vec![milliseconds(if attribute == Attribute::RTU { 50 } else { 1 })]
    }));
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    assert!(network.nodes[A].is_established(id));
    network.restart(B, 99);
    network.settle();
    assert_eq!(network.nodes[A].names(id), ["Reply", "Established", "Disconnected", "TimewaitExit"]);
}

#[test]
fn retransmissions_are_same_message() {
    let mut network = Network::losing(Attribute::REQ, 1);
    network.nodes[A].machine.connect(0, &connect_to(B, Transport::Rc, 0x17)).unwrap();
    let first = network.nodes[A].machine.poll_transmit().unwrap();
    network.nodes[A].machine.handle_timeout(milliseconds(75));
    assert_eq!(network.nodes[A].machine.poll_transmit(), Some(first));
    assert!(matches!(CmMessage::parse(&first.mad), CmMessage::Req(_)));
    assert_eq!(network.nodes[A].machine.counters().retransmitted, 1);
}

#[test]
fn timed_out_request_is_withdrawn_at_peer() {
    let mut network = Network::losing(Attribute::MRA, u32::MAX);
    network.nodes[B].accepts = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(2_500));
    assert_eq!(network.nodes[A].names(id), ["Unreachable"]);
    let request = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].rejection(request), Some(RejectReason::TIMEOUT));
    assert_eq!(network.nodes[B].machine.connections(), 0);
}
