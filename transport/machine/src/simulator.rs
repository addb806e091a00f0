//! The interface to a simulation, which schedules machines in place of the operating system, and the bell
//! through which it wakes a machine.

use crate::machine::MakeMachine;
use crate::rings::doorbell::Doorbell;
use std::fmt;
use std::sync::Arc;

/// A simulation in place of the operating system.
pub trait Simulator: Send + Sync + fmt::Debug {
    /// Adds a machine. It is created on the simulation's thread, before any other machine's next turn.
    fn spawn(&self, name: &str, make: MakeMachine);

    /// Rings a bell, now or later, but before the clock advances by more than the time for which a thread may be
    /// descheduled. Other machines may run between a push into a queue and the ring that follows it.
    fn ring(&self, bell: Arc<Bell>);

    /// Returns the next number of the seeded generator.
    fn random(&self) -> u64;
}

/// Sleep state of a simulated machine, which has no descriptor.
#[derive(Debug, Default)]
pub struct Bell(Doorbell);

impl Bell {
    /// Wakes the machine if it has announced sleep. Called by the simulation for each
    /// [`crate::Simulator::ring`].
    pub fn ring(&self) {
        // Ignore the result, since a simulated machine has no descriptor to write to.
        let _was_asleep = self.0.ring();
    }

    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.0
    }
}
