//! Call counters per method in the reports of both sides.

use crate::common::{LIMIT, node, pair, until};
use crate::gate::Gate;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;
use trunkline::report::{FailedCalls, MethodReport};
use trunkline::{Code, Node, Reason, Status, Stream, block_on};
use trunkline_testkit::parse_scrape;

/// An application error type.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Sold(u32);

#[trunkline::service]
trait Shop {
    async fn price(&self, item: u32) -> Result<u32, Status>;
    async fn buy(&self, item: u32) -> Result<u32, Sold>;
    /// Waits at the gate.
    async fn order(&self, item: u32) -> u32;
    #[offload]
    async fn pack(&self, item: u32) -> u32;
    /// Waits at the gate on a worker.
    #[blocking]
    async fn hold(&self, item: u32) -> u32;
    #[oneway]
    async fn note(&self, item: u32);
    async fn items(&self) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
}

struct Till(Gate);

impl Shop for Till {
    async fn price(&self, item: u32) -> Result<u32, Status> {
        if item == 0 { Err(Status::new(Code::NotFound, "no such item")) } else { Ok(item) }
    }
    async fn buy(&self, item: u32) -> Result<u32, Sold> {
        Err(Sold(item))
    }
    async fn order(&self, item: u32) -> u32 {
        self.0.pass().await;
        item
    }
    async fn pack(&self, item: u32) -> u32 {
        item
    }
    async fn hold(&self, item: u32) -> u32 {
        self.0.pass().await;
        item
    }
    async fn note(&self, _: u32) {}
    async fn items(&self) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        self.0.pass().await;
        Ok(Once(Some(7)))
    }
}

/// A stream of one item.
struct Once(Option<u32>);

impl Stream for Once {
    type Item = Result<u32, Status>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.take().map(Ok))
    }
}

/// A service that the server does not provide.
#[trunkline::service]
trait Missing {
    async fn find(&self) -> u32;
}

type Rows = fn(&Node, &str) -> MethodReport;

fn served(node: &Node, method: &str) -> MethodReport {
    row(node.report().served, method)
}

fn called(node: &Node, method: &str) -> MethodReport {
    row(node.report().called, method)
}

fn row(rows: Vec<MethodReport>, method: &str) -> MethodReport {
    rows.into_iter().find(|row| row.method == method).unwrap_or_else(|| panic!("no row of {method}"))
}

fn failed(code: &'static str, calls: u64) -> Vec<FailedCalls> {
    vec![FailedCalls { code, calls }]
}

#[test]
fn both_sides_count_calls_and_their_failures() {
    let (server, node) = pair(ShopServer::new(Till(Gate::default())));
    let client = ShopClient::connect(&node, server.local_address()).unwrap().with_timeout(LIMIT);
    for item in [1, 2, 0, 3, 0] {
        assert_eq!(block_on(client.price(item)).is_ok(), item > 0);
    }
    block_on(client.buy(4)).unwrap_err();
    block_on(client.note(5)).unwrap();
    assert_eq!(block_on(client.pack(6)).unwrap(), 6);
    for price in [served(&server, "price"), called(&node, "price")] {
        assert_eq!(
            (price.calls, price.failed, price.refused, price.running),
            (5, failed("NOT_FOUND", 2), 0, 0)
        );
        assert_eq!(price.latency.count(), 5);
    }
    // Handlers of `price` complete when they are first polled.
    assert_eq!(served(&server, "price").latency.sum(), Duration::ZERO);
    assert_eq!(served(&server, "buy").failed, failed("ERROR", 1));
    assert_eq!(called(&node, "buy").failed, failed("ERROR", 1));
    until("the one-way call has run", || (served(&server, "note").calls == 1).then_some(()));
    assert_eq!(called(&node, "note").calls, 1);
    assert_eq!((served(&server, "pack").queued.count(), called(&node, "pack").queued.count()), (1, 0));
    let names = server.report().served.into_iter().map(|row| row.method).collect::<Vec<_>>();
    assert_eq!(names, ["buy", "hold", "items", "note", "order", "pack", "price"]);
    assert!(node.report().served.is_empty() && server.report().called.is_empty());
    for (node, side) in [(&server, "server"), (&node, "client")] {
        let samples = parse_scrape(&node.report().prometheus());
        let name = format!("rpc_{side}_call_duration_seconds_count");
        let calls = samples.into_iter().filter(|sample| sample.name == name);
        let price = calls.filter(|sample| sample.labels["rpc_method"].ends_with("/price"));
        assert_eq!(price.map(|sample| sample.value).collect::<Vec<_>>(), [5.0], "{side}");
    }
}

#[test]
fn running_calls_are_counted_and_timed() {
    let gate = Gate::default();
    let (server, node) = pair(ShopServer::new(Till(gate.clone())).limit_order(1));
    let client = ShopClient::connect(&node, server.local_address()).unwrap().with_timeout(LIMIT);
    let mut dropped = Box::pin(client.order(1));
    assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    until("the handler runs", || (served(&server, "order").running == 1).then_some(()));
    assert_eq!(called(&node, "order").running, 1);
    // This call exceeds the limit.
    assert_eq!(block_on(client.order(2)).unwrap_err().code(), Code::ResourceExhausted);
    let order = served(&server, "order");
    assert_eq!((order.calls, order.refused, order.failed), (1, 1, failed("RESOURCE_EXHAUSTED", 1)));
    drop(dropped);
    let cancelled = FailedCalls { code: "CANCELLED", calls: 1 };
    for (rows, node) in [(served as Rows, &server), (called, &node)] {
        let order = || rows(node, "order");
        until("the call is cancelled", || order().failed.contains(&cancelled).then_some(()));
        assert_eq!((order().calls, order().running), (2, 0));
    }

    let mut stream = pin!(client.items());
    assert!(stream.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    until("the handler runs", || (served(&server, "items").running == 1).then_some(()));
    // The stream lasts at least 10 ms.
    thread::sleep(Duration::from_millis(10));
    gate.open();
    let mut items = block_on(stream).unwrap();
    while block_on(items.message()).unwrap().is_some() {}
    until("the stream has ended", || (served(&server, "items").calls == 1).then_some(()));
    for items in [served(&server, "items"), called(&node, "items")] {
        assert_eq!((items.calls, items.running, items.failed), (1, 0, Vec::new()));
        assert!(
            items.latency.quantile(1.0).unwrap() >= Duration::from_millis(1),
            "{:?}",
            items.latency.sum()
        );
    }
}

#[test]
fn requests_for_missing_methods_share_one_row() {
    let (server, node) = pair(ShopServer::new(Till(Gate::default())));
    let client = MissingClient::connect(&node, server.local_address()).unwrap().with_timeout(LIMIT);
    assert_eq!(block_on(client.find()).unwrap_err().code(), Code::Unimplemented);
    let other = served(&server, "_OTHER");
    assert_eq!((other.service, other.calls, other.refused), ("", 1, 1));
    assert_eq!(other.failed, failed("UNIMPLEMENTED", 1));
    assert_eq!(called(&node, "find").failed, failed("UNIMPLEMENTED", 1));
}

/// Number of callers of a server that shuts down.
const CALLERS: usize = 8;

#[test]
fn report_after_shutdown_counts_answered_calls() {
    let gate = Gate::default();
    let service = ShopServer::new(Till(gate.clone()));
    let server = node().pollers(2).workers(1).grace(LIMIT).serve(service).start().unwrap();
    let caller = node().pollers(2).start().unwrap();
    let client = ShopClient::connect(&caller, server.local_address()).unwrap().with_timeout(LIMIT);
    let mut order = Box::pin(client.order(1));
    assert!(order.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    until("the handler runs", || (served(&server, "order").running == 1).then_some(()));
    // The first job occupies the only worker, and the second job waits for the worker.
    let jobs = [1, 2].map(|item| {
        let mut job = Box::pin(client.hold(item));
        assert!(job.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        until("the job waits", || (gate.arrived() == 2).then_some(()));
        job
    });
    until("the job waits", || (served(&server, "hold").running == 2).then_some(()));
    let answered = thread::scope(|scope| {
        let callers = [(); CALLERS].map(|()| {
            let client = client.clone();
            scope.spawn(move || {
                let mut answered = 0;
                loop {
                    match block_on(client.price(1)) {
                        Ok(_) => answered += 1,
                        Err(status) => break (answered, status),
                    }
                }
            })
        });
        until("calls are answered", || (served(&server, "price").calls > 1000).then_some(()));
        let ending = scope.spawn(|| server.shutdown());
        let answered = callers.map(|caller| caller.join().unwrap());
        gate.open();
        ending.join().unwrap();
        answered.map(|(answered, status)| {
            assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::Draining), false), "{status}");
            answered
        })
    });
    assert!(block_on(order).is_ok());
    let [first, second] = jobs.map(block_on);
    assert_eq!(first.unwrap(), 1);
    let status = second.unwrap_err();
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::Draining), false), "{status}");
    for (method, calls) in [("price", answered.iter().sum::<u64>()), ("order", 1), ("hold", 1)] {
        let row = served(&server, method);
        assert_eq!((row.calls, row.refused, row.running), (calls, 0, 0), "{method}");
        assert_eq!((row.latency.count(), row.failed), (calls, Vec::new()), "{method}");
    }
    assert_eq!(server.report().counter("requests_refused_draining"), Some(CALLERS as u64 + 1));
}
