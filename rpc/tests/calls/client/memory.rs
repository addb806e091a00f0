//! Replies for which the caller's node has no memory, and messages whose memory cannot be registered.

use crate::common::{fresh_address, node, pair, until};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline::stream::{Stream, channel};
use trunkline::{Bytes, Code, Node, NodeBuilder, Reason, Status, Streaming, block_on};
use trunkline_softrdma::device::SoftOptions;
use trunkline_transport::{NodeOptions, ProviderChoice};

#[trunkline::service]
trait Blocks {
    async fn block(&self, bytes: u32) -> Result<Bytes, Status>;
    async fn take(&self, block: Bytes) -> Result<usize, Status>;
    async fn feed(&self, bytes: u32) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;
    async fn gather(&self, blocks: Streaming<Bytes>) -> Result<usize, Status>;
}

struct Zeros;

impl Blocks for Zeros {
    async fn block(&self, bytes: u32) -> Result<Bytes, Status> {
        Ok(zeros(bytes))
    }

    async fn take(&self, block: Bytes) -> Result<usize, Status> {
        Ok(block.len())
    }

    async fn feed(&self, bytes: u32) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        Ok(Endless(zeros(bytes)))
    }

    async fn gather(&self, mut blocks: Streaming<Bytes>) -> Result<usize, Status> {
        let mut bytes = 0;
        while let Some(block) = blocks.message().await? {
            bytes += block.len();
        }
        Ok(bytes)
    }
}

fn zeros(bytes: u32) -> Bytes {
    vec![0; usize::try_from(bytes).unwrap()].into()
}

/// A stream that repeats one block.
struct Endless(Bytes);

impl Stream for Endless {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(Some(Ok(self.0.clone())))
    }
}

const BYTES: u32 = 600 << 10;

/// Starts a server and a caller that has memory for only one reply of [`BYTES`].
fn nodes() -> (Node, Node) {
    // A reply waits for memory for at most half of this limit.
    let server = node().stall_limit(Duration::from_secs(2)).serve(BlocksServer::new(Zeros));
    let server = server.start().unwrap();
    let caller = node().rendezvous_bytes(1 << 20).max_message_bytes(640 << 10);
    (server, caller.start().unwrap())
}

fn assert_names_the_setting(status: &Status) {
    let text = status.to_string();
    let size = format!("message of {} bytes", 16 + BYTES);
    assert!(text.contains(&size) && text.contains("rendezvous_bytes_per_peer"), "{text}");
    assert!(text.contains("Blocks.block at 127."), "{text}");
    assert!(status.may_have_run(), "{text}");
}

#[test]
fn reply_without_memory_ends_its_call_with_setting() {
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

    // The wait for memory ends the call. If the call's time limit ended it, the code would be different.
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

/// Returns the number of bytes of large messages that a node has received and still holds.
fn held_bytes(node: &Node) -> u64 {
    let budgets = node.report().budgets;
    budgets.iter().find(|budget| budget.name == "bytes of large messages received").unwrap().used
}

#[test]
fn large_item_keeps_its_memory_until_dropped() {
    let (server, caller) = pair(BlocksServer::new(Zeros));
    let client = BlocksClient::connect(&caller, server.local_address()).unwrap();
    let mut items = block_on(client.feed(BYTES)).unwrap();
    let item = block_on(items.message()).unwrap().unwrap();
    drop(items);
    let one = u64::from(BYTES)..2 * u64::from(BYTES);
    until("only the item is left", || one.contains(&held_bytes(&caller)).then_some(()));
    assert_eq!(item, zeros(BYTES));
    drop(item);
    until("its memory is returned", || (held_bytes(&caller) == 0).then_some(()));
}

#[test]
fn stopped_readers_leave_memory_for_largest_message() {
    const LARGEST: u32 = 4 << 20;
    let server = node().serve(BlocksServer::new(Zeros)).start().unwrap();
    let caller =
        node().rendezvous_bytes_per_peer(8 << 20).max_message_bytes(LARGEST as usize).start().unwrap();
    let client = BlocksClient::connect(&caller, server.local_address()).unwrap();
    // The first items of these streams need more memory than remains beside the largest message.
    let stopped = (0..10).map(|_| block_on(client.feed(BYTES)).unwrap()).collect::<Vec<_>>();
    for _ in 0..10 {
        let reply = block_on(client.block(LARGEST - 64)).unwrap();
        assert_eq!(reply.len(), LARGEST as usize - 64);
    }
    until("items keep some memory", || (held_bytes(&caller) > 0).then_some(()));
    for mut items in stopped {
        assert_eq!(block_on(items.message()).unwrap().unwrap(), zeros(BYTES));
    }
}

#[test]
fn call_ends_with_cause_if_message_registration_fails() {
    // The limit allows only enough regions for the poller's slots.
    let limited = || -> NodeBuilder {
        let device = SoftOptions { max_regions: Some(2), ..SoftOptions::from_env().unwrap() };
        let options = NodeOptions::new().provider(ProviderChoice::Soft).device(device);
        Node::builder().transport(options).listen(fresh_address())
    };
    let start = |builder: NodeBuilder| builder.serve(BlocksServer::new(Zeros)).start().unwrap();
    let (limited, other) = (start(limited()), start(node()));
    let connect = |from: &Node, to: &Node| {
        let client = BlocksClient::connect(from, to.local_address()).unwrap();
        client.with_timeout(Duration::from_secs(60))
    };
    let (to_limited, to_other) = (connect(&other, &limited), connect(&limited, &other));
    let reply = || block_on(to_limited.block(BYTES)).unwrap_err();
    let item_of_handler = || {
        block_on(async {
            let mut items = to_limited.feed(BYTES).await?;
            items.message().await
        })
        .unwrap_err()
    };
    let request = || block_on(to_other.take(zeros(BYTES))).unwrap_err();
    let item_of_caller = || {
        let (sender, blocks) = channel(1);
        sender.try_send(zeros(BYTES)).unwrap();
        block_on(to_other.gather(blocks)).unwrap_err()
    };
    let cases: [(&dyn Fn() -> Status, bool); 4] =
        [(&reply, true), (&item_of_handler, true), (&request, false), (&item_of_caller, true)];
    for (fails, may_have_run) in cases {
        let status = fails();
        let kind = (status.code(), status.reason(), status.may_have_run());
        let expected = (Code::ResourceExhausted, Some(Reason::Overloaded), may_have_run);
        assert_eq!(kind, expected, "{status}");
        assert!(status.to_string().contains("the memory of the message cannot be registered: "), "{status}");
    }
    // Calls without registered memory still succeed, and the failed calls have been released.
    assert_eq!(block_on(to_limited.block(10)).unwrap().len(), 10);
    assert_eq!(block_on(to_other.take(zeros(10))), Ok(10));
    for node in [&limited, &other] {
        until("no call is left", || {
            node.report().budgets.iter().all(|budget| budget.used == 0).then_some(())
        });
    }
}
