//! Timed work of a trunk: deadlines, keepalive, releasing credit, and retrying work that waits.
#![forbid(unsafe_code)]

use super::{Resources, Trunk};
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_verbs::Time;

impl Trunk {
    /// Runs all timers of the trunk.
    pub(crate) fn timers(&mut self, res: &mut Resources) {
        if !self.is_live() {
            return;
        }
        for lane in &mut self.lanes {
            for queue in &mut lane.queues {
                queue.expire(self.peer, res);
            }
        }
        for lane in 0..self.lanes.len() {
            // Credit that is released must be reported, or neither side has it. So there must be room for the
            // report. Messages queued on a lane with credit wait for memory, and may do so for long.
            if self.can_stage_credit(res, lane) && self.lanes[lane].spender.release_idle(res.time.now_ms()) {
                self.stage_credit(res, lane);
            }
        }
        self.expire_sinks(res);
        self.probe(res);
        if self.is_waiting() {
            self.mark(res);
        }
    }

    /// Returns the time at which [`Trunk::timers`] has something to do. `retry` is the pause for work without a timer.
    pub(crate) fn next_timer(&self, res: &Resources, retry: Duration) -> Option<Time> {
        let again = res.time.now() + retry;
        if !self.is_live() {
            return Some(again);
        }
        let keepalive = self.pipeline.is_idle().then_some(self.keepalive_due_ms);
        let of_lanes = self.lanes.iter().flat_map(|lane| {
            let release = lane.spender.release_due_ms().filter(|_| lane.may_announce_credit());
            [release.map(|ms| res.time.at_ms(ms)), lane.next_deadline()]
        });
        let own = [keepalive.map(|ms| res.time.at_ms(ms)), self.is_waiting().then_some(again)];
        of_lanes.chain(own).flatten().min()
    }

    /// Returns a failure of one of the peer's pollers that has lasted too long.
    pub(crate) fn stalled(&self, res: &Resources) -> Option<&'static str> {
        let (now_ms, limit_ms) = (res.time.now_ms(), res.shared.limits.stall_ms);
        let mut lanes = self.lanes.iter().filter(|_| self.is_live());
        lanes.find_map(|lane| lane.stalled(self.is_open, now_ms, limit_ms))
    }

    /// Notes that the peer was heard from.
    pub(super) fn heard(&mut self, res: &Resources) {
        self.keepalive_due_ms = res.time.now_ms().saturating_add(res.shared.limits.keepalive_ms);
    }

    /// Stages a keepalive if the peer was silent for long.
    fn probe(&mut self, res: &mut Resources) {
        let due =
            res.time.now_ms() >= self.keepalive_due_ms && !self.keepalive_out && self.pipeline.is_empty();
        if due
            && !mutant!(keepalive_is_not_sent)
            && let Some(lane) = self.lanes.first()
        {
            self.pipeline.stage_keepalive(&mut res.sends, lane.srq);
            self.keepalive_out = true;
            self.mark(res);
        }
    }

    /// Returns true if something waits for a resource that other trunks may release: memory, or room among
    /// the poller's outstanding work requests.
    fn is_waiting(&self) -> bool {
        self.sinks.is_waiting() || self.lanes.iter().any(|lane| !lane.is_empty() || !lane.has_begun)
    }
}
