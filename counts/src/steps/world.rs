//! Two nodes in one thread, and the order of their turns.
//!
//! ```text
//!   start      every machine that is awake has its turn, and time moves to the next deadline when all sleep
//!   exchange   only the two pollers have turns, and only one that has something to do:
//!              datagrams have arrived for it, or a task or a command waits
//! ```
//!
//! During an exchange, a poller therefore always has work: no turn is empty, and no poller goes to sleep. Time is virtual
//! and advances by [`STEP_NS`] with each turn. With shared memory, the two pollers take turns, because only pollers can
//! see messages.

use super::echo::{EchoServer, FeedServer};
use super::meter::Passed;
use super::program::{Calls, Mirror, Outside, Source, call_on};
use super::{SideTotals, Steps};
use crate::side::{Linked, Shape, Side};
use crate::system_calls::{mark, marks};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use trunkline::identity::{Identity, Trust};
use trunkline::{Connections, Node, NodeBuilder, ProviderChoice};
use trunkline_machine::{Machine, Runtime, Turn};
use trunkline_softrdma::device::{LinkChoice, PathChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, LinkObserver};
use trunkline_testkit::{CountingAllocator, Stepped, Task, certificate, fresh_ip};
use trunkline_transport::NodeOptions;
use trunkline_verbs::{Clock, Time, VirtualClock};

/// Seed of all random numbers.
const SEED: u64 = 0x7472_756e_6b6c_696e;
/// Virtual duration of a turn, in nanoseconds.
const STEP_NS: u64 = 1_000;
/// Maximum number of turns until a call completes.
const MOST_TURNS: u64 = 1_000_000;
/// Interval between turns of connection managers and cards during an exchange, in turns of pollers. A poller that has
/// just woken leaves its card's work to the card for a few polls. With a turn before each of these polls, the card would
/// take all arrivals.
const OTHERS_EVERY: u64 = 64;
const PORT: u16 = 7471;

struct SideNode {
    stepped: Arc<Stepped>,
    passed: Arc<Passed>,
    linked: Linked,
    address: SocketAddr,
    node: Option<Node>,
    /// Pollers of the node. Empty until the node has started.
    pollers: Vec<Task>,
    /// Index of the poller that had the last turn.
    turn: usize,
    /// Callers outside pollers. Their polls count as part of the side's turns.
    outside: Outside,
    /// Work done in the node's turns so far.
    tally: SideTotals,
}

impl SideNode {
    fn new(linked: Linked, side: Side) -> Self {
        let ip = match (linked, side) {
            (Linked::InProcess, Side::Client) => Ipv4Addr::new(10, 0, 0, 1),
            (Linked::InProcess, Side::Server) => Ipv4Addr::new(10, 0, 0, 2),
            (Linked::Udp | Linked::Shm, _) => fresh_ip(),
        };
        Self {
            stepped: Stepped::new(SEED ^ side as u64),
            passed: Arc::default(),
            linked,
            address: SocketAddr::new(IpAddr::V4(ip), PORT),
            node: None,
            pollers: Vec::new(),
            turn: 0,
            outside: Outside::default(),
            tally: SideTotals::default(),
        }
    }

    /// Returns the next poller that has something to do, or otherwise the next one in order. With several pollers, the
    /// recipient of an arrival is unknown, so the poller may find nothing.
    fn next_poller(&self) -> Option<usize> {
        let count = self.pollers.len();
        let mut order = (1..=count).map(|after| (self.turn + after) % count);
        order.clone().find(|at| is_next(&self.pollers[*at])).or_else(|| order.next())
    }

    fn options(&self, clock: &Arc<VirtualClock>, link: LinkChoice, runtime_directory: &Path) -> NodeOptions {
        let simulator = Arc::<Stepped>::clone(&self.stepped);
        let runtime = Runtime::simulated(Clock::simulated(Arc::clone(clock)), simulator);
        let observer: Arc<dyn LinkObserver> = Arc::<Passed>::clone(&self.passed);
        let is_memory = self.linked == Linked::Shm;
        let device = SoftOptions {
            addresses: vec![self.address.ip()],
            link,
            path: if is_memory { PathChoice::Auto } else { PathChoice::Udp },
            // A device with an observer does not use shared memory.
            observer: Some(observer).filter(|_| !is_memory),
            runtime_directory: Some(runtime_directory.to_owned()),
            runtime: runtime.clone(),
            ..SoftOptions::default()
        };
        NodeOptions::new()
            .runtime(runtime)
            .device(device)
            .provider(ProviderChoice::Soft)
            .connections(Connections::Xrc)
            .allow_unauthenticated(true)
    }
}

/// Gives a node at this address an identity, which encrypts all its sessions.
fn encrypted(node: NodeBuilder, address: IpAddr) -> Result<NodeBuilder, String> {
    let [chain, key, root] = certificate(address);
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).map_err(|error| error.to_string())?;
    let trust = Trust::from_pem(root.as_bytes()).map_err(|error| error.to_string())?;
    Ok(node.exempt_local_user(false).identity(identity).trust(trust))
}

/// The two nodes and everything that runs in them.
pub(crate) struct World {
    clock: Arc<VirtualClock>,
    now: Time,
    /// Client and server, in this order.
    places: [SideNode; 2],
    /// Connection managers and cards.
    others: Vec<Task>,
    calls: Arc<Calls>,
    heap: &'static CountingAllocator,
    /// Number of times that virtual time had to advance during an exchange because no poller had work.
    pub(crate) stalls: u64,
    /// Side whose poller had the last turn of an exchange.
    last: Option<Side>,
}

impl World {
    /// Starts both nodes and the calling tasks.
    ///
    /// # Errors
    /// Returns an error if a node does not start.
    pub(crate) fn start(
        Steps { linked, outstanding, shape, .. }: Steps,
        runtime_directory: &Path,
        heap: &'static CountingAllocator,
    ) -> Result<Self, String> {
        let clock = VirtualClock::new();
        let now = Time(1_000_000_000);
        clock.set(now);
        let hub = Hub::new();
        let link = || match linked {
            Linked::InProcess => LinkChoice::InProcess(Arc::clone(&hub)),
            Linked::Udp | Linked::Shm => LinkChoice::Udp,
        };
        let calls = Arc::<Calls>::default();
        let mut places = [Side::Client, Side::Server].map(|side| SideNode::new(linked, side));
        for (side, place) in [Side::Client, Side::Server].into_iter().zip(&mut places) {
            let options = place.options(&clock, link(), runtime_directory);
            let node = Node::builder().transport(options).listen(place.address).pollers(shape.pollers());
            let node = if shape.is_encrypted() { encrypted(node, place.address.ip())? } else { node };
            let node = match side {
                Side::Client => node,
                Side::Server if shape.streams() => {
                    node.serve(FeedServer::new(Source { items: Arc::clone(&calls) }))
                }
                Side::Server => node.serve(EchoServer::new(Mirror { yields: shape == Shape::Yielding })),
            };
            place.node = Some(node.start().map_err(|error| error.to_string())?);
        }
        let mut world = Self { clock, now, places, others: Vec::new(), calls, heap, stalls: 0, last: None };
        // The server must listen before the first call.
        for _ in 0..100 {
            world.turn_all()?;
        }
        let server = world.places[1].address;
        if let Some(client) = &world.places[0].node {
            if shape == Shape::Channel {
                world.places[0].outside = Outside::new(client, server, outstanding, &world.calls);
            } else {
                call_on(client, shape, server, outstanding, &world.calls);
            }
        }
        for _ in 0..MOST_TURNS {
            if world.calls.done() > 0 && (linked != Linked::Shm || world.is_in_memory()) {
                return Ok(world);
            }
            world.turn_all()?;
        }
        Err(format!("no call has come back in {MOST_TURNS} turns, or not by the link that is asked for"))
    }

    /// Returns true if the nodes exchange all packets through shared memory.
    fn is_in_memory(&self) -> bool {
        self.places.iter().all(|place| {
            let paths = place.node.as_ref().map(|node| node.report().paths).unwrap_or_default();
            !paths.is_empty() && paths.iter().all(|path| path.path == "shm")
        })
    }

    /// Returns the work done in the turns of each side so far, client first.
    pub(crate) fn tallies(&self) -> [SideTotals; 2] {
        [0, 1].map(|at| {
            let SideNode { tally, passed, .. } = &self.places[at];
            SideTotals { datagrams: passed.datagrams(), bytes: passed.bytes(), ..*tally }
        })
    }

    /// Returns the longest datagram that each side has sent since the last call.
    pub(crate) fn longest(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|at| self.places[at].passed.take_longest())
    }

    /// Steps the pollers until the given number of further calls has completed. Returns the number of completed calls,
    /// which may be larger.
    ///
    /// # Errors
    /// Returns an error if a call fails or does not end.
    pub(crate) fn exchange(&mut self, calls: u64) -> Result<u64, String> {
        let began = self.calls.done();
        let mut turns = 0;
        while self.calls.done() < began + calls {
            self.now = self.now.plus_ns(STEP_NS);
            self.clock.set(self.now);
            if turns % OTHERS_EVERY == 0 {
                self.turn_others();
            }
            if self.is_ready(Side::Client) {
                self.step(Side::Client);
            } else if self.is_ready(Side::Server) {
                self.step(Side::Server);
            } else if let Some(side) = self.awake() {
                self.step(side);
            } else {
                self.stalls += 1;
                self.turn_all()?;
            }
            turns += 1;
            if self.calls.has_failed() {
                return Err("a call failed, or returned something else".to_owned());
            }
            if turns > MOST_TURNS {
                return Err(format!("{calls} calls have not come back in {MOST_TURNS} turns"));
            }
        }
        Ok(self.calls.done() - began)
    }

    /// Returns true if a side's pollers or callers have something to do.
    fn is_ready(&self, side: Side) -> bool {
        let (own, peer) = (&self.places[side as usize], &self.places[1 - side as usize]);
        let has_arrived = match own.linked {
            Linked::InProcess | Linked::Udp => peer.passed.datagrams() > own.passed.received(),
            // Messages in shared memory are not visible here, so the sides take turns. Each side receives the messages
            // from the other side's last turn.
            Linked::Shm => self.last != Some(side),
        };
        has_arrived || own.outside.is_woken() || own.pollers.iter().any(is_next)
    }

    /// Returns a side with a poller that is awake without a visible arrival. Such a poller is copying a large message, or
    /// has received a packet for another poller. The side that did not have the last turn takes precedence.
    fn awake(&self) -> Option<Side> {
        let is_awake =
            |side: &Side| self.places[*side as usize].pollers.iter().any(|poller| !poller.is_asleep());
        let sides = if self.last == Some(Side::Client) {
            [Side::Server, Side::Client]
        } else {
            [Side::Client, Side::Server]
        };
        sides.into_iter().find(is_awake)
    }

    fn step(&mut self, side: Side) {
        let place = &mut self.places[side as usize];
        let Some(at) = place.next_poller() else { return };
        place.turn = at;
        let (poller, outside) = (&mut place.pollers[at], &mut place.outside);
        mark(match side {
            Side::Client => marks::CLIENT,
            Side::Server => marks::SERVER,
        });
        let before = self.heap.allocations();
        let turn = match side {
            Side::Client => client_turn(outside, poller.machine.as_mut()),
            Side::Server => server_turn(poller.machine.as_mut()),
        };
        place.tally.allocations += self.heap.allocations() - before;
        mark(marks::NOBODY);
        place.tally.turns += 1;
        poller.record(turn);
        self.last = Some(side);
    }

    /// Gives each machine that is awake a turn. If all machines are asleep, advances time to the next deadline.
    fn turn_all(&mut self) -> Result<(), String> {
        for place in &mut self.places {
            for (name, make) in place.stepped.take() {
                let task =
                    Task::new(make).map_err(|error| format!("cannot make the machine {name}: {error}"))?;
                if name.starts_with("trunkline-poll") {
                    place.pollers.push(task);
                } else {
                    self.others.push(task);
                }
            }
        }
        let mut any = self.turn_others();
        for place in &mut self.places {
            place.outside.poll();
            for poller in &mut place.pollers {
                any |= turn_if_awake(poller, self.now);
            }
        }
        let moved = self.now.plus_ns(STEP_NS);
        let tasks = self.places.iter().flat_map(|place| &place.pollers).chain(&self.others);
        let next = tasks.filter_map(Task::deadline).min();
        self.now = if any { moved } else { next.map_or(moved, |next| next.max(moved)) };
        self.clock.set(self.now);
        Ok(())
    }

    /// Gives each connection manager and card that is awake a turn. Returns true if any was awake.
    fn turn_others(&mut self) -> bool {
        let now = self.now;
        let mut any = false;
        for task in &mut self.others {
            any |= turn_if_awake(task, now);
        }
        any
    }
}

/// Returns true if the machine has work other than arrivals.
fn is_next(task: &Task) -> bool {
    task.machine.is_due() || (task.is_asleep() && task.machine.is_woken())
}

/// Gives the machine a turn if it is awake at this time. Returns true if it was awake.
fn turn_if_awake(task: &mut Task, now: Time) -> bool {
    let is_awake = task.is_awake(now);
    if is_awake {
        task.turn();
    }
    is_awake
}

/// Runs a turn of the client's poller. Callgrind selects this function or [`server_turn`] by name and collects within it.
/// The argument of `black_box` prevents the compiler from merging the two functions.
#[inline(never)]
fn client_turn(outside: &mut Outside, poller: &mut dyn Machine) -> Turn {
    black_box(Side::Client);
    outside.poll();
    poller.turn()
}

#[inline(never)]
fn server_turn(poller: &mut dyn Machine) -> Turn {
    black_box(Side::Server);
    poller.turn()
}
