//! A server that a test simulates, and the node that calls it.

use super::service::METHODS;
use super::{Line, Peer, Task, World, parse, poll};
use crate::call::{Call, Opened, Outcome, StreamWait, no_items};
use crate::client::{CallOptions, Channel};
use crate::node::Node;
use crate::status::Status;
use crate::stream::Streaming;
use crate::wire::frame::{Header, Number, RepliedBy, RequestHeader, StreamHeader, StreamPart};
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use bytes::Bytes;
use std::pin::Pin;
use trunkline_transport::Origin;
use trunkline_transport::ledger::{BudgetLedger, DriverLedger, PollerLedger};

/// A call that has been made.
pub(super) type Made = Pin<Box<dyn Future<Output = Outcome>>>;

/// A request that has reached the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    /// The server's poller that received the request.
    pub(super) line: usize,
    pub(super) from: Origin,
    pub(super) header: RequestHeader,
}

/// A server that a test simulates, and a node with a channel to it.
pub(super) struct Server {
    pub(super) world: World,
    pub(super) node: Node,
    pub(super) peer: Peer,
    pub(super) channel: Channel,
    /// Number of machines of the node. They precede the server's machines.
    machines: usize,
}

impl Server {
    /// Connects a node to a server with this number of pollers.
    pub(super) fn with(pollers: u16, set: impl FnOnce(crate::NodeBuilder) -> crate::NodeBuilder) -> Self {
        let mut world = World::new();
        let node = world.node(set);
        let machines = world.tasks.len();
        let peer = world.peer_with(|options| options.pollers(pollers));
        let channel = node.channel(peer.address());
        world.block_on(channel.ready()).expect("the server listens");
        world.run();
        Self { world, node, peer, channel, machines }
    }

    pub(super) fn new() -> Self {
        Self::with(1, |builder| builder)
    }

    /// Makes a call without streams.
    pub(super) fn call(&self, method: &'static MethodName, options: CallOptions, body: Bytes) -> Made {
        let channel = self.channel.clone();
        let mut made: Made = Box::pin(async move {
            let call = if method.one_way { Channel::send } else { Channel::call };
            call(&channel, &options, method, &(), body).await
        });
        assert!(poll(Pin::new(&mut made)).is_none(), "it takes time");
        made
    }

    /// Makes a call that streams items. Sends no items.
    pub(super) fn open(
        &self,
        method: &'static MethodName,
        options: &CallOptions,
    ) -> (Call<StreamWait>, Opened) {
        self.channel.open(options, method, &(), Bytes::new(), no_items())
    }

    /// Calls a method that streams items to the client, and accepts the call.
    pub(super) fn accepted(
        &mut self,
        method: &'static MethodName,
        options: &CallOptions,
    ) -> (Arrived, Streaming<Bytes>) {
        let (wait, opened) = self.open(method, options);
        let request = self.request();
        self.stream(request, StreamPart::Accept, &[]);
        self.world.block_on(wait).expect("it was accepted");
        (request, opened.bytes(|bytes| bytes))
    }

    /// Takes the next frame that has arrived, with the poller that received it.
    pub(super) fn arrived(&self) -> Option<(usize, Origin, Header)> {
        let lines = self.peer.lines.iter().enumerate();
        let mut frames =
            lines.filter_map(|(line, poller)| Some((line, poller.arrived.borrow_mut().frames.pop_front()?)));
        let (line, (from, message)) = frames.next()?;
        Some((line, from, parse(&message).0))
    }

    /// Waits for the next request and drops other frames.
    pub(super) fn request(&mut self) -> Arrived {
        loop {
            let Self { world, peer, .. } = self;
            world.until("a request", || peer.lines.iter().any(Self::has_frames).then_some(()));
            if let Some((line, from, Header::Request(header))) = self.arrived() {
                return Arrived { line, from, header };
            }
        }
    }

    fn has_frames(line: &Line) -> bool {
        !line.arrived.borrow().frames.is_empty()
    }

    /// Answers a request with a frame.
    pub(super) fn answer(&self, to: Arrived, header: &Header, encoded: &[u8], body: &[u8]) {
        self.peer.answer(to.line, to.from, header, encoded, body);
    }

    /// Sends a frame of the stream that a request opened.
    pub(super) fn stream(&self, to: Arrived, part: StreamPart, item: &[u8]) {
        let header = StreamHeader { call: to.header.call, from_caller: false, part };
        self.answer(to, &Header::Stream(header), &[], item);
    }

    /// Returns the calls whose cancellations have arrived, in order of arrival. Drops other frames.
    pub(super) fn cancelled(&mut self) -> Vec<u64> {
        self.world.run();
        let frames = std::iter::from_fn(|| self.arrived());
        let cancelled = frames.filter_map(|(_, _, header)| match header {
            Header::Cancel { call } => Some(call),
            _ => None,
        });
        cancelled.collect()
    }

    /// Stops all machines of the server, including its device, until the returned machines are put back.
    pub(super) fn silence(&mut self) -> Vec<(Task, Option<Line>)> {
        self.world.tasks.split_off(self.machines)
    }

    /// Waits until the node's session with the server has ended.
    pub(super) fn until_lost(&mut self) {
        let Self { world, channel, .. } = self;
        world.until("the end of the session", || (!channel.is_connected()).then_some(()));
    }

    pub(super) fn open_work(&self) -> DriverLedger {
        let machines = self.world.tasks.iter();
        let ledgers =
            machines.filter_map(|(task, _)| task.machine.inspect()?.downcast::<PollerLedger>().ok());
        let [ledger] = ledgers.collect::<Vec<_>>().try_into().expect("the node has one poller");
        ledger.driver
    }

    /// Checks that the node has no open calls or handlers.
    pub(super) fn assert_at_rest(&self, what: &str) {
        let DriverLedger { calls, handlers, has_timer, budgets, .. } = self.open_work();
        assert_eq!((calls, handlers, has_timer), (0, 0, false), "{what}");
        let in_use = |budget: &BudgetLedger| budget.used.values().any(|used| *used > 0);
        assert!(!budgets.iter().any(in_use), "{what} leaves a charge: {budgets:?}");
    }
}

/// Returns the next item, or the end, if it has arrived.
pub(super) fn next<T>(items: &mut Streaming<T>) -> Option<Result<Option<T>, Status>> {
    poll(std::pin::pin!(items.message()))
}

/// Returns the error that ends a stream. Skips the items before it.
pub(super) fn error<T: std::fmt::Debug>(items: &mut Streaming<T>) -> Status {
    loop {
        match next(items) {
            Some(Ok(Some(_))) => {}
            Some(Err(status)) => return status,
            other => panic!("{other:?} in place of an error"),
        }
    }
}

/// Returns the header of a successful reply by a handler.
pub(super) fn success(request: Arrived) -> Header {
    let (call, metadata) = (request.header.call, MetadataBytes::default());
    Header::Reply { call, code: 0, by: RepliedBy::Handler, number: None, metadata }
}

/// Returns the number of a method on a server. The server's methods are added in the order of [`METHODS`].
pub(super) fn number(method: &MethodName) -> Number {
    let number = METHODS.iter().position(|other| other == method).expect("it is served");
    let (schema, method) = (method.service.schema(), method.hash);
    Number { number: u16::try_from(number).expect("a few"), schema, method }
}
