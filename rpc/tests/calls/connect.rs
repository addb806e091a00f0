//! Calls to servers that are not up yet, or cannot be reached.

use crate::common::{LIMIT, node};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline::{CallOptions, Code, Connect, Node, PollerContext, PollerIndex, Status, block_on};

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

/// Starts a node. Also returns an address of its host without a listener.
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
fn a_call_that_waits_is_made_when_its_server_is_there() {
    let (node, address) = before_the_server();
    let client = DoorClient::connect(&node, address).unwrap();
    let options = patient(LIMIT);
    let mut waiting = pin!(client.with(&options).knock());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let local = move |context: PollerContext| async move {
        let options = patient(LIMIT);
        DoorLocal::connect(&context, address)?.with(&options).knock().await
    };
    let mut on_poller = pin!(node.run_on(PollerIndex(0), local));
    assert!(on_poller.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Attempts have failed by now, and this call has waited for one of them.
    assert_eq!(block_on(client.knock()).unwrap_err().code(), Code::Unavailable);
    assert_eq!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
    let _server = open(address);
    assert_eq!(block_on(waiting), Ok(()));
    assert_eq!(block_on(on_poller), Ok(Ok(())));
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
    // The result of `with` may be kept, and so may its calls.
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
