//! Calls to servers that are not there: at once or after one attempt, or as long as the caller asks to wait.

use crate::common::{LIMIT, node, until};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use trunkline::{CallOptions, Code, Connect, Node, PollerContext, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Door {
    async fn knock(&self) -> Result<(), Status>;
}

struct Open;

impl Door for Open {
    async fn knock(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// A node, and an address of its host where no other node listens yet.
fn before_the_server() -> (Node, SocketAddr) {
    let node = node().start().unwrap();
    let taken = node.local_address();
    (node, SocketAddr::new(taken.ip(), taken.port() ^ 1))
}

fn open(address: SocketAddr) -> Node {
    Node::builder().listen(address).serve(DoorServer::new(Open)).start().unwrap()
}

fn patient(limit: Duration) -> CallOptions {
    CallOptions::new().timeout(limit).connect(Connect::Wait)
}

#[test]
fn while_no_attempt_is_due_a_call_fails_at_once_with_the_last_reason() {
    let (node, address) = before_the_server();
    let client = DoorClient::connect(&node, address).unwrap();
    // Pauses grow from 10 ms to more than a second.
    let refused = (0..12).map(|_| block_on(client.knock()).unwrap_err()).find(|status| {
        assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false), "{status}");
        assert_eq!(status.reason(), Some(Reason::Unreachable), "{status}");
        assert!(status.message().contains("nobody listens on that port"), "{status}");
        status.message().contains("; the next attempt to connect is due in ")
    });
    assert!(refused.is_some(), "every call has waited for another attempt");
    let _server = open(address);
    assert_eq!(block_on(client.with(&patient(Duration::from_secs(30))).knock()), Ok(()));
    assert_eq!(block_on(client.knock()), Ok(()), "the session is there for calls that would not wait, too");
}

#[test]
fn calls_to_an_address_that_has_gone_wait_for_the_first_attempt_only_unless_they_ask_to() {
    let (node, server) = (node().start().unwrap(), node().serve(DoorServer::new(Open)).start().unwrap());
    let client = DoorClient::connect(&node, server.local_address()).unwrap().with_timeout(LIMIT);
    assert_eq!(block_on(client.knock()), Ok(()));
    // No other node has the address: packets to it get no answer.
    drop(server);
    let refused = |status: &Status| status.message().contains("; the next attempt to connect is due in ");
    let first = until("the attempt", || {
        let began = Instant::now();
        let status = block_on(client.knock()).unwrap_err();
        // The session may not have ended yet.
        status.message().contains("the peer does not answer").then(|| (began.elapsed(), status))
    });
    assert!(first.0 > Duration::from_millis(500) && !refused(&first.1), "{first:?}");
    for _ in 0..20 {
        let began = Instant::now();
        let status = block_on(client.knock()).unwrap_err();
        assert!(refused(&status) && began.elapsed() < Duration::from_millis(100), "{status}");
        assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false), "{status}");
    }
    let status = block_on(client.with(&patient(Duration::from_millis(200))).knock()).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::DeadlineExceeded, false), "{status}");
}

#[test]
fn a_call_that_waits_is_made_when_its_server_is_there() {
    let (node, address) = before_the_server();
    let client = DoorClient::connect(&node, address).unwrap();
    let options = patient(Duration::from_secs(30));
    let mut waiting = pin!(client.with(&options).knock());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let local = move |context: PollerContext| async move {
        let options = patient(Duration::from_secs(30));
        DoorLocal::connect(&context, address)?.with(&options).knock().await
    };
    let mut on_poller = pin!(node.run_on(PollerIndex(0), local));
    assert!(on_poller.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Attempts have failed by now: this one has waited for one.
    assert_eq!(block_on(client.knock()).unwrap_err().code(), Code::Unavailable);
    assert_eq!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
    let _server = open(address);
    assert_eq!(block_on(waiting), Ok(()));
    assert_eq!(block_on(on_poller), Ok(Ok(())));
}

#[test]
fn a_call_that_waits_in_vain_ends_at_its_deadline_with_the_last_reason() {
    let (node, address) = before_the_server();
    let client = DoorClient::connect(&node, address).unwrap();
    assert_eq!(block_on(client.knock()).unwrap_err().code(), Code::Unavailable);
    let status = block_on(client.with(&patient(Duration::from_millis(300))).knock()).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::DeadlineExceeded, false), "{status}");
    assert!(status.message().contains("nobody listens on that port"), "{status}");
}

#[test]
fn a_call_that_waits_ends_when_its_node_shuts_down() {
    let (node, address) = before_the_server();
    let client = DoorClient::connect(&node, address).unwrap();
    let options = patient(Duration::from_secs(3600));
    let mut waiting = pin!(client.with(&options).knock());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    node.shutdown();
    assert_eq!(block_on(waiting).unwrap_err().code(), Code::Unavailable);
}

#[test]
fn a_server_of_the_other_address_family_is_refused_with_the_remedy() {
    let node = node().start().unwrap();
    let client = DoorClient::connect(&node, "[::1]:7471").unwrap();
    for options in [CallOptions::new(), patient(Duration::from_secs(3600))] {
        let status = block_on(client.with(&options).knock()).unwrap_err();
        assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false), "{status}");
        let listens_on = format!("listens on {}", node.local_address());
        for words in ["no IPv6 address", &listens_on, "listen on an IPv6 address"] {
            assert!(status.message().contains(words), "{status}");
        }
    }
}

#[test]
fn options_hold_for_the_calls_made_with_them_only() {
    let (node, address) = before_the_server();
    let _server = open(address);
    let client = DoorClient::connect(&node, address).unwrap().with_timeout(Duration::from_secs(3600));
    let none = CallOptions::new().timeout(Duration::ZERO);
    // What `with` returns may be kept, and so may its calls.
    let hurried = client.with(&none);
    let calls = [hurried.knock(), hurried.knock()];
    for call in calls {
        assert_eq!(block_on(call).unwrap_err().code(), Code::DeadlineExceeded);
    }
    assert_eq!(
        block_on(client.with(&CallOptions::new()).knock()),
        Ok(()),
        "without a limit the client's holds"
    );
    assert_eq!(block_on(client.knock()), Ok(()));
}
