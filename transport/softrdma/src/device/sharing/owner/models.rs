//! Every order in which two executors, the owner of an SRQ and the peer can act on three packets.
//!
//! The first executor may die at any point, a repeated request may overtake nothing but be read late,
//! answers and acknowledgements may get lost; what the executors do with an answer is the model's, what
//! the owner does with a request is the code's own.

use super::{Admission, Remote};
use crate::device::domain_table::DomainNumber;
use crate::device::shard::{Reception, RemoteOutcome};
use std::collections::HashSet;
use trunkline_roce::engine::Placement;

const PACKETS: u64 = 3;
/// Messages of one kind on their way at most.
const ON_THE_WAY: usize = 2;

/// The whole world, small enough to be looked at in every state that it can get into.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct World {
    /// The present executor: 0, then 1.
    executor: usize,
    /// The first executor runs.
    first_lives: bool,
    /// Published: the serial of the packet that is expected.
    published: u64,
    /// State of the present executor: expected serial, and whether it waits for the owner.
    expected: u64,
    waits: bool,
    /// Requests on their way to the owner, by the executor that sent them, oldest first.
    asked: [Vec<u64>; 2],
    /// Answers on their way back.
    answered: Vec<u64>,
    /// The last serial that the owner did.
    last: Option<u64>,
    /// Placed requests, in order.
    placed: Vec<u64>,
    /// Packets that the peer knows to be there.
    acknowledged: u64,
    /// The executor has placed or learnt of something that it has not published.
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

    /// The owner replies; replies that do not fit are lost.
    fn answer(&mut self, serial: u64) {
        if self.answered.len() < ON_THE_WAY {
            self.answered.push(serial);
        }
    }

    /// All worlds that one step leads to.
    fn steps(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(world);
        };
        // The peer's packet comes, for the first time or again: the executor publishes, then asks.
        if self.executes() && !self.waits && self.expected < PACKETS {
            step(&|world| {
                world.published = world.expected;
                world.is_ahead = false;
                world.asked[world.executor].push(world.expected);
                world.waits = true;
            });
        }
        // No answer for a while: the executor asks again.
        if self.executes() && self.waits && self.asked[self.executor].len() < ON_THE_WAY {
            step(&|world| world.asked[world.executor].push(world.expected));
        }
        // The owner reads the oldest request of either process; one that no longer executes is not served.
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
        // An answer comes, or gets lost.
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
        // The executor publishes, then acknowledges.
        if self.executes() && self.is_ahead {
            step(&|world| {
                world.published = world.expected;
                world.is_ahead = false;
                world.acknowledged = world.expected;
            });
            // The acknowledgement got lost.
            step(&|world| {
                world.published = world.expected;
                world.is_ahead = false;
            });
        }
        // The peer repeats what was acknowledged in vain.
        if self.executes() && self.acknowledged < self.published {
            step(&|world| world.acknowledged = world.published);
        }
        // The first executor dies; its requests are still read.
        if self.first_lives {
            step(&|world| world.first_lives = false);
        }
        // The second takes over.
        if !self.first_lives && self.executor == 0 {
            step(&|world| {
                world.executor = 1;
                world.expected = world.published;
                world.waits = false;
                world.is_ahead = false;
                // Replies to the dead are lost.
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
fn each_packet_is_placed_once_whenever_a_home_dies() {
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
