//! Steps machines in place of threads, when a program gives them their turns itself.
//!
//! Owns the machines that were asked for and not made yet, and a seeded source of random numbers. A doorbell is
//! rung at once: what others may do between a push and its ring is for the simulation of whole nodes to try.

use crate::Random;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_machine::{Bell, MakeMachine, Simulator};

/// Collects the machines of one process.
pub struct Stepped(Mutex<State>);

struct State {
    random: Random,
    spawned: Vec<(String, MakeMachine)>,
}

impl Stepped {
    /// No machine yet; random numbers from this seed.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { random: Random(seed), spawned: Vec::new() })))
    }

    /// The machines that were asked for since the last call, with their names.
    #[must_use]
    pub fn take(&self) -> Vec<(String, MakeMachine)> {
        std::mem::take(&mut self.lock().spawned)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
