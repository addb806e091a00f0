//! The word by which a simulated machine is woken.

use trunkline_rings::doorbell::Doorbell;

/// Sleep state of a simulated machine, which has no descriptor to be woken by.
#[derive(Debug, Default)]
pub struct Bell(Doorbell);

impl Bell {
    /// Wakes the machine if it has announced sleep. Called by the simulation for each
    /// [`crate::Simulator::ring`].
    pub fn ring(&self) {
        // The sleeping machine's word is enough: there is no descriptor to write.
        let _was_asleep = self.0.ring();
    }

    /// Returns the machine's side of the word.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.0
    }
}
