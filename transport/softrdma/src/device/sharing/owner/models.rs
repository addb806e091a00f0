//! A model of all orders in which two executors, the owner of an SRQ and the peer can act on three packets.
//!
//! The first executor may die at any time. Repeated requests stay in order, but may be read late. Answers and
//! acknowledgements may be lost. The executors' handling of answers is modelled here; the owner's handling of
//! requests is the real code.

use super::{Admission, Remote};
use crate::device::shard::{Reception, RemoteOutcome};
use crate::device::tables::domain_table::DomainNumber;
use std::collections::HashSet;
use trunkline_roce::engine::Placement;

const PACKETS: u64 = 3;
/// Maximum number of messages of one kind in flight.
const ON_THE_WAY: usize = 2;

/// State of the model, small enough to visit all reachable states.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct World {
    /// Index of the current executor: 0, then 1.
    executor: usize,
    /// True while the first executor runs.
    first_lives: bool,
    /// Serial number of the next expected packet, as published.
    published: u64,
    /// State of the current executor: next expected serial number, and true while it waits for the owner.
    expected: u64,
    waits: bool,
    /// Requests in flight to the owner by sender, oldest first.
    asked: [Vec<u64>; 2],
    /// Answers in flight.
    answered: Vec<u64>,
    /// Last serial number that the owner placed.
    last: Option<u64>,
    /// Serial numbers of the placed requests, in order.
    placed: Vec<u64>,
    /// Number of packets acknowledged to the peer.
    acknowledged: u64,
    /// True if the executor has placed a packet, or received the outcome of a placement, and has not published it.
    is_ahead: bool,
}

fn owner(world: &World) -> Remote {
    let reception = Reception::of_domain(DomainNumber(1));
    let last = world.last.map(|serial| (serial, RemoteOutcome::Done(Placement::Placed)));
    Remote { reception, last }
}

impl World {
    fn start() -> Self {
        Self { first_lives: true, ..Self::default() }
    }

    fn executes(&self) -> bool {
        self.executor == 1 || self.first_lives
    }

    /// Sends the owner's reply; replies beyond the limit are lost.
    fn answer(&mut self, serial: u64) {
        if self.answered.len() < ON_THE_WAY {
            self.answered.push(serial);
        }
    }

    /// Returns all states that one step can reach.
    fn steps(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(world);
        };
        // A packet arrives or is retransmitted. The executor publishes its state, then sends the request.
        if self.executes() && !self.waits && self.expected < PACKETS {
            step(&|world| {
                world.published = world.expected;
                world.is_ahead = false;
                world.asked[world.executor].push(world.expected);
                world.waits = true;
            });
        }
        // The answer is delayed. The executor repeats its request.
        if self.executes() && self.waits && self.asked[self.executor].len() < ON_THE_WAY {
            step(&|world| world.asked[world.executor].push(world.expected));
        }
        // The owner reads the oldest request of either executor; a request of the former executor is refused.
        for from in 0..2 {
            let Some(serial) = self.asked[from].first().copied() else { continue };
            step(&|world| {
                world.asked[from].remove(0);
                if from != world.executor {
                    return;
                }
                let mut remote = owner(world);
                match remote.admit(serial) {
                    Admission::Do => {
                        world.placed.push(serial);
                        remote.note(serial, RemoteOutcome::Done(Placement::Placed));
                        world.last = remote.last.map(|(serial, _)| serial);
                        world.answer(serial);
                    }
                    Admission::Done(_) => world.answer(serial),
                    Admission::Overtaken => {}
                }
            });
        }
        // An answer arrives, or is lost.
        if let Some(serial) = self.answered.first().copied() {
            step(&|world| {
                world.answered.remove(0);
                if world.executes() && world.waits && world.expected == serial {
                    world.expected += 1;
                    world.waits = false;
                    world.is_ahead = true;
                }
            });
            step(&|world| {
                world.answered.remove(0);
            });
        }
        // The executor publishes its state, then acknowledges the packet.
        if self.executes() && self.is_ahead {
            step(&|world| {
                world.published = world.expected;
                world.is_ahead = false;
                world.acknowledged = world.expected;
            });
            // The acknowledgement is lost.
            step(&|world| {
                world.published = world.expected;
                world.is_ahead = false;
            });
        }
        // The peer retransmits packets whose acknowledgement was lost.
        if self.executes() && self.acknowledged < self.published {
            step(&|world| world.acknowledged = world.published);
        }
        // The first executor dies. The owner still reads its requests.
        if self.first_lives {
            step(&|world| world.first_lives = false);
        }
        // The second executor takes over.
        if !self.first_lives && self.executor == 0 {
            step(&|world| {
                world.executor = 1;
                world.expected = world.published;
                world.waits = false;
                world.is_ahead = false;
                // Answers to the dead executor are lost.
                world.answered.clear();
            });
        }
        next
    }

    fn check(&self) {
        let in_order: Vec<u64> = (0..).take(self.placed.len()).collect();
        assert_eq!(self.placed, in_order, "{self:#?}");
        assert!(self.acknowledged <= self.placed.len() as u64, "acknowledged, not placed: {self:#?}");
    }
}

#[test]
fn each_packet_is_placed_once_whenever_executor_dies() {
    let mut seen = HashSet::from([World::start()]);
    let mut open = vec![World::start()];
    let mut finished = 0;
    while let Some(world) = open.pop() {
        world.check();
        let steps = world.steps();
        if world.acknowledged == PACKETS {
            finished += 1;
        } else {
            assert!(!steps.is_empty(), "nobody goes on: {world:#?}");
        }
        assert!(seen.len() < 500_000, "the world is not bounded");
        open.extend(steps.into_iter().filter(|next| seen.insert(next.clone())));
    }
    assert!(finished > 10 && seen.len() > 1000, "{finished} of {} worlds are finished", seen.len());
}
