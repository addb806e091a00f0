//! A process that writes random words to the memory that it shares with others. Only its own connections may end.

use super::memory::{HOST, Way, bytes_at, operate, way};
use super::world::{Process, World};
use crate::common::node::Node;
use std::sync::Arc;
use trunkline_softrdma::device::PathChoice;
use trunkline_verbs::{
    Completion, QpState, QueuePair, SendData, SendFlags, SendOperation, SendRequest, SrqNumber,
};

/// Total number of words written.
const WORDS: u64 = 1_000_000;
const ROUNDS: u64 = 250;
/// Number of words written per turn of the simulation.
const AT_ONCE: u64 = 40;
/// Time after which a device shares memory again with a process that has written invalid words.
const LONG_NS: u64 = 30_000_000_000;
/// Numbers of turns after which most pairs share memory, and within which most messages through it are answered.
const SHARED_AFTER: usize = 2000;
const ANSWERED_WITHIN: usize = 100;
/// Length of the victim's receives.
const RECEIVE: u32 = 4000;
/// Offset in both memories, and length, of the data of the victim's READs, which take several responses.
const TARGET: (usize, u32) = (16_000, 20_000);
/// Content of the memory of the hostile process.
const THEIRS: u8 = 7;

/// Returns the index and new value of a word, which is often a ring's control word or a plausible length.
fn anything(world: &World, words: usize) -> (usize, u64) {
    let place = match world.below(4) {
        0 => 8 * world.below(5),
        1 => 512 + world.below(16),
        _ => world.below(words),
    };
    let value = match world.below(4) {
        0 => world.below(1 << 16) as u64 & !7,
        1 => world.below(300) as u64,
        _ => world.random(),
    };
    (place, value)
}

/// The hostile process, and the objects of its victim's connections to it.
struct Hostile {
    process: Process,
    /// Victim's objects in a separate domain, with separate memory.
    door: Node,
    ways: [Way; 2],
}

impl Hostile {
    fn new(world: &mut World, process: Process, victim: &Process) -> Self {
        let door = Node::with_device(Arc::clone(&victim.node.device), victim.node.address, 1 << 16);
        let ways = [way(&process.node, &door), way(&door, &process.node)];
        process.node.memory.write(0, &vec![THEIRS; process.node.memory.len()]).unwrap();
        world.turn();
        Self { process, door, ways }
    }

    /// Checks that the victim's memory was written only where the victim requested it.
    fn check_memory(&self) {
        let bytes = bytes_at(&self.door, 0, self.door.memory.len());
        let (receive, (start, length)) = (RECEIVE as usize, TARGET);
        let end = start + length as usize;
        assert!(bytes[receive..start].iter().chain(&bytes[end..]).all(|byte| *byte == 0));
        assert!(bytes[start..end].contains(&THEIRS), "READs are answered");
    }

    /// Writes this number of words to each shared area. Returns the total number written.
    fn write_anything(&self, world: &mut World, words: u64) -> u64 {
        let mut written = 0;
        for word in 0..words {
            written += self.process.process.scribble(|length| anything(world, length)) as u64;
            if word % AT_ONCE == 0 {
                world.turn();
            }
        }
        written
    }

    /// Sends from both sides, over connections that have not ended. The victim READs, too.
    fn send(&mut self, foreign: SrqNumber) {
        let (node, door) = (&self.process.node, &self.door);
        for (index, (from, to)) in [(node, door), (door, node)].into_iter().enumerate() {
            to.receive(0, 0, RECEIVE);
            let ini = &self.ways[index].ini;
            if ini.query().is_ok_and(|attributes| attributes.state == QpState::Error) {
                self.ways[index] = way(from, to);
            }
            let own = to.srq.number().unwrap();
            for (operation, srq) in [(SendOperation::Send, own), (SendOperation::Send, foreign)] {
                // The other side's SRQ is not in the domain.
                if srq == own || index == 0 {
                    post(&*self.ways[index].ini, operation, &[from.sge(0, 3000)], srq);
                }
            }
            if index == 1 {
                let target = [from.sge(TARGET.0, TARGET.1)];
                post(&*self.ways[index].ini, SendOperation::RdmaRead(to.remote(TARGET.0)), &target, own);
            }
            let mut some = [Completion::default(); 16];
            while from.cq.poll(&mut some) > 0 {}
        }
    }
}

/// Posts as many requests as fit in the queue.
fn post(ini: &dyn QueuePair, operation: SendOperation, data: &[trunkline_verbs::Sge], remote_srq: SrqNumber) {
    let (data, flags) = (SendData::Gather(data), SendFlags::SIGNALED);
    let _full = ini.post_send(&[SendRequest { wr_id: 1, operation, data, flags, remote_srq }]);
}

#[test]
fn random_words_in_shared_memory_affect_only_writer() {
    let mut world = World::new(31);
    let host = world.host(HOST);
    let [victim, bystander, process] = [(); 3].map(|()| world.process_with(&host, PathChoice::Auto));
    let ways = [way(&victim.node, &bystander.node), way(&bystander.node, &victim.node)];
    let mut hostile = Hostile::new(&mut world, process, &victim);
    let foreign = victim.node.srq.number().unwrap();
    let (mut round, mut written) = (0, 0);
    while written < WORDS {
        assert!(round < 4 * ROUNDS, "only {written} words have found memory");
        // The first messages make both sides share memory again.
        for turns in [SHARED_AFTER, ANSWERED_WITHIN] {
            hostile.send(foreign);
            for _ in 0..world.below(turns) {
                world.turn();
            }
        }
        written += hostile.write_anything(&mut world, WORDS / ROUNDS);
        operate(&mut world, &ways[0], &victim, &bystander, 2 * round);
        operate(&mut world, &ways[1], &bystander, &victim, 2 * round + 1);
        for node in [&victim.node, &bystander.node] {
            assert!(world.next_completion(node).is_none(), "one completion each: {round}");
        }
        world.pass(LONG_NS);
        round += 1;
    }
    hostile.check_memory();
    let counted = |name| victim.node.counter(name);
    assert!(counted("drop_shm_nonsense") > 20, "{} times", counted("drop_shm_nonsense"));
    assert_eq!(bystander.node.counter("shm_peers_ended"), 0, "no other use of memory has ended");
    assert_eq!(ways.map(|way| way.ini.path().map(|path| path.name)), [Some("shm"); 2]);
}
