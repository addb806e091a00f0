//! The interface to a simulation, which schedules machines in place of the operating system.

use crate::bell::Bell;
use crate::machine::MakeMachine;
use std::fmt;
use std::sync::Arc;

/// A simulation in place of the operating system.
pub trait Simulator: Send + Sync + fmt::Debug {
    /// Adds a machine. It is made on the simulation's thread, before any other machine's next turn.
    fn spawn(&self, name: &str, make: MakeMachine);

    /// Rings a bell, now or later, but before the clock moves further than a thread may be descheduled. Other
    /// machines may run between a push into a queue and its ring.
    fn ring(&self, bell: Arc<Bell>);

    /// Returns the next number of the seeded source.
    fn random(&self) -> u64;
}
