//! Growth of the SRQ. Each remote poller that may send into it holds a credit while idle, so its depth grows
//! with their number.
//!
//! The depth is doubled, within the limits of the node and its device, before idle credits take half of it,
//! and when busy peers have left no room for another pair. It never shrinks. Receives are posted before
//! credit for them is granted. The settings that open a session use no credit: when many sessions come up at
//! once they may find no receive, and the sending devices repeat them after the RNR time, without a limit.
//! Over RC with several pollers, which divide each other's SRQs into fixed parts, the depth does not change.
#![forbid(unsafe_code)]

use super::Core;
use trunkline_verbs::{IoAddress, VerbsError};

impl Core {
    /// Deepens the SRQ if another pair of pollers needs it.
    pub(super) fn make_room(&mut self) {
        if !self.res.grants.is_crowded() {
            return;
        }
        let more = self.res.receives.doubling();
        if more == 0 {
            return;
        }
        let posted = match self.add_slots(more) {
            Ok(()) => self.queues.post_more(self.res.receives.slots(), more),
            Err(error) => {
                if let Some(left_out) = self.log.line(self.res.time.now()) {
                    tracing::warn!(%error, more, left_out, "no memory for receives of more peers");
                }
                return;
            }
        };
        self.res.receives.deepen(posted);
        self.res.grants.deepen(posted);
    }

    fn add_slots(&mut self, more: u32) -> Result<(), VerbsError> {
        let device = self.res.shared.device.get().ok_or(VerbsError::Gone)?;
        let start = IoAddress::from_random(self.res.shared.runtime.random());
        self.res.receives.slots().extend(device.pd.as_ref(), more, start)
    }
}
