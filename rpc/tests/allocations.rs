//! What a call takes from the heap, once everything has found its size.
//!
//! A test binary of its own: the counting allocator sees everything that the process does, which
//! is both ends of each call.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline::{Node, PollerContext, PollerIndex, Status, block_on};

/// Counts what is asked of the heap, by any thread.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

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
    // Nothing else runs in this process; other processes differ in their number.
    let [_, b, c, _] = std::process::id().wrapping_mul(0x9e37_79b1).to_be_bytes();
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let d = NEXT.fetch_add(1, Ordering::Relaxed);
    Node::builder().listen(format!("127.{}.{c}.{d}:7471", b.clamp(1, 254)))
}

async fn local(context: PollerContext, server: std::net::SocketAddr) -> Result<u64, Status> {
    let client = AddLocal::connect(&context, server)?;
    let mut before = 0;
    for call in 0..2 * CALLS {
        if call == CALLS {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        assert_eq!(client.add(call, 1).await?, call + 1);
    }
    Ok(ALLOCATIONS.load(Ordering::Relaxed) - before)
}

#[test]
fn a_small_call_takes_nothing_from_the_heap() {
    let server = node().serve(AddServer::new(|| Adder)).start().unwrap();
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
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    shared(CALLS);
    check("AddClient", ALLOCATIONS.load(Ordering::Relaxed) - before);
}

fn check(client: &str, allocations: u64) {
    eprintln!("{client}: {allocations} allocations in {CALLS} calls");
    // The queue of woken tasks takes a block for each 31 wakes, and a late retransmission or a
    // keepalive may stretch a queue once.
    assert!(allocations <= CALLS / 20, "{client}: {allocations} in {CALLS} calls");
}
