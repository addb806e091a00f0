//! The context of a handler's call, and the values that its nested calls inherit.

use crate::common::{Events, Guard, LIMIT, Reporter, events, node, until};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::task::{Context as Task, Waker};
use std::thread;
use std::time::Duration;
use trunkline::{CallOptions, Code, Context, Node, PollerContext, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Chain {
    /// Returns the time left, in microseconds.
    async fn left(&self, cx: &Context) -> Option<u64>;
    /// Works for `work_ms`, and then calls the next server three times: with the inherited time limit, with a separate
    /// limit of an hour, and detached. Returns the handler's remaining time and the results.
    async fn ask(&self, cx: &Context, work_ms: u64, next: SocketAddr) -> Result<[u64; 4], Status>;
    /// Calls the next server until `depth` is 1, and then never returns.
    async fn hang(&self, depth: u32, route: Vec<SocketAddr>) -> Result<(), Status>;
    /// Passes its context to a thread, which reports the end of the call.
    async fn leave(&self, hang: bool);
}

struct Link {
    context: PollerContext,
    reporter: Reporter<&'static str>,
    contexts: Reporter<Context>,
}

impl Link {
    fn to(&self, server: SocketAddr) -> Result<ChainLocal, Status> {
        ChainLocal::connect(&self.context, server)
    }
}

fn micros(left: Duration) -> u64 {
    u64::try_from(left.as_micros()).unwrap()
}

impl Chain for Link {
    async fn left(&self, cx: &Context) -> Option<u64> {
        cx.time_left().map(micros)
    }

    async fn ask(&self, cx: &Context, work_ms: u64, next: SocketAddr) -> Result<[u64; 4], Status> {
        thread::sleep(Duration::from_millis(work_ms));
        let own = cx.time_left().map(micros).unwrap();
        let next = self.to(next)?;
        let inherited = next.left().await?.unwrap();
        let hour = CallOptions::new().timeout(Duration::from_secs(3600));
        let limited = next.with(&hour).left().await?.unwrap();
        let detached = Context::detached().scope(async { next.with(&hour).left().await }).await?.unwrap();
        Ok([own, inherited, limited, detached])
    }

    async fn hang(&self, depth: u32, route: Vec<SocketAddr>) -> Result<(), Status> {
        if depth > 1 {
            let next = route[usize::try_from(depth).unwrap() % route.len()];
            return self.to(next)?.hang(depth - 1, route).await;
        }
        let _guard = Guard(self.reporter.clone());
        self.reporter.tell("started");
        std::future::pending().await
    }

    async fn leave(&self, hang: bool) {
        self.contexts.tell(Context::current().unwrap());
        if hang {
            std::future::pending().await
        }
    }
}

struct Rig {
    nodes: [Node; 2],
    client: ChainClient,
    told: Events<&'static str>,
    contexts: Events<Context>,
}

fn rig() -> Rig {
    let ((reporter, told), (of_contexts, contexts)) = (events(), events());
    let nodes = [1, 2].map(|pollers| {
        let (reporter, contexts) = (reporter.clone(), of_contexts.clone());
        let service = ChainServer::per_poller(move |context| {
            let (reporter, contexts) = (reporter.clone(), contexts.clone());
            Ok::<_, Status>(Link { context: context.clone(), reporter, contexts })
        });
        // Handlers that never end must not outlast the time limits of their calls.
        node().grace(Duration::from_millis(100)).pollers(pollers).serve(service).start().unwrap()
    });
    let client = ChainClient::connect(&nodes[1], nodes[0].local_address()).unwrap();
    Rig { nodes, client, told, contexts }
}

#[test]
fn nested_call_has_at_most_remaining_time_of_handler() {
    let Rig { nodes, client, .. } = rig();
    // Connect both nodes in both directions.
    block_on(client.ask(0, nodes[1].local_address())).unwrap();
    let limited = client.clone().with_timeout(Duration::from_millis(200));
    // A poller that is preempted within a turn accepts a call with the time at which the turn began. The remaining time of
    // the handler is then longer by this delay.
    let [own, inherited, limited, detached] = until("a handler with 150 ms left at most", || {
        let left = block_on(limited.ask(50, nodes[1].local_address())).ok()?;
        (left[0] <= 150_000).then_some(left)
    });
    assert!(inherited <= own, "the second handler has {inherited} of {own} us");
    assert!(limited <= inherited, "a longer limit does not help: {limited} of {inherited} us");
    assert!(detached > 3_000_000_000, "nor does detached() inherit: {detached} us");
    // A call without any time limit has 10 s.
    until("a call with most of its time left", || {
        let left = block_on(client.left()).ok()??;
        assert!(left <= 10_010_000, "{left} us");
        (left >= 5_000_000).then_some(())
    });
}

#[test]
fn dropped_call_stops_last_handler_of_chain_of_five() {
    let Rig { nodes, client, told, .. } = rig();
    // The deadline is an hour away, and all handlers inherit it.
    let client = client.with_timeout(Duration::from_secs(3600));
    let route = nodes.iter().map(Node::local_address).collect::<Vec<_>>();
    for _ in 0..3 {
        let call = client.hang(5, route.clone());
        assert_eq!(told.next(), "started");
        drop(call);
        assert_eq!(told.next(), "dropped");
    }
}

#[test]
fn context_outside_handler_reports_end_of_call() {
    let Rig { nodes, client, contexts, .. } = rig();
    block_on(client.leave(false)).unwrap();
    assert!(contexts.next().is_cancelled(), "its handler has returned");
    let call = client.leave(true);
    let context = contexts.next();
    assert!(!context.is_cancelled() && context.time_left().is_some_and(|left| left > Duration::ZERO));
    let (sender, ended) = mpsc::channel();
    let of_thread = context.clone();
    let waiter = thread::spawn(move || {
        block_on(of_thread.cancelled());
        sender.send(()).unwrap();
    });
    assert!(ended.try_recv().is_err());
    drop(call);
    ended.recv_timeout(LIMIT).expect("the call is over");
    waiter.join().unwrap();
    assert!(context.is_cancelled());
    let short = client.clone().with_timeout(Duration::from_millis(50));
    let expired = until("a handler starts before the time limit of its call", || {
        assert_eq!(block_on(short.leave(true)).unwrap_err().reason(), Some(Reason::Expired));
        contexts.try_next()
    });
    until("the end of the handler", || expired.is_cancelled().then_some(()));
    // The caller's cancellation may arrive before the deadline.
    until("the deadline", || (expired.time_left() == Some(Duration::ZERO)).then_some(()));
    drop(nodes);
}

#[test]
fn scope_takes_deadline_to_another_executor() {
    let Rig { nodes: _nodes, client, contexts, .. } = rig();
    let (_call, context, left) = until("a call inside the handler's time", || {
        let options = CallOptions::new().timeout(Duration::from_millis(300));
        let mut call = Box::pin(client.with(&options).leave(true));
        let context = until("the handler starts, or its call expires", || match contexts.try_next() {
            Some(context) => Some(Some(context)),
            None => call.as_mut().poll(&mut Task::from_waker(Waker::noop())).is_ready().then_some(None),
        })?;
        let left = block_on(context.scope(async { client.left().await })).ok()?;
        Some((call, context, left))
    });
    assert!(left.is_some_and(|left| left <= 300_000), "{left:?}");
    let late = block_on(context.scope(async {
        // The caller's cancellation may arrive before the deadline.
        until("the deadline", || (context.time_left() == Some(Duration::ZERO)).then_some(()));
        client.left().await
    }));
    assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
}

#[test]
fn context_is_missing_outside_handlers() {
    let Rig { nodes, .. } = rig();
    assert!(Context::current().is_none() && PollerContext::current().is_none());
    let task = nodes[1].run_on(PollerIndex(1), |_| async {
        (Context::current().is_none(), PollerContext::current().map(|poller| poller.poller()))
    });
    assert_eq!(block_on(task), Ok((true, Some(PollerIndex(1)))));
}
