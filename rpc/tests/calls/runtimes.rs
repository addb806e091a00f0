//! Nodes and clients in runtimes of tokio: nothing that async code calls keeps a worker for long, and what clients return
//! goes wherever tasks go.

use crate::common::{Guard, LIMIT, Reporter, events};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use trunkline::{CallOptions, InProcessNetwork, Node, Status, block_on};

#[trunkline::service]
trait Slow {
    async fn add(&self, one: u64, other: u64) -> Result<u64, Status>;
    async fn hang(&self) -> Result<(), Status>;
}

struct Handler(Reporter<&'static str>);

impl Slow for Handler {
    async fn add(&self, one: u64, other: u64) -> Result<u64, Status> {
        Ok(one + other)
    }

    async fn hang(&self) -> Result<(), Status> {
        let _guard = Guard(self.0.clone());
        self.0.tell("started");
        std::future::pending().await
    }
}

/// A worker may be kept for so long: what dropping a node is documented to take, and what a loaded machine adds.
const KEPT: Duration = Duration::from_millis(150);

fn runtimes() -> [Runtime; 2] {
    let current = Builder::new_current_thread().enable_all().build().unwrap();
    [current, Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()]
}

/// How long the longest poll of a future takes.
async fn longest_poll<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let (mut future, mut longest) = (std::pin::pin!(future), Duration::ZERO);
    let output = std::future::poll_fn(|context| {
        let began = Instant::now();
        let polled = future.as_mut().poll(context);
        longest = longest.max(began.elapsed());
        polled
    });
    let output = output.await;
    (output, longest)
}

#[test]
fn starting_draining_and_shutting_down_keep_no_worker() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let (reporter, reported) = events();
            let network = InProcessNetwork::new();
            let build = || Node::builder().in_process(&network).grace(Duration::from_millis(600));
            let (server, took) =
                longest_poll(build().serve(SlowServer::new(Handler(reporter))).start_async()).await;
            let server = server.unwrap();
            let node = build().start_async().await.unwrap();
            let client = SlowClient::new(node.channel(server.local_address()));
            assert_eq!(client.add(1, 2).await, Ok(3));
            let hangs = tokio::spawn({
                let client = client.clone();
                async move { client.hang().await }
            });
            tokio::task::spawn_blocking(move || assert_eq!(reported.next(), "started")).await.unwrap();
            // The handler keeps the grace period from ending early.
            let began = Instant::now();
            let (drained, kept) = longest_poll(server.drain_async()).await;
            assert!(!drained && began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
            let ((), ended) = longest_poll(server.shutdown_async()).await;
            assert!(server.is_drained(), "it has ended");
            assert!(took.max(kept).max(ended) < KEPT, "a worker was kept: {took:?} {kept:?} {ended:?}");
            assert!(hangs.await.unwrap().is_err());
            node.shutdown_async().await;
            assert!(client.add(1, 2).await.is_err());
        });
    }
}

#[test]
fn dropping_a_node_keeps_no_worker_for_long() {
    for runtime in runtimes() {
        let (reporter, reported) = events();
        let network = InProcessNetwork::new();
        runtime.block_on(async {
            let server = Node::builder().in_process(&network).serve(SlowServer::new(Handler(reporter)));
            let server = server.start_async().await.unwrap();
            let node = Node::builder().in_process(&network).start_async().await.unwrap();
            let client = SlowClient::new(node.channel(server.local_address()));
            let task = client.clone();
            let hangs = tokio::spawn(async move { task.hang().await });
            let reported = tokio::task::spawn_blocking(move || {
                assert_eq!(reported.next(), "started");
                reported
            });
            let reported = reported.await.unwrap();
            // Its handler would keep a drop for 200 ms.
            let began = Instant::now();
            drop(server);
            assert!(began.elapsed() < KEPT, "{:?}", began.elapsed());
            assert!(hangs.await.unwrap().is_err());
            tokio::task::spawn_blocking(move || assert_eq!(reported.next(), "dropped")).await.unwrap();
            let began = Instant::now();
            drop(node);
            assert!(began.elapsed() < KEPT, "{:?}", began.elapsed());
        });
    }
}

#[test]
fn a_start_that_is_dropped_leaves_no_node() {
    let network = InProcessNetwork::new();
    let address = Node::builder().in_process(&network).start().unwrap().local_address();
    drop(Node::builder().in_process(&network).start_async());
    let node = Node::builder().in_process(&network).start().unwrap();
    assert_ne!(node.local_address(), address);
    let wrong = Node::builder().in_process(&network).pollers(0).start_async();
    assert!(block_on(wrong).is_err(), "errors come through");
}

/// What a stub returns borrows its client, and nothing else.
#[test]
fn futures_of_stubs_go_wherever_tasks_go() {
    let [_, runtime] = runtimes();
    runtime.block_on(async {
        let network = InProcessNetwork::new();
        let (reporter, _reported) = events();
        let server = Node::builder().in_process(&network).serve(SlowServer::new(Handler(reporter)));
        let server = server.start_async().await.unwrap();
        let node = Node::builder().in_process(&network).start_async().await.unwrap();
        let client = SlowClient::new(node.channel(server.local_address()));
        // Options and arguments end before the call.
        let call = {
            let options = CallOptions::new().timeout(LIMIT);
            let numbers = [1, 2];
            client.with(&options).add(numbers[0], numbers[1])
        };
        assert_eq!(call.await, Ok(3));
        // Many at once, of one client.
        let calls = (0..100).map(|number| client.add(number, 1)).collect::<Vec<_>>();
        for (number, call) in (0..).zip(calls) {
            assert_eq!(call.await, Ok(number + 1));
        }
        // In tasks, with a client of their own.
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..100 {
            let client = client.clone();
            tasks.spawn(async move { client.with(&CallOptions::new()).add(number, 1).await });
        }
        while let Some(ended) = tasks.join_next().await {
            assert!(ended.unwrap().is_ok());
        }
        let ready = tokio::spawn(node.channel(server.local_address()).ready());
        assert_eq!(ready.await.unwrap(), Ok(()));
        node.shutdown_async().await;
    });
}
