//! Calls during the end of a thread or of the program, after thread-local values have been destroyed.

use crate::common::node;
use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use trunkline::{Node, PollerIndex, Status, block_on};
use trunkline_testkit::{at_exit, runs_alone};

#[trunkline::service]
trait Numbers {
    async fn next(&self, number: u32) -> Result<u32, Status>;
}

struct Counts;

impl Numbers for Counts {
    async fn next(&self, number: u32) -> Result<u32, Status> {
        Ok(number + 1)
    }
}

struct Nodes {
    server: Node,
    node: Node,
    client: NumbersClient,
}

impl Nodes {
    fn start() -> Self {
        let server = node().serve(NumbersServer::new(Counts)).start().unwrap();
        let node = node().start().unwrap();
        let client = NumbersClient::connect(&node, server.local_address()).unwrap();
        Self { server, node, client }
    }

    /// Makes a call, waits for it, and runs a task on a poller.
    fn use_all(&self) {
        assert_eq!(block_on(self.client.next(1)), Ok(2));
        assert_eq!(block_on(self.node.run_on(PollerIndex(0), |_| async { 7 })), Ok(7));
        assert_eq!(self.node.report().pollers, 1);
        block_on(self.node.channel(self.server.local_address()).ready()).unwrap();
    }

    /// Ends both nodes.
    fn end_all(self) {
        assert!(self.server.drain());
        block_on(self.server.shutdown_async());
        self.node.shutdown();
        assert!(block_on(self.client.next(1)).is_err(), "the node has shut down");
    }
}

/// Two nodes that are used when this value is dropped. The sender reports that they were used.
struct Late(Option<Nodes>, Sender<()>);

impl Drop for Late {
    fn drop(&mut self) {
        let nodes = self.0.take().unwrap();
        nodes.use_all();
        nodes.end_all();
        self.1.send(()).unwrap();
    }
}

#[test]
fn calls_work_in_destructors_of_thread_local_values() {
    // A panic in such a destructor ends the process.
    if !runs_alone(module_path!(), "calls_work_in_destructors_of_thread_local_values") {
        return;
    }
    thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });
    let (done, ended) = channel();
    let program = thread::spawn(move || {
        // Thread-local values are destroyed in reverse order, so the library's values are destroyed before this one.
        LATE.with(|late| late.borrow().is_none());
        let nodes = Nodes::start();
        nodes.use_all();
        LATE.set(Some(Late(Some(nodes), done)));
    });
    program.join().unwrap();
    ended.recv().expect("the destructor ran to its end");
}

#[test]
fn calls_work_in_handlers_of_atexit() {
    if !runs_alone(module_path!(), "calls_work_in_handlers_of_atexit") {
        return;
    }
    let nodes = Nodes::start();
    nodes.use_all();
    at_exit(move || {
        nodes.use_all();
        nodes.end_all();
    });
}

#[test]
fn nodes_may_be_dropped_by_handlers_of_atexit() {
    if !runs_alone(module_path!(), "nodes_may_be_dropped_by_handlers_of_atexit") {
        return;
    }
    let nodes = Nodes::start();
    nodes.use_all();
    at_exit(move || drop(nodes));
}
