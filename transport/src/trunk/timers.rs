//! Timed work of a trunk, such as deadlines, keepalives, the release of credit, and retries of work that waits.
#![forbid(unsafe_code)]

use super::lane::Lane;
use super::signals::PAUSE;
use super::{Resources, Trunk};
use crate::Awaited;
use crate::node::shared::Limits;
use std::mem;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::{QpPath, Time};

/// Time of silence after which a stream without items is probed, in milliseconds.
const ITEM_MS: u64 = 2000;
/// Time of silence after which messages wait for a keepalive, in milliseconds.
const SILENCE_MS: u64 = 1000;
/// Divisor of an interval. A keepalive may be early by the quotient, so that it is sent together with others.
const EARLY_PART: u64 = 2;

/// The silence of a peer, and the time of the next check for a due keepalive. Times are in milliseconds of the
/// poller.
#[derive(Debug)]
pub(super) struct Silence {
    /// Time of the last message or acknowledgement.
    heard_ms: u64,
    /// Lower bound of the time of the next keepalive; 0 for the first one, which is sent immediately.
    check_ms: u64,
    /// Number of packets received by the session's QPs, and the time of its last observed change. The number includes
    /// the peer's keepalives, which have no completions.
    received: u64,
    received_ms: u64,
    /// True if the peer has dialled the session.
    is_accepted: bool,
}

impl Silence {
    /// Creates the state of a session that came up. A QP waits longer for its first answer than for later answers, but
    /// a peer that dies before it sends anything must be detected as soon as other peers. The first keepalive is
    /// therefore sent immediately.
    pub(super) fn new(now_ms: u64, is_accepted: bool) -> Self {
        Self { heard_ms: now_ms, check_ms: 0, received: 0, received_ms: now_ms, is_accepted }
    }

    /// Returns true if messages may have to wait for an acknowledgement from the peer.
    #[inline]
    fn is_long(&self, now_ms: u64) -> bool {
        now_ms > self.heard_ms + SILENCE_MS
    }

    /// Returns true if a keepalive is due or, if `is_early`, will be due within half of its interval. Sets the next
    /// check. The node that dialled the session awaits items without keepalives while the peer's keepalives arrive.
    /// Otherwise a server would receive a keepalive from each client, in addition to sending its own.
    fn is_over(
        &mut self,
        now_ms: u64,
        limits: &Limits,
        awaited: Awaited,
        is_early: bool,
        received: impl FnOnce() -> u64,
    ) -> bool {
        if self.check_ms == 0 {
            return true;
        }
        let (quick_ms, idle_ms) = (limits.keepalive_ms, limits.idle_keepalive_ms);
        let interval_ms = match awaited {
            Awaited::Reply => quick_ms,
            Awaited::Item => ITEM_MS.clamp(quick_ms, idle_ms),
            Awaited::Interest => idle_ms,
            Awaited::Nothing if self.is_accepted && !mutant!(idle_sessions_are_not_probed) => idle_ms,
            Awaited::Nothing => {
                self.check_ms = now_ms.saturating_add(idle_ms);
                return false;
            }
        };
        if awaited == Awaited::Item && !self.is_accepted {
            let received = received();
            if mem::replace(&mut self.received, received) != received {
                self.received_ms = now_ms;
            }
            let end_ms = self.heard_ms.max(self.received_ms).saturating_add(interval_ms);
            // Half of the interval is the largest error of `received_ms`.
            self.check_ms = end_ms.min(now_ms.saturating_add(interval_ms / 2));
            return end_ms <= now_ms;
        }
        self.check_ms = self.heard_ms.saturating_add(interval_ms);
        let slack_ms = if is_early { interval_ms / EARLY_PART } else { 0 };
        self.check_ms <= now_ms.saturating_add(slack_ms)
    }
}

impl Trunk {
    /// Runs all timers of the trunk.
    pub(crate) fn timers(&mut self, res: &mut Resources) {
        if !self.is_live() {
            return;
        }
        for lane in &mut self.lanes {
            for queue in &mut lane.queues {
                queue.expire(self.peer, res.time.now(), &mut res.shares, &mut res.events);
            }
        }
        for lane in 0..self.lanes.len() {
            // Both sides lose released credit unless it is reported, so the report needs room. Messages queued on a
            // lane with credit wait for memory, possibly for long.
            if self.can_stage_credit(res, lane) && self.lanes[lane].spender.release_idle(res.time.now_ms()) {
                self.stage_credit(res, lane);
            }
        }
        self.expire_sinks(res);
        if self.is_waiting() {
            self.mark(res);
            self.probe_soon(res);
        }
    }

    /// Sends a keepalive at the next pass.
    pub(crate) fn probe_at_once(&mut self, res: &mut Resources) {
        self.silence.check_ms = 0;
        res.probe_ms = 0;
    }

    /// Stages a keepalive if posted work has waited long enough for a signal. Returns the time of the next check, or
    /// `None` if the trunk has left the poller's list of trunks with unsignalled work.
    pub(crate) fn complete_tail(&mut self, res: &mut Resources) -> Option<Time> {
        if mutant!(idle_tail_is_not_completed) {
            return None;
        }
        let now = res.time.now();
        match self.pipeline.tail_due().filter(|_| self.is_live()) {
            Some(due) if due > now => return Some(due),
            Some(_) => {
                let srq = self.lanes.first()?.srq;
                if !self.pipeline.stage_tail(&mut res.sends, srq) {
                    return Some(now + PAUSE);
                }
                self.mark(res);
            }
            None => {}
        }
        self.pipeline.leave_tails();
        None
    }

    /// Adds the trunk to the poller's list of busy trunks, whose timers are checked.
    #[inline]
    pub(super) fn keep_busy(&mut self, res: &mut Resources) {
        if self.rests {
            self.rests = false;
            res.busy.push(self.pipeline.slot());
        }
    }

    /// Returns true if only the trunk's keepalive timer runs. The trunk then leaves the list of busy trunks.
    pub(crate) fn comes_to_rest(&mut self) -> bool {
        let is_still = |lane: &Lane| lane.is_open() && lane.is_still();
        self.rests = self.is_live() && self.is_open && self.is_quiet() && self.lanes.iter().all(is_still);
        self.rests
    }

    /// Returns the time of the next call of [`Trunk::timers`]. `retry` is the pause for work without a timer.
    pub(crate) fn next_timer(&self, res: &Resources, retry: Duration) -> Option<Time> {
        let again = res.time.now() + retry;
        if !self.is_live() {
            return Some(again);
        }
        let of_lanes = self.lanes.iter().flat_map(|lane| {
            let release = lane.spender.release_due_ms().filter(|_| lane.may_announce_credit());
            [release.map(|ms| res.time.at_ms(ms)), lane.next_deadline()]
        });
        of_lanes.flatten().chain(self.is_waiting().then_some(again)).min()
    }

    /// Returns the step that one of the peer's pollers has delayed for too long.
    pub(crate) fn stalled(&self, res: &Resources) -> Option<&'static str> {
        let (now_ms, limit_ms) = (res.time.now_ms(), res.shared.limits.stall_ms);
        let mut lanes = self.lanes.iter().filter(|_| self.is_live());
        lanes.find_map(|lane| lane.stalled(self.is_open, now_ms, limit_ms))
    }

    /// Records a message or acknowledgement from the peer.
    pub(super) fn heard(&mut self, res: &Resources) {
        self.silence.heard_ms = res.time.now_ms();
    }

    /// Moves the next keepalive check to at most `keepalive_ms` from now.
    ///
    /// Called after an acknowledgement, when a reply may still be awaited, and while work waits for a resource.
    pub(super) fn probe_soon(&mut self, res: &mut Resources) {
        let soon_ms = res.time.now_ms().saturating_add(res.shared.limits.keepalive_ms);
        self.silence.check_ms = self.silence.check_ms.min(soon_ms);
        res.probe_ms = res.probe_ms.min(soon_ms);
    }

    /// Returns the lower bound of the time of the next keepalive, in milliseconds of the poller.
    pub(crate) fn probe_ms(&self) -> u64 {
        self.silence.check_ms
    }

    /// Returns true if a keepalive is due or, if `is_early`, will be due within half of its interval. Otherwise sets
    /// the next check. Work in flight does not need a keepalive.
    pub(crate) fn must_probe(&mut self, res: &Resources, awaited: Awaited, is_early: bool) -> bool {
        let (now_ms, limits) = (res.time.now_ms(), &res.shared.limits);
        if !self.is_live() || !self.pipeline.is_empty() {
            self.silence.check_ms = now_ms.saturating_add(limits.keepalive_ms);
            return false;
        }
        let has_begun = self.lanes.iter().all(Lane::is_open);
        let is_waiting = !has_begun || self.is_transferring() || !self.sinks.is_empty() || self.is_waiting();
        let awaited = if is_waiting { Awaited::Reply } else { awaited };
        let received = || res.shared.session_qps.received_packets(self.peer, self.number);
        self.silence.is_over(now_ms, limits, awaited, is_early, received)
    }

    /// Stages a keepalive. Its acknowledgement shows that the peer is alive.
    pub(crate) fn probe(&mut self, res: &mut Resources) {
        self.silence.check_ms = res.time.now_ms().saturating_add(res.shared.limits.keepalive_ms);
        if !mutant!(keepalive_is_not_sent)
            && let Some(lane) = self.lanes.first()
        {
            self.pipeline.stage_keepalive(&mut res.sends, lane.srq);
            self.mark(res);
        }
    }

    /// Returns true if messages may have to wait for an acknowledgement from the peer. Without that wait, messages to
    /// a peer that is gone would count as possibly delivered.
    #[inline]
    pub(super) fn is_silent(&self, res: &Resources) -> bool {
        self.silence.is_long(res.time.now_ms())
    }

    /// Returns true if messages wait for an acknowledgement from the silent peer. In that case, also sends a keepalive,
    /// unless other work in flight will be acknowledged. If the device shares memory with the peer's process, messages
    /// do not wait, since the end of that process is detected immediately.
    #[cold]
    pub(super) fn must_prove(&mut self, res: &mut Resources) -> bool {
        if self.pipeline.qp().path().is_some_and(|path| path.name == QpPath::MEMORY) {
            self.heard(res);
            return false;
        }
        if self.pipeline.is_empty() {
            self.probe(res);
        }
        !mutant!(messages_do_not_wait_for_silent_peers)
    }

    /// Returns true if work waits for a resource that other trunks may release, which is memory or room for the
    /// poller's outstanding work requests.
    pub(super) fn is_waiting(&self) -> bool {
        self.sinks.is_waiting() || self.lanes.iter().any(|lane| !lane.is_empty() || !lane.has_begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_message_bytes: 0,
        keepalive_ms: 500,
        idle_keepalive_ms: 10_000,
        poll_for: Duration::ZERO,
        session_loss_time: Duration::from_secs(1),
        stall_ms: 60_000,
        handshakes: false,
    };

    /// Returns the silence after which a peer is probed, in milliseconds, up to one minute.
    fn probed_after(is_accepted: bool, awaited: Awaited, is_early: bool) -> Option<u64> {
        let mut silence = Silence { check_ms: 7, ..Silence::new(7, is_accepted) };
        (0..60_000).find(|after| silence.is_over(7 + after, &LIMITS, awaited, is_early, || 0))
    }

    #[test]
    fn probe_interval_depends_on_awaited_message() {
        for accepted in [false, true] {
            assert_eq!(probed_after(accepted, Awaited::Reply, false), Some(500));
            assert_eq!(probed_after(accepted, Awaited::Item, false), Some(2_000));
            assert_eq!(probed_after(accepted, Awaited::Interest, false), Some(10_000));
        }
    }

    #[test]
    fn idle_session_is_probed_only_by_accepting_side() {
        assert_eq!(probed_after(true, Awaited::Nothing, false), Some(10_000));
        assert_eq!(probed_after(false, Awaited::Nothing, false), None);
    }

    #[test]
    fn keepalive_may_be_early_by_half_of_interval() {
        assert_eq!(probed_after(true, Awaited::Reply, true), Some(250));
        assert_eq!(probed_after(true, Awaited::Nothing, true), Some(5_000));
    }

    #[test]
    fn silence_check_waits_until_keepalive_can_be_due() {
        let mut silence = Silence { check_ms: 600, ..Silence::new(100, true) };
        assert!(!silence.is_over(600, &LIMITS, Awaited::Nothing, false, || 0));
        assert_eq!(silence.check_ms, 10_100);
        silence.is_accepted = false;
        assert!(!silence.is_over(600, &LIMITS, Awaited::Nothing, false, || 0));
        assert_eq!(silence.check_ms, 10_600, "something may be awaited by then");
    }

    #[test]
    fn first_keepalive_is_sent_at_once() {
        assert!(Silence::new(3, false).is_over(3, &LIMITS, Awaited::Nothing, false, || 0));
    }

    #[test]
    fn server_keepalives_replace_keepalives_of_waiting_stream() {
        let mut silence = Silence { check_ms: 7, ..Silence::new(7, false) };
        // The server sends a keepalive every 2 s until 20 s.
        let received = |now_ms: u64| now_ms.min(20_000) / 2_000;
        let mut now_ms = 7;
        while !silence.is_over(now_ms, &LIMITS, Awaited::Item, false, || received(now_ms)) {
            now_ms = silence.check_ms;
        }
        assert!((22_000..=23_500).contains(&now_ms), "the first own keepalive was sent after {now_ms} ms");
    }

    #[test]
    fn silence_is_long_after_one_second() {
        let silence = Silence::new(40, true);
        assert!(!silence.is_long(1_040) && silence.is_long(1_041));
    }
}
