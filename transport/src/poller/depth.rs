//! The depth of the SRQ grows with the pollers that may send into it, because each holds a credit while idle.
//!
//! It is doubled, within the limit of the node and its device, before their credits take half of it, and when busy
//! peers have left no room for one more; it never shrinks. Receives are posted before anything is granted of
//! them. The settings of sessions that come up use no credit: those of a crowd that joins at once may find no receive, and
//! its devices send them again, however often, after the RNR time. Over RC with several pollers, which share out each other's SRQs by fixed parts, it stays as it is.
#![forbid(unsafe_code)]

use super::Core;
use trunkline_verbs::{IoAddress, VerbsError};

impl Core {
    /// Makes room for one more pair, if there should be more.
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
