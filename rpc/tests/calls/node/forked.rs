//! A program that forks while it has a node. In the child, every operation that needs the node's threads fails immediately
//! with an error that contains the reason. Each test forks in a separate process, and a child that waits is killed after
//! one minute.

use crate::common::{LIMIT, node};
use crate::gate::Gate;
use crate::logged::Logged;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tracing::{Dispatch, Level};
use trunkline::{CallOptions, Code, InProcessNetwork, Node, PollerIndex, Reason, Status, block_on};
use trunkline_testkit::{ForkedChild, fork_here, in_forked_child, runs_alone, wait_until};
use trunkline_verbs::fork::ENDED_IN_CHILD;

#[trunkline::service]
trait Numbers {
    async fn next(&self, number: u32) -> Result<u32, Status>;
    async fn wait(&self) -> Result<(), Status>;
    #[blocking]
    async fn work(&self) -> Result<(), Status>;
    #[oneway]
    async fn note(&self);
}

struct Counts(Gate);

impl Numbers for Counts {
    async fn next(&self, number: u32) -> Result<u32, Status> {
        Ok(number + 1)
    }
    async fn wait(&self) -> Result<(), Status> {
        self.0.pass().await;
        Ok(())
    }
    async fn work(&self) -> Result<(), Status> {
        Ok(())
    }
    async fn note(&self) {}
}

/// Two nodes. Their grace period exceeds the time limit of a child.
struct Nodes {
    server: RefCell<Option<Node>>,
    node: RefCell<Option<Node>>,
    client: NumbersClient,
    gate: Gate,
}

impl Nodes {
    fn start() -> Self {
        let (gate, grace) = (Gate::default(), Duration::from_secs(3600));
        let server = node().grace(grace).serve(NumbersServer::new(Counts(gate.clone()))).start().unwrap();
        let node = node().grace(grace).pollers(2).start().unwrap();
        let client = NumbersClient::connect(&node, server.local_address()).unwrap();
        assert_eq!(block_on(client.next(1)), Ok(2));
        Self { server: RefCell::new(Some(server)), node: RefCell::new(Some(node)), client, gate }
    }

    /// Checks that the nodes of the parent still work after a child has exited.
    fn still_run(&self) {
        for number in 0..100 {
            assert_eq!(block_on(self.client.next(number)), Ok(number + 1));
        }
        self.gate.open();
    }
}

#[track_caller]
fn says_forked<T: std::fmt::Debug>(outcome: Result<T, Status>, may_have_run: bool) {
    let status = outcome.expect_err("there is no thread for it");
    assert_eq!(
        (status.code(), status.reason()),
        (Code::FailedPrecondition, Some(Reason::Misuse)),
        "{status}"
    );
    assert_eq!(status.may_have_run(), may_have_run, "{status}");
    assert!(status.message().contains("forked") && status.message().contains("fork first"), "{status}");
}

#[test]
fn calls_and_tasks_in_forked_child_end_at_once() {
    if !runs_alone(module_path!(), "calls_and_tasks_in_forked_child_end_at_once") {
        return;
    }
    let nodes = Nodes::start();
    let node = nodes.node.borrow();
    let node = node.as_ref().unwrap();
    let named = node.channel("no-such-host.invalid:7000");
    let before = nodes.client.wait();
    wait_until("the handler runs", LIMIT, || (nodes.gate.arrived() == 1).then_some(()));
    let task = node.run_on(PollerIndex(0), |_| std::future::pending::<()>());
    in_forked_child(|| {
        let options = CallOptions::new().timeout(Duration::from_secs(2));
        says_forked(block_on(nodes.client.with(&options).next(1)), false);
        says_forked(block_on(nodes.client.next(1)), false);
        says_forked(block_on(nodes.client.note()), false);
        says_forked(block_on(nodes.client.ordered().next(1)), false);
        says_forked(block_on(before), true);
        says_forked(block_on(task), true);
        says_forked(block_on(node.run_on(PollerIndex(1), |_| async {})), false);
        says_forked(block_on(named.ready()), false);
        let later = node.channel("no-such-host.invalid:7001");
        says_forked(block_on(later.ready()), false);
        assert!(!later.is_connected() && !named.is_connected());
        says_forked(block_on(NumbersClient::new(later).next(1)), false);
    });
    nodes.still_run();
}

#[test]
fn node_in_forked_child_ends_at_once_and_node_of_parent_stays() {
    if !runs_alone(module_path!(), "node_in_forked_child_ends_at_once_and_node_of_parent_stays") {
        return;
    }
    let nodes = Nodes::start();
    let ended = nodes.client.wait();
    wait_until("the handler runs", LIMIT, || (nodes.gate.arrived() == 1).then_some(()));
    // Each operation runs in a separate child, so that it does not depend on the effects of another operation.
    let ends: [fn(&Node); 6] = [
        |server| assert!(!server.drain() && !server.is_drained()),
        Node::shutdown,
        |server| assert!(!block_on(server.drain_async())),
        |server| block_on(server.shutdown_async()),
        |server| assert!(server.report().why.contains("fork first"), "{:?}", server.report()),
        |server| assert!(server.buffer(100).is_none()),
    ];
    for end in ends {
        in_forked_child(|| end(nodes.server.borrow().as_ref().unwrap()));
    }
    // Created before the fork, because the creation locks all subscribers. A thread of a node may hold that lock during the
    // fork.
    let errors = Logged::at(Level::ERROR);
    let subscriber = Dispatch::new(errors.clone());
    in_forked_child(|| {
        tracing::dispatcher::with_default(&subscriber, || {
            nodes.server.borrow().as_ref().unwrap().shutdown();
            assert!(errors.lines().iter().any(|line| line.contains("fork first")), "{:?}", errors.lines());
            errors.lines().clear();
            // A drop that waited would log the threads that have not ended.
            drop((nodes.server.take(), nodes.node.take()));
            assert!(errors.lines().is_empty(), "{:?}", errors.lines());
        });
    });
    nodes.still_run();
    assert_eq!(block_on(ended), Ok(()));
}

#[test]
fn forked_child_may_start_node_of_its_own() {
    if !runs_alone(module_path!(), "forked_child_may_start_node_of_its_own") {
        return;
    }
    let nodes = Nodes::start();
    in_forked_child(|| {
        drop((nodes.server.take(), nodes.node.take()));
        Nodes::start().still_run();
        let network = InProcessNetwork::new();
        let server = NumbersServer::new(Counts(Gate::default()));
        let server = Node::builder().in_process(&network).serve(server).start().unwrap();
        let node = Node::builder().in_process(&network).start().unwrap();
        let client = NumbersClient::connect(&node, server.local_address()).unwrap();
        assert_eq!(block_on(client.next(1)), Ok(2));
        in_forked_child(|| says_forked(block_on(client.next(1)), false));
        server.shutdown();
        node.shutdown();
    });
    nodes.still_run();
}

/// A child may contain a copy of any lock that another thread held during the fork.
#[test]
fn children_forked_under_load_end_at_once() {
    if !runs_alone(module_path!(), "children_forked_under_load_end_at_once") {
        return;
    }
    let nodes = Nodes::start();
    let is_done = AtomicBool::new(false);
    let works: [fn(&Nodes); 5] = [
        |nodes| says_forked(block_on(nodes.client.next(1)), false),
        |nodes| drop((nodes.server.take(), nodes.node.take())),
        |nodes| {
            let server = nodes.server.borrow();
            let server = server.as_ref().unwrap();
            assert!(server.report().why.contains("fork first"));
            server.shutdown();
        },
        |nodes| {
            let node = nodes.node.borrow();
            let channel = node.as_ref().unwrap().channel("no-such-host.invalid:7001");
            says_forked(block_on(channel.ready()), false);
        },
        |nodes| drop((nodes.client.next(1), nodes.client.clone())),
    ];
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let client = nodes.client.clone();
            let is_done = &is_done;
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    let calls: Vec<_> = (0..20).map(|number| client.next(number)).collect();
                    calls.into_iter().for_each(|call| assert!(block_on(call).is_ok()));
                }
            });
        }
        // A child that fails also ends the calls.
        let _ends = SetsWhenDropped(&is_done);
        for work in works.iter().cycle().take(100) {
            in_forked_child(|| work(&nodes));
        }
    });
    nodes.still_run();
}

struct SetsWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn child_forked_on_poller_ends_its_calls_at_once() {
    if !runs_alone(module_path!(), "child_forked_on_poller_ends_its_calls_at_once") {
        return;
    }
    let nodes = Nodes::start();
    let client = nodes.client.clone();
    let forked = nodes.node.borrow().as_ref().unwrap().run_on(PollerIndex(0), move |_| async move {
        in_forked_child(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| says_forked(block_on(client.next(1)), false));
            });
            drop(client);
        });
    });
    assert_eq!(block_on(forked), Ok(()));
    nodes.still_run();
}

/// Methods that fork, and return in the child as well.
#[trunkline::service]
trait Forks {
    async fn at_once(&self) -> u32;
    async fn later(&self) -> u32;
    async fn failing(&self) -> u32;
    #[offload]
    async fn offloaded(&self) -> u32;
    #[blocking]
    async fn blocking(&self) -> u32;
}

struct Forking(mpsc::Sender<ForkedChild>);

impl Forking {
    fn fork(&self) -> u32 {
        fork_here().into_iter().for_each(|child| self.0.send(child).unwrap());
        7
    }
}

impl Forks for Forking {
    async fn at_once(&self) -> u32 {
        self.fork()
    }
    async fn later(&self) -> u32 {
        trunkline::yield_now().await;
        self.fork()
    }
    async fn failing(&self) -> u32 {
        panic!("on purpose: {}", self.fork())
    }
    async fn offloaded(&self) -> u32 {
        self.fork()
    }
    async fn blocking(&self) -> u32 {
        self.fork()
    }
}

/// A child that continued as a second poller would receive and answer packets on the parent's sockets.
#[test]
fn child_forked_in_handler_ends_before_sending() {
    if !runs_alone(module_path!(), "child_forked_in_handler_ends_before_sending") {
        return;
    }
    let (sender, children) = mpsc::channel();
    let (gate, of_task) = (Gate::default(), Forking(sender.clone()));
    let server = node().serve(NumbersServer::new(Counts(gate))).serve(ForksServer::new(Forking(sender)));
    let (server, node) = (server.start().unwrap(), node().start().unwrap());
    let numbers = NumbersClient::connect(&node, server.local_address()).unwrap();
    let forks = ForksClient::connect(&node, server.local_address()).unwrap();
    let child_ends = || {
        let child = children.recv_timeout(LIMIT).expect("the code has forked");
        assert_eq!(child.exit_status(), Some(ENDED_IN_CHILD));
        for number in 0..100 {
            assert_eq!(block_on(numbers.next(number)), Ok(number + 1));
        }
    };
    let calls: [fn(&ForksClient) -> _; 4] = [
        |forks| block_on(forks.at_once()),
        |forks| block_on(forks.later()),
        |forks| block_on(forks.offloaded()),
        |forks| block_on(forks.blocking()),
    ];
    for call in calls {
        assert_eq!(call(&forks), Ok(7));
        child_ends();
    }
    let panicked = block_on(forks.failing()).unwrap_err();
    assert_eq!(panicked.reason(), Some(Reason::Panicked), "{panicked}");
    child_ends();
    assert_eq!(block_on(server.run_on(PollerIndex(0), move |_| async move { of_task.fork() })), Ok(7));
    child_ends();
    let report = server.report();
    let served = report.served.iter().map(|method| method.calls).sum::<u64>();
    assert_eq!(served, 6 * 100 + 5, "each call has run once: {report:?}");
}

/// Tasks that become ready at the same time run in one turn of their poller.
#[test]
fn child_forked_in_task_runs_no_other_task() {
    if !runs_alone(module_path!(), "child_forked_in_task_runs_no_other_task") {
        return;
    }
    let (sender, children) = mpsc::channel();
    let server = node().start().unwrap();
    let tasks = server.run_on(PollerIndex(0), move |_| async move {
        let is_child = Rc::new(Cell::new(false));
        let forks = Rc::clone(&is_child);
        trunkline::spawn(async move {
            match fork_here() {
                Some(child) => sender.send(child).unwrap(),
                None => {
                    forks.set(true);
                    // Dropping the last sender would lock a mutex that the parent's receiver may have held during the fork.
                    std::mem::forget(sender);
                }
            }
        });
        trunkline::spawn(async move {
            if is_child.get() {
                std::process::abort();
            }
        });
    });
    assert_eq!(block_on(tasks), Ok(()));
    let child = children.recv_timeout(LIMIT).expect("the task has forked");
    assert_eq!(child.exit_status(), Some(ENDED_IN_CHILD));
}

/// A waker that forks when it is woken, on a poller's thread but outside handlers.
struct WakesForking(mpsc::Sender<ForkedChild>);

impl Wake for WakesForking {
    fn wake(self: Arc<Self>) {
        fork_here().into_iter().for_each(|child| self.0.send(child).unwrap());
    }
}

#[test]
fn child_forked_in_waker_ends() {
    if !runs_alone(module_path!(), "child_forked_in_waker_ends") {
        return;
    }
    let (sender, children) = mpsc::channel();
    let nodes = Nodes::start();
    let mut call = nodes.client.wait();
    let waker = Waker::from(Arc::new(WakesForking(sender)));
    assert!(Pin::new(&mut call).poll(&mut Context::from_waker(&waker)).is_pending());
    nodes.gate.open();
    let child = children.recv_timeout(LIMIT).expect("the waker has forked");
    assert_eq!(child.exit_status(), Some(ENDED_IN_CHILD));
    assert_eq!(block_on(call), Ok(()));
    nodes.still_run();
}
