//! Nodes and clients in tokio runtimes. Functions that async code calls do not block a worker while they wait, and a
//! client's futures can move between tasks.

use crate::common::{Guard, LIMIT, Reporter, events, until};
use std::pin::pin;
use std::task::Poll;
use tokio::runtime::{Builder, Runtime};
use trunkline::{InProcessNetwork, Node, Status, block_on};

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

fn runtimes() -> [Runtime; 2] {
    let current = Builder::new_current_thread().enable_all().build().unwrap();
    [current, Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()]
}

/// Polls a future once, calls `then` to complete the future, and awaits it. Fails if the first poll returns the outcome,
/// because the future has then blocked its thread.
async fn yields<T>(what: &str, future: impl Future<Output = T>, then: impl FnOnce()) -> T {
    let mut future = pin!(future);
    let first = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    assert!(first.is_pending(), "{what} kept the thread until it had ended");
    then();
    future.await
}

#[test]
fn starting_draining_and_shutting_down_do_not_block_worker() {
    let [current, multi] = runtimes();
    for (runtime, shuts_down) in [(&current, false), (&current, true), (&multi, false), (&multi, true)] {
        runtime.block_on(async {
            let (reporter, reported) = events();
            let network = InProcessNetwork::new();
            let build = || Node::builder().in_process(&network).grace(LIMIT);
            let (makes, made) = events();
            let service = SlowServer::per_poller(move |_| {
                made.next();
                Ok::<_, Status>(Handler(reporter.clone()))
            });
            let start = build().serve(service).start_async();
            let server = yields("the start", start, || makes.tell(())).await.unwrap();
            let node = build().start_async().await.unwrap();
            let client = SlowClient::new(node.channel(server.local_address())).with_timeout(2 * LIMIT);
            assert_eq!(client.add(1, 2).await, Ok(3));
            let hangs = tokio::spawn({
                let client = client.clone();
                async move { client.hang().await }
            });
            tokio::task::spawn_blocking(move || assert_eq!(reported.next(), "started")).await.unwrap();
            // The handler ends with its caller, long before the grace period.
            let abort = || hangs.abort();
            if shuts_down {
                yields("the shutdown", server.shutdown_async(), abort).await;
            } else {
                let is_drained = yields("draining", server.drain_async(), abort).await;
                assert!(is_drained, "its handler has ended");
            }
            assert!(server.is_drained(), "it has ended");
            server.shutdown_async().await;
            assert!(hangs.await.unwrap_err().is_cancelled());
            node.shutdown_async().await;
            assert!(client.add(1, 2).await.is_err());
        });
    }
}

#[test]
fn dropping_node_does_not_keep_worker_until_its_handlers_have_ended() {
    for runtime in runtimes() {
        // On a loaded machine, the handler may end before the check. Repeat the attempt until it does not.
        until("a drop that returns before the handler has ended", || {
            let (reporter, reported) = events();
            let network = InProcessNetwork::new();
            runtime.block_on(async {
                let server = Node::builder().in_process(&network).serve(SlowServer::new(Handler(reporter)));
                let server = server.start_async().await.unwrap();
                let node = Node::builder().in_process(&network).start_async().await.unwrap();
                let client = SlowClient::new(node.channel(server.local_address()));
                let hangs = tokio::spawn(async move { client.hang().await });
                let reported = tokio::task::spawn_blocking(move || {
                    assert_eq!(reported.next(), "started");
                    reported
                });
                let reported = reported.await.unwrap();
                drop(server);
                if let Some(event) = reported.try_next() {
                    assert_eq!(event, "dropped");
                    return None;
                }
                assert!(hangs.await.unwrap().is_err());
                tokio::task::spawn_blocking(move || assert_eq!(reported.next(), "dropped")).await.unwrap();
                Some(())
            })
        });
    }
}

#[test]
fn dropped_start_does_not_leave_node() {
    let network = InProcessNetwork::new();
    let address = Node::builder().in_process(&network).start().unwrap().local_address();
    drop(Node::builder().in_process(&network).start_async());
    let node = Node::builder().in_process(&network).start().unwrap();
    assert_ne!(node.local_address(), address);
    let wrong = Node::builder().in_process(&network).pollers(0).start_async();
    assert!(block_on(wrong).is_err(), "errors come through");
}
