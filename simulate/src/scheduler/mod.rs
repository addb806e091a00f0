//! The order of all steps, and the clock.
//!
//! Owns all machines of all processes, and the clock. In each step one event that is possible now happens: a
//! machine's turn, a client's, a bell, a timer. The seed decides which. When none is possible, the clock
//! moves to the next time at which one is. Machines run in parallel as threads do: a turn takes time, in
//! which its machine does nothing else while others run.

pub(crate) mod tasks;
pub(crate) mod timers;

use crate::campaign::mutants;
use crate::coverage::{Coverage, EventKind};
use crate::network::Network;
use crate::oracle::Oracle;
use crate::scheduler::tasks::Tasks;
use crate::scheduler::timers::{LateRings, Timers};
use crate::trace::{START, Since, Trace};
use crate::workload::service::Handling;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_machine::{Bell, Machine, MakeMachine, Runtime, Simulator, Turn};
use trunkline_softrdma::simulation::{SimulatedHost, SimulatedProcess};
use trunkline_transport::ledger::{PollerLedger, SessionLedger};
use trunkline_verbs::{Clock, Time, VirtualClock};

/// Longest duration of a turn, unless the turn is charged with work.
const TURN_NS: u64 = 1500;
/// Usual delay of a ring after its push.
const RING_NS: u64 = 2_000;
/// Occasional delay, as if the ringing thread was descheduled in between.
const LATE_RING_NS: u64 = 300_000;

#[derive(Default)]
struct Requests {
    spawned: Vec<(u64, String, MakeMachine)>,
    rung: Vec<Arc<Bell>>,
}

/// State that an operating system would keep for a process.
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
        lock(&self.requests).rung.push(bell);
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
    /// End of its last turn.
    busy_until: Time,
    stopped_until: Time,
    turns: u64,
    /// Number of its last turns without a trace line.
    quiet: u64,
    seen: Cell<Seen>,
}

/// Answers of a sleeping machine since the last event. Only an event can change them, not time that passes.
/// Asking is most of the cost of a run, and all machines are asked several times for each event.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Event after which the machine was asked.
    event: u64,
    is_woken: Option<bool>,
    is_due: Option<bool>,
}

impl Slot {
    fn is_runnable(&self, now: Time, event: u64) -> bool {
        if self.busy_until > now || self.stopped_until > now {
            return false;
        }
        match self.state {
            MachineState::Ready => true,
            MachineState::Asleep(until) => until.is_some_and(|until| until <= now) || self.is_woken(event),
        }
    }

    /// Returns the time at which it becomes runnable by itself.
    fn next(&self, event: u64) -> Option<Time> {
        let free = self.busy_until.max(self.stopped_until);
        match self.state {
            MachineState::Ready => Some(free),
            MachineState::Asleep(None) => self.is_woken(event).then_some(free),
            MachineState::Asleep(Some(until)) => {
                Some(if self.is_woken(event) { free } else { until.max(free) })
            }
        }
    }

    /// Returns true if it sleeps with work to do, and nothing is about to wake it.
    fn is_forgotten(&self, now: Time, event: u64) -> bool {
        let sleeps = matches!(self.state, MachineState::Asleep(_)) && self.busy_until <= now;
        sleeps && !self.is_runnable(now, event) && !self.is_woken(event) && self.is_due(event)
    }

    fn is_woken(&self, event: u64) -> bool {
        let seen = self.seen(event);
        let is_woken = seen.is_woken.unwrap_or_else(|| self.machine.is_woken());
        debug_assert_eq!(is_woken, self.machine.is_woken(), "{} was woken by no event", self.name);
        self.seen.set(Seen { is_woken: Some(is_woken), ..seen });
        is_woken
    }

    fn is_due(&self, event: u64) -> bool {
        let seen = self.seen(event);
        let is_due = seen.is_due.unwrap_or_else(|| self.machine.is_due());
        debug_assert_eq!(is_due, self.machine.is_due(), "work of {} became due by no event", self.name);
        self.seen.set(Seen { is_due: Some(is_due), ..seen });
        is_due
    }

    fn seen(&self, event: u64) -> Seen {
        let seen = self.seen.get();
        if seen.event == event { seen } else { Seen { event, ..Seen::default() } }
    }
}

/// The scheduler of a run.
pub(crate) struct Scheduler {
    clock: Arc<VirtualClock>,
    random: fastrand::Rng,
    requests: Arc<Mutex<Requests>>,
    machines: Vec<Slot>,
    bells: Vec<(Time, Arc<Bell>)>,
    pub(crate) late_rings: Rc<LateRings>,
    processes: u64,
    /// Names of processes in the trace.
    names: BTreeMap<u64, String>,
    /// Processes that will die between two stores.
    doomed: Vec<(u64, Arc<SimulatedProcess>)>,
    now: Time,
    /// Number of the last event that may change what a machine sees.
    event: u64,
    /// Number of turns so far.
    pub(crate) turns: u64,
    pub(crate) timers: Timers,
    pub(crate) tasks: Tasks,
    pub(crate) network: Network,
    pub(crate) trace: Trace,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Arc<Coverage>,
}

/// Machines that a fault stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// One machine, chosen by the seed.
    OneMachine,
    /// All machines of the process.
    Process,
}

/// An event that is possible now.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Machine(usize),
    Bell(usize),
    Client(usize),
    Timer,
}

impl Scheduler {
    /// Creates a scheduler with nothing to run.
    pub(crate) fn new(seed: u64, trace: Trace, coverage: Arc<Coverage>) -> Self {
        let clock = VirtualClock::new();
        clock.set(START);
        Self {
            random: fastrand::Rng::with_seed(seed),
            requests: Arc::default(),
            machines: Vec::new(),
            bells: Vec::new(),
            late_rings: Rc::default(),
            processes: 0,
            names: BTreeMap::new(),
            doomed: Vec::new(),
            now: clock.now(),
            event: 1,
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

    /// Returns the current time.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Returns what the handlers of a process use.
    pub(crate) fn handling(&self, process: u64) -> Handling {
        let (oracle, timers) = (self.oracle.clone(), self.timers.clone());
        Handling { process, oracle, timers, coverage: Arc::clone(&self.coverage) }
    }

    /// Creates a process. Returns its number and the runtime of its nodes.
    pub(crate) fn process(&mut self) -> (u64, Runtime) {
        self.processes += 1;
        let process = Process {
            number: self.processes,
            requests: Arc::clone(&self.requests),
            random: Mutex::new(self.random.fork()),
        };
        (self.processes, Runtime::simulated(Clock::simulated(Arc::clone(&self.clock)), Arc::new(process)))
    }

    /// Names a process by the node that it runs.
    pub(crate) fn introduce(&mut self, process: u64, address: SocketAddr) {
        let name = format!("{process}@{address}");
        self.trace.line(self.now, "start", format_args!("process {process} starts: {name}"));
        self.trace.enter(self.now, &name);
        self.names.insert(process, name);
    }

    /// Returns the host with this address, which is created if it does not exist.
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

    /// Returns true if [`Scheduler::doom`] was called for a process that has not ended.
    pub(crate) fn is_doomed(&self, process: u64) -> bool {
        self.doomed.iter().any(|(doomed, _)| *doomed == process)
    }

    /// Returns true if a process has died between two stores, and nobody has called [`Scheduler::kill`] yet.
    pub(crate) fn has_death(&self) -> bool {
        self.doomed.iter().any(|(_, member)| !member.is_alive())
    }

    /// Ends a process at once: none of its machines and clients runs again.
    pub(crate) fn kill(&mut self, process: u64) {
        self.oracle.killed(process);
        self.tasks.kill(process);
        self.doomed.retain(|(doomed, _)| *doomed != process);
        let all = std::mem::take(&mut self.machines);
        let (dead, living) = all.into_iter().partition::<Vec<_>, _>(|slot| slot.process == process);
        self.machines = living;
        let spawned = std::mem::take(&mut lock(&self.requests).spawned);
        let (unmade, others) = spawned.into_iter().partition::<Vec<_>, _>(|(owner, ..)| *owner == process);
        lock(&self.requests).spawned = others;
        // Dropped without the lock, since a drop may wake others.
        drop((dead, unmade));
    }

    /// Stops machines of a process for this time.
    pub(crate) fn stop(&mut self, process: u64, stopped: Stopped, pause: Duration) {
        let one = stopped == Stopped::OneMachine;
        let mut own =
            (0..self.machines.len()).filter(|at| self.machines[*at].process == process).collect::<Vec<_>>();
        if one && !own.is_empty() {
            let chosen = own.swap_remove(self.random.usize(..own.len()));
            own = vec![chosen];
        }
        let until = self.now + pause;
        for at in own {
            let slot = &mut self.machines[at];
            slot.stopped_until = slot.stopped_until.max(until);
            self.trace.line(self.now, &slot.name, format_args!("stopped until {}", Since(until)));
        }
        self.oracle.allow(pause);
        self.coverage.count(if one { EventKind::MachinePaused } else { EventKind::ProcessPaused });
    }

    /// Resumes all stopped machines.
    pub(crate) fn resume_all(&mut self) {
        for slot in &mut self.machines {
            slot.stopped_until = Time(0);
        }
    }

    /// Returns the names of a process's machines that are not done.
    pub(crate) fn machines_of(&self, process: u64) -> Vec<&str> {
        let own = self.machines.iter().filter(|slot| slot.process == process);
        own.map(|slot| slot.name.as_str()).collect()
    }

    /// Returns the ledgers of all pollers of running nodes.
    pub(crate) fn ledgers(&self) -> Vec<PollerLedger> {
        self.inspected()
    }

    /// Returns the ledgers of all CM machines of running nodes.
    pub(crate) fn sessions(&self) -> Vec<SessionLedger> {
        self.inspected()
    }

    /// Returns the calls that a process has in flight to peers that had drained before.
    pub(crate) fn sent_to_drained(&self, process: u64) -> usize {
        let own = self.machines.iter().filter(|slot| slot.process == process);
        let ledgers = own.filter_map(|slot| slot.machine.inspect()?.downcast::<PollerLedger>().ok());
        ledgers.map(|ledger| ledger.driver.sent_to_drained).sum()
    }

    fn inspected<T: 'static>(&self) -> Vec<T> {
        let inspected = self.machines.iter().filter_map(|slot| slot.machine.inspect());
        inspected.filter_map(|ledger| ledger.downcast::<T>().ok()).map(|ledger| *ledger).collect()
    }

    /// Runs until `done` or that time. Returns true if `done` came true. Ends early on a violation.
    pub(crate) fn run_until(&mut self, limit: Time, mut done: impl FnMut(&Self) -> bool) -> bool {
        // The caller may have changed anything since the last step.
        self.event += 1;
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
            self.event += 1;
            let machine = match make() {
                Ok(machine) => machine,
                Err(error) => {
                    self.oracle.fail(format!("the machine {name} cannot be made: {error}"));
                    continue;
                }
            };
            let job = name.strip_prefix("trunkline-").unwrap_or(&name);
            let owner = self.names.get(&process).cloned().unwrap_or_else(|| process.to_string());
            let name = format!("{owner} {job}");
            self.trace.line(self.now, &name, format_args!("begins"));
            self.machines.push(Slot {
                process,
                name,
                machine,
                state: MachineState::Ready,
                busy_until: self.now,
                stopped_until: Time(0),
                turns: 0,
                quiet: 0,
                seen: Cell::default(),
            });
        }
        for bell in rung {
            let is_late = self.random.u8(..) == 0;
            let most = if is_late { LATE_RING_NS } else { RING_NS };
            let due = self.now.plus_ns(self.random.u64(..most));
            if is_late {
                self.late_rings.add(self.now, due);
                self.trace.line(self.now, "bell", format_args!("late: rings at {}", Since(due)));
            }
            self.bells.push((due, bell));
        }
    }

    /// Executes one of the events that are possible now. Returns false if none is.
    fn step(&mut self) -> bool {
        if self.network.deliver(self.now) {
            self.event += 1;
        }
        let mut choices = 0;
        let mut chosen = None;
        // Uniform choice without a list of the events.
        let mut offer = |random: &mut fastrand::Rng, choice| {
            choices += 1;
            if random.usize(..choices) == 0 {
                chosen = Some(choice);
            }
        };
        for (at, slot) in self.machines.iter().enumerate() {
            if slot.is_runnable(self.now, self.event) {
                offer(&mut self.random, Choice::Machine(at));
            }
        }
        for (at, (due, _)) in self.bells.iter().enumerate() {
            if *due <= self.now {
                offer(&mut self.random, Choice::Bell(at));
            }
        }
        for at in 0..self.tasks.woken() {
            offer(&mut self.random, Choice::Client(at));
        }
        if self.timers.next().is_some_and(|due| due <= self.now) {
            offer(&mut self.random, Choice::Timer);
        }
        let Some(choice) = chosen else { return false };
        self.turns += 1;
        self.event += 1;
        self.clock.set(self.now);
        match choice {
            Choice::Machine(at) => self.turn(at),
            Choice::Bell(at) => {
                self.trace.enter(self.now, "bell");
                self.bells.swap_remove(at).1.ring();
            }
            Choice::Client(at) => {
                self.trace.enter(self.now, "client");
                self.tasks.poll(at);
            }
            Choice::Timer => {
                self.trace.enter(self.now, "timer");
                let _one = self.timers.fire_one(self.now);
            }
        }
        true
    }

    fn turn(&mut self, at: usize) {
        let slot = &mut self.machines[at];
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
        self.trace.mix(self.now.0 ^ (at as u64) << 48);
        slot.turns += 1;
        if self.trace.lines() == lines && turn != Turn::Done {
            slot.quiet += 1;
        } else {
            let (quiet, outcome) = (std::mem::take(&mut slot.quiet), Outcome(turn));
            let line = format_args!("turns: {quiet} quiet, then this one: {outcome}");
            self.trace.line(self.now, &slot.name, line);
        }
        if turn == Turn::Done {
            let gone = self.machines.remove(at);
            drop(gone);
        }
    }

    /// Writes into the trace what each machine does now, for the end of a run that failed.
    pub(crate) fn show_machines(&self) {
        for slot in &self.machines {
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

    /// Moves the clock to the next time at which an event is possible. Returns false if there is none before
    /// the limit.
    fn advance(&mut self, limit: Time) -> bool {
        self.find_sleepers();
        let machines = self.machines.iter().filter_map(|slot| slot.next(self.event));
        let bells = self.bells.iter().map(|(due, _)| *due);
        let others = [self.timers.next(), self.network.next_arrival()];
        let next = machines.chain(bells).chain(others.into_iter().flatten()).min();
        // The next step sees a machine that another machine's turn has made runnable.
        let next = next.map(|next| next.max(self.now.plus_ns(1)));
        let reached = next.is_some_and(|next| next <= limit);
        self.now = if reached { next.unwrap_or(limit) } else { limit.max(self.now) };
        self.clock.set(self.now);
        reached
    }

    /// Checks that no machine sleeps with work to do while nothing is about to wake it.
    fn find_sleepers(&self) {
        if !self.bells.is_empty() {
            return;
        }
        for slot in self.machines.iter().filter(|slot| slot.is_forgotten(self.now, self.event)) {
            self.oracle.fail(format!("{} sleeps while work is due, and nobody wakes it", slot.name));
        }
    }
}

/// End of a turn, in words.
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
