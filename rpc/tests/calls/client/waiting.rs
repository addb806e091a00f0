//! Calls that wait until a budget has room, and calls that are refused because a budget has no room.

use crate::common::{LIMIT, fresh_address, node, until};
use crate::gate::Gate;
use std::sync::mpsc::channel;
use std::task::{Context, Waker};
use std::time::Duration;
use trunkline::{Admission, CallOptions, Code, Connect, Limit, Node, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Desk {
    async fn quick(&self) -> u32;
    /// Waits at the gate.
    async fn slow(&self) -> u32;
}

struct Clerk(Gate);

impl Desk for Clerk {
    async fn quick(&self) -> u32 {
        self.0.arrive();
        1
    }
    async fn slow(&self) -> u32 {
        self.0.pass().await;
        2
    }
}

/// Starts a server. Returns a client that may have one call in flight, beside one call from handlers.
fn connect(caller: &Node) -> (Node, Gate, DeskClient) {
    let gate = Gate::default();
    let server = node().serve(DeskServer::new(Clerk(gate.clone()))).start().unwrap();
    let client = DeskClient::connect(caller, server.local_address()).unwrap().with_timeout(10 * LIMIT);
    (server, gate, client)
}

fn kind(status: &Status) -> (Code, Option<Reason>, bool) {
    (status.code(), status.reason(), status.may_have_run())
}

/// Makes calls with a time limit until one of them expires while it waits for room. Returns its status.
fn expired(client: &DeskClient, connect: Connect) -> Status {
    let short = CallOptions::new().timeout(Duration::from_millis(100)).connect(connect);
    until("a call has waited for room", || {
        let calls = [(); 20].map(|()| client.with(&short).quick());
        let mut statuses = calls.map(|call| block_on(call).unwrap_err()).into_iter();
        statuses.find(|status| status.message().contains("waited for room"))
    })
}

#[test]
fn callers_without_room_wait_or_are_refused() {
    let caller = node().call_limit(Limit { per_peer: 2, in_all: 100 }).start().unwrap();
    let (_server, gate, client) = connect(&caller);
    let held = client.slow();
    until("the handler runs", || (gate.arrived() == 1).then_some(()));

    let status = expired(&client, Connect::FailFast);
    assert_eq!(kind(&status), (Code::DeadlineExceeded, Some(Reason::Expired), false), "{status}");
    for part in ["one peer's budget of calls under way (2)", "call_limit", "reserved"] {
        assert!(status.message().contains(part), "{status}");
    }

    let waiting = client.quick();
    let only_tries = CallOptions::new().admission(Admission::Try);
    let status = block_on(client.with(&only_tries).quick()).unwrap_err();
    assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::Overloaded), false), "{status}");
    assert!(status.message().contains("call_limit"), "{status}");

    let dropped = client.quick();
    let (_other, of_other, other) = connect(&caller);
    assert!((0..3).all(|_| block_on(other.quick()) == Ok(1)), "calls to another server do not wait");
    assert_eq!(of_other.arrived(), 3);

    drop(dropped);
    let cancelled = || {
        let rows = caller.report().called;
        let failed = rows.into_iter().flat_map(|row| row.failed).find(|row| row.code == "CANCELLED")?;
        (failed.calls == 1).then_some(())
    };
    until("the dropped call leaves the line", cancelled);

    caller.shutdown();
    let status = block_on(waiting).unwrap_err();
    assert_eq!(kind(&status), (Code::Unavailable, Some(Reason::Draining), false), "{status}");
    assert!(block_on(held).unwrap_err().may_have_run());
    assert_eq!(gate.arrived(), 1, "no call that waited has run");
}

#[test]
fn call_expired_in_full_message_queue_names_setting() {
    let caller = node().queued_messages(Limit { per_peer: 8, in_all: 100 }).start().unwrap();
    let client = DeskClient::connect(&caller, fresh_address()).unwrap();
    let status = expired(&client, Connect::Wait);
    assert_eq!(kind(&status), (Code::DeadlineExceeded, Some(Reason::Expired), false), "{status}");
    assert!(status.message().contains("; queued_messages raises it"), "{status}");
}

#[test]
fn blocked_poller_takes_limited_number_of_calls() {
    let caller = node().start().unwrap();
    let (_server, gate, client) = connect(&caller);
    assert_eq!(block_on(client.quick()), Ok(1));
    let ((blocks, blocked), (release, released)) = (channel(), channel::<()>());
    let task = caller.run_on(PollerIndex(0), move |_| async move {
        blocks.send(()).unwrap();
        let _end = released.recv();
    });
    blocked.recv_timeout(LIMIT).unwrap();
    let only_tries = CallOptions::new().admission(Admission::Try).timeout(10 * LIMIT);
    let mut calls = (0..5000).map(|_| Box::pin(client.with(&only_tries).quick())).collect::<Vec<_>>();
    let mut refused = 0;
    calls.retain_mut(|call| {
        let std::task::Poll::Ready(outcome) = call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            return true;
        };
        let status = outcome.unwrap_err();
        assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::Overloaded), false), "{status}");
        refused += 1;
        false
    });
    assert_eq!(refused, 5000 - 4096);
    drop(release);
    block_on(task).unwrap();
    assert!(calls.into_iter().all(|call| block_on(call) == Ok(1)));
    assert_eq!(gate.arrived(), 1 + 4096);
}
