//! Calls for which there is no room, over real trunks: they wait, and tell for what.

use crate::common::{Events, LIMIT, Reporter, events, node, until};
use crate::gate::Gate;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;
use trunkline::{CallOptions, Code, Limit, Node, Origin, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Work {
    async fn echo(&self, number: u32) -> Result<u32, Status>;
    /// Waits at the gate.
    async fn hold(&self, number: u32) -> Result<u32, Status>;
}

struct Worker {
    gate: Gate,
    started: Reporter<u32>,
}

impl Work for Worker {
    async fn echo(&self, number: u32) -> Result<u32, Status> {
        self.started.tell(number);
        Ok(number)
    }
    async fn hold(&self, number: u32) -> Result<u32, Status> {
        self.started.tell(number);
        self.gate.pass().await;
        Ok(number)
    }
}

struct Rig {
    server: Node,
    /// The test sets the number of its calls under way.
    caller: Node,
    gate: Gate,
    started: Events<u32>,
}

fn rig(calls: usize) -> Rig {
    let (gate, (reporter, started)) = (Gate::default(), events());
    let worker = Worker { gate: gate.clone(), started: reporter };
    let server = node().serve(WorkServer::new(worker)).start().unwrap();
    let limit = Limit { per_peer: calls, in_all: calls };
    let caller = node().call_limit(limit).start().unwrap();
    Rig { server, caller, gate, started }
}

impl Rig {
    fn client(&self) -> WorkClient {
        let client = WorkClient::connect(&self.caller, self.server.local_address()).unwrap();
        client.with_timeout(LIMIT)
    }
}

type Held<'a> = Pin<Box<dyn Future<Output = Result<u32, Status>> + 'a>>;

/// Makes a call that waits at the gate.
fn hold(client: &WorkClient, number: u32) -> Held<'_> {
    let mut call: Held<'_> = Box::pin(client.hold(number));
    assert!(is_pending(&mut call));
    call
}

fn is_pending(call: &mut Held<'_>) -> bool {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn a_call_waits_for_room_and_then_succeeds() {
    let rig = rig(2);
    let client = rig.client();
    let held = hold(&client, 1);
    assert_eq!(rig.started.next(), 1);
    let mut waiting = hold(&client, 2);
    let fast = CallOptions::new().timeout(Duration::from_millis(50));
    assert!(block_on(client.with(&fast).echo(3)).is_err(), "it comes after the one that waits");
    assert!(is_pending(&mut waiting) && rig.started.is_empty());
    rig.gate.open();
    assert_eq!((block_on(held), block_on(waiting)), (Ok(1), Ok(2)));
}

#[test]
fn a_call_that_waits_in_vain_reports_for_what() {
    let rig = rig(2);
    let client = rig.client();
    let _held = hold(&client, 1);
    assert_eq!(rig.started.next(), 1);
    let fast = CallOptions::new().timeout(Duration::from_millis(50));
    let status = until("the poller sees a call before its time limit", || {
        let status = block_on(client.with(&fast).echo(2)).unwrap_err();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::DeadlineExceeded, Some(Reason::Expired)),
            "{status}"
        );
        assert!(!status.may_have_run() && status.origin() == Origin::Local, "{status}");
        status.message().contains("waited for room").then_some(status)
    });
    for part in ["echo", "waited for room", "budget of calls under way (2)", "call_limit"] {
        assert!(status.message().contains(part), "{status}");
    }
    assert!(rig.started.is_empty());
}

#[test]
fn a_task_of_a_poller_waits() {
    let rig = rig(2);
    let (gate, server) = (rig.gate.clone(), rig.server.local_address());
    let task = rig.caller.run_on(PollerIndex(0), move |context| async move {
        let client = WorkLocal::connect(&context, server)?;
        let held = Rc::new(client);
        let mut calls = (0..3).map(|number| Box::pin(held.hold(number))).collect::<Vec<_>>();
        let waker = Waker::noop();
        assert!(
            calls.iter_mut().all(|call| call.as_mut().poll(&mut Context::from_waker(waker)).is_pending())
        );
        gate.open();
        for (number, call) in (0..).zip(calls) {
            assert_eq!(call.await?, number);
        }
        Ok::<_, Status>(())
    });
    assert_eq!(block_on(task), Ok(Ok(())));
}
