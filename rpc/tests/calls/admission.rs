//! Calls for which there is no room, over real trunks: they wait, are refused, and keep their order.

use crate::common::{Events, Reporter, events, node};
use crate::gate::Gate;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline::{
    Admission, CallOptions, Code, Limit, Node, Origin, PollerContext, PollerIndex, Reason, Status, block_on,
};

#[trunkline::service]
trait Work {
    async fn echo(&self, number: u32) -> Result<u32, Status>;
    /// Waits at the gate.
    async fn hold(&self, number: u32) -> Result<u32, Status>;
    /// Calls `hold` of a server so often at once; returns how many of these are refused at once.
    async fn fan_out(&self, server: SocketAddr, calls: u32) -> Result<u32, Status>;
}

struct Worker {
    gate: Gate,
    started: Reporter<u32>,
    context: PollerContext,
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
    async fn fan_out(&self, server: SocketAddr, calls: u32) -> Result<u32, Status> {
        let client = WorkLocal::connect(&self.context, server)?;
        let mut calls = (0..calls).map(|number| Box::pin(client.hold(number))).collect::<Vec<_>>();
        let mut refused = 0;
        // Those that are refused end first: all others wait at the gate.
        poll_fn(|context| {
            calls.retain_mut(|call| match call.as_mut().poll(context) {
                Poll::Ready(outcome) => {
                    refused += u32::from(outcome.is_err_and(|status| is_refusal(&status)));
                    false
                }
                Poll::Pending => true,
            });
            if calls.len() == 1 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok(refused)
    }
}

fn is_refusal(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
        && status.reason() == Some(Reason::Overloaded)
        && status.origin() == Origin::Local
        && !status.may_have_run()
}

struct Rig {
    server: Node,
    /// It may have so many calls under way as the test has set.
    caller: Node,
    gate: Gate,
    started: Events<u32>,
}

fn rig(calls: usize) -> Rig {
    let (gate, (reporter, started)) = (Gate::default(), events());
    let make = {
        let gate = gate.clone();
        move |context: &PollerContext| {
            let (gate, started) = (gate.clone(), reporter.clone());
            Ok::<_, Status>(Worker { gate, started, context: context.clone() })
        }
    };
    let server = node().serve(WorkServer::per_poller(make.clone())).start().unwrap();
    let limit = Limit { per_peer: calls, in_all: calls };
    let caller = node().call_limit(limit).serve(WorkServer::per_poller(make)).start().unwrap();
    Rig { server, caller, gate, started }
}

impl Rig {
    fn client(&self) -> WorkClient {
        let client = WorkClient::connect(&self.caller, self.server.local_address()).unwrap();
        client.with_timeout(Duration::from_secs(30))
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
    let status = block_on(client.with(&fast).echo(2)).unwrap_err();
    assert_eq!((status.code(), status.reason()), (Code::DeadlineExceeded, Some(Reason::Expired)), "{status}");
    assert!(!status.may_have_run() && status.origin() == Origin::Local, "{status}");
    for part in ["echo", "waited for room", "budget of calls under way (2)", "call_limit"] {
        assert!(status.message().contains(part), "{status}");
    }
    assert!(rig.started.is_empty());
}

#[test]
fn a_call_that_only_tries_is_refused_at_once() {
    let rig = rig(2);
    let client = rig.client();
    let held = hold(&client, 1);
    assert_eq!(rig.started.next(), 1);
    let trying = CallOptions::new().admission(Admission::Try);
    let status = block_on(client.with(&trying).echo(2)).unwrap_err();
    assert!(is_refusal(&status) && status.message().contains("call_limit"), "{status}");
    rig.gate.open();
    assert_eq!(block_on(held), Ok(1));
    assert_eq!(block_on(client.with(&trying).echo(3)), Ok(3));
}

#[test]
fn a_dropped_call_leaves_the_line() {
    let rig = rig(2);
    let client = rig.client();
    let held = hold(&client, 1);
    assert_eq!(rig.started.next(), 1);
    let (dropped, last) = (hold(&client, 2), hold(&client, 3));
    drop(dropped);
    rig.gate.open();
    assert_eq!((block_on(held), block_on(last)), (Ok(1), Ok(3)));
    assert_eq!(rig.started.next(), 3, "the dropped one has not run");
}

#[test]
fn ordered_calls_keep_their_order_while_they_wait() {
    let rig = rig(2);
    let client = rig.client().ordered();
    let _held = hold(&client, 1000);
    assert_eq!(rig.started.next(), 1000);
    let calls = (0..500).map(|number| hold(&client, number)).collect::<Vec<_>>();
    rig.gate.open();
    for (number, call) in (0..).zip(calls) {
        assert_eq!(block_on(call), Ok(number));
    }
    let started = (0..500).map(|_| rig.started.next());
    assert!(started.eq(0..500));
}

#[test]
fn calls_of_a_handler_have_a_share_and_are_refused_beyond_it() {
    let rig = rig(8);
    let client = rig.client();
    let _held = (0..7).map(|number| hold(&client, number)).collect::<Vec<_>>();
    for _ in 0..7 {
        let _number = rig.started.next();
    }
    let mut waiting = hold(&client, 7);
    // A handler of the node whose calls are limited, called by the other one.
    let caller = WorkClient::connect(&rig.server, rig.caller.local_address()).unwrap();
    let refused = block_on(caller.fan_out(rig.server.local_address(), 4));
    assert_eq!(refused, Ok(3), "one is under way");
    assert!(is_pending(&mut waiting));
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

#[test]
fn twenty_thousand_calls_of_tokio_tasks_at_once_succeed() {
    let rig = rig(65_536);
    let client = rig.client().with_timeout(Duration::from_secs(60));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..20_000)
            .map(|number| {
                let client = client.clone();
                tokio::spawn(async move { client.echo(number).await })
            })
            .collect();
        for (number, task) in (0..20_000).zip(tasks) {
            assert_eq!(task.await.unwrap(), Ok(number));
        }
    });
}
