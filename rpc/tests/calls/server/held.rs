//! A handler that blocks its poller is reported by name during the block.

use crate::common::{Events, Reporter, events, node, until};
use crate::logged::Logged;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use trunkline::{Node, PollerIndex, block_on};

#[trunkline::service(name = "test.Held")]
trait Held {
    /// Blocks its poller until the test sends a value.
    async fn hold(&self);
    /// Awaits a value from the test.
    async fn rest(&self);
}

struct Holder {
    reporter: Reporter<&'static str>,
    blocked: Mutex<Receiver<()>>,
}

impl Held for Holder {
    async fn hold(&self) {
        self.reporter.tell("started");
        let _released = self.blocked.lock().unwrap().recv();
    }
    async fn rest(&self) {
        self.reporter.tell("started");
        while self.blocked.lock().unwrap().try_recv().is_err() {
            trunkline::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn held(server: &Node) -> u64 {
    server.report().counter("pollers_held").unwrap()
}

/// Starts nodes with the default limit.
fn rig() -> (Node, Node, HeldClient, Events<&'static str>, Sender<()>) {
    let ((reporter, told), (release, blocked)) = (events(), channel());
    let service = HeldServer::new(Holder { reporter, blocked: Mutex::new(blocked) });
    let server = node().serve(service).start().unwrap();
    let caller = node().start().unwrap();
    let client = HeldClient::connect(&caller, server.local_address()).unwrap();
    (server, caller, client, told, release)
}

#[test]
fn handler_blocking_its_poller_is_logged_once_with_remedy() {
    // The warnings are logged by threads of the nodes, so the warnings of all threads are counted.
    let warnings_of = |text: &str| Logged::by_all().count(text);
    // Start collecting before any node starts.
    assert_eq!(warnings_of("a handler of test.Held.hold"), 0);
    let (server, _caller, client, told, release) = rig();
    let call = client.hold();
    assert_eq!(told.next(), "started");
    until("the warning", || (warnings_of("a handler of test.Held.hold") == 1).then_some(()));
    assert!(warnings_of("#[blocking] or #[offload]") >= 1, "it names the remedy");
    release.send(()).unwrap();
    block_on(call).unwrap();
    assert_eq!(warnings_of("a handler of test.Held.hold"), 1, "one warning for one turn");
    let (begun, begins) = channel();
    let (ends, ended) = channel::<()>();
    let task = server.run_on(PollerIndex(0), move |_| async move {
        begun.send(()).unwrap();
        let _released = ended.recv();
    });
    begins.recv().unwrap();
    until("the warning of a task", || (held(&server) >= 2).then_some(()));
    ends.send(()).unwrap();
    block_on(task).unwrap();
}

#[test]
fn handler_awaiting_long_is_not_counted_as_held() {
    // A loaded machine may stop the poller's thread during a turn. Repeat the attempt until it does not.
    until("an attempt without a warning", || {
        let (server, _caller, client, told, release) = rig();
        let call = client.rest();
        assert_eq!(told.next(), "started");
        // Wait longer than the limit. These timers would fire late if the poller were blocked.
        block_on(server.run_on(PollerIndex(0), |_| trunkline::sleep(Duration::from_millis(300)))).unwrap();
        release.send(()).unwrap();
        block_on(call).unwrap();
        (held(&server) == 0).then_some(())
    });
}
