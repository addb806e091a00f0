//! The seam to a simulation: what a scheduler does in place of the operating system.

use crate::bell::Bell;
use crate::machine::MakeMachine;
use std::fmt;
use std::sync::Arc;

/// A simulation in place of the operating system.
pub trait Simulator: Send + Sync + fmt::Debug {
    /// Adds a machine. It is made on the simulation's thread, before any other machine's next turn.
    fn spawn(&self, name: &str, make: MakeMachine);

    /// Rings a bell, now or later, at any time before the clock moves beyond what a descheduled thread
    /// may take: between what a machine pushed into a queue and its ring, others may run.
    fn ring(&self, bell: Arc<Bell>);

    /// The next number of the seeded source.
    fn random(&self) -> u64;
}
