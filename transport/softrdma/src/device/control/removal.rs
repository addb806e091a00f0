//! Removal of a device from its slot (contract I5).
//!
//! Owns the flag that records the removal. A removed device does not work: its tables are empty, so that calls on its
//! objects fail, and its link is disconnected. Peers are not notified.

use super::Control;
use super::endpoint::{PendingCmEvent, PendingCmEventKind};
use crate::device::shards::reach::Reach;
use crate::host::AwayFiles;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, CmEventKind, Time, VerbsError};

/// Interval at which a removable device checks for the operator's removal files.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Removal flag, and the files that request the removal.
#[derive(Debug)]
pub(super) struct Removal {
    is_removed: Arc<AtomicBool>,
    /// Files that request the removal of the device, and the time of the next check.
    away: Option<(AwayFiles, Time)>,
}

impl Removal {
    /// Creates the state. `away` is `None` for a device that is not removable.
    pub(super) fn new(away: Option<AwayFiles>) -> Self {
        Self { is_removed: Arc::default(), away: away.map(|files| (files, Time(0))) }
    }

    /// Returns the time of the next [`Removal::is_due`].
    pub(super) fn next_look(&self) -> Option<Time> {
        self.away.as_ref().map(|(_, next)| *next)
    }

    /// Returns true if a check is due and finds that the operator has removed the device.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let Some((files, next)) = &mut self.away else { return false };
        if *next > now {
            return false;
        }
        *next = now + LOOK_EVERY;
        let is_away = files.any();
        if is_away {
            self.away = None;
        }
        is_away
    }
}

impl Control {
    pub(in crate::device) fn is_removed(&self) -> bool {
        self.removal.is_removed.load(Ordering::Acquire)
    }

    /// Returns the removal flag, which threads read without control's lock. The flag is set before other
    /// effects of the removal are visible.
    pub(in crate::device) fn removed(&self) -> &Arc<AtomicBool> {
        &self.removal.is_removed
    }

    /// Checks that the device was not removed.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the device was removed.
    pub(in crate::device) fn present(&self) -> Result<(), VerbsError> {
        if self.is_removed() { Err(VerbsError::Gone) } else { Ok(()) }
    }

    pub(in crate::device) fn remove(&mut self, shards: &mut Reach<'_>, now: Time) {
        if self.removal.is_removed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.qps.leave(shards, now);
        self.members = None;
        shards.shut_down();
        self.remove_endpoints(shards, now);
        self.events.raise(AsyncEventKind::DeviceFatal, AsyncSubject::Device);
    }

    fn remove_endpoints(&mut self, shards: &mut Reach<'_>, now: Time) {
        for id in self.connections.listeners_first() {
            let Some(channel) = self.connections.get(id).map(|endpoint| endpoint.channel.clone()) else {
                continue;
            };
            self.drop_endpoint(shards, id, now);
            let kind = PendingCmEventKind::Other(CmEventKind::DeviceRemoval);
            if channel.push(PendingCmEvent { id, kind, private_data: Vec::new() }).is_err() {
                tracing::warn!(
                    ?id,
                    cause = "its event channel is full",
                    remedy = "take events from the channel sooner",
                    "device removal not reported to a connection"
                );
            }
        }
    }
}
