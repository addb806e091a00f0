//! Scheduler, which decides the order of all steps and advances the clock.
//!
//! Owns the machines of all processes, and the clock. Each step executes one of the currently possible events, chosen by
//! the seed: a machine's turn, a client's turn, a bell or a timer. If no event is possible, the clock advances to the
//! next event. Machines run in parallel like threads: a turn takes time, during which other machines run. An event
//! changes machines on one host only, and the arrival of a datagram is an event at its destination. Therefore, only
//! machines on the hosts in `changed` are checked for a wake-up.

mod agenda;
pub(crate) mod tasks;
pub(crate) mod timers;

use crate::campaign::mutants;
use crate::coverage::{Coverage, EventKind};
use crate::network::Network;
use crate::oracle::Oracle;
use crate::scheduler::agenda::Agenda;
use crate::scheduler::tasks::Tasks;
use crate::scheduler::timers::{LateRings, Timers};
use crate::trace::{START, Since, Trace};
use crate::workload::service::Handling;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_machine::{Bell, Machine, MakeMachine, Runtime, Simulator, Turn};
use trunkline_softrdma::simulation::{SimulatedHost, SimulatedProcess};
use trunkline_transport::ledger::{PollerLedger, SessionLedger};
use trunkline_verbs::{Clock, Time, VirtualClock};

/// Maximum duration of a turn without charged work, in nanoseconds.
const TURN_NS: u64 = 1500;
/// Usual delay between a push and the ring of its bell, in nanoseconds.
const RING_NS: u64 = 2_000;
/// Occasional longer delay in nanoseconds, as if the ringing thread had been descheduled.
const LATE_RING_NS: u64 = 300_000;

#[derive(Default)]
struct Requests {
    spawned: Vec<(u64, String, MakeMachine)>,
    /// Bells that were rung, and the processes that they wake.
    rung: Vec<(u64, Arc<Bell>)>,
}

/// State of a process that an operating system would keep.
struct Process {
    number: u64,
    requests: Arc<Mutex<Requests>>,
    random: Mutex<fastrand::Rng>,
}

impl Simulator for Process {
    fn spawn(&self, name: &str, make: MakeMachine) {
        lock(&self.requests).spawned.push((self.number, name.to_owned(), make));
    }

    fn ring(&self, bell: Arc<Bell>) {
        lock(&self.requests).rung.push((self.number, bell));
    }

    fn random(&self) -> u64 {
        lock(&self.random).u64(..)
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("number", &self.number).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MachineState {
    Ready,
    Asleep(Option<Time>),
}

struct Slot {
    process: u64,
    name: String,
    machine: Box<dyn Machine>,
    state: MachineState,
    /// Time at which the last turn ends.
    busy_until: Time,
    stopped_until: Time,
    turns: u64,
    /// Number of turns since the last line in the trace.
    quiet: u64,
}

impl Slot {
    /// Returns the time from which the machine can run, unless an event changes this time.
    fn next(&self) -> Option<Time> {
        let free = self.busy_until.max(self.stopped_until);
        match self.state {
            MachineState::Ready => Some(free),
            MachineState::Asleep(_) if self.machine.is_woken() => Some(free),
            MachineState::Asleep(until) => until.map(|until| until.max(free)),
        }
    }

    /// Returns true if the machine sleeps although it has work to do and no wake-up is pending.
    fn is_forgotten(&self, now: Time) -> bool {
        let MachineState::Asleep(until) = self.state else { return false };
        until.is_none_or(|until| until > now) && !self.machine.is_woken() && self.machine.is_due()
    }
}

/// Key of a machine: its host, and its number among all machines in the run.
type MachineKey = (IpAddr, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Machine(MachineKey),
    Bell(u64),
}

struct Introduced {
    name: String,
    host: IpAddr,
}

pub(crate) struct Scheduler {
    clock: Arc<VirtualClock>,
    random: fastrand::Rng,
    requests: Arc<Mutex<Requests>>,
    machines: BTreeMap<MachineKey, Slot>,
    /// Bells that are about to ring, and the processes that they wake.
    bells: BTreeMap<u64, (u64, Arc<Bell>)>,
    /// Times of bells and of turns.
    agenda: Agenda<Event>,
    /// Number of machines and bells created so far.
    numbers: u64,
    /// Hosts on which machines may have changed since their next times were last queried.
    changed: BTreeSet<IpAddr>,
    /// Hosts on which machines may have changed since [`Scheduler::find_sleepers`] examined them.
    unexamined: BTreeSet<IpAddr>,
    /// Last machine examined by [`Scheduler::examine_one`].
    examined: Option<MachineKey>,
    pub(crate) late_rings: Rc<LateRings>,
    processes: u64,
    introduced: BTreeMap<u64, Introduced>,
    /// Processes that will die between two stores.
    doomed: Vec<(u64, Arc<SimulatedProcess>)>,
    now: Time,
    pub(crate) turns: u64,
    pub(crate) timers: Timers,
    pub(crate) tasks: Tasks,
    pub(crate) network: Network,
    pub(crate) trace: Trace,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Arc<Coverage>,
}

/// Selection of the machines that a fault stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// One machine chosen by the seed.
    OneMachine,
    Process,
}

impl Scheduler {
    pub(crate) fn new(seed: u64, trace: Trace, coverage: Arc<Coverage>) -> Self {
        let clock = VirtualClock::new();
        clock.set(START);
        Self {
            random: fastrand::Rng::with_seed(seed),
            requests: Arc::default(),
            machines: BTreeMap::new(),
            bells: BTreeMap::new(),
            agenda: Agenda::new(),
            numbers: 0,
            changed: BTreeSet::new(),
            unexamined: BTreeSet::new(),
            examined: None,
            late_rings: Rc::default(),
            processes: 0,
            introduced: BTreeMap::new(),
            doomed: Vec::new(),
            now: clock.now(),
            turns: 0,
            timers: Timers::new(&clock),
            tasks: Tasks::default(),
            network: Network::new(&clock, &coverage, seed ^ 0x6e65_7477_6f72_6b00, trace.pen()),
            oracle: Oracle::new(&clock, &coverage, trace.pen()),
            coverage,
            trace,
            clock,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Returns the parts of the run that handlers in a process use.
    pub(crate) fn handling(&self, process: u64) -> Handling {
        let (oracle, timers) = (self.oracle.clone(), self.timers.of(process));
        Handling { process, oracle, timers, coverage: Arc::clone(&self.coverage) }
    }

    /// Creates a process. Returns its number and the runtime for its nodes.
    pub(crate) fn process(&mut self) -> (u64, Runtime) {
        self.processes += 1;
        let process = Process {
            number: self.processes,
            requests: Arc::clone(&self.requests),
            random: Mutex::new(self.random.fork()),
        };
        (self.processes, Runtime::simulated(Clock::simulated(Arc::clone(&self.clock)), Arc::new(process)))
    }

    /// Names a process after the node that it runs.
    pub(crate) fn introduce(&mut self, process: u64, address: SocketAddr) {
        let name = format!("{process}@{address}");
        self.trace.line(self.now, "start", format_args!("process {process} starts: {name}"));
        self.trace.enter(self.now, &name);
        self.introduced.insert(process, Introduced { name, host: address.ip() });
    }

    /// Returns the host with this address. Creates the host if it does not exist.
    pub(crate) fn host(&mut self, address: IpAddr) -> Arc<SimulatedHost> {
        if let Some(host) = self.network.host(address) {
            return Arc::clone(host);
        }
        let (_number, runtime) = self.process();
        self.network.add_host(address, runtime)
    }

    /// Records that a process will die between two stores. [`Scheduler::has_death`] reports the death.
    pub(crate) fn doom(&mut self, process: u64, member: Arc<SimulatedProcess>) {
        self.doomed.push((process, member));
    }

    /// Returns true if [`Scheduler::doom`] was called for a process and the process has not ended.
    pub(crate) fn is_doomed(&self, process: u64) -> bool {
        self.doomed.iter().any(|(doomed, _)| *doomed == process)
    }

    /// Returns true if a process has died between two stores and has not been passed to [`Scheduler::kill`].
    pub(crate) fn has_death(&self) -> bool {
        self.doomed.iter().any(|(_, member)| !member.is_alive())
    }

    /// Ends a process immediately. Its machines and clients never run again.
    pub(crate) fn kill(&mut self, process: u64) {
        self.oracle.killed(process);
        self.tasks.kill(process);
        self.doomed.retain(|(doomed, _)| *doomed != process);
        let mut dead = Vec::new();
        for key in self.keys_of(process) {
            self.agenda.set(Event::Machine(key), None, self.now);
            dead.extend(self.machines.remove(&key));
        }
        let spawned = std::mem::take(&mut lock(&self.requests).spawned);
        let (unmade, others) = spawned.into_iter().partition::<Vec<_>, _>(|(owner, ..)| *owner == process);
        lock(&self.requests).spawned = others;
        // The lock is not held during the drop, because destructors may wake other tasks.
        drop((dead, unmade));
    }

    /// Stops machines of a process for the given time.
    pub(crate) fn stop(&mut self, process: u64, stopped: Stopped, pause: Duration) {
        let one = stopped == Stopped::OneMachine;
        let mut own = self.keys_of(process);
        if one && !own.is_empty() {
            let chosen = own.swap_remove(self.random.usize(..own.len()));
            own = vec![chosen];
        }
        let until = self.now + pause;
        for key in own {
            let Some(slot) = self.machines.get_mut(&key) else { continue };
            slot.stopped_until = slot.stopped_until.max(until);
            self.trace.line(self.now, &slot.name, format_args!("stopped until {}", Since(until)));
        }
        self.oracle.allow(pause);
        self.coverage.count(if one { EventKind::MachinePaused } else { EventKind::ProcessPaused });
    }

    pub(crate) fn resume_all(&mut self) {
        for slot in self.machines.values_mut() {
            slot.stopped_until = Time(0);
        }
    }

    /// Returns the names of a process's machines that are not done.
    pub(crate) fn machines_of(&self, process: u64) -> Vec<&str> {
        self.own(process).map(|(_, slot)| slot.name.as_str()).collect()
    }

    fn keys_of(&self, process: u64) -> Vec<MachineKey> {
        self.own(process).map(|(key, _)| *key).collect()
    }

    fn own(&self, process: u64) -> impl Iterator<Item = (&MachineKey, &Slot)> {
        let host = self.introduced.get(&process).map(|introduced| introduced.host);
        let all = host.into_iter().flat_map(|host| self.machines_at(host));
        all.filter(move |(_, slot)| slot.process == process)
    }

    fn machines_at(&self, host: IpAddr) -> impl Iterator<Item = (&MachineKey, &Slot)> {
        self.machines.range((host, 0)..=(host, u64::MAX))
    }

    /// Returns the ledgers of all pollers of running nodes.
    pub(crate) fn ledgers(&self) -> Vec<PollerLedger> {
        self.inspected()
    }

    /// Returns the ledgers of all CM machines of running nodes.
    pub(crate) fn sessions(&self) -> Vec<SessionLedger> {
        self.inspected()
    }

    /// Returns the number of calls from a process in flight to peers that had drained before the calls were sent.
    pub(crate) fn sent_to_drained(&self, process: u64) -> usize {
        let ledgers =
            self.own(process).filter_map(|(_, slot)| slot.machine.inspect()?.downcast::<PollerLedger>().ok());
        ledgers.map(|ledger| ledger.driver.sent_to_drained).sum()
    }

    fn inspected<T: 'static>(&self) -> Vec<T> {
        let inspected = self.machines.values().filter_map(|slot| slot.machine.inspect());
        inspected.filter_map(|ledger| ledger.downcast::<T>().ok()).map(|ledger| *ledger).collect()
    }

    /// Runs until `done` returns true or the time limit is reached. Returns true in the first case. A violation of a rule
    /// ends the run early.
    pub(crate) fn run_until(&mut self, limit: Time, mut done: impl FnMut(&Self) -> bool) -> bool {
        // The caller may have changed anything since the last step.
        self.changed.extend(self.machines.keys().map(|(host, _)| *host));
        loop {
            self.take_requests();
            if done(self) {
                return true;
            }
            if self.turns.is_multiple_of(64) && self.oracle.verdict(self.now).is_some() {
                return false;
            }
            if !self.step() && !self.advance(limit) {
                return false;
            }
        }
    }

    fn take_requests(&mut self) {
        let (spawned, rung) = {
            let mut requests = lock(&self.requests);
            (std::mem::take(&mut requests.spawned), std::mem::take(&mut requests.rung))
        };
        for (process, name, make) in spawned {
            let machine = match make() {
                Ok(machine) => machine,
                Err(error) => {
                    self.oracle.fail(format!("the machine {name} cannot be made: {error}"));
                    continue;
                }
            };
            let job = name.strip_prefix("trunkline-").unwrap_or(&name);
            let Some(Introduced { name: owner, host }) = self.introduced.get(&process) else {
                self.oracle.fail(format!("process {process} starts {job} before it was introduced"));
                continue;
            };
            let (name, host) = (format!("{owner} {job}"), *host);
            self.trace.line(self.now, &name, format_args!("begins"));
            self.numbers += 1;
            let slot = Slot {
                process,
                name,
                machine,
                state: MachineState::Ready,
                busy_until: self.now,
                stopped_until: Time(0),
                turns: 0,
                quiet: 0,
            };
            self.machines.insert((host, self.numbers), slot);
            self.changed.insert(host);
        }
        for (process, bell) in rung {
            let is_late = self.random.u8(..) == 0;
            let most = if is_late { LATE_RING_NS } else { RING_NS };
            let due = self.now.plus_ns(self.random.u64(..most));
            if is_late {
                self.late_rings.add(self.now, due);
                self.trace.line(self.now, "bell", format_args!("late: rings at {}", Since(due)));
            }
            self.numbers += 1;
            self.bells.insert(self.numbers, (process, bell));
            self.agenda.set(Event::Bell(self.numbers), Some(due), self.now);
            // The bell announces work that is already in the queue.
            self.has_changed(process);
        }
    }

    /// Records that machines on the host of a process may have changed.
    fn has_changed(&mut self, process: u64) {
        self.changed.extend(self.introduced.get(&process).map(|introduced| introduced.host));
    }

    /// Updates the next times of machines that may have changed.
    fn ask_changed(&mut self) {
        for host in std::mem::take(&mut self.changed) {
            for (key, slot) in self.machines.range((host, 0)..=(host, u64::MAX)) {
                self.agenda.set(Event::Machine(*key), slot.next(), self.now);
            }
            self.unexamined.insert(host);
        }
    }

    /// Executes one of the possible events. Returns false if there is none.
    fn step(&mut self) -> bool {
        self.network.deliver(self.now, &mut self.changed);
        self.ask_changed();
        let (timed, clients) = (self.agenda.possible(self.now), self.tasks.woken());
        let has_timer = self.timers.next().is_some_and(|due| due <= self.now);
        let choices = timed + clients + usize::from(has_timer);
        if choices == 0 {
            return false;
        }
        let chosen = self.random.usize(..choices);
        self.turns += 1;
        self.clock.set(self.now);
        if chosen < timed {
            match self.agenda.take(chosen) {
                Event::Machine(key) => self.turn(key),
                Event::Bell(number) => {
                    self.trace.enter(self.now, "bell");
                    let Some((process, bell)) = self.bells.remove(&number) else { return true };
                    bell.ring();
                    self.has_changed(process);
                }
            }
            return true;
        }
        let process = if chosen < timed + clients {
            self.trace.enter(self.now, "client");
            self.tasks.poll(chosen - timed)
        } else {
            self.trace.enter(self.now, "timer");
            self.timers.fire_one(self.now)
        };
        if let Some(process) = process {
            self.has_changed(process);
        }
        true
    }

    fn turn(&mut self, key: MachineKey) {
        let Some(slot) = self.machines.get_mut(&key) else { return };
        self.changed.insert(key.0);
        self.trace.enter(self.now, &slot.name);
        let lines = self.trace.lines();
        let turn = slot.machine.turn();
        self.oracle.sealed(slot.process, mutants::take_sealed());
        let took =
            self.random.u64(100..TURN_NS) + u64::try_from(self.clock.charged().as_nanos()).unwrap_or(0);
        slot.busy_until = self.now.plus_ns(took);
        slot.state = match turn {
            Turn::Sleep(until) => MachineState::Asleep(until),
            Turn::Again | Turn::Spin | Turn::Yield | Turn::Done => MachineState::Ready,
        };
        if matches!(turn, Turn::Spin | Turn::Yield) {
            slot.busy_until = slot.busy_until.plus_ns(self.random.u64(..10 * TURN_NS));
        }
        self.trace.mix(self.now.0 ^ key.1 << 48);
        slot.turns += 1;
        if self.trace.lines() == lines && turn != Turn::Done {
            slot.quiet += 1;
        } else {
            let (quiet, outcome) = (std::mem::take(&mut slot.quiet), Outcome(turn));
            let line = format_args!("turns: {quiet} quiet, then this one: {outcome}");
            self.trace.line(self.now, &slot.name, line);
        }
        if turn == Turn::Done {
            drop(self.machines.remove(&key));
        }
    }

    /// Writes the current activity of each machine to the trace. Called at the end of a failed run.
    pub(crate) fn show_machines(&self) {
        for slot in self.machines.values() {
            let (turns, quiet) = (slot.turns, slot.quiet);
            let state = match slot.state {
                _ if slot.stopped_until > self.now => format!("stopped until {}", Since(slot.stopped_until)),
                MachineState::Ready => "ready".to_owned(),
                MachineState::Asleep(_) if slot.machine.is_woken() => "asleep, about to wake".to_owned(),
                MachineState::Asleep(None) => "asleep".to_owned(),
                MachineState::Asleep(Some(until)) => format!("asleep until {}", Since(until)),
            };
            self.trace.line(
                self.now,
                &slot.name,
                format_args!("at the end: {state}; {turns} turns, the last {quiet} quiet"),
            );
        }
    }

    /// Advances the clock to the next event. Returns false if there is none before the limit.
    fn advance(&mut self, limit: Time) -> bool {
        self.find_sleepers();
        self.examine_one();
        let others = [self.timers.next(), self.network.next_arrival()];
        let next = self.agenda.next().into_iter().chain(others.into_iter().flatten()).min();
        let reached = next.is_some_and(|next| next <= limit);
        self.now = if reached { next.unwrap_or(limit) } else { limit.max(self.now) };
        self.clock.set(self.now);
        reached
    }

    /// Checks that no machine sleeps although it has work to do and no wake-up is pending.
    fn find_sleepers(&mut self) {
        if !self.bells.is_empty() {
            return;
        }
        for host in std::mem::take(&mut self.unexamined) {
            for (_, slot) in self.machines_at(host).filter(|(_, slot)| slot.is_forgotten(self.now)) {
                self.oracle.fail(format!("{} sleeps while work is due, and nobody wakes it", slot.name));
            }
        }
    }

    /// Examines one machine after the other, to find changes caused by events on other hosts.
    fn examine_one(&mut self) {
        let after = self.examined.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.machines.range((after, Bound::Unbounded)).next();
        self.examined = next.map(|(key, _)| *key);
        let Some((key, slot)) = next else { return };
        self.unexamined.insert(key.0);
        if self.agenda.set(Event::Machine(*key), slot.next(), self.now) {
            self.oracle.fail(format!("{} was woken by no event of its host", slot.name));
        }
    }
}

struct Outcome(Turn);

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Turn::Again => f.write_str("has more to do"),
            Turn::Spin | Turn::Yield => f.write_str("polls again"),
            Turn::Sleep(None) => f.write_str("sleeps"),
            Turn::Sleep(Some(until)) => write!(f, "sleeps until {} at the latest", Since(until)),
            Turn::Done => f.write_str("ends"),
        }
    }
}
