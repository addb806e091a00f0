//! Calls made on pollers, by handlers and by tasks that the program runs there.

use crate::common::{events, node, until};
use std::cell::RefCell;
use std::net::SocketAddr;
use trunkline::{Bytes, Code, Limit, Node, Origin, PollerContext, PollerIndex, Status, block_on};

/// Calls this server or another server until the route is empty.
#[trunkline::service]
trait Relay {
    /// Returns the route back, hop by hop.
    async fn hop(&self, route: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Status>;
    async fn large(&self, next: Option<SocketAddr>, body: Bytes) -> Result<Bytes, Status>;
}

struct Hopper {
    context: PollerContext,
    /// A field that is not `Send`, which handlers may contain.
    seen: RefCell<Vec<usize>>,
}

impl Hopper {
    fn to(&self, next: SocketAddr) -> Result<RelayLocal, Status> {
        RelayLocal::connect(&self.context, next)
    }
}

impl Relay for Hopper {
    async fn hop(&self, mut route: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Status> {
        self.seen.borrow_mut().push(route.len());
        let Some(next) = route.pop() else { return Ok(Vec::new()) };
        let mut back = self.to(next)?.hop(route).await?;
        back.push(next);
        Ok(back)
    }
    async fn large(&self, next: Option<SocketAddr>, body: Bytes) -> Result<Bytes, Status> {
        match next {
            Some(next) => self.to(next)?.large(None, body).await,
            None => Ok(body),
        }
    }
}

fn relay() -> RelayServer {
    RelayServer::per_poller(|context| {
        Ok::<_, Status>(Hopper { context: context.clone(), seen: RefCell::default() })
    })
}

#[test]
fn handler_calls_its_own_and_another_node() {
    let [one, two] = [1, 2].map(|pollers| node().pollers(pollers).serve(relay()).start().unwrap());
    let (a, b) = (one.local_address(), two.local_address());
    let client = RelayClient::connect(&one, a).unwrap();
    for route in [vec![], vec![a], vec![a, a, a], vec![b], vec![a, b, a, b], vec![b, b, a]] {
        assert_eq!(block_on(client.hop(route.clone())), Ok(route));
    }
    let body = crate::common::shared_pattern(3 << 20, 5);
    assert_eq!(block_on(client.large(Some(b), body.clone())), Ok(body.clone()));
    assert_eq!(block_on(client.large(Some(a), body.clone())), Ok(body));
}

#[test]
fn task_runs_and_makes_calls_on_its_poller() {
    let server = node().serve(relay()).start().unwrap();
    let node = node().pollers(2).start().unwrap();
    let address = server.local_address();
    for poller in [PollerIndex(0), PollerIndex(1)] {
        let answer = node.run_on(poller, move |context| async move {
            // None of these values is `Send`.
            let local = std::rc::Rc::new(RelayLocal::connect(&context, address)?);
            let body = local.large(None, "body".into()).await?;
            let status = local.hop(vec![address; 2]).await.map(|route| route.len());
            Ok::<_, Status>((context.poller(), body, status))
        });
        assert_eq!(block_on(answer).unwrap(), Ok((poller, "body".into(), Ok(2))));
    }
    let status = block_on(node.run_on(PollerIndex(2), |_| async {})).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(!status.may_have_run());
}

/// One call of the limit is reserved for handlers. Tasks share the other one.
#[test]
fn calls_of_task_wait_for_room() {
    let server = node().serve(relay()).start().unwrap();
    let caller = node().call_limit(Limit { per_peer: 2, in_all: 2 }).start().unwrap();
    let address = server.local_address();
    let task = caller.run_on(PollerIndex(0), move |context| async move {
        let local = RelayLocal::connect(&context, address)?;
        // All calls are made before the poller can take a reply.
        let calls = (0..3).map(|hops| Box::pin(local.hop(vec![address; hops]))).collect::<Vec<_>>();
        let mut replies = Vec::new();
        for call in calls {
            replies.push(call.await?.len());
        }
        Ok::<_, Status>(replies)
    });
    assert_eq!(block_on(task), Ok(Ok(vec![0, 1, 2])));
}

#[test]
fn task_panic_ends_task_as_internal_and_poller_continues() {
    let node = node().start().unwrap();
    let later = node.run_on(PollerIndex(0), |_| async { panic!("a task panics on purpose") });
    let status: Result<(), _> = block_on(later);
    assert_eq!(status.unwrap_err().code(), Code::Internal);
    let at_once = node.run_on(PollerIndex(0), |_| -> std::future::Ready<()> {
        panic!("the making of a task panics on purpose")
    });
    assert_eq!(block_on(at_once).unwrap_err().code(), Code::Internal);
    let twice = node.run_on(PollerIndex(0), |_| async { std::panic::panic_any(PanicsWhenDropped) });
    let status: Result<(), _> = block_on(twice);
    assert_eq!(status.unwrap_err().code(), Code::Internal);
    assert_eq!(block_on(node.run_on(PollerIndex(0), |_| async { 5 })), Ok(5), "the poller continues");
}

/// A panic payload that panics when dropped.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a payload panics on purpose");
    }
}

#[test]
fn task_continues_when_its_waiter_is_dropped() {
    let node = node().start().unwrap();
    let (reporter, reported) = events();
    let end = std::sync::Arc::new(std::sync::Mutex::new(None::<std::task::Waker>));
    let shared = end.clone();
    drop(node.run_on(PollerIndex(0), move |_| async move {
        let mut polls = 0;
        std::future::poll_fn(|context| {
            polls += 1;
            *shared.lock().unwrap() = Some(context.waker().clone());
            if polls == 2 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        reporter.tell("done");
    }));
    until("the task begins", || end.lock().unwrap().take()).wake();
    assert_eq!(reported.next(), "done");
}

#[test]
fn node_without_listening_address_can_call() {
    let server = node().serve(relay()).start().unwrap();
    let caller = Node::builder().start().unwrap();
    let client = RelayClient::connect(&caller, server.local_address()).unwrap();
    assert_eq!(block_on(client.hop(Vec::new())), Ok(Vec::new()));
}

/// A trait that is implemented twice for `Send` types, so that its use for them is ambiguous.
trait StaysHere<A> {
    fn check() {}
}

impl<T: ?Sized> StaysHere<()> for T {}
impl<T: ?Sized + Send> StaysHere<u8> for T {}

#[test]
fn types_of_poller_are_not_send() {
    // These lines do not compile if one of the types is `Send`.
    <PollerContext as StaysHere<_>>::check();
    <RelayLocal as StaysHere<_>>::check();
    fn shared<T: Clone + Send + Sync>() {}
    shared::<RelayClient>();
}

#[test]
fn status_forwarded_by_handler_is_marked_as_run() {
    let server = node().serve(relay()).start().unwrap();
    let client = RelayClient::connect(&server, server.local_address()).unwrap();
    // Nothing listens on this port of the server's address.
    let nobody = SocketAddr::new(server.local_address().ip(), 1);
    let status = block_on(client.hop(vec![nobody])).unwrap_err();
    assert_eq!((status.code(), status.origin()), (Code::Unavailable, Origin::Handler), "{status}");
    assert_eq!(status.reason(), None);
    assert!(status.may_have_run(), "{status}");
}
