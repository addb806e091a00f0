//! Test support for nodes, with a driver that a test controls from outside.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses its part")]

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use trunkline_machine::{Machine, Turn};
pub use trunkline_testkit::fresh_address;
use trunkline_transport::{
    Begun, Body, Connect, Destination, Event, Leaves, Message, MessageHeader, Node, NodeOptions, NodeReport,
    Origin, Outgoing, PeerDown, PeerEvent, PeerIdentity, PeerKey, PollerHandle, PollerIndex, Report,
    Screening, SendError, SendOutcome, Token, Transport,
};
use trunkline_verbs::Time;

/// Time limit of waits, long enough for a loaded machine. Only a failing test waits that long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// First byte of a message that the receiver sends back.
pub const ECHO: u8 = b'?';
/// First byte of an echo.
pub const ANSWER: u8 = b'!';
/// First byte of a message that the receiver keeps until `Job::LetGo`.
pub const KEEP: u8 = b'k';

/// First byte of announced messages that a screening node refuses.
pub const REFUSED: u8 = b'r';
/// First byte of announced messages that a screening node accepts. The node leaves other messages undecided.
pub const ACCEPTED: u8 = b'a';

/// Token of messages that request no outcome.
pub const UNREPORTED: u64 = 1 << 41;

/// A job for a poller's driver.
#[derive(Debug)]
pub enum Job {
    Connect(SocketAddr),
    Send {
        peer: PeerKey,
        poller: Option<u16>,
        connect: Connect,
        head: Vec<u8>,
        body: Bytes,
        token: u64,
        deadline: Option<Duration>,
    },
    /// Sends a message through the session of a received message.
    Answer {
        to: Origin,
        head: Vec<u8>,
        token: u64,
    },
    /// Sends a message with a time left to one of the peer's pollers.
    Timed {
        peer: PeerKey,
        poller: u16,
        head: Vec<u8>,
        body: Bytes,
        after: Duration,
    },
    LetGo,
    /// Keeps the poller busy until a value arrives or the other end is dropped.
    Wait(mpsc::Receiver<()>),
    /// Panics on the poller's thread.
    Panic,
}

#[derive(Debug)]
pub enum Happened {
    Connecting(SocketAddr, PeerKey),
    Message(Origin, Bytes),
    /// A message of [`Job::Timed`] with this time left in microseconds, and its first byte.
    Timed(u32, u8),
    Kept(usize),
    Sent(u64, SendOutcome),
    Peer(PeerKey, PeerEvent),
    Refused(u64, SendError),
    GivenUp(usize),
    NotSent(Origin, Vec<u8>, PeerDown),
}

/// Header of the tests' messages, with a kind unknown to the transport.
pub const HEADER: MessageHeader = MessageHeader { kind: 0x10, flags: 0, word: 0x1234 };
/// Header of messages from [`Job::Timed`].
const TIMED: MessageHeader = MessageHeader { kind: 0x4f, ..HEADER };

type Jobs = Arc<Mutex<VecDeque<Job>>>;

struct Probe {
    index: PollerIndex,
    jobs: Jobs,
    events: mpsc::Sender<(PollerIndex, Happened)>,
    kept: Vec<Bytes>,
    /// Echoes for which the transport had no room.
    backlog: VecDeque<(Origin, Bytes)>,
    screens: bool,
}

/// Returns a message to any poller of a peer. The outcome of the message is reported.
fn outgoing(peer: PeerKey, head: &[u8], body: impl Into<Body>, token: u64) -> Outgoing<'_> {
    Outgoing {
        report: Report::Always,
        peer,
        destination: Destination::Any,
        session: None,
        connect: Connect::FailFast,
        ordered: false,
        header: HEADER,
        head,
        announced: 0,
        body: body.into(),
        token: Token(token),
        deadline: None,
        leaves: Leaves::Nothing,
    }
}

/// Returns a message to the poller that sent a received message, through the same session.
fn answer(to: Origin, head: &[u8], body: impl Into<Body>, token: u64) -> Outgoing<'_> {
    let (destination, session) = (Destination::Poller(to.poller), Some(to.session));
    Outgoing { destination, session, ..outgoing(to.peer, head, body, token) }
}

impl Probe {
    fn tell(&self, what: Happened) {
        let _ = self.events.send((self.index, what));
    }

    fn echo(&mut self, transport: &mut Transport, to: Origin, body: Bytes) {
        let outgoing = answer(to, &[ANSWER], body.clone(), u64::MAX);
        if matches!(transport.send(&outgoing), Err(SendError::QueueFull(_))) {
            self.backlog.push_back((to, body));
        }
    }

    fn perform(&mut self, transport: &mut Transport, job: Job) {
        match job {
            Job::Connect(address) => {
                let key = transport.peer(PeerKey::new(address));
                self.tell(Happened::Connecting(address, key));
            }
            Job::Send { peer, poller, connect, head: bytes, body, token, deadline } => {
                let outgoing = Outgoing {
                    report: if token == UNREPORTED { Report::Never } else { Report::Always },
                    destination: poller
                        .map_or(Destination::Any, |poller| Destination::Poller(PollerIndex(poller))),
                    connect,
                    deadline: deadline.map(|after| transport.now() + after),
                    ..outgoing(peer, &bytes, body, token)
                };
                if let Err(error) = transport.send(&outgoing) {
                    self.tell(Happened::Refused(token, error));
                }
            }
            Job::Answer { to, head: bytes, token } => {
                let outgoing = answer(to, &bytes, Body::new(), token);
                if let Err(error) = transport.send(&outgoing) {
                    self.tell(Happened::Refused(token, error));
                }
            }
            Job::Timed { peer, poller, head, body, after } => {
                let message = Outgoing {
                    report: Report::Failure,
                    destination: Destination::Poller(PollerIndex(poller)),
                    header: TIMED,
                    announced: head.len(),
                    deadline: Some(transport.now() + after),
                    ..outgoing(peer, &head, body, 1 << 40)
                };
                transport.send(&message).unwrap();
            }
            Job::LetGo => self.kept.clear(),
            Job::Wait(until) => drop(until.recv()),
            Job::Panic => panic!("as the test wants"),
        }
    }

    fn event(&mut self, transport: &mut Transport, event: Event) {
        match event {
            Event::Announced(from) => self.announced(transport, from),
            Event::Message(from, message) => self.message(transport, from, message),
            Event::Sent(token, outcome) => {
                if let Some((to, body)) = self.backlog.pop_front() {
                    self.echo(transport, to, body);
                }
                if token != Token(u64::MAX) {
                    self.tell(Happened::Sent(token.0, outcome));
                }
            }
            Event::GivenUp { bytes, .. } => self.tell(Happened::GivenUp(bytes)),
            Event::NotSent { to, header, head, cause } => {
                assert_eq!(header, HEADER);
                self.tell(Happened::NotSent(to, head, cause));
            }
            Event::Peer(peer, event) => self.tell(Happened::Peer(peer, event)),
        }
    }

    fn announced(&mut self, transport: &mut Transport, from: Origin) {
        let announcement = transport.announcement(from).unwrap();
        assert!(self.screens && announcement.part().header() == HEADER);
        let screening = match announcement.part().as_slice().first() {
            Some(&REFUSED) => Screening::Refused,
            Some(&ACCEPTED) => Screening::Accepted,
            _ => Screening::Undecided,
        };
        transport.screened(announcement, screening);
    }

    fn message(&mut self, transport: &mut Transport, from: Origin, message: Message) {
        assert_eq!(message.is_accepted(), self.screens && message.as_slice().first() == Some(&ACCEPTED));
        if message.header() == TIMED {
            return self.tell(Happened::Timed(message.time_left_us(), message.as_slice()[0]));
        }
        assert_eq!(message.header(), HEADER);
        let bytes = message.bytes_from(0);
        match bytes.first() {
            Some(&ECHO) => self.echo(transport, from, bytes.slice(1..)),
            Some(&KEEP) => {
                self.kept.push(bytes);
                self.tell(Happened::Kept(self.kept.len()));
            }
            _ => self.tell(Happened::Message(from, bytes)),
        }
    }

    fn run(&mut self, transport: &mut Transport) -> bool {
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap());
        let worked = !jobs.is_empty();
        for job in jobs {
            self.perform(transport, job);
        }
        worked
    }

    fn is_ready(&self) -> bool {
        !self.jobs.lock().unwrap().is_empty()
    }
}

/// A probe and its poller's transport.
struct Driver {
    transport: Transport,
    probe: Probe,
}

impl Machine for Driver {
    fn turn(&mut self) -> Turn {
        let Self { transport, probe } = self;
        match transport.begin_turn() {
            Begun::Round => {}
            Begun::LookAgain => return transport.sleep_unless(probe.is_ready(), None),
            Begun::Over(turn) => return turn,
        }
        while let Some(event) = transport.poll_event() {
            probe.event(transport, event);
        }
        if transport.begin_work() {
            let worked = probe.run(transport);
            transport.note_work(worked);
        }
        while let Some(event) = transport.poll_event() {
            probe.event(transport, event);
        }
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

    fn sleep(&mut self, until: Option<Time>) {
        self.transport.sleep(until);
    }

    fn is_woken(&self) -> bool {
        self.transport.is_woken()
    }

    fn is_due(&self) -> bool {
        self.transport.is_due(self.probe.is_ready())
    }
}

/// A node whose pollers are driven by a test.
pub struct TestNode {
    pub node: Option<Node>,
    pub address: SocketAddr,
    jobs: Vec<Jobs>,
    handles: Vec<PollerHandle>,
    events: mpsc::Receiver<(PollerIndex, Happened)>,
    /// Events skipped by waits for other events.
    passed: VecDeque<(PollerIndex, Happened)>,
}

impl TestNode {
    pub fn start(options: NodeOptions, pollers: u16) -> Self {
        Self::start_with(options, pollers, false)
    }

    /// Starts a node with one poller, which decides about announced messages.
    pub fn start_screening(options: NodeOptions) -> Self {
        Self::start_with(options, 1, true)
    }

    fn start_with(options: NodeOptions, pollers: u16, screens: bool) -> Self {
        let (sender, events) = mpsc::channel();
        let jobs = (0..pollers).map(|_| Jobs::default()).collect::<Vec<_>>();
        let options = options.pollers(pollers);
        let start = || {
            let shared = Mutex::new(sender.clone());
            let of_pollers = jobs.clone();
            Node::start(options.clone(), move |mut transport| {
                if screens {
                    transport.screen_announced();
                }
                let index = transport.poller();
                let probe = Probe {
                    index,
                    jobs: Arc::clone(&of_pollers[usize::from(index.0)]),
                    events: shared.lock().unwrap().clone(),
                    kept: Vec::new(),
                    backlog: VecDeque::new(),
                    screens,
                };
                Ok(Driver { transport, probe })
            })
        };
        // A process started by another test holds a copy of a closed socket until it executes its program.
        let node = trunkline_testkit::wait_until("the address is free", LIMIT, || match start() {
            Err(error) if error.to_string().contains("in use") => None,
            started => Some(started.unwrap()),
        });
        let (address, handles) = (node.local_address(), node.poller_handles());
        Self { node: Some(node), address, jobs, handles, events, passed: VecDeque::new() }
    }

    /// Returns the next event, if there is one.
    pub fn try_event(&mut self) -> Result<(PollerIndex, Happened), mpsc::TryRecvError> {
        self.events.try_recv()
    }

    pub fn job(&self, poller: usize, job: Job) {
        self.jobs[poller].lock().unwrap().push_back(job);
        self.handles[poller].wake();
    }

    /// Waits for an event that `pick` accepts. Other events stay queued.
    pub fn wait<T>(&mut self, what: &str, mut pick: impl FnMut(PollerIndex, &Happened) -> Option<T>) -> T {
        for at in 0..self.passed.len() {
            let (poller, event) = &self.passed[at];
            if let Some(found) = pick(*poller, event) {
                self.passed.remove(at);
                return found;
            }
        }
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((poller, event)) = self.events.recv_timeout(left) else {
                panic!("{what} did not happen; what did: {:?}", brief(&self.passed));
            };
            if let Some(found) = pick(poller, &event) {
                return found;
            }
            self.passed.push_back((poller, event));
        }
    }

    /// Names a peer to a poller, and waits until the poller's session with it is up.
    pub fn connect(&mut self, poller: usize, address: SocketAddr) -> PeerKey {
        let key = self.name(poller, address);
        self.wait("session up", |at, event| match event {
            Happened::Peer(peer, PeerEvent::Up { .. }) if *peer == key && usize::from(at.0) == poller => {
                Some(())
            }
            _ => None,
        });
        key
    }

    /// Names a peer to a poller.
    pub fn name(&mut self, poller: usize, address: SocketAddr) -> PeerKey {
        self.job(poller, Job::Connect(address));
        self.wait("key", |at, event| match event {
            Happened::Connecting(to, key) if *to == address && usize::from(at.0) == poller => Some(*key),
            _ => None,
        })
    }

    pub fn send(&self, poller: usize, peer: PeerKey, head: &[u8], body: Bytes, token: u64) {
        self.send_to(poller, peer, None, head, body, token, None);
    }

    #[allow(clippy::too_many_arguments, reason = "a test's shorthand")]
    pub fn send_to(
        &self,
        poller: usize,
        peer: PeerKey,
        to: Option<u16>,
        head: &[u8],
        body: Bytes,
        token: u64,
        deadline: Option<Duration>,
    ) {
        let (head, connect) = (head.to_vec(), Connect::FailFast);
        self.job(poller, Job::Send { peer, poller: to, connect, head, body, token, deadline });
    }

    /// Sends a message that waits for a session, even if attempts to connect fail.
    pub fn send_waiting(&self, peer: PeerKey, head: &[u8], token: u64, deadline: Duration) {
        let (head, connect, body) = (head.to_vec(), Connect::Wait, Bytes::new());
        self.job(0, Job::Send { peer, poller: None, connect, head, body, token, deadline: Some(deadline) });
    }

    /// Waits for the refusal of a message, and returns the error.
    pub fn refusal(&mut self, token: u64) -> SendError {
        self.wait("refusal", |_, event| match event {
            Happened::Refused(of, error) if *of == token => Some(*error),
            Happened::Sent(of, outcome) if *of == token => panic!("taken, and then {outcome:?}"),
            _ => None,
        })
    }

    /// Takes all events that waits have skipped.
    pub fn take_passed(&mut self, mut with: impl FnMut(&Happened)) {
        for (_, event) in self.passed.drain(..).chain(self.events.try_iter()) {
            with(&event);
        }
    }

    /// Waits for the outcome of a message, and returns it.
    pub fn outcome(&mut self, token: u64) -> SendOutcome {
        self.wait("outcome", |_, event| match event {
            Happened::Sent(of, outcome) if *of == token => Some(*outcome),
            Happened::Refused(of, error) if *of == token => panic!("not taken: {error}"),
            _ => None,
        })
    }

    /// Waits for the next message, and returns it.
    pub fn message(&mut self) -> (Origin, Bytes) {
        self.wait("message", |_, event| match event {
            Happened::Message(from, bytes) => Some((*from, bytes.clone())),
            _ => None,
        })
    }

    /// Waits for the next message from [`Job::Timed`]. Returns its time left in microseconds, and its first byte.
    pub fn timed(&mut self) -> (u32, u8) {
        self.wait("a message with a time left", |_, event| match event {
            Happened::Timed(left_us, first) => Some((*left_us, *first)),
            _ => None,
        })
    }

    /// Waits until a peer is down at a poller, and returns the cause.
    pub fn down(&mut self, peer: PeerKey) -> PeerDown {
        self.wait("peer down", |_, event| match event {
            Happened::Peer(of, PeerEvent::Down { cause }) if *of == peer => Some(*cause),
            _ => None,
        })
    }

    /// Waits until any session is up, and returns the identity of its peer.
    #[cfg(feature = "identity")]
    pub fn identity(&mut self) -> PeerIdentity {
        self.wait("session up", |_, event| match event {
            Happened::Peer(_, PeerEvent::Up { identity, .. }) => Some(identity.clone()),
            _ => None,
        })
    }

    /// Waits until any session is up.
    pub fn up(&mut self) -> PeerKey {
        self.wait("session up", |_, event| match event {
            Happened::Peer(of, PeerEvent::Up { .. }) => Some(*of),
            _ => None,
        })
    }

    /// Sends a message of each size from the first poller, and checks that each comes back unchanged.
    pub fn echoes(&mut self, server: &Self, sizes: &[usize]) {
        let peer = self.connect(0, server.address);
        for (token, &size) in (0..).zip(sizes) {
            let body = pattern(size, 7);
            self.send(0, peer, &[ECHO], body.clone(), token);
            let (from, answer) = self.message();
            assert_eq!(from.peer, peer);
            assert!(answer.slice(1..) == body, "{size} bytes came back as others");
            assert_eq!(self.outcome(token), SendOutcome::Delivered);
        }
    }

    /// Returns the number of unfinished large messages announced to the node.
    pub fn announced(&self) -> u64 {
        let budgets = self.report().budgets;
        budgets.iter().find(|budget| budget.name == "large messages announced").unwrap().used
    }

    pub fn report(&self) -> NodeReport {
        self.node.as_ref().unwrap().report()
    }

    pub fn stop(&mut self) {
        if let Some(node) = self.node.take() {
            node.shutdown(Duration::from_secs(2));
        }
    }
}

fn brief(events: &VecDeque<(PollerIndex, Happened)>) -> Vec<String> {
    events
        .iter()
        .rev()
        .take(20)
        .map(|(poller, event)| {
            let text = format!("{event:?}");
            format!("{}: {}", poller.0, text.chars().take(120).collect::<String>())
        })
        .collect()
}

/// Sizes around the limits of a single frame and of announced messages.
pub const SIZES: [usize; 9] = [0, 1, 100, 1023, 16_383, 16_384, 16_385, 100_000, 1 << 20];

/// Returns `length` bytes that depend on their offset and on the seed.
pub fn pattern(length: usize, seed: u8) -> Bytes {
    trunkline_testkit::pattern(length, seed).into()
}

/// Returns options for a node that listens on a fresh address over UDP.
pub fn over_udp() -> NodeOptions {
    NodeOptions::new().listen(fresh_address())
}
