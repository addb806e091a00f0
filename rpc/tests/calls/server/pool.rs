//! Methods that run in the worker pool. They run concurrently with other calls on their poller, their number is limited,
//! and they end with their calls.

use crate::common::{Events, Guard, LIMIT, Reporter, events, node, until};
use crate::gate::Gate;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use trunkline::{
    Bytes, CallError, Code, Context, Limit, Node, NodeBuilder, PollerContext, Reason, Status, block_on,
};

/// An application error type.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Odd(u32);

#[trunkline::service]
trait Work {
    async fn echo(&self, number: u32) -> u32;
    /// Returns the thread's name, and true if the thread belongs to a poller.
    async fn here(&self) -> (String, bool);
    #[offload]
    async fn here_offloaded(&self) -> (String, bool);
    #[blocking]
    async fn here_blocking(&self) -> (String, bool);
    /// Returns half of an even number, the length of `bytes`, and true if the peer in the ambient context is the same.
    #[offload]
    async fn half(&self, cx: &Context, number: u32, bytes: Bytes) -> Result<(u32, u32, bool), Odd>;
    #[blocking]
    async fn picture(&self, bytes: Bytes) -> Result<Option<Bytes>, Status>;
    /// Blocks its thread until the test sends a value. Its future is not `Send`.
    #[blocking]
    async fn block(&self) -> Result<u32, Status>;
    /// Waits until its call ends.
    #[blocking]
    async fn outlive(&self, cx: &Context);
    /// Waits at the gate.
    #[offload]
    async fn wait(&self) -> u32;
    #[offload]
    async fn panic(&self);
    #[blocking]
    async fn panic_blocking(&self);
    /// Makes a nested call and blocks until it ends. Returns the nested call's remaining time.
    #[blocking]
    async fn ask(&self) -> Result<Option<Duration>, Status>;
    async fn left(&self, cx: &Context) -> Option<Duration>;
    /// Sleeps with a tokio timer.
    #[offload]
    async fn sleep(&self) -> u32;
    /// Sleeps with a timer of the pool while it blocks its worker.
    #[blocking]
    async fn nap(&self) -> u32;
    /// Sleeps with a timer of the pool.
    #[offload]
    async fn doze(&self) -> u32;
    #[oneway]
    #[offload]
    async fn note(&self);
}

struct Worker {
    reporter: Reporter<&'static str>,
    blocked: Mutex<Receiver<u32>>,
    gate: Gate,
    client: Mutex<Option<WorkClient>>,
}

fn here() -> (String, bool) {
    (thread::current().name().unwrap_or_default().to_owned(), PollerContext::current().is_some())
}

impl Work for Worker {
    async fn echo(&self, number: u32) -> u32 {
        number
    }
    async fn here(&self) -> (String, bool) {
        here()
    }
    async fn here_offloaded(&self) -> (String, bool) {
        here()
    }
    async fn here_blocking(&self) -> (String, bool) {
        here()
    }
    async fn half(&self, cx: &Context, number: u32, bytes: Bytes) -> Result<(u32, u32, bool), Odd> {
        trunkline::yield_now().await;
        let same =
            Context::current().is_some_and(|current| current.peer() == cx.peer() && cx.peer().is_some());
        let length = u32::try_from(bytes.len()).unwrap();
        if number.is_multiple_of(2) { Ok((number / 2, length, same)) } else { Err(Odd(number)) }
    }
    async fn picture(&self, bytes: Bytes) -> Result<Option<Bytes>, Status> {
        match bytes.is_empty() {
            true => Err(Status::not_found("nothing").with_details(&b"details"[..])),
            false => Ok(Some(bytes)),
        }
    }
    async fn block(&self) -> Result<u32, Status> {
        let not_send = Rc::new(1);
        self.reporter.tell("started");
        let number =
            self.blocked.lock().unwrap().recv_timeout(LIMIT).map_err(|_| Status::internal("nobody"))?;
        trunkline::yield_now().await;
        Ok(number * *not_send)
    }
    async fn outlive(&self, cx: &Context) {
        self.reporter.tell("started");
        // Both checks run on the worker's thread.
        while !cx.is_cancelled() {
            thread::yield_now();
        }
        Context::current().unwrap().cancelled().await;
        self.reporter.tell("saw the end");
    }
    async fn wait(&self) -> u32 {
        let _guard = Guard(self.reporter.clone());
        self.reporter.tell("started");
        self.gate.pass().await;
        3
    }
    async fn panic(&self) {
        trunkline::yield_now().await;
        panic!("on purpose");
    }
    async fn panic_blocking(&self) {
        panic!("on purpose");
    }
    async fn ask(&self) -> Result<Option<Duration>, Status> {
        let client = self.client.lock().unwrap().clone().ok_or_else(|| Status::internal("no client"))?;
        block_on(client.left())
    }
    async fn left(&self, cx: &Context) -> Option<Duration> {
        cx.time_left()
    }
    async fn sleep(&self) -> u32 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        5
    }
    async fn nap(&self) -> u32 {
        self.reporter.tell("started");
        block_on(trunkline::sleep(Duration::from_millis(20)));
        block_on(trunkline::timeout(Duration::from_millis(20), std::future::pending::<()>()))
            .map_or(6, |()| 0)
    }
    async fn doze(&self) -> u32 {
        self.reporter.tell("started");
        trunkline::sleep(Duration::from_millis(200)).await;
        7
    }
    async fn note(&self) {
        self.reporter.tell("noted");
    }
}

struct Rig {
    server: Node,
    _caller: Node,
    client: WorkClient,
    told: Events<&'static str>,
    release: Sender<u32>,
    gate: Gate,
    handler: Arc<Worker>,
}

fn rig(configure: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Rig {
    let ((reporter, told), (release, blocked)) = (events(), channel());
    let gate = Gate::default();
    let handler = Arc::new(Worker {
        reporter,
        blocked: Mutex::new(blocked),
        gate: gate.clone(),
        client: Mutex::default(),
    });
    let service = WorkServer::shared(Arc::clone(&handler));
    let server = configure(node().grace(Duration::from_millis(200))).serve(service).start().unwrap();
    let caller = node().start().unwrap();
    let client = WorkClient::connect(&caller, server.local_address()).unwrap();
    Rig { server, _caller: caller, client, told, release, gate, handler }
}

#[test]
fn methods_run_on_thread_chosen_by_attribute() {
    let all = rig(|node| node.workers(2));
    let Rig { client, told, .. } = &all;
    let (poller, on_poller) = block_on(client.here()).unwrap();
    assert!(poller.starts_with("trunkline-poll") && on_poller, "{poller}");
    for (worker, on_poller) in
        [block_on(client.here_offloaded()).unwrap(), block_on(client.here_blocking()).unwrap()]
    {
        assert!(worker.starts_with("trunkline-work") && !on_poller, "{worker}");
    }
    block_on(client.note()).unwrap();
    assert_eq!(told.next(), "noted");
}

#[test]
fn blocking_method_does_not_keep_its_poller() {
    let all = rig(|node| node.workers(1));
    let Rig { client, told, release, .. } = &all;
    let blocked = client.block();
    assert_eq!(told.next(), "started");
    // One poller serves all of these calls.
    for number in 0..100 {
        assert_eq!(block_on(client.echo(number)), Ok(number));
    }
    release.send(7).unwrap();
    assert_eq!(block_on(blocked), Ok(7));
}

#[test]
fn values_errors_and_bytes_pass_through_pool() {
    let all = rig(|node| node.workers(2));
    let Rig { client, .. } = &all;
    let bytes = Bytes::from(vec![1; 100_000]);
    assert_eq!(block_on(client.half(8, bytes.clone())), Ok((4, 100_000, true)));
    assert_eq!(block_on(client.half(7, bytes.clone())), Err(CallError::Handler(Odd(7))));
    assert_eq!(block_on(client.picture(bytes.clone())), Ok(Some(bytes)));
    let status = block_on(client.picture(Bytes::new())).unwrap_err();
    assert_eq!(
        (status.code(), status.message(), &status.details()[..]),
        (Code::NotFound, "nothing", &b"details"[..])
    );
    for status in [block_on(client.panic()).unwrap_err(), block_on(client.panic_blocking()).unwrap_err()] {
        assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::Panicked)));
        assert!(status.may_have_run() && status.message().contains("the handler panicked"), "{status}");
    }
}

#[test]
fn tokio_works_in_worker_pool_only_with_tokio_handle() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let all = rig(|node| node.tokio(runtime.handle().clone()));
    let Rig { client, .. } = &all;
    assert_eq!(block_on(client.sleep()), Ok(5));
    let all = rig(|node| node);
    let Rig { client, .. } = &all;
    let status = block_on(client.sleep()).unwrap_err();
    assert!(status.message().contains("NodeBuilder::tokio(handle)"), "{status}");
}

#[test]
fn call_made_by_worker_inherits_deadline() {
    let all = rig(|node| node.workers(1));
    let Rig { server, client, handler, .. } = &all;
    *handler.client.lock().unwrap() = Some(WorkClient::connect(server, server.local_address()).unwrap());
    let limited = client.clone().with_timeout(Duration::from_secs(3));
    let left = until("a call within its time limit", || block_on(limited.ask()).ok().flatten());
    assert!(left <= Duration::from_secs(3), "{left:?}");
    *handler.client.lock().unwrap() = None;
}

#[test]
fn full_queue_refuses_by_name() {
    let all = rig(|node| node.workers(1).queued_jobs(Limit { per_peer: 2, in_all: 4 }));
    let Rig { server, client, told, release, .. } = &all;
    let running = client.block();
    assert_eq!(told.next(), "started");
    let queued = [client.block(), client.block()];
    let jobs = |server: &Node| {
        let report = server.report();
        report.budgets.iter().find(|budget| budget.name == "jobs that wait for a worker").unwrap().used
    };
    until("both are queued", || (jobs(server) == 2).then_some(()));
    for refused in [block_on(client.block()).unwrap_err(), block_on(client.wait()).unwrap_err()] {
        assert_eq!((refused.code(), refused.reason()), (Code::ResourceExhausted, Some(Reason::Overloaded)));
        assert!(!refused.may_have_run());
        assert!(refused.message().contains("jobs that wait for a worker (2)"), "{refused}");
        assert!(refused.message().contains("setting queued_jobs"), "{refused}");
    }
    for number in 1..=3 {
        release.send(number).unwrap();
    }
    assert_eq!(block_on(running), Ok(1));
    assert_eq!(queued.map(|call| block_on(call).unwrap()), [2, 3]);
    assert_eq!(jobs(server), 0);
}

#[test]
fn offloaded_future_is_dropped_with_its_call() {
    let all = rig(|node| node.workers(1));
    let Rig { client, told, gate, .. } = &all;
    let call = client.wait();
    assert_eq!(told.next(), "started");
    // This call waits without occupying a worker.
    assert!(block_on(client.here_blocking()).is_ok());
    drop(call);
    assert_eq!(told.next(), "dropped");
    until("a handler starts before the time limit of its call", || {
        let all = rig(|node| node.workers(1));
        let short = all.client.clone().with_timeout(Duration::from_millis(500));
        assert_eq!(block_on(short.wait()).unwrap_err().reason(), Some(Reason::Expired));
        assert_eq!((all.told.try_next()?, all.told.next()), ("started", "dropped"));
        Some(())
    });
    let call = client.wait();
    assert_eq!(told.next(), "started");
    gate.open();
    assert_eq!(block_on(call), Ok(3));
}

#[test]
fn blocking_method_detects_end_of_its_call_and_continues() {
    until("a handler starts before the time limit of its call", || {
        let all = rig(|node| node.workers(1));
        let Rig { server, client, told, .. } = &all;
        let call = client.outlive();
        assert_eq!(told.next(), "started");
        drop(call);
        assert_eq!(told.next(), "saw the end");
        let short = client.clone().with_timeout(Duration::from_millis(500));
        assert_eq!(block_on(short.outlive()).unwrap_err().reason(), Some(Reason::Expired));
        assert_eq!((told.try_next()?, told.next()), ("started", "saw the end"));
        until("no job is left", || (server.jobs() == 0).then_some(()));
        Some(())
    });
}

#[test]
fn abandoned_job_counts_until_its_end() {
    let all = rig(|node| node.workers(1).grace(LIMIT));
    let Rig { server, client, told, release, .. } = &all;
    let call = client.block();
    assert_eq!(told.next(), "started");
    drop(call);
    until("its poller forgets it", || {
        let report = server.report();
        let running = report.budgets.iter().find(|budget| budget.name == "running handlers").unwrap().used;
        (running == 0).then_some(())
    });
    server.begin_drain();
    assert!(!server.is_drained());
    release.send(4).unwrap();
    assert!(server.drain());
}

#[test]
fn timers_fire_while_all_workers_wait() {
    let all = rig(|node| node.workers(2));
    let calls = [(); 4].map(|()| all.client.nap());
    for call in calls {
        assert_eq!(block_on(call), Ok(6));
    }
}

#[test]
fn timers_are_checked_while_any_worker_is_idle() {
    let all = rig(|node| node.workers(3));
    let Rig { client, told, release, .. } = &all;
    let doze = client.doze();
    assert_eq!(told.next(), "started");
    // The blocked calls occupy two of the three workers until the sleep ends.
    let blocked = [client.block(), client.block()];
    assert_eq!(told.next(), "started");
    assert_eq!(told.next(), "started");
    assert_eq!(block_on(doze), Ok(7));
    // It is not known in which order the calls took workers.
    for _ in &blocked {
        release.send(1).unwrap();
    }
    for call in blocked {
        assert_eq!(block_on(call), Ok(1));
    }
}
