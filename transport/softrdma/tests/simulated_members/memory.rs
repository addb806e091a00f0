//! Processes of one host that communicate through shared memory. Arbitrary words are written to the memory, and
//! a process may die between two stores.

use super::world::{Process, World};
use crate::common::log::Log;
use crate::common::node::{Node, bring_up_with, post_to};
use std::sync::Arc;
use tracing::{Dispatch, Level};
use trunkline_softrdma::device::PathChoice;
use trunkline_verbs::{
    Completion, CompletionQueue, CompletionStatus, CqInit, Device, Lkey, QpInit, QpType, QueueCapacities,
    QueuePair, SendData, SendOperation, Sge,
};

pub(super) const HOST: [u8; 4] = [10, 0, 0, 1];
/// Offsets of outgoing and incoming data in a node's memory.
pub(super) const OUT: usize = 0;
pub(super) const IN: usize = 20_000;
const LONGEST: usize = 12_000;
/// Offsets of the word for fetch-and-add, and of the data that READs return.
const COUNTER: usize = 40_000;

/// An INI of one process that is connected to a TGT of another process.
pub(super) struct Way {
    pub(super) ini: Arc<dyn QueuePair>,
    pub(super) tgt: Arc<dyn QueuePair>,
}

pub(super) fn way(from: &Node, to: &Node) -> Way {
    let (ini, tgt) = (from.qp(QpType::XrcIni), to.qp(QpType::XrcTgt));
    bring_up_with(&*tgt, from.address, ini.number());
    bring_up_with(&*ini, to.address, tgt.number());
    Way { ini, tgt }
}

impl Way {
    fn post(&self, from: &Node, to: &Node, operation: SendOperation, length: usize) {
        let (first, length) = (length / 3, u32::try_from(length).unwrap());
        let rest = length - u32::try_from(first).unwrap();
        let data = SendData::Gather(&[from.sge(OUT, length - rest), from.sge(OUT + first, rest)]);
        post_to(&*self.ini, operation, data, to.srq.number().unwrap());
    }
}

fn fill(world: &World, node: &Node, length: usize) -> Vec<u8> {
    let start = world.random();
    let bytes: Vec<u8> =
        (0..length as u64).map(|index| (start.wrapping_add(index * 7) >> 3).to_le_bytes()[0]).collect();
    node.memory.write(OUT, &bytes).unwrap();
    bytes
}

pub(super) fn bytes_at(node: &Node, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    node.memory.read(offset, &mut bytes).unwrap();
    bytes
}

/// Executes an operation, and checks that it took effect once and as intended.
pub(super) fn operate(world: &mut World, way: &Way, from: &Process, to: &Process, number: u64) {
    let (near, far) = (&from.node, &to.node);
    let succeeds = |world: &mut World, what: &str| {
        let completion = world.completion(near);
        assert_eq!(completion.status, CompletionStatus::Success, "{what} {number}");
    };
    let length = 1 + world.below(if world.below(4) == 0 { LONGEST } else { 200 });
    match world.below(5) {
        0 => {
            let sent = fill(world, near, length);
            way.post(near, far, SendOperation::RdmaWrite(far.remote(IN)), length);
            succeeds(world, "WRITE");
            assert_eq!(bytes_at(far, IN, length), sent, "WRITE {number}");
        }
        1 => {
            let expected = fill(world, far, length);
            way.post(near, far, SendOperation::RdmaRead(far.remote(OUT)), length);
            succeeds(world, "READ");
            assert_eq!(bytes_at(near, OUT, length), expected, "READ {number}");
        }
        2 => {
            let before = far.memory.load(COUNTER).unwrap();
            way.post(near, far, SendOperation::FetchAdd { remote: far.remote(COUNTER), add: 3 }, 8);
            succeeds(world, "fetch-and-add");
            assert_eq!(far.memory.load(COUNTER), Ok(before + 3), "added once: {number}");
            assert_eq!(near.memory.load(OUT), Ok(before));
        }
        _ => {
            // The receive may be posted after the message is sent.
            let is_late = world.below(8) == 0;
            let sent = fill(world, near, length);
            let post = || far.receive(number, IN, u32::try_from(LONGEST).unwrap());
            if !is_late {
                post();
            }
            way.post(near, far, SendOperation::SendWithImmediate(7), length);
            if is_late {
                for _ in 0..world.below(300) {
                    world.turn();
                }
                post();
            }
            let received = world.completion(far);
            assert_eq!((received.wr_id, received.status), (number, CompletionStatus::Success));
            assert_eq!((received.byte_length as usize, received.immediate), (length, 7));
            assert_eq!(bytes_at(far, IN, length), sent, "SEND {number}");
            succeeds(world, "SEND");
        }
    }
}

/// Runs operations. Returns the numbers of packets sent through memory and of pairs that ended.
fn operations_run(seed: u64) -> [u64; 2] {
    let mut world = World::new(seed);
    let host = world.host(HOST);
    let [one, two] = [(); 2].map(|()| world.process_with(&host, PathChoice::Auto));
    let ways = [way(&one.node, &two.node), way(&two.node, &one.node)];
    for number in 0..200 {
        match world.below(2) {
            0 => operate(&mut world, &ways[0], &one, &two, number),
            _ => operate(&mut world, &ways[1], &two, &one, number),
        }
        for node in [&one.node, &two.node] {
            assert!(world.next_completion(node).is_none(), "one completion each: {number}");
        }
    }
    ["shm_packets_sent", "shm_peers_ended"].map(|name| one.node.counter(name) + two.node.counter(name))
}

#[test]
fn operations_of_all_kinds_go_through_memory() {
    for seed in 0..20 {
        let [sent, ended] = operations_run(seed);
        assert!(sent > 60, "{sent} packets");
        assert_eq!(ended, 0);
    }
}

/// The bytes of the first element are already in the ring when the second element is refused.
#[test]
fn gather_list_with_invalid_element_leaves_target_memory_unchanged() {
    let mut world = World::new(1);
    let host = world.host(HOST);
    let [one, two] = [(); 2].map(|()| world.process_with(&host, PathChoice::Auto));
    let sound = way(&one.node, &two.node);
    for number in 0..40 {
        operate(&mut world, &sound, &one, &two, number);
        let before = bytes_at(&two.node, IN, LONGEST);
        let broken = way(&one.node, &two.node);
        let good = one.node.sge(OUT, u32::try_from(1 + world.below(LONGEST / 2)).unwrap());
        let data = SendData::Gather(&[good, Sge { lkey: Lkey(0), ..good }]);
        let operation = SendOperation::RdmaWrite(two.node.remote(IN));
        post_to(&*broken.ini, operation, data, two.node.srq.number().unwrap());
        assert_eq!(world.completion(&one.node).status, CompletionStatus::LocalProtectionError);
        assert!(bytes_at(&two.node, IN, LONGEST) == before, "nothing was written: {number}");
    }
    assert_eq!(one.node.counter("shm_peers_ended") + two.node.counter("shm_peers_ended"), 0);
    assert!(one.node.counter("shm_packets_sent") > 30);
}

/// The devices run on this thread, so that the log does not contain errors of other tests.
#[test]
fn error_of_memory_only_qp_names_peer_address() {
    let errors = Log::new(Level::ERROR);
    // With one subscriber, the thread that first reaches a line decides whether the line is enabled, and threads of
    // other tests do not have a subscriber. With two subscribers, `tracing` checks both.
    let _other = Dispatch::new(Log::new(Level::ERROR));
    tracing::subscriber::with_default(errors.clone(), || {
        let mut world = World::new(1);
        let host = world.host(HOST);
        let [near, far] = [PathChoice::Shm, PathChoice::Udp].map(|path| world.process_with(&host, path));
        let refused = way(&near.node, &far.node);
        refused.post(&near.node, &far.node, SendOperation::Send, 9);
        assert_eq!(world.completion(&near.node).status, CompletionStatus::WorkRequestFlushed);
        let text = errors.text();
        let fields = format!("qp={} peer=10.0.0.1 ", refused.ini.number().get());
        assert!(text.contains(&fields) && text.contains("TRUNKLINE_LINK=udp"), "{text}");
    });
}

#[test]
fn invalid_words_end_use_of_shared_memory_but_not_operations() {
    let mut total = [0; 2];
    for seed in 0..100 {
        let counts = words_are_scribbled(seed);
        total = [total[0] + counts[0], total[1] + counts[1]];
    }
    assert!(total[0] > 1000 && total[1] > 20, "{total:?}");
}

/// Returns the index of a word of an area, and a value for the word that the peer recognizes as invalid. Other
/// wrong values, such as a false claim to be polling, affect only packets to the process that writes them.
fn nonsense(world: &World) -> (usize, u64) {
    let wild = world.random() | 1 << 40;
    match world.below(4) {
        0 => (0, if world.below(2) == 0 { wild } else { world.below(1 << 17) as u64 }),
        1 => (8, wild),
        2 => (16, wild | 1),
        _ => (32, wild),
    }
}

fn words_are_scribbled(seed: u64) -> [u64; 2] {
    let mut world = World::new(seed);
    let host = world.host(HOST);
    let [one, two] = [(); 2].map(|()| world.process_with(&host, PathChoice::Auto));
    let ways = [way(&one.node, &two.node), way(&two.node, &one.node)];
    for number in 0..40 {
        if world.below(3) == 0 {
            let process = if world.below(2) == 0 { &one } else { &two };
            process.process.scribble(|_| nonsense(&world));
            for _ in 0..world.below(3000) {
                world.turn();
            }
        }
        let index = world.below(2);
        let (from, to) = if index == 0 { (&one, &two) } else { (&two, &one) };
        operate(&mut world, &ways[index], from, to, number);
    }
    ["shm_packets_sent", "shm_peers_ended"].map(|name| one.node.counter(name) + two.node.counter(name))
}

/// The sender sleeps until its receiver answers, and its device does not have a timer that would send the message.
#[test]
fn message_goes_over_network_if_sender_finds_invalid_words() {
    let mut world = World::new(1);
    let host = world.host(HOST);
    let [one, two] = [(); 2].map(|()| world.process_with(&host, PathChoice::Auto));
    let way = way(&one.node, &two.node);
    for number in 0..40 {
        // The device of the sender falls asleep.
        for _ in 0..300 {
            world.turn();
        }
        // The receiver claims to have read more than was ever written.
        two.process.scribble(|_| (8, 1 << 50));
        two.node.receive(number, IN, u32::try_from(LONGEST).unwrap());
        way.post(&one.node, &two.node, SendOperation::SendWithImmediate(7), LONGEST);
        for node in [&two.node, &one.node] {
            assert_eq!(world.completion(node).status, CompletionStatus::Success);
        }
    }
    assert!(one.node.counter("drop_shm_nonsense") > 0);
}

/// Kills a process after a number of stores to shared memory. Returns true if it died in time.
fn peer_dies(seed: u64, stores: u64) -> bool {
    let mut world = World::new(seed);
    let host = world.host(HOST);
    let [one, two, bystander] = [(); 3].map(|()| world.process_with(&host, PathChoice::Auto));
    let [there, back] = [way(&one.node, &two.node), way(&two.node, &one.node)];
    let aside = way(&one.node, &bystander.node);
    for number in 0..6 {
        operate(&mut world, &there, &one, &two, number);
        operate(&mut world, &aside, &one, &bystander, number);
    }
    two.process.kill_after_stores(stores);
    let mut number = 6;
    while two.process.is_alive() && number < 40 {
        number += 1;
        two.node.receive(number, IN, u32::try_from(LONGEST).unwrap());
        let length = 1 + world.below(6000);
        let sent = fill(&world, &one.node, length);
        there.post(&one.node, &two.node, SendOperation::Send, length);
        back.post(&two.node, &one.node, SendOperation::RdmaWrite(one.node.remote(IN)), length);
        let status = world.completion(&one.node).status;
        if two.process.is_alive() {
            assert_eq!(status, CompletionStatus::Success, "{stores}");
            let received = world.completion(&two.node);
            assert!(received.status == CompletionStatus::Success || !two.process.is_alive());
            assert!(bytes_at(&two.node, IN, length) == sent || !two.process.is_alive(), "{stores}");
            let _other = world.next_completion(&two.node);
        } else {
            assert!(
                matches!(status, CompletionStatus::Success | CompletionStatus::RetryExceeded),
                "{stores}"
            );
        }
        while world.next_completion(&one.node).is_some() {}
        while world.next_completion(&two.node).is_some() {}
    }
    let nonsense = one.node.counter("drop_shm_nonsense") + two.node.counter("drop_shm_nonsense");
    assert_eq!(nonsense, 0, "a packet that is shown is whole: {stores}");
    let has_died = !two.process.is_alive();
    if has_died {
        world.kill(&two);
        for number in 100..106 {
            operate(&mut world, &aside, &one, &bystander, number);
        }
        world.until("its memory is released", || {
            one.node.cq.poll(&mut [Completion::default()]);
            (one.node.counter("shm_peers") == 1).then_some(())
        });
    }
    has_died
}

#[test]
fn process_killed_between_any_two_stores_ends_only_its_connections() {
    let mut deaths = 0;
    for stores in (0..900).step_by(13) {
        deaths += u32::from(peer_dies(11 + stores, stores));
    }
    assert!(deaths > 40, "{deaths}");
}

/// Connects to another process. The sender's CQ belongs to the second shard of its device, while the first
/// shard detects deaths.
fn way_of_second_shard(from: &Node, to: &Node) -> (Way, Arc<dyn CompletionQueue>) {
    let init = CqInit { capacity_cqe: 256, group: 1, ..CqInit::default() };
    let cq = from.device.create_cq(init).unwrap();
    let mut init = QpInit::new(QpType::XrcIni);
    (init.pd, init.send_cq) = (Some(Arc::clone(&from.pd)), Some(Arc::clone(&cq)));
    init.capacities = QueueCapacities { max_send_wr: 16, max_send_sge: 2, ..QueueCapacities::default() };
    let (ini, tgt) = (from.device.create_qp(init).unwrap(), to.qp(QpType::XrcTgt));
    bring_up_with(&*tgt, from.address, ini.number());
    bring_up_with(&*ini, to.address, tgt.number());
    (Way { ini, tgt }, cq)
}

/// Lets a process acknowledge a message and then end, by dying or by leaving, before its peer runs.
fn acknowledges_and_ends(seed: u64, dies: bool) {
    let mut world = World::new(seed);
    let host = world.host(HOST);
    let [one, two] = [(); 2].map(|()| world.process_with(&host, PathChoice::Auto));
    let (way, cq) = way_of_second_shard(&one.node, &two.node);
    let sent = || {
        let mut some = [Completion::default()];
        (cq.poll(&mut some) > 0).then(|| some[0].status)
    };
    let mut through_memory = 0;
    for number in 0..30 {
        two.node.receive(number, IN, 64);
        way.post(&one.node, &two.node, SendOperation::Send, 64);
        if number == 29 {
            break;
        }
        assert_eq!(world.completion(&two.node).status, CompletionStatus::Success);
        assert_eq!(world.until("an acknowledgement", sent), CompletionStatus::Success);
        through_memory = one.node.counter("shm_packets_sent");
    }
    assert!(through_memory > 0);
    // Only the receiver runs.
    let arrived = (0..10_000).find_map(|_| world.next_completion(&two.node));
    assert_eq!(arrived.unwrap().status, CompletionStatus::Success);
    let Way { ini, tgt } = way;
    if dies {
        world.kill(&two);
    } else {
        drop((tgt, two));
    }
    for _ in 0..2000 {
        world.turn();
    }
    assert_eq!(world.until("the last acknowledgement", sent), CompletionStatus::Success, "{seed} {dies}");
    drop(ini);
}

#[test]
fn acknowledgement_left_in_memory_by_ended_process_is_accepted() {
    for seed in 0..60 {
        acknowledges_and_ends(seed, true);
        acknowledges_and_ends(seed, false);
    }
}
