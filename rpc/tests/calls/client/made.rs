//! A call is made when its stub is called, even if the future is never polled.

use crate::common::{Events, Guard, LIMIT, Reporter, events, node, until};
use crate::gate::Gate;
use serde::{Deserialize, Serialize, Serializer};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline::{CallOptions, Code, Node, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Lazy {
    /// Waits at the gate.
    async fn wait(&self) -> Result<u8, Status>;
    async fn large(&self, numbers: [u64; 16]) -> Result<u8, Status>;
    async fn odd(&self, argument: Odd) -> Result<u8, Status>;
    #[oneway]
    async fn note(&self, text: String);
}

/// A value that cannot be encoded.
#[derive(Debug, Deserialize)]
struct Odd;

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it is odd"))
    }
}

struct Waiter {
    reporter: Reporter<&'static str>,
    gate: Gate,
}

impl Lazy for Waiter {
    async fn wait(&self) -> Result<u8, Status> {
        let _guard = Guard(self.reporter.clone());
        self.reporter.tell("started");
        self.gate.pass().await;
        Ok(7)
    }
    async fn large(&self, _: [u64; 16]) -> Result<u8, Status> {
        Ok(1)
    }
    async fn odd(&self, _: Odd) -> Result<u8, Status> {
        Ok(2)
    }
    async fn note(&self, _: String) {
        self.reporter.tell("noted");
    }
}

struct Setting {
    server: Node,
    node: Node,
    gate: Gate,
    reported: Events<&'static str>,
}

impl Setting {
    fn new() -> Self {
        let (reporter, reported) = events();
        let gate = Gate::default();
        let of_handlers = gate.clone();
        let service = LazyServer::new(Waiter { reporter, gate: of_handlers });
        let server = node().grace(Duration::from_millis(200)).serve(service).start().unwrap();
        Self { server, node: node().start().unwrap(), gate, reported }
    }

    fn client(&self) -> LazyClient {
        LazyClient::connect(&self.node, self.server.local_address()).unwrap().with_timeout(LIMIT)
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the used part of a node's budget.
fn used(node: &Node, name: &str) -> u64 {
    node.report().budgets.iter().find(|budget| budget.name == name).expect("there is one").used
}

#[test]
fn call_runs_before_its_future_is_polled() {
    let setting = Setting::new();
    let client = setting.client();
    let (call, note) = (client.wait(), client.note("text".into()));
    assert_eq!((setting.reported.next(), setting.reported.next()), ("started", "noted"));
    setting.gate.open();
    assert_eq!(setting.reported.next(), "dropped", "the handler has returned");
    assert_eq!((block_on(call), block_on(note)), (Ok(7), Ok(())));
}

#[test]
fn local_call_runs_before_its_future_is_polled() {
    let setting = Setting::new();
    let (gate, address) = (Gate::default(), setting.server.local_address());
    let of_task = gate.clone();
    let task = setting.node.run_on(PollerIndex(0), move |context| async move {
        let client = LazyLocal::connect(&context, address)?.with_timeout(LIMIT);
        let call = client.wait();
        of_task.pass().await;
        call.await
    });
    assert_eq!(setting.reported.next(), "started");
    setting.gate.open();
    assert_eq!(setting.reported.next(), "dropped");
    gate.open();
    assert_eq!(block_on(task), Ok(Ok(7)));
}

#[test]
fn time_limit_runs_from_stub_call() {
    until("a handler starts before the time limit of its call", || {
        let (setting, limit) = (Setting::new(), Duration::from_millis(200));
        let client = setting.client().with_timeout(limit);
        let mut call = Box::pin(client.wait());
        std::thread::sleep(limit);
        assert_eq!(setting.reported.try_next()?, "started");
        // The handler ends because of the time limit in the request. The caller's node ends the call, although no task
        // polls its future.
        assert_eq!(setting.reported.next(), "dropped");
        until("the call ends", || (used(&setting.node, "calls under way") == 0).then_some(()));
        let Poll::Ready(Err(status)) = poll(call.as_mut()) else {
            panic!("the first poll finds the outcome")
        };
        assert_eq!(
            (status.code(), status.reason()),
            (Code::DeadlineExceeded, Some(Reason::Expired)),
            "{status}"
        );
        Some(())
    });
}

#[test]
fn calls_dropped_unpolled_are_cancelled_and_released() {
    let setting = Setting::new();
    let client = setting.client();
    let calls = (0..100).map(|_| client.wait()).collect::<Vec<_>>();
    for _ in 0..100 {
        assert_eq!(setting.reported.next(), "started");
    }
    assert_eq!(used(&setting.node, "calls under way"), 100);
    drop(calls);
    for _ in 0..100 {
        assert_eq!(setting.reported.next(), "dropped");
    }
    // These calls may or may not be sent before they are dropped.
    (0..1000).for_each(|_| drop(client.wait()));
    (0..1000).for_each(|_| drop(client.note("text".into())));
    let nodes = [(&setting.node, "calls under way"), (&setting.server, "running handlers")];
    for (node, budget) in nodes {
        until(budget, || (used(node, budget) == 0).then_some(()));
    }
    setting.gate.open();
    assert_eq!(block_on(client.wait()), Ok(7));
}

#[test]
fn error_before_sending_is_outcome_of_call() {
    let setting = Setting::new();
    let client = setting.client();
    let status = block_on(client.odd(Odd)).unwrap_err();
    let name = format!("Lazy.odd at {}: the arguments cannot be encoded", setting.server.local_address());
    assert!(status.message().starts_with(&name), "{status}");
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::BadArguments), false));
    let before = client.large([0; 16]);
    setting.node.shutdown();
    let mut later = Box::pin(client.large([0; 16]));
    let Poll::Ready(Err(status)) = poll(later.as_mut()) else { panic!("it is refused at once") };
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::Draining), false), "{status}");
    assert!(status.message().starts_with("Lazy.large at "), "{status}");
    let outcome = block_on(before);
    assert!(matches!(&outcome, Ok(1)) || outcome.is_err_and(|status| status.code() == Code::Unavailable));
}

#[test]
fn future_borrows_client_and_holds_no_argument() {
    let setting = Setting::new();
    let client = setting.client();
    let (small, large) = (client.wait(), {
        let options = CallOptions::new().timeout(LIMIT);
        client.with(&options).large([0; 16])
    });
    assert_eq!(size_of_val(&small), size_of_val(&large));
    fn send<F: Future + Send>(future: F) -> F {
        future
    }
    assert_eq!(block_on(send(large)), Ok(1));
    drop(small);
}
