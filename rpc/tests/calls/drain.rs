//! Draining: handlers that run finish with the calls that they make, and nothing new starts.

use crate::common::{LIMIT, fresh_address, node, until};
use crate::gate::Gate;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;
use trunkline::{Code, Node, Origin, PollerContext, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Hop {
    async fn plain(&self) -> Result<u8, Status>;
    /// Waits at the gate.
    async fn wait(&self) -> Result<u8, Status>;
    /// Calls `wait` there, and then `plain` there and at the third, by local and shared clients.
    async fn forward(&self) -> Result<u8, Status>;
    #[oneway]
    async fn note(&self);
    /// Drains, or shuts down, its own node.
    async fn end(&self, drain: bool) -> Result<bool, Status>;
}

#[derive(Clone, Default)]
struct Shared {
    gate: Gate,
    /// Servers that handlers call, with a client of their own node for each.
    there: Arc<OnceLock<Vec<(SocketAddr, HopClient)>>>,
    own: Arc<OnceLock<Arc<Node>>>,
}

struct Handler {
    context: PollerContext,
    shared: Shared,
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
    async fn note(&self) {}
    async fn end(&self, drain: bool) -> Result<bool, Status> {
        let node = self.shared.own.get().expect("it is set before the first call");
        if drain {
            return Ok(node.drain());
        }
        node.shutdown();
        Ok(false)
    }
}

fn serve(shared: &Shared, pollers: u16, grace: Duration) -> Node {
    let shared = shared.clone();
    let service = HopServer::per_poller(move |context| {
        Ok::<_, Status>(Handler { context: context.clone(), shared: shared.clone() })
    });
    node().pollers(pollers).grace(grace).serve(service).start().unwrap()
}

type Pinned<'a> = Pin<Box<dyn Future<Output = Result<u8, Status>> + 'a>>;

/// Makes calls of a method, and returns them when as many have come to a gate.
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

/// A server whose handlers call two others: one that it has a session with, and one that it has none with.
struct Setting {
    server: Node,
    caller: Node,
    client: HopClient,
    gate: Gate,
    there: [Node; 2],
}

impl Setting {
    fn new() -> Self {
        let (of_server, of_there) = (Shared::default(), Shared::default());
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
fn a_hundred_handlers_finish_with_their_calls_while_new_calls_are_refused() {
    let setting = Setting::new();
    let client = &setting.client;
    let running = calls(100, &setting.gate, || client.forward());
    setting.server.begin_drain();
    assert!(!setting.server.is_drained());
    // Before the handlers have ended, which takes until the gate is open.
    for _ in 0..5 {
        assert_draining(&block_on(client.plain()).unwrap_err());
    }
    // A peer that comes now is told so, too.
    let late = node().start().unwrap();
    let of_late = HopClient::connect(&late, setting.server.local_address()).unwrap();
    assert_draining(&block_on(of_late.plain()).unwrap_err());
    setting.gate.open();
    for call in running {
        assert_eq!(block_on(call), Ok(6));
    }
    assert!(setting.server.drain(), "all handlers have ended");
    assert!(setting.server.is_drained());
    // Calls that the program makes through the node continue.
    let outgoing = HopClient::connect(&setting.server, setting.there[0].local_address()).unwrap();
    assert_eq!(block_on(outgoing.plain()), Ok(1));
    assert_draining(&block_on(client.plain()).unwrap_err());
    setting.caller.shutdown();
}

#[test]
fn draining_gives_up_after_the_grace_period() {
    let shared = Shared::default();
    let server = serve(&shared, 1, Duration::from_millis(50));
    let caller = node().start().unwrap();
    let client = HopClient::connect(&caller, server.local_address()).unwrap();
    let running = calls(1, &shared.gate, || client.wait());
    assert!(!server.drain(), "a handler waits");
    // It runs on, and may end later.
    shared.gate.open();
    for call in running {
        assert_eq!(block_on(call), Ok(2));
    }
    assert!(server.drain());
}

#[test]
fn one_way_calls_to_a_draining_server_are_dropped_and_counted() {
    let server = serve(&Shared::default(), 1, LIMIT);
    let caller = node().start().unwrap();
    let client = HopClient::connect(&caller, server.local_address()).unwrap();
    assert_eq!(block_on(client.plain()), Ok(1));
    assert!(server.drain(), "nothing runs");
    assert_eq!(block_on(client.note()), Ok(()));
    assert_draining(&block_on(client.plain()).unwrap_err());
    let counters = server.report().counters;
    let refused = counters.iter().find(|counter| counter.name == "requests_refused_draining");
    assert_eq!(refused.map(|counter| counter.value), Some(2));
}

#[test]
fn a_handler_that_ends_its_own_node_does_not_wait_for_itself() {
    for drain in [true, false] {
        let shared = Shared::default();
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
fn a_task_that_ends_its_own_node_does_not_wait_for_itself() {
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
        // The task goes on after the end of its node has begun, and the end comes by itself.
        let node = block_on(task).unwrap();
        assert_eq!(node.is_none(), is_dropped);
        drop(until("the address is free", || Node::builder().listen(address).start().ok()));
    }
}
