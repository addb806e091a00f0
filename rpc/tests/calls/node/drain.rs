//! Drains. Running handlers and their calls finish, but no new call starts.

use crate::common::{LIMIT, fresh_address, node, until};
use crate::gate::Gate;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Waker};
use std::time::Duration;
use trunkline::{Code, Node, Origin, PollerContext, PollerIndex, Reason, Status, Stream, block_on};

#[trunkline::service]
trait Hop {
    async fn plain(&self) -> Result<u8, Status>;
    /// Waits at the gate.
    async fn wait(&self) -> Result<u8, Status>;
    /// Calls `wait` on the second server, and then `plain` on the second and third server, through local and shared
    /// clients.
    async fn forward(&self) -> Result<u8, Status>;
    /// Drains or shuts down its own node.
    async fn end(&self, drain: bool) -> Result<bool, Status>;
}

#[derive(Clone, Default)]
struct HopState {
    gate: Gate,
    /// Servers that handlers call. Each has a client on the handlers' node.
    there: Arc<OnceLock<Vec<(SocketAddr, HopClient)>>>,
    own: Arc<OnceLock<Arc<Node>>>,
}

struct Handler {
    context: PollerContext,
    shared: HopState,
}

impl Hop for Handler {
    async fn plain(&self) -> Result<u8, Status> {
        Ok(1)
    }
    async fn wait(&self) -> Result<u8, Status> {
        self.shared.gate.pass().await;
        Ok(2)
    }
    async fn forward(&self) -> Result<u8, Status> {
        let there = self.shared.there.get().expect("it is set before the first call");
        let mut sum = HopLocal::connect(&self.context, there[0].0)?.wait().await?;
        for (address, client) in there {
            sum += HopLocal::connect(&self.context, *address)?.plain().await?;
            sum += client.plain().await?;
        }
        Ok(sum)
    }
    async fn end(&self, drain: bool) -> Result<bool, Status> {
        let node = self.shared.own.get().expect("it is set before the first call");
        if drain {
            return Ok(node.drain());
        }
        node.shutdown();
        Ok(false)
    }
}

fn serve(shared: &HopState, pollers: u16, grace: Duration) -> Node {
    let shared = shared.clone();
    let service = HopServer::per_poller(move |context| {
        Ok::<_, Status>(Handler { context: context.clone(), shared: shared.clone() })
    });
    node().pollers(pollers).grace(grace).serve(service).start().unwrap()
}

type Pinned<'a> = Pin<Box<dyn Future<Output = Result<u8, Status>> + 'a>>;

/// Makes `count` calls to a method, and returns them after all have arrived at a gate.
fn calls<'a, F>(count: usize, gate: &Gate, call: impl Fn() -> F) -> Vec<Pinned<'a>>
where
    F: Future<Output = Result<u8, Status>> + 'a,
{
    let mut calls = (0..count).map(|_| Box::pin(call()) as Pinned<'a>).collect::<Vec<_>>();
    let mut context = Context::from_waker(Waker::noop());
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    until("the calls run", || (gate.arrived() >= count).then_some(()));
    calls
}

fn assert_draining(status: &Status) {
    assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false), "{status}");
    assert!(status.message().contains("draining"), "{status}");
    assert_eq!((status.origin(), status.reason()), (Origin::Peer, Some(Reason::Draining)), "{status}");
}

/// A server whose handlers call two other servers. It has a session with one of them.
struct Setting {
    server: Node,
    caller: Node,
    client: HopClient,
    gate: Gate,
    there: [Node; 2],
}

impl Setting {
    fn new() -> Self {
        let (of_server, of_there) = (HopState::default(), HopState::default());
        let there = [0; 2].map(|_| serve(&of_there, 1, LIMIT));
        let server = serve(&of_server, 2, LIMIT);
        let clients = there.each_ref().map(|node| {
            let address = node.local_address();
            (address, HopClient::connect(&server, address).unwrap())
        });
        of_server.there.set(clients.into()).unwrap();
        let caller = node().start().unwrap();
        let client = HopClient::connect(&caller, server.local_address())
            .unwrap()
            .with_timeout(Duration::from_secs(60));
        Self { server, caller, client, gate: of_there.gate, there }
    }
}

#[test]
fn hundred_handlers_finish_with_their_calls_while_new_calls_are_refused() {
    let setting = Setting::new();
    let client = &setting.client;
    let running = calls(100, &setting.gate, || client.forward());
    setting.server.begin_drain();
    assert!(!setting.server.is_drained());
    // The handlers wait until the gate is open.
    for _ in 0..5 {
        assert_draining(&block_on(client.plain()).unwrap_err());
    }
    // A peer that connects now is notified of the drain, too.
    let late = node().start().unwrap();
    let of_late = HopClient::connect(&late, setting.server.local_address()).unwrap();
    assert_draining(&block_on(of_late.plain()).unwrap_err());
    setting.gate.open();
    for call in running {
        assert_eq!(block_on(call), Ok(6));
    }
    assert!(setting.server.drain(), "all handlers have ended");
    assert!(setting.server.is_drained());
    // Calls made by the program through this node continue.
    let outgoing = HopClient::connect(&setting.server, setting.there[0].local_address()).unwrap();
    assert_eq!(block_on(outgoing.plain()), Ok(1));
    assert_draining(&block_on(client.plain()).unwrap_err());
    setting.caller.shutdown();
}

#[test]
fn draining_gives_up_after_grace_period() {
    let shared = HopState::default();
    let server = serve(&shared, 1, Duration::from_millis(50));
    let caller = node().start().unwrap();
    let client = HopClient::connect(&caller, server.local_address()).unwrap();
    let running = calls(1, &shared.gate, || client.wait());
    assert!(!server.drain(), "a handler waits");
    // The node still runs and can be shut down later.
    shared.gate.open();
    for call in running {
        assert_eq!(block_on(call), Ok(2));
    }
    assert!(server.drain());
}

#[test]
fn call_longer_than_grace_period_ends_as_draining() {
    for is_dropped in [false, true] {
        // A poller that is preempted for 50 ms is late, so its calls end with the session. Repeat the attempt until this
        // does not happen.
        let is_told = || {
            let shared = HopState::default();
            let server = serve(&shared, 2, Duration::from_millis(50));
            let caller = node().start().unwrap();
            let client =
                HopClient::connect(&caller, server.local_address()).unwrap().with_timeout(10 * LIMIT);
            let running = calls(2, &shared.gate, || client.wait());
            if !is_dropped {
                server.shutdown();
            }
            drop(server);
            let ended: Vec<_> = running.into_iter().map(|call| block_on(call).unwrap_err()).collect();
            assert!(ended.iter().all(|status| status.code() == Code::Unavailable && status.may_have_run()));
            ended.iter().all(|status| {
                status.reason() == Some(Reason::Draining)
                    && status.message().contains("grace period ended before the call")
            })
        };
        assert!((0..5).any(|_| is_told()), "the calls do not learn the reason");
    }
}

#[test]
fn handler_shutting_down_its_node_does_not_wait_for_itself() {
    for drain in [true, false] {
        let shared = HopState::default();
        let server = Arc::new(serve(&shared, 1, LIMIT));
        shared.own.set(Arc::clone(&server)).unwrap_or_else(|_| panic!("it is set once"));
        let caller = node().start().unwrap();
        let client = HopClient::connect(&caller, server.local_address()).unwrap();
        assert_eq!(block_on(client.end(drain)), Ok(false), "it still runs");
        if drain {
            assert!(server.drain(), "no handler runs any more");
        } else {
            server.shutdown();
        }
    }
}

#[test]
fn task_shutting_down_its_node_does_not_wait_for_itself() {
    for is_dropped in [true, false] {
        let address = fresh_address();
        let slot = Arc::new(Mutex::new(Some(Node::builder().listen(address).start().unwrap())));
        let own = Arc::clone(&slot);
        let task = slot.lock().unwrap().as_ref().unwrap().run_on(PollerIndex(0), move |_| async move {
            let node = own.lock().unwrap().take().unwrap();
            if is_dropped {
                drop(node);
                return None;
            }
            node.shutdown();
            Some(node)
        });
        // The task continues after the node has started its shutdown. The shutdown then completes without further calls.
        let node = block_on(task).unwrap();
        assert_eq!(node.is_none(), is_dropped);
        drop(until("the address is free", || Node::builder().listen(address).start().ok()));
    }
}

/// Handlers that end when their node drains.
#[trunkline::service]
trait Endless {
    /// Streams numbers until the drain.
    async fn numbers(
        &self,
        cx: &trunkline::Context,
    ) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    /// Waits for the drain on the poller.
    async fn here(&self, cx: &trunkline::Context) -> Result<bool, Status>;
    /// Waits for the drain in a tokio task.
    async fn on_tokio(&self, cx: &trunkline::Context) -> Result<bool, Status>;
    #[offload]
    async fn offloaded(&self, cx: &trunkline::Context) -> Result<bool, Status>;
    #[blocking]
    async fn blocked(&self, cx: &trunkline::Context) -> Result<bool, Status>;
}

struct UntilDrain(Gate);

impl UntilDrain {
    async fn wait(&self, cx: &trunkline::Context) -> Result<bool, Status> {
        let before = cx.is_draining();
        // Register for the drain before the test learns that the handler runs.
        let mut draining = std::pin::pin!(cx.draining());
        let first = std::future::poll_fn(|task| std::task::Poll::Ready(draining.as_mut().poll(task))).await;
        self.0.arrive();
        if first.is_pending() {
            draining.await;
        }
        Ok(!before && first.is_pending() && cx.is_draining() && !cx.is_cancelled())
    }
}

impl Endless for UntilDrain {
    async fn numbers(
        &self,
        cx: &trunkline::Context,
    ) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        let ((sender, numbers), cx) = (trunkline::stream::channel(1), cx.clone());
        trunkline::spawn(async move {
            let mut number = 0;
            while !cx.is_draining() && sender.send(Ok(number)).await.is_ok() {
                number += 1;
            }
            sender.finish();
        });
        Ok(numbers)
    }
    async fn here(&self, cx: &trunkline::Context) -> Result<bool, Status> {
        self.wait(cx).await
    }
    async fn on_tokio(&self, cx: &trunkline::Context) -> Result<bool, Status> {
        let (cx, gate) = (cx.clone(), self.0.clone());
        let task = tokio::spawn(async move { Self(gate).wait(&cx).await });
        task.await.map_err(|error| Status::internal(error.to_string()))?
    }
    async fn offloaded(&self, cx: &trunkline::Context) -> Result<bool, Status> {
        self.wait(cx).await
    }
    async fn blocked(&self, cx: &trunkline::Context) -> Result<bool, Status> {
        self.wait(cx).await
    }
}

#[test]
fn handlers_are_notified_of_drain_and_shutdown() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for shuts_down in [false, true] {
        let gate = Gate::default();
        let service = EndlessServer::new(UntilDrain(gate.clone()));
        // A handler that is not notified is dropped after the grace period, and its call fails.
        let server = node().grace(LIMIT).tokio(runtime.handle().clone()).serve(service).start().unwrap();
        let caller = node().start().unwrap();
        let client =
            EndlessClient::connect(&caller, server.local_address()).unwrap().with_timeout(10 * LIMIT);
        let waiting: [Pin<Box<dyn Future<Output = _>>>; 4] = [
            Box::pin(client.here()),
            Box::pin(client.on_tokio()),
            Box::pin(client.offloaded()),
            Box::pin(client.blocked()),
        ];
        until("the handlers wait", || (gate.arrived() == waiting.len()).then_some(()));
        let mut numbers = block_on(client.numbers()).unwrap();
        assert_eq!(block_on(numbers.message()).unwrap(), Some(0));
        let reading = std::thread::spawn(move || {
            let mut last = 0;
            while let Some(number) = block_on(numbers.message())? {
                last = number;
            }
            Ok::<_, Status>(last)
        });
        if shuts_down {
            server.shutdown()
        } else {
            assert!(server.drain(), "all handlers have ended")
        }
        for outcome in waiting {
            assert_eq!(block_on(outcome), Ok(true));
        }
        assert!(reading.join().unwrap().is_ok());
    }
}

#[test]
fn detached_context_never_drains() {
    let context = trunkline::Context::detached();
    let mut task = Context::from_waker(Waker::noop());
    assert!(!context.is_draining() && std::pin::pin!(context.draining()).poll(&mut task).is_pending());
}

#[test]
fn tasks_of_run_on_are_notified_of_drain_and_shutdown() {
    for end in [Node::begin_drain, Node::shutdown] {
        let server = serve(&HopState::default(), 2, LIMIT);
        let (begun, waits) = mpsc::channel();
        let (told, ended) = mpsc::channel();
        let task = server.run_on(PollerIndex(1), move |poller| async move {
            begun.send(poller.is_draining()).unwrap();
            poller.draining().await;
            told.send(poller.is_draining()).unwrap();
        });
        assert_eq!(waits.recv_timeout(LIMIT), Ok(false));
        end(&server);
        assert_eq!(ended.recv_timeout(LIMIT), Ok(true), "it ends by itself");
        drop(task);
    }
}
