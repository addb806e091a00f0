//! Many concurrent callers: threads, tokio tasks and futures on one thread.

use crate::common::node;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Node, Status, block_on};

#[trunkline::service]
trait Echo {
    async fn echo(&self, number: u64, text: String) -> Result<(u64, String), Status>;
}

struct Echoing;

impl Echo for Echoing {
    async fn echo(&self, number: u64, text: String) -> Result<(u64, String), Status> {
        Ok((number, text))
    }
}

fn nodes(pollers: u16) -> (Node, Node) {
    let server = node().pollers(pollers).serve(EchoServer::new(Echoing)).start().unwrap();
    (server, node().pollers(pollers).start().unwrap())
}

#[test]
fn many_threads_share_a_client() {
    for pollers in [1, 2] {
        let (server, node) = nodes(pollers);
        let client = EchoClient::connect(&node, server.local_address()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let client = client.clone();
                scope.spawn(move || {
                    for number in 0..100 {
                        let text = format!("{thread} {number}");
                        let back = block_on(client.echo(thread << 32 | number, text.clone()));
                        assert_eq!(back, Ok((thread << 32 | number, text)));
                    }
                });
            }
        });
        let lanes = node.report().traffic;
        let used = lanes.iter().filter(|lane| lane.sent > 100).count();
        assert!(used >= usize::from(pollers), "every poller has calls: {lanes:?}");
    }
}

#[test]
fn tokio_tasks_call() {
    let (server, node) = nodes(1);
    let client = Arc::new(EchoClient::connect(&node, server.local_address()).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..500)
            .map(|number| {
                let client = client.clone();
                tokio::spawn(async move { client.echo(number, String::new()).await })
            })
            .collect();
        for (number, task) in (0..500).zip(tasks) {
            assert_eq!(task.await.unwrap(), Ok((number, String::new())));
        }
        // Aborting a task cancels its call.
        let stopped = tokio::spawn({
            let client = client.clone();
            async move { client.echo(1, "x".repeat(100_000)).await }
        });
        stopped.abort();
        let _ = stopped.await;
        assert_eq!(client.echo(2, String::new()).await, Ok((2, String::new())));
    });
}

#[test]
fn thousands_of_calls_are_outstanding_at_once() {
    let (server, node) = nodes(1);
    let client =
        EchoClient::connect(&node, server.local_address()).unwrap().with_timeout(Duration::from_secs(60));
    // The first call waits for the session; calls made meanwhile wait in a bounded queue.
    assert!(block_on(client.echo(0, String::new())).is_ok());
    let mut calls: Vec<_> = (0..3000).map(|number| client.echo(number, "text".into())).collect();
    drop(calls.split_off(1500));
    for (number, call) in (0..).zip(calls) {
        assert_eq!(block_on(call), Ok((number, "text".to_owned())));
    }
}

#[test]
fn calls_through_fresh_clones_use_all_pollers_alike() {
    let server = node().serve(EchoServer::new(Echoing)).start().unwrap();
    let node = node().pollers(4).start().unwrap();
    let client = EchoClient::connect(&node, server.local_address()).unwrap();
    for number in 0..400 {
        let one_call = client.clone();
        assert_eq!(block_on(one_call.echo(number, String::new())), Ok((number, String::new())));
    }
    let mut received = [0; 4];
    for lane in node.report().traffic {
        received[usize::from(lane.local.0)] += lane.received;
    }
    assert!(received.iter().all(|count| (80..=120).contains(count)), "{received:?}");
}
