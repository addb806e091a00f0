//! A process that forges packets of another process and sends them through its own ring of shared memory. It has
//! the QP numbers and the next PSN, so only the ring identifies the sender.

use super::memory::{HOST, IN, OUT, Way, bytes_at, operate, way};
use super::world::{Process, World};
use crate::common::node::{Node, bring_up_with, post};
use std::sync::Arc;
use trunkline_softrdma::device::PathChoice;
use trunkline_verbs::{Completion, CompletionStatus, QpType, SendOperation};

const BYTES: u32 = 64;

/// The victim, its peer and the hostile process, which share memory.
struct Setting {
    world: World,
    victim: Process,
    peer: Process,
    hostile: Process,
    /// Connection of the hostile process with the victim's device, in a separate domain.
    _own: (Node, Way),
}

impl Setting {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let host = world.host(HOST);
        let [victim, peer] = [(); 2].map(|()| world.process_with(&host, PathChoice::Auto));
        // With shared memory only, its packets do not pass through the network.
        let hostile = world.process_with(&host, PathChoice::Shm);
        let door = Node::with_device(Arc::clone(&victim.node.device), victim.node.address, 1 << 16);
        let own = way(&hostile.node, &door);
        let write = SendOperation::RdmaWrite(door.remote(IN));
        post(&*own.ini, write, &[hostile.node.sge(OUT, BYTES)], &*door.srq);
        assert_eq!(world.completion(&hostile.node).status, CompletionStatus::Success);
        Self { world, victim, peer, hostile, _own: (door, own) }
    }
}

/// Runs until a device has dropped a packet because of its sender. The victim must be unharmed until then.
fn until_dropped(world: &mut World, victim: &Node, is_unharmed: impl Fn() -> bool) {
    let dropped = || victim.counter("drop_wrong_address");
    let before = dropped();
    world.until("a drop of what was forged", || {
        assert!(is_unharmed(), "what was forged has been believed");
        (dropped() > before).then_some(())
    });
}

fn has_completed(node: &Node) -> bool {
    node.cq.poll(&mut [Completion::default()]) > 0
}

/// Makes the hostile process send a request to the TGT of another connection, before the first request from the
/// TGT's peer.
fn request_is_forged(seed: u64) {
    let mut setting = Setting::new(seed);
    let remote = setting.victim.node.remote(IN);
    let operations =
        [SendOperation::Send, SendOperation::RdmaWrite(remote), SendOperation::FetchAdd { remote, add: 3 }];
    for (number, operation) in (0..).zip(operations) {
        let Setting { world, victim, peer, hostile, .. } = &mut setting;
        let used = way(&peer.node, &victim.node);
        operate(world, &used, peer, victim, 100 + number);
        let attacked = way(&peer.node, &victim.node);
        let forger = hostile.node.qp(QpType::XrcIni);
        bring_up_with(&*forger, victim.node.address, attacked.tgt.number());
        victim.node.receive(number, IN, BYTES);
        victim.node.memory.write(IN, &[1; BYTES as usize]).unwrap();
        hostile.node.memory.write(OUT, &[2; BYTES as usize]).unwrap();
        peer.node.memory.write(OUT, &[3; BYTES as usize]).unwrap();
        let length = if matches!(operation, SendOperation::FetchAdd { .. }) { 8 } else { BYTES };
        post(&*forger, operation, &[hostile.node.sge(OUT, length)], &*victim.node.srq);
        until_dropped(world, &victim.node, || {
            bytes_at(&victim.node, IN, BYTES as usize) == [1; BYTES as usize] && !has_completed(&victim.node)
        });
        // The peer's request with this PSN is still accepted.
        post(&*attacked.ini, SendOperation::Send, &[peer.node.sge(OUT, BYTES)], &*victim.node.srq);
        let received = world.completion(&victim.node);
        assert_eq!((received.wr_id, received.status), (number, CompletionStatus::Success));
        assert_eq!(bytes_at(&victim.node, IN, BYTES as usize), [3; BYTES as usize], "{operation:?}");
        assert_eq!(world.completion(&peer.node).status, CompletionStatus::Success);
    }
}

#[test]
fn forged_requests_of_another_process_are_dropped() {
    (0..20).for_each(request_is_forged);
}

/// Makes a TGT of the hostile process answer the INI of another connection, with a helper over UDP.
fn answer_is_forged(seed: u64) {
    let Setting { mut world, victim, peer, hostile, _own } = Setting::new(seed);
    let helper = world.process_with(victim.process.host(), PathChoice::Udp);
    let used = way(&victim.node, &peer.node);
    operate(&mut world, &used, &victim, &peer, 100);
    let attacked = way(&victim.node, &peer.node);
    let (asks, answers) = (helper.node.qp(QpType::XrcIni), hostile.node.qp(QpType::XrcTgt));
    bring_up_with(&*answers, victim.node.address, attacked.ini.number());
    bring_up_with(&*asks, hostile.node.address, answers.number());
    // The peer does not have a receive, so the message stays outstanding.
    victim.node.memory.write(OUT, &[3; BYTES as usize]).unwrap();
    post(&*attacked.ini, SendOperation::Send, &[victim.node.sge(OUT, BYTES)], &*peer.node.srq);
    hostile.node.receive(1, IN, BYTES);
    post(&*asks, SendOperation::Send, &[helper.node.sge(OUT, BYTES)], &*hostile.node.srq);
    until_dropped(&mut world, &victim.node, || !has_completed(&victim.node));
    peer.node.receive(2, IN, BYTES);
    assert_eq!(world.completion(&victim.node).status, CompletionStatus::Success);
    let received = world.completion(&peer.node);
    assert_eq!((received.wr_id, received.status), (2, CompletionStatus::Success));
    assert_eq!(bytes_at(&peer.node, IN, BYTES as usize), [3; BYTES as usize]);
}

#[test]
fn forged_answers_of_another_process_are_dropped() {
    (0..20).for_each(answer_is_forged);
}
