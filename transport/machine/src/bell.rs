//! The word between a machine and those who wake it, in a simulation.

use trunkline_rings::doorbell::Doorbell;

/// Records whether a simulated machine is asleep. In place of a descriptor there is only this word.
#[derive(Debug, Default)]
pub struct Bell(Doorbell);

impl Bell {
    /// Wakes the machine if it has announced sleep. The simulation calls it for a [`crate::Simulator::ring`].
    pub fn ring(&self) {
        // The sleeping machine's word is enough: there is no descriptor to write.
        let _was_asleep = self.0.ring();
    }

    /// The machine's side of the word.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.0
    }
}
