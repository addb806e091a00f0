//! Tests of pollers with peers that behave as no node does. A test steps every machine in one thread and in virtual time.
//!
//! The node under test is complete. A [`Peer`] is a transport that a test controls. It sends arbitrary frames, and exposes
//! the frames that it has received.

pub(crate) mod service;

use crate::node::Node;
use crate::wire::frame::Header;
use bytes::Bytes;
use service::service;
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline_machine::{Machine, Runtime, Turn};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_testkit::{Stepped, Task};
use trunkline_transport::ledger::PollerLedger;
use trunkline_transport::{
    Begun, Connect, Destination, Event, Leaves, Message, MessageHeader, NodeOptions, Origin, Outgoing,
    PeerEvent, PeerKey, ProviderChoice, Report, Token, Transport,
};
use trunkline_verbs::{Clock, Time, VirtualClock};

/// Duration of a round of turns.
const STEP_NS: u64 = 1_000;
/// Virtual time after which an expected event counts as missing.
const LIMIT: Duration = Duration::from_secs(60);

/// All nodes and peers of a test, on a separate network.
pub(crate) struct World {
    clock: Arc<VirtualClock>,
    hub: Arc<Hub>,
    stepped: Arc<Stepped>,
    /// All machines. The machines of peers have a state.
    tasks: Vec<(Task, Option<Line>)>,
    hosts: u8,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = VirtualClock::new();
        clock.set(Time(1_000_000_000));
        Self { clock, hub: Hub::new(), stepped: Stepped::new(1), tasks: Vec::new(), hosts: 0 }
    }

    pub(crate) fn now(&self) -> Time {
        Clock::simulated(Arc::clone(&self.clock)).now()
    }

    /// Returns the transport options for a node on a separate host.
    pub(crate) fn options(&mut self) -> NodeOptions {
        self.options_with(|device| device)
    }

    /// Like [`Self::options`], but `set` changes the device options.
    pub(crate) fn options_with(&mut self, set: impl FnOnce(SoftOptions) -> SoftOptions) -> NodeOptions {
        self.hosts += 1;
        let address = Ipv4Addr::new(10, 0, 0, self.hosts);
        let simulator = Arc::<Stepped>::clone(&self.stepped);
        let runtime = Runtime::simulated(Clock::simulated(Arc::clone(&self.clock)), simulator);
        let device = SoftOptions {
            addresses: vec![address.into()],
            link: LinkChoice::InProcess(Arc::clone(&self.hub)),
            runtime: runtime.clone(),
            ..SoftOptions::default()
        };
        NodeOptions::new()
            .runtime(runtime)
            .device(set(device))
            .provider(ProviderChoice::Soft)
            .allow_unauthenticated(true)
            .listen((address, 7471).into())
    }

    /// Starts a node that serves [`service`]. `set` changes the node's settings.
    pub(crate) fn node(&mut self, set: impl FnOnce(crate::NodeBuilder) -> crate::NodeBuilder) -> Node {
        let options = self.options();
        let node = set(Node::builder().transport(options)).serve(service()).start().expect("it starts");
        self.run();
        node
    }

    /// Starts a peer.
    pub(crate) fn peer(&mut self) -> Peer {
        self.peer_with(|options| options)
    }

    /// Starts a peer whose options are changed by `set`.
    pub(crate) fn peer_with(&mut self, set: impl FnOnce(NodeOptions) -> NodeOptions) -> Peer {
        let options = set(self.options());
        let node = trunkline_transport::Node::start(options, |transport| {
            Ok(Line { transport: Rc::new(RefCell::new(transport)), arrived: Rc::default() })
        });
        let node = node.expect("it starts");
        let before = self.tasks.len();
        self.make();
        let lines = self.tasks[before..].iter().filter_map(|(_, line)| line.clone()).collect();
        self.run();
        Peer { lines, node }
    }

    /// Creates the machines that have been requested.
    fn make(&mut self) {
        for (_, make) in self.stepped.take() {
            let task = Task::new(make).expect("it is made");
            let line = task.machine.inspect().and_then(|line| line.downcast().ok()).map(|line| *line);
            self.tasks.push((task, line));
        }
    }

    /// Gives a turn to each machine that is awake. If all machines sleep, advances the time to the next deadline, at most to
    /// `until`.
    fn step(&mut self, until: Time) {
        self.make();
        let now = self.now();
        let (mut any, mut next) = (false, until);
        self.tasks.retain_mut(|(task, line)| {
            if line.as_ref().is_some_and(|line| line.arrived.borrow().is_held) {
                return true;
            }
            let is_awake = task.is_awake(now);
            any |= is_awake;
            let goes_on = !is_awake || task.turn();
            next = task.deadline().map_or(next, |due| next.min(due));
            goes_on
        });
        self.clock.set(if any { now.plus_ns(STEP_NS) } else { next.max(now.plus_ns(STEP_NS)) });
    }

    /// Returns the open work of a node's first poller, and the poller's charges.
    pub(crate) fn ledger(&self, node: &Node) -> PollerLedger {
        let mut all =
            self.tasks.iter().filter_map(|(task, _)| task.machine.inspect()?.downcast::<PollerLedger>().ok());
        *all.find(|ledger| ledger.node == node.local_address()).expect("it runs")
    }

    /// Advances the time by `time`.
    pub(crate) fn wait(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.step(until);
        }
    }

    /// Runs all work that does not depend on the passage of time.
    pub(crate) fn run(&mut self) {
        self.wait(Duration::from_millis(2));
    }

    /// Waits until `get` returns a value, and returns it.
    pub(crate) fn until<T>(&mut self, what: &str, mut get: impl FnMut() -> Option<T>) -> T {
        let end = self.now() + LIMIT;
        loop {
            if let Some(found) = get() {
                return found;
            }
            assert!(self.now() < end, "{what} does not come");
            self.step(end);
        }
    }

    /// Waits for the output of a future.
    pub(crate) fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        self.until("the output", || poll(future.as_mut()))
    }
}

/// Polls a future once.
pub(crate) fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A poller of a peer, with its transport and the messages that have reached it.
#[derive(Clone)]
struct Line {
    transport: Rc<RefCell<Transport>>,
    arrived: Rc<RefCell<Arrived>>,
}

#[derive(Default)]
struct Arrived {
    /// True if the poller gets no turns, so that it does not take frames, grant credit or fetch large messages.
    is_held: bool,
    frames: VecDeque<(Origin, Message)>,
    events: Vec<(PeerKey, PeerEvent)>,
}

/// A peer that a test controls. Its pollers are identified by their index.
pub(crate) struct Peer {
    lines: Vec<Line>,
    node: trunkline_transport::Node,
}

impl Peer {
    pub(crate) fn address(&self) -> SocketAddr {
        self.node.local_address()
    }

    /// Stops the turns of the peer's pollers, or resumes them.
    pub(crate) fn hold(&self, is_held: bool) {
        self.lines.iter().for_each(|line| line.arrived.borrow_mut().is_held = is_held);
    }

    /// Sends a frame to any poller of a node.
    pub(crate) fn send(&self, to: SocketAddr, header: &Header, encoded: &[u8], body: &[u8]) {
        self.post(0, PeerKey::new(to), None, &frame(header, encoded, body));
    }

    /// Sends a frame from one of the peer's pollers to the poller that sent another frame, through the same session.
    pub(crate) fn answer(&self, by: usize, to: Origin, header: &Header, encoded: &[u8], body: &[u8]) {
        self.post(by, to.peer, Some(to), &frame(header, encoded, body));
    }

    /// Sends a frame to the poller that sent another frame, or to any poller.
    pub(crate) fn post(&self, by: usize, peer: PeerKey, answers: Option<Origin>, frame: &Frame) {
        let mut transport = self.lines[by].transport.borrow_mut();
        let peer = transport.peer(peer);
        let message = Outgoing {
            peer,
            destination: answers.map_or(Destination::Any, |to| Destination::Poller(to.poller)),
            session: answers.map(|to| to.session),
            connect: Connect::Wait,
            ordered: true,
            header: frame.header,
            announced: 0,
            head: &frame.bytes,
            body: Bytes::new().into(),
            token: Token(0),
            report: Report::Never,
            deadline: frame.time_left.map(|left| transport.now() + left),
            leaves: Leaves::Nothing,
        };
        transport.send(&message).expect("it is taken");
        // Flushes explicitly, because a held poller gets no turn.
        transport.flush();
        self.node.poller_handles()[by].wake();
    }

    /// Takes the oldest received frame.
    pub(crate) fn frame(&self) -> Option<(Origin, Header, Bytes)> {
        let mut frames = self.lines.iter().filter_map(|line| line.arrived.borrow_mut().frames.pop_front());
        let (from, message) = frames.next()?;
        let (header, encoded) = parse(&message);
        Some((from, header, message.bytes_from(encoded.start)))
    }

    /// Takes all received frames, with the bytes that follow their metadata.
    pub(crate) fn frames(&self) -> Vec<(Origin, Header, Bytes)> {
        std::iter::from_fn(|| self.frame()).collect()
    }

    /// Takes the events of the peer's sessions.
    pub(crate) fn events(&self) -> Vec<(PeerKey, PeerEvent)> {
        self.lines.iter().flat_map(|line| std::mem::take(&mut line.arrived.borrow_mut().events)).collect()
    }

    /// Shuts the peer down in an orderly way.
    pub(crate) fn end(&self) {
        self.node.begin_shutdown(Duration::ZERO);
    }
}

/// A message from a peer.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) header: MessageHeader,
    pub(crate) bytes: Vec<u8>,
    /// Remaining time, as stated in the message.
    pub(crate) time_left: Option<Duration>,
}

impl Frame {
    pub(crate) fn within(self, time_left: Duration) -> Self {
        Self { time_left: Some(time_left), ..self }
    }
}

/// Returns a frame with this header and these contents.
pub(crate) fn frame(header: &Header, encoded: &[u8], body: &[u8]) -> Frame {
    with_metadata(header, &[], encoded, body)
}

/// Returns a frame with this header, this metadata and these contents.
pub(crate) fn with_metadata(header: &Header, metadata: &[u8], encoded: &[u8], body: &[u8]) -> Frame {
    let mut bytes = Vec::new();
    let header = header.emit(u32::try_from(encoded.len()).expect("short"), &mut bytes);
    Frame { header, bytes: [&bytes, metadata, encoded, body].concat(), time_left: None }
}

/// Returns the header of a node's message and the range of the encoded part.
pub(crate) fn parse(message: &Message) -> (Header, Range<usize>) {
    Header::parse(message.header(), message.as_slice()).expect("a node sends valid frames")
}

impl Line {
    fn events(&self, transport: &mut Transport) {
        let mut arrived = self.arrived.borrow_mut();
        while let Some(event) = transport.poll_event() {
            match event {
                Event::Message(from, message) => arrived.frames.push_back((from, message)),
                Event::Peer(peer, event) => arrived.events.push((peer, event)),
                _ => {}
            }
        }
    }
}

impl Machine for Line {
    fn turn(&mut self) -> Turn {
        let mut transport = self.transport.borrow_mut();
        match transport.begin_turn() {
            Begun::Round => {}
            Begun::LookAgain => return transport.sleep_unless(false, None),
            Begun::Over(turn) => return turn,
        }
        self.events(&mut transport);
        transport.begin_work();
        self.events(&mut transport);
        transport.flush_round();
        if transport.is_shutting_down() {
            transport.begins_shutdown();
            if transport.is_grace_over() {
                transport.cut(false);
            }
            for (peer, session) in transport.settling(true) {
                transport.settle(peer, session);
            }
        }
        transport.end_turn(BTreeMap::new)
    }

    fn sleep(&mut self, _: Option<Time>) {}

    fn is_woken(&self) -> bool {
        self.transport.borrow().is_woken()
    }

    fn inspect(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.clone()))
    }
}

mod addresses;
mod breaches;
mod callers;
mod drained;
mod drains;
mod idle;
mod joined;
mod lists;
mod lookups;
mod metadata;
mod no_room;
mod numbers;
mod ordered;
mod outliers;
mod random;
mod replies;
mod server;
mod servers;
mod watches;
