//! Machines that a test steps in place of threads.
//!
//! Owns the machines that were requested and not taken yet, and a seeded source of random numbers. Doorbells
//! ring at once; the simulation of whole nodes tests what others may do between a push and its ring.

use crate::Random;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_machine::{Bell, MakeMachine, Simulator};

/// Collects the machines of one process.
pub struct Stepped(Mutex<SteppedState>);

struct SteppedState {
    random: Random,
    spawned: Vec<(String, MakeMachine)>,
}

impl Stepped {
    /// Creates a collection without machines, whose random numbers come from this seed.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SteppedState { random: Random(seed), spawned: Vec::new() })))
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
        bell.ring();
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
