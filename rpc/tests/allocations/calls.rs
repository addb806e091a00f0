//! Allocations of a call, on both of its ends, after all buffers have grown to their final size.

use crate::HEAP;
use trunkline::{Node, PollerContext, PollerIndex, Status, block_on};
use trunkline_testkit::fresh_address;

/// A call whose types own nothing.
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

const CALLS: u64 = 2000;

fn node() -> trunkline::NodeBuilder {
    Node::builder().listen(fresh_address())
}

async fn local(context: PollerContext, server: std::net::SocketAddr) -> Result<u64, Status> {
    let client = AddLocal::connect(&context, server)?;
    let mut before = 0;
    for call in 0..2 * CALLS {
        if call == CALLS {
            before = HEAP.allocations();
        }
        assert_eq!(client.add(call, 1).await?, call + 1);
    }
    Ok(HEAP.allocations() - before)
}

pub(crate) fn small_call_does_not_allocate() {
    let server = node().serve(AddServer::new(Adder)).start().unwrap();
    let caller = node().start().unwrap();
    let address = server.local_address();
    let count = block_on(caller.run_on(PollerIndex(0), move |context| local(context, address)));
    check("AddLocal", count.unwrap().unwrap());

    let client = AddClient::connect(&caller, address).unwrap();
    let shared = |from: u64| {
        for call in from..from + CALLS {
            assert_eq!(block_on(client.add(call, 1)), Ok(call + 1));
        }
    };
    shared(0);
    let before = HEAP.allocations();
    shared(CALLS);
    check("AddClient", HEAP.allocations() - before);
}

fn check(client: &str, allocations: u64) {
    eprintln!("{client}: {allocations} allocations in {CALLS} calls");
    // The queue of woken tasks allocates a block for every 31 wakes, and a late retransmission or a
    // keepalive may grow a queue once.
    assert!(allocations <= CALLS / 20, "{client}: {allocations} in {CALLS} calls");
}
