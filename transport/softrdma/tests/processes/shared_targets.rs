//! A TGT that processes share: one executes it, its messages go to the SRQs of all.
//!
//! The test sends; the processes of the domain are actors that it starts and commands.

mod actor;
mod deaths;
mod sender;

use crate::common::address;
use crate::common::host::Host;
use actor::{Actor, pattern};
use sender::Sender;
use trunkline_verbs::{CompletionStatus, SendOperation, SrqNumber};

/// The module of the test `play`.
const MODULE: &str = module_path!();

/// The entry point of an actor's process. Without a part it is a test that does nothing.
#[test]
fn play() {
    actor::play();
}

/// The processes of a domain, at one address: the first made the TGT, which is connected to the
/// sender; each has some receives posted.
struct Cast {
    sender: Sender,
    actors: Vec<Actor>,
    tgt: u32,
    _host: Host,
}

impl Cast {
    fn new(count: usize, variables: &[(&str, &str)]) -> Self {
        let host = Host::new();
        let far = address();
        let mut actors: Vec<_> = (0..count).map(|_| Actor::start(&host, far, variables)).collect();
        let tgt = actors[0].number("tgt");
        let sender = Sender::new(host.options(), far, tgt);
        actors[0].ok(&format!("connect {} {}", sender.node.address, sender.number()));
        Self { sender, actors, tgt, _host: host }
    }

    fn srq(&mut self, actor: usize) -> SrqNumber {
        self.actors[actor].srq()
    }

    /// Two processes with a handle, whose second owns the SRQ of the load: the creator, the other one, and
    /// that SRQ.
    fn creator_and_successor() -> (Self, Actor, Actor, SrqNumber) {
        let mut cast = Self::new(2, &[]);
        let mut successor = cast.actors.remove(1);
        let creator = cast.actors.remove(0);
        successor.ok(&format!("open {}", cast.tgt));
        successor.ok("post 64");
        let srq = successor.srq();
        (cast, creator, successor, srq)
    }
}

#[test]
fn messages_of_all_kinds_reach_an_srq_of_another_process() {
    let mut cast = Cast::new(2, &[]);
    let srq = cast.srq(1);
    let Cast { sender, actors, tgt, .. } = &mut cast;
    let owner = &mut actors[1];
    owner.ok("post 32");
    for (round, length) in [(1, 8), (2, 1024), (3, 1025), (4, 8000), (5, 8192)] {
        sender.send(srq, round, length);
        let taken = owner.taken(1).remove(0);
        assert_eq!((taken.status.as_str(), taken.length, taken.word), ("Success", length, round));
        assert_eq!(taken.qp, *tgt, "contract G2");
        assert_eq!(sender.completed(), CompletionStatus::Success);
    }
    // One-sided ones, in the memory of the SRQ's PD (contract G4).
    let remote = owner.remote(4096);
    sender.fill(0, 77);
    sender.post(srq, SendOperation::RdmaWrite(remote), 0, 6000);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    assert_eq!(owner.ask("word 4096"), "77");
    sender.fill(0, 78);
    sender.post(srq, SendOperation::RdmaWriteWithImmediate(remote, 0xabcd), 0, 6000);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    let taken = owner.taken(1).remove(0);
    assert_eq!((taken.length, taken.immediate), (6000, 0xabcd));
    assert_eq!(owner.ask("word 4096"), "78");
    for add in 1..=3 {
        sender.post(srq, SendOperation::FetchAdd { remote, add }, 0, 8);
        assert_eq!(sender.completed(), CompletionStatus::Success);
    }
    assert_eq!(sender.word(0), 78 + 1 + 2, "the value before the last");
    assert_eq!(owner.ask("word 4096"), "84");
    sender.post(srq, SendOperation::CompareSwap { remote, compare: 84, swap: 5 }, 0, 8);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    assert_eq!((sender.word(0), owner.ask("word 4096").as_str()), (84, "5"));
    owner.ok("fill 300000");
    let remote = owner.remote(0);
    for length in [1, 1024, 5000, 300_000] {
        sender.post(srq, SendOperation::RdmaRead(remote), 0, length);
        assert_eq!(sender.completed(), CompletionStatus::Success);
        let bytes = sender.bytes(0, length);
        assert!((0..length).zip(bytes).all(|(at, byte)| byte == pattern(at)), "{length}");
    }
}

#[test]
fn an_error_of_a_receive_completes_at_its_owner_and_is_reported_to_all_handles() {
    let mut cast = Cast::new(3, &[]);
    let srq = cast.srq(1);
    let Cast { sender, actors, tgt, .. } = &mut cast;
    actors[2].ok(&format!("open {tgt}"));
    actors[1].ok("post 2");
    let event = |kind: &str| format!("({kind}, {tgt})");
    // This message is longer than the receive (contract G10).
    sender.send(srq, 2, 8193);
    assert_eq!(sender.completed(), CompletionStatus::RemoteInvalidRequest);
    assert_eq!(actors[1].taken(1)[0].status, "LocalLengthError");
    for actor in [0, 2] {
        actors[actor].until("query", |state| state.starts_with("Error"));
        let mut both = [actors[actor].ask("event"), actors[actor].ask("event")];
        both.sort();
        assert_eq!(both, [event("QpLastWqeReached"), event("QpRequestError")]);
    }
    // The owner of the SRQ has no handle.
    assert_eq!(actors[1].ask("none"), "None");
}

#[test]
fn an_incomplete_message_is_flushed_when_its_target_fails() {
    let mut cast = Cast::new(2, &[]);
    let srq = cast.srq(1);
    let Cast { sender, actors, .. } = &mut cast;
    actors[1].ok("post 4");
    sender.send(srq, 1, 8);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    assert_eq!(actors[1].taken(1)[0].word, 1);
    sender.send_first_packet_only(srq);
    // Its receive is consumed but not completed; the error flushes it (contract I2).
    actors[1].until("counter local_received", |count| count != "0" && count != "1");
    actors[0].ok("error");
    assert_eq!(actors[1].taken(1)[0].status, "WorkRequestFlushed");
    assert_ne!(sender.completed(), CompletionStatus::Success);
}

#[test]
fn a_range_is_checked_by_the_domain_of_the_srq() {
    let mut cast = Cast::new(2, &[]);
    let (mine, theirs) = (cast.srq(0), cast.srq(1));
    let Cast { sender, actors, .. } = &mut cast;
    let remote = actors[1].remote(0);
    sender.fill(0, 5);
    sender.post(theirs, SendOperation::RdmaWrite(remote), 0, 8);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    assert_eq!(actors[1].ask("word 0"), "5");
    // The key belongs to the other process, so not to this SRQ's protection domain (contract G4).
    sender.post(mine, SendOperation::RdmaWrite(remote), 0, 8);
    assert_eq!(sender.completed(), CompletionStatus::RemoteAccessError);
}

#[test]
fn an_empty_srq_stalls_later_messages() {
    let mut cast = Cast::new(3, &[]);
    let srqs = [cast.srq(1), cast.srq(2)];
    let Cast { sender, actors, .. } = &mut cast;
    actors[2].ok("post 8");
    actors[2].ok("arm 8");
    sender.send(srqs[0], 1, 3000);
    sender.send(srqs[1], 2, 3000);
    // Its owner had no receive (contract G9); the message after it waits (contract F4).
    actors[0].until("counter rnr_nak_sent", |count| count != "0");
    assert_eq!(actors[2].ask("counter local_received"), "0");
    actors[1].ok("post 8");
    assert_eq!(actors[1].taken(1)[0].word, 1);
    assert_eq!(actors[2].taken(1)[0].word, 2);
    assert_eq!([sender.completed(), sender.completed()], [CompletionStatus::Success; 2]);
    // contract D6: the event is the SRQ owner's.
    assert_eq!(actors[2].ask("event"), "(SrqLimitReached, 9)");
}

#[test]
fn handles_of_other_processes_see_change_and_keep_the_target() {
    let host = Host::new();
    let far = address();
    let mut actors: Vec<_> = (0..3).map(|_| Actor::start(&host, far, &[])).collect();
    let tgt = actors[0].number("tgt");
    let open = format!("open {tgt}");
    assert_eq!(actors[1].ask(&format!("open {}", tgt ^ 1)), "22", "contract C4");
    for actor in [1, 1, 2] {
        actors[actor].ok(&open);
    }
    assert_eq!(actors[1].ask("query"), "Reset 0");
    let sender = Sender::new(host.options(), far, tgt);
    let step = |number: u32| format!("step {number} {} {}", sender.node.address, sender.number());
    actors[2].ok(&step(0));
    assert!(actors[1].ask("query").starts_with("Init"));
    // contract B10: all of them try to move it, and one succeeds.
    for actor in &mut actors {
        actor.tell(&step(1));
    }
    let mut answers: Vec<_> = actors.iter_mut().map(Actor::answer).collect();
    answers.sort();
    assert_eq!(answers, ["22", "22", "ok"]);
    let connected = format!("ReadyToReceive {}", sender.number());
    assert_eq!(actors[2].ask("query"), connected);
    actors[1].ok(&step(2));
    // contract C6: the creator closes its handle, and messages still arrive.
    let srq = actors[1].srq();
    actors[1].ok("post 4");
    actors[0].ok("close 0");
    sender.send(srq, 1, 2000);
    assert_eq!(actors[1].taken(1)[0].word, 1);
    actors[1].ok("error");
    assert!(actors[2].ask("query").starts_with("Error"), "contract C8");
    actors[2].ok("reset");
    actors[1].ok("close 0");
    actors[2].ok("close 0");
    actors[0].ok(&open);
    assert_eq!(actors[0].ask("query"), "Reset 0");
    actors[0].ok("close 0");
    assert_eq!(actors[1].ask("query"), "Reset 0", "one is left");
    actors[1].ok("close 0");
    assert_eq!(actors[2].ask(&open), "22", "the last handle destroyed it");
}

#[test]
fn the_target_outlives_its_killed_creator_under_load() {
    let (cast, creator, mut successor, srq) = Cast::creator_and_successor();
    let mut creator = Some(creator);
    let mut load = Load::new(1..400);
    load.run(&cast.sender, srq, &mut successor, |at| {
        if at == 100
            && let Some(creator) = creator.take()
        {
            creator.kill();
        }
    });
    assert_eq!(successor.ask("counter targets_taken_over"), "1");
    // The target still exists until the successor closes the last handle.
    successor.ok("close 0");
    assert_eq!(successor.ask(&format!("open {}", cast.tgt)), "22");
}

#[test]
fn the_target_outlives_a_creator_that_exits() {
    let (cast, mut creator, mut successor, srq) = Cast::creator_and_successor();
    let mut load = Load::new(1..200);
    load.run(&cast.sender, srq, &mut successor, |at| {
        if at == 100 {
            creator.tell("quit");
        }
    });
}

#[test]
fn one_of_several_successors_takes_the_target_over() {
    let mut cast = Cast::new(4, &[]);
    let srq = cast.srq(3);
    let Cast { sender, actors, tgt, .. } = &mut cast;
    for successor in &mut actors[1..3] {
        successor.ok(&format!("open {tgt}"));
    }
    // The last process has no handle, only the SRQ that the messages name.
    let mut owner = actors.remove(3);
    owner.ok("post 64");
    let mut load = Load::new(1..600);
    load.run(sender, srq, &mut owner, |at| {
        if at == 150 || at == 400 {
            // The executor is first its creator, then one of the successors.
            let executor = actors.iter_mut().position(|actor| actor.ask("counter acks_sent") != "0").unwrap();
            actors.remove(executor).kill();
        }
    });
    let survivor = &mut actors[0];
    assert!(survivor.ask("query").starts_with("ReadyToSend"));
    assert_eq!(survivor.ask("counter targets_taken_over"), "1");
}

/// Messages one after the other, each with the next word, some in several packets; the owner of the
/// SRQ receives each once and in order.
struct Load {
    words: std::ops::Range<u64>,
}

impl Load {
    fn new(words: std::ops::Range<u64>) -> Self {
        Self { words }
    }

    fn run(&mut self, sender: &Sender, srq: SrqNumber, owner: &mut Actor, mut at: impl FnMut(u64)) {
        const UNDER_WAY: u64 = 16;
        let end = self.words.end;
        let length = |word: u64| 8 + u32::try_from(word * 37 % 3000).unwrap();
        let mut next = self.words.start;
        for word in self.words.clone() {
            while next < end && next < word + UNDER_WAY {
                sender.send(srq, next, length(next));
                next += 1;
            }
            at(word);
            let taken = owner.taken(1).remove(0);
            assert_eq!((taken.status.as_str(), taken.word, taken.length), ("Success", word, length(word)));
        }
        for word in self.words.clone() {
            assert_eq!(sender.completed(), CompletionStatus::Success, "{word}");
        }
    }
}

#[test]
fn the_response_after_the_death_of_an_srqs_owner_follows_the_policy() {
    for (policy, status) in
        [("nak64", CompletionStatus::RemoteInvalidRdRequest), ("nak62", CompletionStatus::RemoteAccessError)]
    {
        let mut cast = Cast::new(2, &[("TRUNKLINE_UNKNOWN_SRQ", policy)]);
        let srq = cast.srq(1);
        let Cast { sender, actors, .. } = &mut cast;
        let mut owner = actors.remove(1);
        owner.ok("post 4");
        sender.send(srq, 1, 3000);
        assert_eq!(owner.taken(1)[0].word, 1);
        assert_eq!(sender.completed(), CompletionStatus::Success);
        owner.kill();
        sender.send(srq, 2, 3000);
        assert_eq!(sender.completed(), status, "{policy}");
        actors[0].until("query", |state| state.starts_with("Error"));
    }
}

#[test]
fn the_target_survives_when_packets_for_a_dead_process_are_dropped() {
    let mut cast = Cast::new(3, &[("TRUNKLINE_UNKNOWN_SRQ", "drop")]);
    let (doomed, other) = (cast.srq(2), cast.srq(1));
    let Cast { sender, actors, .. } = &mut cast;
    let mut owner = actors.remove(2);
    owner.ok("post 4");
    actors[1].ok("post 4");
    sender.send(doomed, 1, 3000);
    assert_eq!(owner.taken(1)[0].word, 1);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    owner.kill();
    // The sender runs out of retries; the target is unchanged and can be connected again.
    sender.send(doomed, 2, 3000);
    assert_eq!(sender.completed(), CompletionStatus::RetryExceeded);
    assert!(actors[0].ask("query").starts_with("ReadyToSend"));
    actors[0].ok("reset");
    sender.reconnect();
    actors[0].ok(&format!("connect {} {}", sender.node.address, sender.number()));
    sender.send(other, 3, 3000);
    assert_eq!(actors[1].taken(1)[0].word, 3);
    assert_eq!(sender.completed(), CompletionStatus::Success);
}
