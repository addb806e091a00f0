//! A TGT that processes share. One process executes the TGT, whose messages go to the SRQs of all processes.
//!
//! The test sends the messages. The processes of the domain are actors, which the test starts and commands.

mod actor;
mod deaths;
mod sender;

use crate::common::address;
use crate::common::processes::{PUPPET, Soft, serve};
use actor::Actor;
use sender::Sender;
use std::fs::File;
use trunkline_verbs::{CompletionStatus, SrqNumber};

/// Entry point of an actor's process. Does nothing unless [`PUPPET`] is set.
#[test]
fn play() {
    if std::env::var_os(PUPPET).is_some() {
        serve().expect("the puppet serves");
    }
}

fn soft() -> Soft {
    Soft::from_test(module_path!(), "play")
}

/// The processes of a domain, at one address. The first created the TGT, which is connected to the sender.
/// Each process has posted receives.
struct Cast {
    sender: Sender,
    actors: Vec<Actor>,
    tgt: u32,
    _soft: Soft,
}

impl Cast {
    fn new(count: usize, soft: Soft) -> Self {
        File::create(soft.host().path("domain")).unwrap();
        let far = address();
        let mut actors: Vec<_> = (0..count).map(|_| Actor::start(&soft, far)).collect();
        let tgt = actors[0].number("tgt t d");
        let sender = Sender::new(soft.host().options(), far, tgt);
        actors[0].ask(&format!("up t {} {}", sender.node.address, sender.number()));
        Self { sender, actors, tgt, _soft: soft }
    }

    fn srq(&self, actor: usize) -> SrqNumber {
        self.actors[actor].srq()
    }
}

#[test]
fn incomplete_message_is_flushed_when_its_target_fails() {
    let mut cast = Cast::new(2, soft());
    let srq = cast.srq(1);
    let Cast { sender, actors, .. } = &mut cast;
    actors[1].post(4);
    sender.send(srq, 1, 8);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    assert_eq!(actors[1].taken().word, 1);
    sender.send_first_packet_only(srq);
    // The receive of the message is consumed but not completed; the error flushes it (contract I2).
    actors[1].until("counter local_received", |count| count != "0" && count != "1");
    actors[0].ask("set t error");
    assert_eq!(actors[1].taken().status, "WorkRequestFlushed");
    assert_ne!(sender.completed(), CompletionStatus::Success);
}

#[test]
fn target_stays_usable_after_dropped_packets_for_dead_process() {
    let mut cast = Cast::new(3, soft().dropping_unknown());
    let (doomed, other) = (cast.srq(2), cast.srq(1));
    let Cast { sender, actors, .. } = &mut cast;
    let mut owner = actors.remove(2);
    owner.post(4);
    actors[1].post(4);
    sender.send(doomed, 1, 3000);
    assert_eq!(owner.taken().word, 1);
    assert_eq!(sender.completed(), CompletionStatus::Success);
    owner.kill();
    // The sender runs out of retries. The target is unchanged and can be connected again.
    sender.send(doomed, 2, 3000);
    assert_eq!(sender.completed(), CompletionStatus::RetryExceeded);
    assert!(actors[0].ask("state t") == "ReadyToSend");
    actors[0].ask("set t reset");
    sender.reconnect();
    actors[0].ask(&format!("up t {} {}", sender.node.address, sender.number()));
    sender.send(other, 3, 3000);
    assert_eq!(actors[1].taken().word, 3);
    assert_eq!(sender.completed(), CompletionStatus::Success);
}
