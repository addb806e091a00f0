//! Handlers that exist once for all pollers or once per poller, and the operations that handlers may use.

use crate::common::{Events, LIMIT, events, node, pair};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Code, PollerContext, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Counter {
    /// Increments the handler's count. Returns the count and the index of its poller.
    async fn count(&self) -> (u32, u16);
    /// Sleeps with tokio's timer, inside and outside a tokio task.
    async fn sleep(&self) -> Result<u32, Status>;
}

fn poller() -> u16 {
    PollerContext::current().unwrap().poller().0
}

async fn sleep() -> Result<u32, Status> {
    let pause = Duration::from_millis(5);
    let task = tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        7
    });
    tokio::time::timeout(LIMIT, tokio::time::sleep(pause))
        .await
        .map_err(|_| Status::internal("it takes too long"))?;
    task.await.map_err(|error| Status::internal(error.to_string()))
}

#[derive(Default)]
struct SharedCounter(AtomicU32);

impl Counter for SharedCounter {
    async fn count(&self) -> (u32, u16) {
        (self.0.fetch_add(1, Ordering::Relaxed) + 1, poller())
    }
    async fn sleep(&self) -> Result<u32, Status> {
        sleep().await
    }
}

#[derive(Default)]
struct Own(Cell<u32>);

impl Counter for Own {
    async fn count(&self) -> (u32, u16) {
        self.0.set(self.0.get() + 1);
        (self.0.get(), poller())
    }
    async fn sleep(&self) -> Result<u32, Status> {
        sleep().await
    }
}

const POLLERS: u16 = 4;
const CALLS: u32 = 16;

/// Returns the counts and pollers of some calls.
fn count(server: CounterServer) -> Vec<(u32, u16)> {
    let server = node().pollers(POLLERS).serve(server).start().unwrap();
    let caller = node().start().unwrap();
    let client = CounterClient::connect(&caller, server.local_address()).unwrap();
    (0..CALLS).map(|_| block_on(client.count()).unwrap()).collect()
}

#[test]
fn all_pollers_share_one_handler() {
    let kept = Arc::new(SharedCounter::default());
    let counts = count(CounterServer::shared(Arc::clone(&kept)));
    assert_eq!(counts.iter().map(|(count, _)| *count).collect::<Vec<_>>(), (1..=CALLS).collect::<Vec<_>>());
    let mut pollers = counts.iter().map(|(_, poller)| *poller).collect::<Vec<_>>();
    pollers.sort_unstable();
    pollers.dedup();
    assert_eq!(pollers.len(), usize::from(POLLERS), "all take part");
    assert_eq!(kept.0.load(Ordering::Relaxed), CALLS, "the program's own reference is to the same handler");
    assert_eq!(count(CounterServer::new(SharedCounter::default())).last().unwrap().0, CALLS);
}

#[test]
fn per_poller_service_has_one_handler_per_poller() {
    let counts = count(CounterServer::per_poller(|context| {
        assert_eq!(PollerContext::current().unwrap().poller(), context.poller());
        Ok::<_, Status>(Own::default())
    }));
    for own in 0..POLLERS {
        let of_poller = counts.iter().filter(|(_, poller)| *poller == own).map(|(count, _)| *count);
        assert_eq!(of_poller.collect::<Vec<_>>(), (1..=CALLS / u32::from(POLLERS)).collect::<Vec<_>>());
    }
}

#[test]
fn tokio_works_in_handlers_and_tasks_of_node_with_tokio_handle() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = node()
        .tokio(runtime.handle().clone())
        .serve(CounterServer::new(SharedCounter::default()))
        .start()
        .unwrap();
    let caller = node().start().unwrap();
    let client = CounterClient::connect(&caller, server.local_address()).unwrap();
    assert_eq!(block_on(client.sleep()), Ok(7));
    assert_eq!(block_on(server.run_on(PollerIndex(0), |_| sleep())).unwrap(), Ok(7));
    server.shutdown();
}

#[test]
fn tokio_call_in_handler_without_runtime_fails_with_remedy() {
    let (server, caller) = pair(CounterServer::new(SharedCounter::default()));
    let client = CounterClient::connect(&caller, server.local_address()).unwrap();
    let status = block_on(client.sleep()).unwrap_err();
    assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::Panicked)));
    assert!(status.message().contains("start the node with NodeBuilder::tokio(handle)"), "{status}");
    let bare = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let server = node()
        .tokio(bare.handle().clone())
        .serve(CounterServer::new(SharedCounter::default()))
        .start()
        .unwrap();
    let client = CounterClient::connect(&caller, server.local_address()).unwrap();
    let status = block_on(client.sleep()).unwrap_err();
    assert!(status.message().contains("enable_all"), "{status}");
}

#[trunkline::service]
trait Steps {
    async fn step(&self, at: u32) -> bool;
}

/// The last call of a bundle blocks the poller's thread until the first call's reply has arrived.
struct LastWaits {
    first_is_answered: Events<()>,
    last: u32,
}

impl Steps for LastWaits {
    async fn step(&self, at: u32) -> bool {
        if at == self.last {
            return self.first_is_answered.is_told();
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(100) {}
        true
    }
}

#[test]
fn replies_are_sent_while_later_handlers_of_same_bundle_run() {
    let (reporter, first_is_answered) = events();
    let last = 9;
    let (server, client) = pair(StepsServer::new(LastWaits { first_is_answered, last }));
    let address = server.local_address();
    let told_in_time = client.run_on(PollerIndex(0), move |context| async move {
        let steps = StepsLocal::connect(&context, address)?;
        steps.step(0).await?;
        let mut calls: Vec<_> = (0..=last).map(|at| steps.step(at)).collect();
        let of_last = calls.pop().ok_or_else(|| Status::internal("no call"))?;
        for call in calls {
            call.await?;
            reporter.tell(());
        }
        of_last.await
    });
    assert_eq!(block_on(told_in_time).unwrap(), Ok(true));
}
