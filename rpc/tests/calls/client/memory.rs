//! Replies for which the caller's node has no memory.

use crate::common::{node, until};
use std::time::Duration;
use trunkline::{Bytes, Code, Node, Reason, Status, block_on};

#[trunkline::service]
trait Blocks {
    async fn block(&self, bytes: u32) -> Result<Bytes, Status>;
}

struct Zeros;

impl Blocks for Zeros {
    async fn block(&self, bytes: u32) -> Result<Bytes, Status> {
        Ok(vec![0; usize::try_from(bytes).unwrap()].into())
    }
}

const BYTES: u32 = 600 << 10;

/// Starts a server, and a caller that has memory for one reply of [`BYTES`].
fn nodes() -> (Node, Node) {
    // A reply waits for memory for half of this limit.
    let server = node().stall_limit(Duration::from_secs(2)).serve(BlocksServer::new(Zeros));
    let server = server.start().unwrap();
    let caller = node().rendezvous_bytes(1 << 20).max_message_bytes(640 << 10);
    (server, caller.start().unwrap())
}

fn assert_names_the_setting(status: &Status) {
    let text = status.to_string();
    let size = format!("message of {} bytes", 24 + BYTES);
    assert!(text.contains(&size) && text.contains("rendezvous_bytes_per_peer"), "{text}");
    assert!(text.contains("Blocks.block at 127."), "{text}");
    assert!(status.may_have_run(), "{text}");
}

#[test]
fn a_reply_without_memory_ends_its_call_with_the_setting() {
    let (server, caller) = nodes();
    let client = BlocksClient::connect(&caller, server.local_address()).unwrap();
    let held = block_on(client.block(BYTES)).unwrap();

    let short = client.clone().with_timeout(Duration::from_millis(200));
    let status = until("a reply waits for memory before the time limit of its call", || {
        let status = block_on(short.block(BYTES)).unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        status.to_string().contains("message of").then_some(status)
    });
    assert_names_the_setting(&status);

    // The wait for memory ends the call. At the call's time limit the code would differ.
    let long = Duration::from_secs(60);
    let status = block_on(client.clone().with_timeout(long).block(BYTES)).unwrap_err();
    assert_eq!(
        (status.code(), status.reason()),
        (Code::ResourceExhausted, Some(Reason::Overloaded)),
        "{status}"
    );
    assert_names_the_setting(&status);

    drop(held);
    assert_eq!(block_on(client.block(BYTES)).unwrap().len(), usize::try_from(BYTES).unwrap());
}
