//! Executors that die at chosen and at random moments: each placement that they requested happens once.

use super::actor::Actor;
use super::sender::Sender;
use super::{Cast, Load};
use crate::common::address;
use crate::common::host::Host;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use trunkline_verbs::{CompletionStatus, SendOperation};

/// The creator requests the placement of an atomic and of a SEND. It dies before or after the owner of the
/// SRQ has executed them, and the successor is the owner or another process.
#[test]
fn placements_requested_by_a_dead_executor_happen_once() {
    for owner_is_heir in [false, true] {
        for placed_before_death in [false, true] {
            dies_with_a_placement(owner_is_heir, placed_before_death);
        }
    }
}

fn dies_with_a_placement(owner_is_heir: bool, placed_before_death: bool) {
    let mut cast = Cast::new(3, &[]);
    let srq = cast.srq(1);
    let Cast { sender, actors, tgt, .. } = &mut cast;
    let case = format!("owner is successor: {owner_is_heir}, placed before: {placed_before_death}");
    actors[if owner_is_heir { 1 } else { 2 }].ok(&format!("open {tgt}"));
    let (mut other, mut owner, mut executor) = (actors.remove(2), actors.remove(1), actors.remove(0));
    owner.ok("post 8");
    let remote = owner.remote(0);
    sender.post(srq, SendOperation::FetchAdd { remote, add: 1 }, 0, 8);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    let asked = executor.number("counter local_sent");
    owner.stop();
    sender.post(srq, SendOperation::FetchAdd { remote, add: 1 }, 0, 8);
    sender.send(srq, 7, 3000);
    executor.until("counter local_sent", |sent| sent.parse::<u32>().unwrap() > asked);
    if placed_before_death {
        executor.stop();
        owner.go_on();
        owner.until("word 0", |word| word == "2");
        executor.kill();
    } else {
        executor.kill();
        if !owner_is_heir {
            other.until("counter targets_taken_over", |count| count == "1");
        }
        owner.go_on();
    }
    assert_eq!([sender.completed(), sender.completed()], [CompletionStatus::Success; 2], "{case}");
    assert_eq!(sender.word(0), 1, "{case}: the old value");
    assert_eq!(owner.ask("word 0"), "2", "{case}");
    assert_eq!(owner.taken(1)[0].word, 7, "{case}");
    sender.post(srq, SendOperation::FetchAdd { remote, add: 1 }, 0, 8);
    assert_eq!(sender.completed(), CompletionStatus::Success, "{case}");
    assert_eq!((sender.word(0), owner.ask("word 0").as_str()), (2, "3"), "{case}");
    let successor = if owner_is_heir { &mut owner } else { &mut other };
    assert_eq!(successor.ask("counter targets_taken_over"), "1", "{case}");
}

/// The executor dies after it has requested a placement from the receiver, and the receiver exits after it
/// has received the message: the successor acknowledges the message.
#[test]
fn an_arrived_message_is_acknowledged_although_executor_and_receiver_ended() {
    for receiver_ends_first in [false, true] {
        let mut cast = Cast::new(3, &[]);
        let srq = cast.srq(1);
        let Cast { sender, actors, tgt, .. } = &mut cast;
        actors[2].ok(&format!("open {tgt}"));
        let (mut successor, mut owner, mut executor) = (actors.remove(2), actors.remove(1), actors.remove(0));
        owner.ok("post 8");
        sender.send(srq, 1, 8);
        assert_eq!(sender.completed(), CompletionStatus::Success);
        assert_eq!(owner.taken(1)[0].word, 1);
        let asked = executor.number("counter local_sent");
        owner.stop();
        sender.send(srq, 2, 1000);
        executor.until("counter local_sent", |sent| sent.parse::<u32>().unwrap() > asked);
        executor.stop();
        owner.go_on();
        assert_eq!(owner.taken(1)[0].word, 2);
        if receiver_ends_first {
            owner.kill();
            executor.kill();
        } else {
            executor.kill();
            owner.kill();
        }
        assert_eq!(sender.completed(), CompletionStatus::Success, "receiver first: {receiver_ends_first}");
        // An executor that got its answer before it was stopped acknowledges by itself, and is taken over
        // after that.
        successor.until("counter targets_taken_over", |count| count == "1");
        // The message that was not received has no receiver now.
        sender.send(srq, 3, 8);
        assert_eq!(sender.completed(), CompletionStatus::RemoteInvalidRdRequest);
    }
}

/// Executors are killed at random moments under load, one after the other, until the last holder of a
/// handle executes the target.
#[test]
fn executors_that_die_at_random_lose_and_duplicate_no_message() {
    for round in 0..4 {
        let random = RandomState::new();
        let pause = |kill: u64| Duration::from_micros(random.hash_one((round, kill)) % 30_000);
        let mut cast = Cast::new(4, &[]);
        let srq = cast.srq(3);
        let Cast { sender, actors, tgt, .. } = &mut cast;
        for holder in &mut actors[1..] {
            holder.ok(&format!("open {tgt}"));
        }
        let mut owner = actors.remove(3);
        owner.ok("post 64");
        // The test does not know which of the three is the executor, so all of them die in turn, the owner
        // last.
        let doomed = std::mem::take(actors);
        let pauses = [pause(0), pause(1), pause(2)];
        println!("kills after {pauses:?}");
        let killer = std::thread::spawn(move || {
            for (actor, pause) in doomed.into_iter().zip(pauses) {
                std::thread::sleep(pause);
                actor.kill();
            }
        });
        Load::new(1..300).run(sender, srq, &mut owner, |_| {});
        killer.join().unwrap();
        Load::new(300..350).run(sender, srq, &mut owner, |_| {});
        owner.until("counter targets_taken_over", |count| count == "1");
    }
}

/// The creator attached the target to a connection of the CM. The target outlives both.
#[test]
fn a_target_connected_by_the_cm_outlives_its_creator() {
    let host = Host::new();
    let far = address();
    let mut maker = Actor::start(&host, far, &[]);
    let mut successor = Actor::start(&host, far, &[]);
    let tgt = maker.number("tgt");
    successor.ok(&format!("open {tgt}"));
    successor.ok("post 64");
    let srq = successor.srq();
    let service = maker.ask("listen").parse().unwrap();
    maker.tell("accept");
    let sender = Sender::connect(host.options(), service);
    assert_eq!(maker.answer(), "ok");
    assert!(successor.ask("query").starts_with("ReadyToSend"));
    let mut maker = Some(maker);
    Load::new(1..200).run(&sender, srq, &mut successor, |word| {
        if word == 100
            && let Some(maker) = maker.take()
        {
            maker.kill();
        }
    });
}
