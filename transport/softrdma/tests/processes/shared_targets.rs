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
