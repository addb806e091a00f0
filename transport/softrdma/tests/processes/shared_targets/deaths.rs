//! Executors that die at chosen moments. Each placement that they requested happens once.

use super::{Cast, soft};
use trunkline_verbs::{CompletionStatus, SendOperation};

/// The creator requests the placement of an atomic and of a SEND. It dies before or after the owner of the
/// SRQ has executed them, and the successor is the owner or another process.
#[test]
fn placements_requested_by_dead_executor_happen_once() {
    for owner_is_heir in [false, true] {
        for placed_before_death in [false, true] {
            dies_with_a_placement(owner_is_heir, placed_before_death);
        }
    }
}

fn dies_with_a_placement(owner_is_heir: bool, placed_before_death: bool) {
    let mut cast = Cast::new(3, soft());
    let srq = cast.srq(1);
    let Cast { sender, actors, tgt, .. } = &mut cast;
    let case = format!("owner is successor: {owner_is_heir}, placed before: {placed_before_death}");
    actors[if owner_is_heir { 1 } else { 2 }].ask(&format!("open t d {tgt}"));
    let (mut other, mut owner, mut executor) = (actors.remove(2), actors.remove(1), actors.remove(0));
    owner.post(8);
    let remote = owner.remote();
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
    assert_eq!(owner.taken().word, 7, "{case}");
    sender.post(srq, SendOperation::FetchAdd { remote, add: 1 }, 0, 8);
    assert_eq!(sender.completed(), CompletionStatus::Success, "{case}");
    assert_eq!((sender.word(0), owner.ask("word 0").as_str()), (2, "3"), "{case}");
    let successor = if owner_is_heir { &mut owner } else { &mut other };
    assert_eq!(successor.ask("counter targets_taken_over"), "1", "{case}");
}

/// The executor dies after it has requested a placement from the receiver, and the receiver exits after it has
/// received the message. The successor must acknowledge the message.
#[test]
fn arrived_message_is_acknowledged_although_executor_and_receiver_ended() {
    for receiver_ends_first in [false, true] {
        let mut cast = Cast::new(3, soft());
        let srq = cast.srq(1);
        let Cast { sender, actors, tgt, .. } = &mut cast;
        actors[2].ask(&format!("open t d {tgt}"));
        let (mut successor, mut owner, mut executor) = (actors.remove(2), actors.remove(1), actors.remove(0));
        owner.post(8);
        sender.send(srq, 1, 8);
        assert_eq!(sender.completed(), CompletionStatus::Success);
        assert_eq!(owner.taken().word, 1);
        let asked = executor.number("counter local_sent");
        owner.stop();
        sender.send(srq, 2, 1000);
        executor.until("counter local_sent", |sent| sent.parse::<u32>().unwrap() > asked);
        executor.stop();
        owner.go_on();
        assert_eq!(owner.taken().word, 2);
        if receiver_ends_first {
            owner.kill();
            executor.kill();
        } else {
            executor.kill();
            owner.kill();
        }
        assert_eq!(sender.completed(), CompletionStatus::Success, "receiver first: {receiver_ends_first}");
        // An executor that received the answer before it was stopped sends the acknowledgement itself. Its
        // successor takes over later.
        successor.until("counter targets_taken_over", |count| count == "1");
        // A message that was not received does not have a receiver left.
        sender.send(srq, 3, 8);
        assert_eq!(sender.completed(), CompletionStatus::RemoteInvalidRdRequest);
    }
}
