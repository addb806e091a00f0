//! Calls that wait for a connection. They outlive the drain of their server and are sent to its successor.

use crate::common::{LIMIT, fresh_address, node, until};
use crate::gate::Gate;
use crate::streams::items::Iterate;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;
use trunkline::stream::Stream;
use trunkline::{CallOptions, Channel, Code, Connect, Node, Reason, Status, Streaming, block_on};

#[trunkline::service]
trait Shop {
    /// Returns the server's number.
    async fn number(&self) -> u32;
    /// Streams the server's number.
    async fn numbers(&self) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
    /// Waits at the gate.
    async fn hold(&self) -> u32;
}

struct Keeper {
    number: u32,
    gate: Gate,
}

impl Shop for Keeper {
    async fn number(&self) -> u32 {
        self.number
    }
    async fn numbers(&self) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        Ok(Iterate([Ok(self.number)].into_iter()))
    }
    async fn hold(&self) -> u32 {
        self.gate.pass().await;
        self.number
    }
}

fn start(address: SocketAddr, number: u32, gate: &Gate) -> Node {
    let server = Node::builder().listen(address).grace(LIMIT);
    server.serve(ShopServer::new(Keeper { number, gate: gate.clone() })).start().unwrap()
}

fn client(channel: Channel) -> ShopClient {
    ShopClient::new(channel).with_timeout(10 * LIMIT)
}

type Made<'a> = Pin<Box<dyn Future<Output = Result<u32, Status>> + 'a>>;

/// A draining server whose session is kept open by one call. The caller has been notified of the drain.
struct Draining {
    node: Node,
    gate: Gate,
    held: Made<'static>,
}

impl Draining {
    /// Starts a server and drains it. `meanwhile` makes calls that the server has not refused yet.
    fn new<T>(caller: &Node, address: SocketAddr, meanwhile: impl FnOnce() -> T) -> (Self, T) {
        let gate = Gate::default();
        let node = start(address, 1, &gate);
        let client = client(caller.channel(address));
        let of_held = client.clone();
        let held = Box::pin(async move { of_held.hold().await });
        let mut draining = Self { node, gate, held };
        assert!(draining.held.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        until("the handler runs", || (draining.gate.arrived() == 1).then_some(()));
        draining.node.begin_drain();
        let made = meanwhile();
        let status = block_on(client.number()).unwrap_err();
        assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::Draining), false), "{status}");
        (draining, made)
    }

    /// Returns the number of requests that the server has refused because of its drain.
    fn refused(&self) -> u64 {
        self.node.report().counter("requests_refused_draining").unwrap()
    }

    /// Ends the server and starts another one at the same address.
    fn restart(self, number: u32) -> Node {
        let address = self.node.local_address();
        self.gate.open();
        assert_eq!(block_on(self.held), Ok(1), "the held call has ended before the session");
        self.node.shutdown();
        drop(self.node);
        start(address, number, &self.gate)
    }
}

/// Makes a call and opens a stream, both of which wait for a connection.
fn wait(client: &ShopClient) -> [Made<'_>; 2] {
    let options = CallOptions::new().connect(Connect::Wait);
    let (number, numbers) = (client.with(&options).number(), client.with(&options).numbers());
    let first = async move {
        let mut items: Streaming<u32> = numbers.await?;
        items.message().await.map(Option::unwrap)
    };
    [Box::pin(number), Box::pin(first)]
}

#[test]
fn waiting_calls_outlive_drain_of_server() {
    let caller = node().start().unwrap();
    let address = fresh_address();
    let client = client(caller.channel(address));
    // The server did not accept the first calls. The second calls are not sent to it.
    let (draining, first) = Draining::new(&caller, address, || wait(&client));
    let refused = draining.refused();
    let second = wait(&client);
    let short = CallOptions::new().connect(Connect::Wait).timeout(Duration::from_millis(100));
    let expired = until("a call has waited", || {
        let status = block_on(client.with(&short).number()).unwrap_err();
        status.message().contains("is draining").then_some(status)
    });
    assert_eq!((expired.code(), expired.may_have_run()), (Code::DeadlineExceeded, false), "{expired}");
    assert_eq!(draining.refused(), refused);
    let _next = draining.restart(2);
    for call in first.into_iter().chain(second) {
        assert_eq!(block_on(call), Ok(2));
    }
}
