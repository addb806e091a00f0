//! Timed work of a poller, such as deadlines of queued messages, the end of trunks and the shutdown.
#![forbid(unsafe_code)]

use super::Transport;
use crate::command::CmCommand;
use crate::wire::frame::FrameError;
use crate::{Awaited, PeerKey};
use std::collections::BTreeMap;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::Time;

/// Interval at which a busy poller checks its timers.
const SCAN_MS: u64 = 5;
/// Time for which a poller leaves the acknowledgements of keepalives in its sockets.
const NAP: Duration = Duration::from_millis(10);
/// Time without a message from the driver after which a poller may nap, in milliseconds.
const REST_MS: u64 = 1000;
/// Pause before a poller retries work that has no timer, such as waiting for memory.
const RETRY: Duration = Duration::from_millis(20);

impl Transport {
    /// Runs the timers that have expired. `awaited` returns the kind of answer that the driver awaits from
    /// each peer.
    pub(super) fn timers(&mut self, awaited: impl FnOnce() -> BTreeMap<PeerKey, Awaited>) {
        if self.res.time.now_ms() < self.scanned_ms + SCAN_MS {
            return;
        }
        self.scanned_ms = self.res.time.now_ms();
        self.wake_crossed();
        self.expire_closing();
        self.peers.expire(&mut self.res);
        self.trunks.timers(&mut self.res);
        self.trunks.probe(&mut self.res, awaited);
        for (peer, number, how) in self.trunks.stalled(&self.res) {
            self.misbehaved(peer, number, FrameError::Broken(how));
        }
        for qp in self.res.grants.take_hoarding() {
            if let Some(target) = self.targets.get(qp) {
                let (peer, number) = target.session();
                let hoards = FrameError::Broken("it keeps credit that it does not use and others lack");
                self.misbehaved(peer, number, hoards);
            }
        }
        for slot in self.trunks.dying(&self.res) {
            self.free_if_over(slot);
        }
        self.drain();
    }

    /// Returns the time of the next call of [`Transport::timers`]; `None` if no timer runs.
    pub(super) fn next_timer(&self) -> Option<Time> {
        let waits = self.shutdown.has_begun()
            || self.res.receives.is_missing_any()
            || self.targets.is_untold()
            || self.crossings.is_waiting()
            || self.closings.is_waiting();
        let own = waits.then(|| self.res.time.now() + RETRY);
        let of_trunks = self.trunks.next_timer(&self.res, RETRY);
        let next = [own, of_trunks, self.peers.next_deadline()].into_iter().flatten().min();
        // Timers are not checked before the next scan, except at the end of a burst.
        let next = next.map(|next| next.max(self.res.time.at_ms(self.scanned_ms + SCAN_MS)));
        next.into_iter().chain(Some(self.res.tails.due()).filter(|&due| due < Time::MAX)).min()
    }

    /// Returns the time until which the poller leaves packets and deadlines to its device. It then waits only for the
    /// acknowledgements of many keepalives, each of which would wake it.
    pub(super) fn nap(&self) -> Option<Time> {
        let now_ms = self.res.time.now_ms();
        let rests = now_ms < self.res.nap_until_ms && now_ms > self.res.sent_ms + REST_MS;
        rests.then(|| self.res.time.now() + NAP)
    }

    /// Returns true if the poller's shutdown is complete.
    pub(super) fn is_finished(&self) -> bool {
        self.shutdown.is_ended() && self.trunks.is_empty() && self.res.events.is_empty()
    }

    /// Returns true if the poller has neither messages in flight nor events for the driver.
    pub(super) fn is_quiet(&self) -> bool {
        self.trunks.is_quiet() && self.peers.is_quiet() && self.res.events.is_empty() && self.turns.is_empty()
    }

    /// Notifies the CM machine, once, that the poller has drained or that the grace period is over.
    fn drain(&mut self) {
        if self.shutdown.must_report(self.is_quiet(), self.res.time.now())
            && !mutant!(drained_is_not_reported)
        {
            self.res.shared.cm.command(CmCommand::Drained { poller: self.res.index });
        }
    }
}
