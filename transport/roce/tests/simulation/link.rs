//! The network, which determines whether, how often and when a packet arrives.

use crate::plan::Network;
use crate::random::Random;

impl Network {
    /// Returns the delays in nanoseconds after which copies of a packet arrive; empty if it is lost. A
    /// corrupted packet fails its ICRC, so the receiver drops it.
    pub(crate) fn deliveries(&self, random: &mut Random) -> Vec<u64> {
        if random.chance(self.loss_per_mille) || random.chance(self.corrupt_per_mille) {
            return Vec::new();
        }
        let copies = if random.chance(self.duplicate_per_mille) { 2 } else { 1 };
        (0..copies)
            .map(|_| {
                // Most packets keep their order; some are overtaken.
                let jitter = if random.chance(100) { random.below(self.jitter_ns) } else { 0 };
                self.delay_ns + jitter
            })
            .collect()
    }
}
