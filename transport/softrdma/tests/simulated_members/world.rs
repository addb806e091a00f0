//! Simulated hosts, processes and a network, all driven by one seed.

use crate::common::node::Node;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use trunkline_machine::{Runtime, Simulator as _};
use trunkline_softrdma::device::{LinkChoice, PathChoice, SoftDevice, SoftOptions};
use trunkline_softrdma::link::{Datagram, SendBatch};
use trunkline_softrdma::simulation::{Network, SimulatedHost, SimulatedProcess};
use trunkline_testkit::{Stepped, Task};
use trunkline_verbs::{Clock, Completion, Notify, Time, VirtualClock};

/// Number of turns after which a run counts as stuck.
const TURNS: usize = 400_000;

/// Network that loses some datagrams and delays the others.
#[derive(Debug)]
struct Wire {
    clock: Arc<VirtualClock>,
    stepped: Arc<Stepped>,
    /// Datagrams in transit, by arrival time and number.
    under_way: Mutex<BTreeMap<(Time, u64), SendBatch>>,
    carried: Mutex<u64>,
    hosts: Mutex<BTreeMap<IpAddr, Weak<SimulatedHost>>>,
    /// True if datagrams between sockets of one host arrive immediately and are not lost.
    has_loopback: AtomicBool,
    /// True if the network marks all datagrams (ECN).
    is_marking: AtomicBool,
}

impl Wire {
    fn host(&self, address: IpAddr) -> Option<Arc<SimulatedHost>> {
        self.hosts.lock().unwrap().get(&address)?.upgrade()
    }
}

impl Network for Wire {
    fn carry(&self, datagram: Datagram<'_>, _segment_bytes: usize) {
        let is_local = datagram.source.ip() == datagram.destination.ip();
        if is_local && self.has_loopback.load(Ordering::Relaxed) {
            let _has_room =
                self.host(datagram.destination.ip()).is_some_and(|host| host.deliver(datagram, false));
            return;
        }
        if self.stepped.below(50) == 0 {
            return;
        }
        let delay = 1000 + 100 * self.stepped.below(300) as u64;
        let mut carried = self.carried.lock().unwrap();
        *carried += 1;
        let mut one = SendBatch::new();
        one.push(datagram);
        self.under_way.lock().unwrap().insert((self.clock.now().plus_ns(delay), *carried), one);
    }
}

/// A process with one node.
pub(crate) struct Process {
    pub(crate) node: Node,
    pub(crate) process: Arc<SimulatedProcess>,
    pub(crate) number: usize,
}

/// A simulation with one seed.
pub(crate) struct World {
    clock: Arc<VirtualClock>,
    stepped: Arc<Stepped>,
    runtime: Runtime,
    wire: Arc<Wire>,
    /// Number of processes started so far.
    processes: usize,
    /// Machines, each with the number of its process.
    tasks: Vec<(usize, Task)>,
    log: Vec<String>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let clock = VirtualClock::new();
        let stepped = Stepped::new(seed);
        stepped.delay_bells();
        let simulator = Arc::<Stepped>::clone(&stepped);
        let runtime = Runtime::simulated(Clock::simulated(Arc::clone(&clock)), simulator);
        let wire = Arc::new(Wire {
            clock: Arc::clone(&clock),
            stepped: Arc::clone(&stepped),
            under_way: Mutex::default(),
            carried: Mutex::default(),
            hosts: Mutex::default(),
            has_loopback: AtomicBool::new(false),
            is_marking: AtomicBool::new(false),
        });
        Self { clock, stepped, runtime, wire, processes: 0, tasks: Vec::new(), log: Vec::new() }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the number of machines that have not ended.
    pub(crate) fn machines(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn host(&mut self, address: [u8; 4]) -> Arc<SimulatedHost> {
        let wire: Arc<dyn Network> = Arc::<Wire>::clone(&self.wire);
        let host = SimulatedHost::new(self.runtime.clone(), wire, vec![address.into()]);
        self.wire.hosts.lock().unwrap().insert(address.into(), Arc::downgrade(&host));
        host
    }

    pub(crate) fn process(&mut self, host: &Arc<SimulatedHost>) -> Process {
        self.process_with(host, PathChoice::Udp)
    }

    /// Starts a process with a node on a host. The node's QPs reach other QPs on the host by this path.
    pub(crate) fn process_with(&mut self, host: &Arc<SimulatedHost>, path: PathChoice) -> Process {
        let process = host.process();
        self.processes += 1;
        let number = self.processes;
        let options = SoftOptions {
            link: LinkChoice::Simulated(Arc::clone(&process)),
            path,
            runtime: self.runtime.clone(),
            ..SoftOptions::default()
        };
        let device = SoftDevice::open(options).unwrap();
        let address = *self
            .wire
            .hosts
            .lock()
            .unwrap()
            .iter()
            .find(|(_, of)| std::ptr::eq(of.as_ptr(), &raw const **host))
            .unwrap()
            .0;
        let node = Node::with_device(device, address, 1 << 16);
        self.add_machines(number);
        Process { node, process, number }
    }

    /// Starts the machines that were requested since the last call. They belong to the process with this number; 0
    /// means that they do not belong to a process.
    fn add_machines(&mut self, process: usize) {
        let machines = self.stepped.take().into_iter();
        self.tasks.extend(machines.map(|(_, make)| (process, Task::new(make).unwrap())));
    }

    /// Makes datagrams between sockets of one host arrive immediately, as over the loopback interface.
    pub(crate) fn use_loopback(&self) {
        self.wire.has_loopback.store(true, Ordering::Relaxed);
    }

    /// Makes the network mark all datagrams from now on (ECN).
    pub(crate) fn mark_datagrams(&self) {
        self.wire.is_marking.store(true, Ordering::Relaxed);
    }

    /// Kills a process. Its machines do not run again.
    pub(crate) fn kill(&mut self, process: &Process) {
        process.process.kill();
        self.tasks.retain(|(owner, _)| *owner != process.number);
        self.note("killed".to_owned());
    }

    /// Returns a random number below `bound`.
    pub(crate) fn below(&self, bound: usize) -> usize {
        self.stepped.below(bound)
    }

    pub(crate) fn random(&self) -> u64 {
        self.stepped.random()
    }

    /// Logs an event with the current time.
    pub(crate) fn note(&mut self, what: String) {
        self.log.push(format!("{:?} {what}", self.clock.now()));
    }

    pub(crate) fn into_log(self) -> Vec<String> {
        self.log
    }

    /// Runs a turn of a machine that is awake. If all machines sleep, advances the clock to the earliest
    /// deadline.
    pub(crate) fn turn(&mut self) {
        self.add_machines(0);
        if self.stepped.below(2) == 0 {
            self.stepped.ring_next();
        }
        let now = self.clock.now();
        self.deliver(now);
        let awake: Vec<usize> =
            (0..self.tasks.len()).filter(|index| self.tasks[*index].1.is_awake(now)).collect();
        if awake.is_empty() {
            let deadlines = self.tasks.iter().filter_map(|(_, task)| task.deadline());
            let arrivals = self.wire.under_way.lock().unwrap().keys().next().map(|(at, _)| *at);
            // Without a deadline, the clock advances by a microsecond. The caller gives up after `TURNS` turns.
            let next = deadlines.chain(arrivals).min().unwrap_or(now.plus_ns(1000));
            return self.clock.set(next.max(now));
        }
        let chosen = awake[self.stepped.below(awake.len())];
        if !self.tasks[chosen].1.turn() {
            self.tasks.swap_remove(chosen);
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        self.clock.set(self.clock.now().plus_ns(nanoseconds));
    }

    fn deliver(&self, now: Time) {
        let later = self.wire.under_way.lock().unwrap().split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut *self.wire.under_way.lock().unwrap(), later);
        let is_marked = self.wire.is_marking.load(Ordering::Relaxed);
        for batch in due.values() {
            for datagram in batch.iter() {
                let host = self.wire.host(datagram.destination.ip());
                let _has_room = host.is_some_and(|host| host.deliver(datagram, is_marked));
            }
        }
    }

    /// Runs until `there` returns a value.
    pub(crate) fn until<T>(&mut self, what: &str, mut there: impl FnMut() -> Option<T>) -> T {
        for _ in 0..TURNS {
            if let Some(found) = there() {
                return found;
            }
            self.turn();
        }
        panic!("{what} did not come within {TURNS} turns, at {:?}: {:#?}", self.clock.now(), self.log);
    }

    /// Returns the next completion of a program that sleeps on its channel, if there is one.
    pub(crate) fn next_completion(&self, node: &Node) -> Option<Completion> {
        let mut one = [Completion::default()];
        node.cq.request_notify(Notify::Any).unwrap();
        (node.cq.poll(&mut one) > 0).then(|| one[0])
    }

    /// Runs until a completion arrives.
    pub(crate) fn completion(&mut self, node: &Node) -> Completion {
        let take = || {
            let mut one = [Completion::default()];
            node.cq.request_notify(Notify::Any).unwrap();
            (node.cq.poll(&mut one) > 0).then(|| one[0])
        };
        let come = take();
        come.unwrap_or_else(|| self.until("a completion", || node.channel.next_event().and_then(|_| take())))
    }
}
