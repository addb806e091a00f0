//! Waiting on a poller's thread, which is not allowed.

use crate::common::{Reporter, events, node, until};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use trunkline::{Bytes, Code, Node, PollerContext, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Wait {
    async fn plain(&self) -> Result<u8, Status>;
    /// Waits for calls in every possible way, and for a future that another thread completes.
    async fn wait(&self) -> Result<u8, Status>;
    /// Waits for a call that was made earlier.
    async fn wait_later(&self) -> Result<u8, Status>;
    #[oneway]
    async fn note(&self);
}

struct Waits {
    context: PollerContext,
    /// The node's own client, and its address.
    own: Arc<OnceLock<(WaitClient, SocketAddr)>>,
    reporter: Reporter<Status>,
}

impl Waits {
    fn own(&self) -> (&WaitClient, WaitLocal) {
        let (client, address) = self.own.get().expect("it is set before the first call");
        (client, WaitLocal::connect(&self.context, *address).expect("an address"))
    }
}

impl Wait for Waits {
    async fn plain(&self) -> Result<u8, Status> {
        Ok(1)
    }
    async fn wait(&self) -> Result<u8, Status> {
        let (client, local) = self.own();
        // These calls start before `block_on`.
        self.reporter.tell(block_on(client.plain()).unwrap_err());
        self.reporter.tell(block_on(local.plain()).unwrap_err());
        self.reporter.tell(block_on(client.note()).unwrap_err());
        // These calls start within `block_on`.
        self.reporter.tell(block_on(async { client.plain().await }).unwrap_err());
        self.reporter.tell(block_on(async { block_on(async { local.plain().await }) }).unwrap_err());
        // `block_on` may wait for a future that another thread completes.
        assert_eq!(block_on(completed_elsewhere()), 7);
        local.plain().await
    }
    async fn wait_later(&self) -> Result<u8, Status> {
        let (client, local) = self.own();
        let (mut shared, mut own) = (pin!(client.plain()), pin!(local.plain()));
        // No call can end before this handler returns to its poller.
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            shared.as_mut().poll(&mut context).is_pending() && own.as_mut().poll(&mut context).is_pending()
        );
        self.reporter.tell(block_on(shared).unwrap_err());
        self.reporter.tell(block_on(own).unwrap_err());
        client.plain().await
    }
    async fn note(&self) {}
}

/// Completes when another thread has stored a value.
async fn completed_elsewhere() -> u8 {
    let shared = Arc::new((Mutex::new(None::<Waker>), OnceLock::new()));
    let other = Arc::clone(&shared);
    let thread = std::thread::spawn(move || {
        loop {
            if let Some(waker) = other.0.lock().unwrap().take() {
                other.1.set(7).unwrap();
                return waker.wake();
            }
            std::thread::yield_now();
        }
    });
    let value = poll_fn(|context| {
        if let Some(value) = shared.1.get() {
            return Poll::Ready(*value);
        }
        *shared.0.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    })
    .await;
    thread.join().unwrap();
    value
}

fn assert_refused(status: &Status, may_have_run: bool) {
    assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::Misuse)), "{status}");
    assert!(status.message().contains("await the call instead"), "{status}");
    assert_eq!(status.may_have_run(), may_have_run, "{status}");
}

#[test]
fn call_waited_for_on_pollers_thread_fails_at_once() {
    let (reporter, statuses) = events();
    let own = Arc::new(OnceLock::new());
    let of_handlers = Arc::clone(&own);
    let service = WaitServer::per_poller(move |context| {
        let (own, reporter) = (Arc::clone(&of_handlers), reporter.clone());
        Ok::<_, Status>(Waits { context: context.clone(), own, reporter })
    });
    let server = node().serve(service).start().unwrap();
    let client = WaitClient::connect(&server, server.local_address()).unwrap();
    own.set((client.clone(), server.local_address())).unwrap();
    assert_eq!(block_on(client.wait()), Ok(1), "the handler goes on");
    for may_have_run in [true, true, true, false, false] {
        assert_refused(&statuses.next(), may_have_run);
    }
    assert_eq!(block_on(client.wait_later()), Ok(1));
    for _ in 0..2 {
        assert_refused(&statuses.next(), true);
    }
    server.shutdown();
}

#[test]
fn task_blocking_on_its_own_poller_fails_at_once() {
    let node = Arc::new(node().start().unwrap());
    let of_task: Arc<Node> = Arc::clone(&node);
    let task = node.run_on(PollerIndex(0), move |_| async move {
        block_on(of_task.run_on(PollerIndex(0), |_| async { 5 }))
    });
    assert_refused(&block_on(task).unwrap().unwrap_err(), true);
    assert_eq!(block_on(node.run_on(PollerIndex(0), |_| async { 5 })), Ok(5), "the poller goes on");
}

#[test]
fn blocking_call_in_factory_fails_at_once() {
    let (reporter, statuses) = events();
    let own = Arc::new(OnceLock::new());
    let service = WaitServer::per_poller(move |context| {
        let local = WaitLocal::connect(context, "127.0.0.1:1").unwrap();
        reporter.tell(block_on(local.plain()).unwrap_err());
        reporter.tell(block_on(async { local.plain().await }).unwrap_err());
        Ok::<_, Status>(Waits { context: context.clone(), own: Arc::clone(&own), reporter: reporter.clone() })
    });
    let _server = node().serve(service).start().unwrap();
    assert_refused(&statuses.next(), true);
    assert_refused(&statuses.next(), false);
}

#[trunkline::service]
trait Take {
    async fn take(&self, bytes: Bytes) -> Result<usize, Status>;
    #[oneway]
    async fn note(&self, bytes: Bytes);
}

struct Takes;

impl Take for Takes {
    async fn take(&self, bytes: Bytes) -> Result<usize, Status> {
        Ok(bytes.len())
    }
    async fn note(&self, _: Bytes) {}
}

/// Waits for a call when it is woken, or when it is dropped as the owner of bytes. Reports the outcome.
struct Waiter {
    bytes: Vec<u8>,
    client: TakeClient,
    reporter: Reporter<Result<usize, Status>>,
}

impl Waiter {
    fn wait(&self) {
        self.reporter.tell(block_on(async { self.client.take(Bytes::new()).await }));
    }
}

impl AsRef<[u8]> for Waiter {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.wait();
        }
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wait();
    }
}

#[test]
fn wait_in_drop_or_waker_on_poller_fails_at_once() {
    let server = node().serve(TakeServer::new(Takes)).start().unwrap();
    let caller = node().start().unwrap();
    let client = TakeClient::connect(&caller, server.local_address()).unwrap();
    let (reporter, outcomes) = events();
    let waiter =
        |length| Waiter { bytes: vec![7; length], client: client.clone(), reporter: reporter.clone() };
    // A small message is copied when the call is made. A large message is shared, and the poller drops its last clone.
    assert_eq!(block_on(client.take(Bytes::from_owner(waiter(300_000)))), Ok(300_000));
    assert_refused(&outcomes.next().unwrap_err(), false);

    let waker = Waker::from(Arc::new(waiter(0)));
    until("a note ends after it was polled", || {
        let mut note = pin!(client.note(Bytes::from(vec![7; 300_000])));
        let is_pending = note.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        is_pending.then(|| assert_refused(&outcomes.next().unwrap_err(), false))
    });
    assert_eq!(block_on(client.take(Bytes::new())), Ok(0), "the poller goes on");
}
