//! End of a trunk, in two phases.
//!
//! First, unposted work fails and the QP changes to ERR, so that all posted work requests complete as flushed. After
//! the last completion, and after the CM machine has destroyed the TGTs through which the peer READs this node's
//! memory, the QP and buffers are freed and the driver is notified.
#![forbid(unsafe_code)]

use super::{Resources, Trunk};
use crate::{PeerDown, PeerEvent, SendFailure, SendOutcome};
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::{
    Completion, CompletionFlags, Mtu, QpModify, QpPath, QpState, QueuePair, Time, VerbsError,
};

/// Maximum time to wait for a device to flush a QP.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// Packet payload that every network carries, since IPv6 requires an MTU of at least 1280.
const CARRIED_EVERYWHERE_BYTES: u32 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Live,
    /// The trunk is being taken down. Posting has stopped.
    Dying {
        /// Time at which the first phase began.
        since: Time,
        /// Cause with which the trunk's messages fail.
        cause: PeerDown,
        /// True if the TGTs of the session are destroyed, so that the peer can no longer READ this node's
        /// memory.
        closed: bool,
        /// Cause of the peer's absence, for the driver, once determined.
        verdict: Option<PeerDown>,
    },
}

impl Trunk {
    /// Returns true if the trunk can be used.
    pub(crate) fn is_live(&self) -> bool {
        self.health == Health::Live
    }

    /// Returns true if the trunk's device was removed. Queries the device, so it is not called for each
    /// message.
    pub(crate) fn is_without_device(&self) -> bool {
        self.pipeline.qp().query().is_err_and(|error| error == VerbsError::Gone)
    }

    /// Returns the cause if the device reaches peers only through shared memory, and does not share memory with this
    /// peer.
    pub(crate) fn not_shared(&self) -> Option<PeerDown> {
        not_shared(self.pipeline.qp())
    }

    /// Returns the packet payload of the failed work with this number, if it is larger than every delivered payload and
    /// larger than the payload that every network carries.
    pub(crate) fn lost_packet_bytes(&self, sequence: u64) -> Option<u32> {
        let mtu = path_mtu(self.pipeline.qp())?.bytes();
        let (failed, carried) = self.pipeline.failed_and_carried(sequence)?;
        let (lost, carried) = (failed.min(mtu), carried.min(mtu));
        (lost > carried && lost > CARRIED_EVERYWHERE_BYTES).then_some(lost)
    }

    /// Returns the cause if a completion shows that large packets are lost in transit.
    pub(crate) fn too_large(&self, completion: &Completion) -> Option<PeerDown> {
        too_large(self.pipeline.qp(), completion)
    }

    /// Begins the first phase, in which posting stops and posted work is flushed. Returns false if the phase had
    /// already begun.
    pub(crate) fn begin_dying(&mut self, res: &mut Resources, cause: PeerDown) -> bool {
        if !self.is_live() {
            return false;
        }
        self.health = Health::Dying { since: res.time.now(), cause, closed: false, verdict: None };
        self.fail_unposted(res);
        self.keep_busy(res);
        let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
        if let Err(error) = self.pipeline.qp().modify(&error) {
            tracing::debug!(peer = %self.peer, %error, "INI not moved to ERR");
        }
        self.pipeline.post_end(&mut res.sends, &self.lanes);
        true
    }

    /// Records that the TGTs of the session are destroyed.
    pub(crate) fn session_closed(&mut self) {
        if let Health::Dying { closed, .. } = &mut self.health {
            *closed = true;
        }
    }

    /// Records the cause of the session's end, as reported by the CM machine.
    pub(crate) fn session_over(&mut self, down: PeerDown) {
        if let Health::Dying { cause, verdict, .. } = &mut self.health {
            *verdict = Some(down);
            *cause = down;
        }
    }

    /// Returns the cause of the peer's absence, for the driver, once determined.
    pub(crate) fn verdict(&self) -> Option<PeerDown> {
        match self.health {
            Health::Dying { verdict, .. } => verdict,
            Health::Live => None,
        }
    }

    /// Returns the cause of the peer's absence if the trunk can be freed.
    pub(crate) fn is_over(&self, now: Time) -> Option<PeerDown> {
        let Health::Dying { since, closed: true, verdict: Some(cause), .. } = self.health else {
            return None;
        };
        let overdue = now.saturating_duration_since(since) > FLUSH_LIMIT;
        if !self.pipeline.is_idle() && overdue {
            tracing::warn!(
                peer = %self.peer,
                in_flight = self.pipeline.in_flight(),
                "QP not flushed in time by the device"
            );
        }
        (self.pipeline.is_idle() || overdue).then_some(cause)
    }

    /// Executes the second phase, which frees the trunk and notifies the driver. The device need not have completed all
    /// of the trunk's work.
    pub(crate) fn free(mut self, res: &mut Resources, cause: PeerDown) {
        destroy_ini(res, self.pipeline.qp());
        while let Some(completed) = self.pipeline.pop_completed(&mut res.sends) {
            self.completed(res, completed, false);
        }
        let outcome = self.failure(true);
        if mutant!(sources_of_broken_trunk_leak) {
            std::mem::forget(self.sources.take_all());
        }
        for source in self.sources.take_all() {
            res.shares.finish(self.peer, source.bytes);
            res.events.sent(source.delivery, outcome);
        }
        if !mutant!(announcements_outlive_their_session) {
            res.shares.unannounce(self.peer, self.sinks.len());
        }
        res.shares.leave(self.peer);
        res.events.peer(self.peer, PeerEvent::Down { cause });
        res.marked.remove(self.pipeline.slot());
        res.tails.remove(self.pipeline.slot());
        res.busy.retain(|&slot| slot != self.pipeline.slot());
    }

    /// Returns the outcome of a message that failed on this trunk.
    pub(super) fn failure(&self, may_have_arrived: bool) -> SendOutcome {
        let cause = match self.health {
            Health::Dying { cause, .. } => cause,
            Health::Live => PeerDown::Died,
        };
        SendOutcome::Failed(SendFailure { may_have_arrived, cause })
    }

    /// Fails all work that was never posted.
    fn fail_unposted(&mut self, res: &mut Resources) {
        res.copies.remove(self.pipeline.slot());
        let outcome = self.failure(false);
        self.pipeline.abandon_staged(&mut res.sends, &mut res.events, outcome);
        for lane in &mut self.lanes {
            lane.fins.clear();
            lane.last = None;
            for queue in &mut lane.queues {
                queue.fail(self.peer, outcome, &mut res.shares, &mut res.events);
            }
        }
    }
}

/// Returns the cause if the device reaches peers only through shared memory, and does not share memory with the peer
/// of this QP.
pub(crate) fn not_shared(qp: &dyn QueuePair) -> Option<PeerDown> {
    let path = qp.path().filter(|path| path.name == QpPath::NONE)?;
    Some(PeerDown::NotShared(path.why))
}

/// Returns the cause if a completion of this QP shows that large packets are lost in transit.
pub(crate) fn too_large(qp: &dyn QueuePair, completion: &Completion) -> Option<PeerDown> {
    let mtu = path_mtu(qp).filter(|_| completion.flags.contains(CompletionFlags::LARGE_PACKETS_LOST))?;
    Some(PeerDown::PathMtu { mtu, is_told: false })
}

/// Returns the path MTU of a connected QP.
pub(crate) fn path_mtu(qp: &dyn QueuePair) -> Option<Mtu> {
    qp.query().ok().map(|attributes| attributes.path_mtu)
}

/// Destroys an INI that is in ERR or has never sent anything.
pub(crate) fn destroy_ini(res: &Resources, qp: &dyn QueuePair) {
    if let Err(error) = qp.destroy() {
        tracing::debug!(%error, "INI not destroyed");
    }
    res.shared.gauges.ini.fetch_sub(1, Ordering::Relaxed);
}
