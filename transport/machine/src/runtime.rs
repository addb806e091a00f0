//! The runtime of machines, and their sources of time and randomness.

use crate::machine::MakeMachine;
use crate::simulator::Simulator;
use crate::sleeper::{Sleeper, Waker};
use crate::thread::{self, Running};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use trunkline_verbs::Clock;

/// Starts machines, and provides their clock and randomness. Clones are handles to the same runtime.
#[derive(Debug, Clone, Default)]
pub struct Runtime {
    clock: Clock,
    simulator: Option<Arc<dyn Simulator>>,
}

impl Runtime {
    /// Creates the default runtime, with a thread per machine and the system's clock and randomness.
    #[must_use]
    pub fn threads() -> Self {
        Self::default()
    }

    /// Creates a runtime whose machines are run by a simulation with this clock.
    #[must_use]
    pub fn simulated(clock: Clock, simulator: Arc<dyn Simulator>) -> Self {
        Self { clock, simulator: Some(simulator) }
    }

    /// Returns the clock that all machines of the runtime read.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns true if a simulation runs the machines. Code in a simulation must not block, start a thread or open a socket.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.simulator.is_some()
    }

    /// Returns an unpredictable number; in a simulation, the next number of the seeded source.
    #[must_use]
    pub fn random(&self) -> u64 {
        match &self.simulator {
            Some(simulator) => simulator.random(),
            // The standard library seeds each `RandomState` from the system's source.
            #[expect(clippy::disallowed_methods, reason = "the one source of unseeded randomness")]
            None => RandomState::new().hash_one(std::process::id()),
        }
    }

    /// Starts a machine. `make` runs on the thread that drives the machine.
    ///
    /// # Errors
    /// The system's error if a thread cannot be created, or the error of `make`. A simulation creates the
    /// machine later, and fails as a whole if that fails.
    pub fn spawn(&self, name: &str, make: MakeMachine) -> io::Result<Running> {
        match &self.simulator {
            Some(simulator) => {
                simulator.spawn(name, make);
                Ok(Running::simulated())
            }
            None => thread::start(name, make),
        }
    }

    /// Creates a sleeper for the machine, and a waker for the threads that bring it work.
    ///
    /// # Errors
    /// The system's error if no file descriptor is available.
    pub fn sleeper(&self) -> io::Result<(Sleeper, Waker)> {
        Sleeper::new(&self.clock, self.simulator.as_ref())
    }
}
