//! Allocations per call, on both sides together, after all buffers have grown to their final size.

use crate::HEAP;
use trunkline::{Node, PollerContext, PollerIndex, Status, block_on};
use trunkline_testkit::fresh_address;

/// A service whose argument and result types own no heap memory.
#[trunkline::service]
trait Add {
    async fn add(&self, left: u64, right: u64) -> Result<u64, Status>;
}

struct Adder;

impl Add for Adder {
    async fn add(&self, left: u64, right: u64) -> Result<u64, Status> {
        Ok(left.wrapping_add(right))
    }
}

/// Number of calls in a round, and number of rounds.
const CALLS: u64 = 500;
const ROUNDS: u64 = 8;

fn node() -> trunkline::NodeBuilder {
    Node::builder().listen(fresh_address())
}

async fn local(context: PollerContext, server: std::net::SocketAddr) -> Result<Vec<u64>, Status> {
    let client = AddLocal::connect(&context, server)?;
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        let before = HEAP.allocations();
        for call in 0..CALLS {
            assert_eq!(client.add(call, 1).await?, call + 1);
        }
        counts.push(HEAP.allocations() - before);
    }
    Ok(counts)
}

pub(crate) fn small_call_does_not_allocate() {
    let server = node().serve(AddServer::new(Adder)).start().unwrap();
    let caller = node().start().unwrap();
    let address = server.local_address();
    let counts = block_on(caller.run_on(PollerIndex(0), move |context| local(context, address)));
    check("AddLocal", &counts.unwrap().unwrap());

    let client = AddClient::connect(&caller, address).unwrap();
    let count = |_| {
        let before = HEAP.allocations();
        for call in 0..CALLS {
            assert_eq!(block_on(client.add(call, 1)), Ok(call + 1));
        }
        HEAP.allocations() - before
    };
    check("AddClient", &(0..ROUNDS).map(count).collect::<Vec<_>>());
}

fn check(client: &str, counts: &[u64]) {
    eprintln!("{client}: {counts:?} allocations in rounds of {CALLS} calls");
    // The first round fills buffers. On a busy machine, retransmissions and keepalives allocate memory in some of the other
    // rounds. The queue of woken tasks allocates one block per 31 wakes.
    let least = counts.iter().min().copied();
    assert!(
        least.is_some_and(|least| least <= CALLS / 20),
        "{client}: {counts:?} in rounds of {CALLS} calls"
    );
}
