//! State machines that a test steps instead of running them in threads.
//!
//! [`Stepped`] collects the requested machines until the test takes them, and contains a seeded random number generator.
//! Doorbells ring immediately unless the test delays them. A [`Task`] is a machine that the test has taken.

use crate::Random;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};
use trunkline_machine::{Bell, Machine, MakeMachine, Simulator, Turn};
use trunkline_verbs::Time;

/// The requested machines of one process.
pub struct Stepped(Mutex<SteppedState>);

struct SteppedState {
    random: Random,
    spawned: Vec<(String, MakeMachine)>,
    /// Delayed doorbells, which the test rings; `None` if doorbells ring immediately.
    late: Option<VecDeque<Arc<Bell>>>,
}

impl Stepped {
    /// Creates an empty collection. `seed` is the seed of its random numbers.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SteppedState { random: Random(seed), spawned: Vec::new(), late: None })))
    }

    /// Delays doorbells until the test calls [`Self::ring_next`].
    pub fn delay_bells(&self) {
        self.lock().late = Some(VecDeque::new());
    }

    /// Rings the oldest delayed doorbell.
    pub fn ring_next(&self) {
        if let Some(bell) = self.lock().late.as_mut().and_then(VecDeque::pop_front) {
            bell.ring();
        }
    }

    /// Returns a random number below `bound`, or 0 if `bound` is 0.
    pub fn below(&self, bound: usize) -> usize {
        self.lock().random.below(bound)
    }

    /// Returns the machines requested since the last call, with their names.
    #[must_use]
    pub fn take(&self) -> Vec<(String, MakeMachine)> {
        std::mem::take(&mut self.lock().spawned)
    }

    fn lock(&self) -> MutexGuard<'_, SteppedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Simulator for Stepped {
    fn spawn(&self, name: &str, make: MakeMachine) {
        self.lock().spawned.push((name.to_owned(), make));
    }

    fn ring(&self, bell: Arc<Bell>) {
        match &mut self.lock().late {
            Some(late) => late.push_back(bell),
            None => bell.ring(),
        }
    }

    fn random(&self) -> u64 {
        self.lock().random.next()
    }
}

impl fmt::Debug for Stepped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stepped")
    }
}

/// A machine that a test steps.
#[allow(missing_debug_implementations)]
pub struct Task {
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// `None` while the machine is awake; otherwise the end of its sleep, or `Some(None)` if the sleep has no end.
    asleep: Option<Option<Time>>,
}

impl Task {
    /// Creates a machine that is awake.
    ///
    /// # Errors
    /// Returns an error if the machine cannot be created.
    pub fn new(make: MakeMachine) -> io::Result<Self> {
        Ok(Self { machine: make()?, asleep: None })
    }

    /// Returns true if the machine is asleep.
    #[must_use]
    pub const fn is_asleep(&self) -> bool {
        self.asleep.is_some()
    }

    /// Returns the end of the machine's sleep, if it has one.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.asleep.flatten()
    }

    /// Returns true if the machine is not asleep, its sleep has ended by `now`, or it was woken.
    #[must_use]
    pub fn is_awake(&self, now: Time) -> bool {
        !self.is_asleep() || self.deadline().is_some_and(|until| until <= now) || self.machine.is_woken()
    }

    /// Records the outcome of a turn. Returns false if the machine has ended.
    pub const fn record(&mut self, turn: Turn) -> bool {
        self.asleep = if let Turn::Sleep(until) = turn { Some(until) } else { None };
        !matches!(turn, Turn::Done)
    }

    /// Runs one turn of the machine. Returns false if the machine has ended.
    pub fn turn(&mut self) -> bool {
        let turn = self.machine.turn();
        self.record(turn)
    }
}
