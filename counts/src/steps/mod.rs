//! The measured program: two nodes, stepped in one thread.
//!
//! | file | what it is |
//! |---|---|
//! | `world` | the nodes, and the order of their turns |
//! | `echo`, `program` | the services, their handlers, and the tasks that call them |
//! | `meter` | counters for the traffic on the links |
//!
//! `cargo counts` runs the program under callgrind, which collects between [`begin`] and [`end`] and within the turns of one
//! side. The program prints the counts that callgrind does not provide.

mod echo;
mod meter;
mod program;
mod world;

use crate::side::{Linked, PAYLOAD_BYTES, Shape};
use crate::system_calls::{mark, marks};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use trunkline_roce::wire::Bth;
use trunkline_testkit::{CountingAllocator, Folder};
use world::World;

/// Allocator that counts the allocations of the program. Its instructions are not included in the counts.
#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Number of calls before counting begins; for streams, an eighth of the number of items. After these calls, buffers have
/// their final size, method numbers are known, and pollers have taken over the work of their cards.
const WARM_UP: u64 = 2560;

/// Settings of one run of the program.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Steps {
    /// Link between the nodes.
    #[arg(value_enum)]
    pub(crate) linked: Linked,
    /// Number of calls or streams in flight.
    pub(crate) outstanding: u32,
    /// Number of calls to count. For streams, eight times as many items are counted; for large calls, one in sixteen.
    pub(crate) calls: u64,
    /// Behaviour of the calling and the serving program.
    #[arg(value_enum, default_value_t)]
    pub(crate) shape: Shape,
}

/// Counts for one side that the program itself collects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SideTotals {
    pub(crate) turns: u64,
    pub(crate) allocations: u64,
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// Number of bytes before the payload in the longest frame. For a bundle, the number of all bytes except one
    /// message's payload.
    pub(crate) header_bytes: u64,
}

/// Output of the program, as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) calls: u64,
    pub(crate) stalls: u64,
    pub(crate) client: SideTotals,
    pub(crate) server: SideTotals,
}

/// Runs the program.
///
/// # Errors
/// Returns an error if the nodes do not start or calls fail.
pub(crate) fn run(steps: Steps) -> Result<Totals, String> {
    let folder = Folder::new().map_err(|error| format!("cannot make a temporary directory: {error}"))?;
    let mut world = World::start(steps, folder.path(), &HEAP)?;
    world.exchange(steps.shape.counted(WARM_UP))?;
    let before = world.tallies();
    let stalls = world.stalls;
    let _warm_up = world.longest();
    begin();
    let calls = world.exchange(steps.shape.counted(steps.calls))?;
    end();
    let (after, longest) = (world.tallies(), world.longest());
    // With shared memory, packets do not pass through the link. Headers are the same on all links. The reader of a stream
    // sends no payload.
    let header = |at: usize| match steps.linked {
        _ if steps.shape.streams() || steps.shape.is_large() => Ok(0),
        Linked::Shm => Ok(0),
        Linked::InProcess | Linked::Udp => {
            header_bytes(&longest[at]).ok_or("the longest datagram carries no payload")
        }
    };
    let headers = [header(0)?, header(1)?];
    let totals = |at: usize| SideTotals {
        turns: after[at].turns - before[at].turns,
        allocations: after[at].allocations - before[at].allocations,
        datagrams: after[at].datagrams - before[at].datagrams,
        bytes: after[at].bytes - before[at].bytes,
        header_bytes: headers[at] as u64,
    };
    Ok(Totals { calls, stalls: world.stalls - stalls, client: totals(0), server: totals(1) })
}

/// Returns the number of bytes before the payload in a datagram that contains a whole message.
fn header_bytes(datagram: &[u8]) -> Option<usize> {
    const BTH_XRCETH_BYTES: usize = 12 + 4;
    const ICRC_BYTES: usize = 4;
    let pad = usize::from(Bth::parse(datagram).ok()?.pad);
    datagram.len().checked_sub(BTH_XRCETH_BYTES + PAYLOAD_BYTES + pad + ICRC_BYTES)
}

/// Marks the start of counting. Callgrind resets its counts on entry to this function.
#[inline(never)]
fn begin() {
    mark(black_box(marks::BEGIN));
}

/// Marks the end of counting. Callgrind writes its counts on entry to this function.
#[inline(never)]
fn end() {
    mark(black_box(marks::END));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(linked: Linked, outstanding: u32) -> Totals {
        shaped(Shape::Plain, linked, outstanding)
    }

    fn shaped(shape: Shape, linked: Linked, outstanding: u32) -> Totals {
        run(Steps { linked, outstanding, calls: 256, shape }).unwrap()
    }

    #[test]
    fn runs_have_no_idle_turns_and_are_reproducible() {
        let runs = [(Linked::InProcess, 1), (Linked::InProcess, 32), (Linked::Udp, 1), (Linked::Shm, 1)];
        for (linked, outstanding) in runs {
            let (one, other) = (totals(linked, outstanding), totals(linked, outstanding));
            assert!(one.calls >= 256 && one.stalls == 0, "{one:?}");
            for (one, other) in [(one.client, other.client), (one.server, other.server)] {
                // Other tests allocate memory at the same time.
                assert_eq!(SideTotals { allocations: 0, ..one }, SideTotals { allocations: 0, ..other });
            }
        }
    }

    #[test]
    fn every_shape_has_no_stalls_and_reproducible_turns() {
        let plain = shaped(Shape::Plain, Linked::InProcess, 32);
        for shape in [Shape::Yielding, Shape::Channel, Shape::TwoPollers] {
            let (one, other) = [(); 2].map(|()| shaped(shape, Linked::InProcess, 32)).into();
            assert!(one.calls >= 256 && one.stalls == 0, "{shape:?} {one:?}");
            assert_eq!([one.client.turns, one.server.turns], [other.client.turns, other.server.turns]);
            let turns = |of: Totals| (of.client.turns, of.server.turns);
            // A handler that yields ends in the same turn.
            assert_eq!(turns(one) == turns(plain), shape == Shape::Yielding, "{shape:?}");
        }
    }

    #[test]
    fn frames_of_encrypted_sessions_are_longer_and_take_as_many_turns() {
        for (shape, outstanding) in [(Shape::Encrypted, 32), (Shape::EncryptedOne, 1)] {
            let plain = totals(Linked::InProcess, outstanding);
            let sealed = shaped(shape, Linked::InProcess, outstanding);
            assert_eq!((sealed.calls, sealed.stalls), (plain.calls, 0));
            for (sealed, plain) in [(sealed.client, plain.client), (sealed.server, plain.server)] {
                assert_eq!(sealed.turns, plain.turns);
                // Sealing adds a word to the header, and a tag.
                assert_eq!(sealed.header_bytes, plain.header_bytes + 18);
            }
        }
    }

    #[test]
    fn each_call_sends_payload_and_header_in_both_directions() {
        let in_memory = totals(Linked::Shm, 32);
        assert_eq!([in_memory.client, in_memory.server].map(|side| side.datagrams), [0, 0]);
        let Totals { calls, client, server, .. } = totals(Linked::InProcess, 1);
        for side in [client, server] {
            let least = PAYLOAD_BYTES as u64 + side.header_bytes + 20;
            assert!(side.datagrams >= calls && side.bytes >= calls * least, "{calls} {side:?}");
            assert!((16..=64).contains(&side.header_bytes), "{side:?}");
        }
    }
}
