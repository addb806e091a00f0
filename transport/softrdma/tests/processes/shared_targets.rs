//! A TGT that processes share: one process executes it, and its messages go to the SRQs of all.
//!
//! The test sends; the processes of the domain are actors that it starts and commands.

mod actor;
mod deaths;
mod sender;

use crate::common::address;
use crate::common::host::Host;
use actor::Actor;
use sender::Sender;
use trunkline_verbs::{CompletionStatus, SrqNumber};

/// Module of the test `play`.
const MODULE: &str = module_path!();

/// Entry point of an actor's process. Without a part it is a test that does nothing.
#[test]
fn play() {
    actor::play();
}

/// The processes of a domain, at one address. The first created the TGT, which is connected to the sender.
/// Each has some receives posted.
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
    // The sender runs out of retries. The target is unchanged and can be connected again.
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
