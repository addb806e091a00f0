//! What a poller does because time passed: deadlines of queued messages, keepalive, credit that
//! decays, dying trunks, shutting down.
#![forbid(unsafe_code)]

use super::{Core, Event, Resources, Shutdown};
use crate::command::CmCommand;
use crate::trunk::{Outbound, Staged, Trunk};
use crate::{PeerDown, SendFailure, SendOutcome};
use std::collections::VecDeque;
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_verbs::Time;

/// A busy poller looks at its timers this often.
const SCAN_MS: u64 = 5;
/// A poller with something that has no timer of its own, such as waiting for memory, looks again
/// after this.
const RETRY: Duration = Duration::from_millis(20);

impl Core {
    /// Looks at all timers, if it is time to.
    pub(super) fn timers(&mut self) {
        if self.res.now_ms < self.scanned_ms + SCAN_MS {
            return;
        }
        self.scanned_ms = self.res.now_ms;
        self.wake_crossed();
        self.expire_closing();
        for peer in self.peers.values_mut() {
            expire(&mut peer.waiting, &mut self.res);
        }
        for (_, trunk) in &mut self.trunks {
            trunk.timers(&mut self.res);
        }
        self.bury_dead();
        self.drain();
    }

    /// When [`Core::timers`] has something to do; `None` when nothing waits for time.
    pub(super) fn next_timer(&self) -> Option<Time> {
        let at = |ms: u64| self.res.started + Duration::from_millis(ms);
        let mut next = self.shutdown.as_ref().map(|_| self.res.now + RETRY);
        let mut sooner = |candidate: Option<Time>| {
            if let Some(candidate) = candidate {
                next = Some(next.map_or(candidate, |next| next.min(candidate)));
            }
        };
        for peer in self.peers.values() {
            sooner(peer.waiting.iter().filter_map(|message| message.deadline).min());
        }
        for (_, trunk) in &self.trunks {
            if !trunk.is_live() {
                sooner(Some(self.res.now + RETRY));
                continue;
            }
            if trunk.in_flight.is_empty() {
                sooner(Some(at(trunk.heard_ms + self.res.shared.limits.keepalive_ms)));
            }
            for lane in &trunk.lanes {
                sooner(lane.spender.release_due_ms().filter(|_| lane.may_tell()).map(at));
                sooner(lane.queue.iter().filter_map(|message| message.deadline).min());
            }
            sooner(trunk.is_waiting().then_some(self.res.now + RETRY));
        }
        let waits =
            !self.res.untold.is_empty() || self.res.crossings.is_waiting() || self.closings.is_waiting();
        sooner(waits.then_some(self.res.now + RETRY));
        // Before that it does not look.
        next.map(|next| next.max(at(self.scanned_ms + SCAN_MS)))
    }

    pub(super) fn begin_shutdown(&mut self, deadline: Time) {
        if self.shutdown.is_none() {
            self.shutdown =
                Some(Shutdown { deadline, told: false, idle: false, drained: false, ended: false });
        }
    }

    /// All sessions were closed. This may overtake the command to shut down.
    pub(super) fn end(&mut self) {
        self.begin_shutdown(self.res.now);
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.ended = true;
        }
    }

    /// Whether nothing of the poller is left to be done.
    pub(super) fn is_finished(&self) -> bool {
        self.shutdown.as_ref().is_some_and(|shutdown| shutdown.ended)
            && self.trunks.is_empty()
            && self.res.events.is_empty()
    }

    /// Whether everything that was sent has its outcome.
    pub(super) fn is_quiet(&self) -> bool {
        self.trunks.iter().all(|(_, trunk)| trunk.is_quiet())
            && self.peers.values().all(|peer| peer.waiting.is_empty())
            && self.res.events.is_empty()
    }

    /// Notifies the CM machine, once, that nothing is in progress any more or that time is up.
    fn drain(&mut self) {
        let quiet = self.is_quiet();
        let now = self.res.now;
        let Some(shutdown) = &mut self.shutdown else { return };
        if shutdown.told && !shutdown.drained && (quiet && shutdown.idle || now >= shutdown.deadline) {
            shutdown.drained = true;
            if mutant!(drained_is_not_reported) {
                return;
            }
            self.res.shared.cm.command(CmCommand::Drained { poller: self.res.index });
        }
    }
}

impl Trunk {
    fn timers(&mut self, res: &mut Resources) {
        if !self.is_live() {
            return;
        }
        for lane in &mut self.lanes {
            expire(&mut lane.queue, res);
        }
        for lane in 0..self.lanes.len() {
            // Released credit must be reported, or neither side has it: so there must be room for the report.
            let can = self.lanes[lane].queue.is_empty() && self.can_stage_credit(res, lane);
            if can && self.lanes[lane].spender.release_idle(res.now_ms) {
                self.stage_credit(res, lane);
            }
        }
        self.expire_sinks(res);
        let silent = res.now_ms >= self.heard_ms + res.shared.limits.keepalive_ms;
        let probe = silent && !self.keepalive_out && self.in_flight.is_empty() && self.staged.is_empty();
        if probe
            && !mutant!(keepalive_is_not_sent)
            && let Some(lane) = self.lanes.first()
        {
            self.staged.push(Staged::Keepalive { srq: lane.srq });
            self.keepalive_out = true;
            res.outstanding += 1;
            res.mark(self);
        }
        if self.is_waiting() {
            res.mark(self);
        }
    }

    /// Whether something waits for a resource that other trunks may release: memory, or room among the
    /// poller's outstanding work requests.
    fn is_waiting(&self) -> bool {
        !self.waiting_for_memory.is_empty()
            || !self.reading.is_empty()
            || self.lanes.iter().any(|lane| !lane.queue.is_empty() || !lane.fins.is_empty())
    }
}

/// Fails queued messages whose deadline has passed.
fn expire(queue: &mut VecDeque<Outbound>, res: &mut Resources) {
    let now = res.now;
    queue.retain(|message| {
        let late = message.deadline.is_some_and(|deadline| deadline <= now);
        if late {
            let outcome =
                SendOutcome::Failed(SendFailure { may_have_arrived: false, cause: PeerDown::Deadline });
            res.events.push_back(Event::Sent(message.token, outcome));
        }
        !late
    });
}
