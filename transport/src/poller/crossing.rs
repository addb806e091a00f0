//! Frames received by one poller for another, over RC: handing them on, and taking them.
//!
//! When a session is closed, its senders assume that everything in a home's CQ has arrived. So each poller
//! takes what came through its own QPs, hands on the frames for others, and then sends the end of the session
//! through every ring (`closings.rs`).
#![forbid(unsafe_code)]

use super::Core;
use crate::PeerKey;
use crate::buffer::Received;
use crate::crossings::Crossing;
use crate::frame::FrameError;
use crate::sizes::BATCH;
use trunkline_machine::mutant;
use trunkline_verbs::QpNumber;

impl Core {
    /// Hands a frame received through our TGT to another poller.
    pub(super) fn cross(&mut self, poller: usize, target: QpNumber, frame: Received) {
        if !self.targets.knows(target) {
            self.commands_amid_completions();
        }
        let Some(known) = self.targets.get_mut(target) else {
            return self.keep_unannounced(target, frame);
        };
        if known.is_broken() {
            return;
        }
        let (peer, number) = known.session();
        let frame = self.res.receives.keep(frame);
        if !self.crossings.push(poller, Crossing::Frame { target, peer, number, frame }) {
            known.ignore();
            self.misbehaved(peer, number, FrameError::Broken("more frames at once than its credit allows"));
        }
    }

    /// Hands on the frames that waited for room in a ring, and wakes the pollers that received any.
    pub(super) fn wake_crossed(&mut self) {
        self.crossings.flush();
        for poller in self.crossings.take_unwoken() {
            if let Some(handle) = self.res.shared.pollers.get(poller)
                && !mutant!(crossed_frames_wake_nobody)
            {
                handle.wake();
            }
        }
    }

    /// Takes frames handed on by other pollers. Returns true if there were any.
    pub(super) fn take_crossed(&mut self) -> bool {
        let mut worked = false;
        for other in 0..self.crossings.others() {
            for _ in 0..BATCH {
                let Some(crossing) = self.crossings.pop(other) else { break };
                worked = true;
                self.crossed(crossing);
            }
        }
        if worked {
            self.res.grants.grant(self.res.time.now_ms());
        }
        worked
    }

    fn crossed(&mut self, crossing: Crossing) {
        let (target, peer, number, frame) = match crossing {
            Crossing::Frame { target, peer, number, frame } => (target, peer, number, frame),
            Crossing::End { peer, number } => return self.end_received(peer, number),
        };
        let is_of_session =
            |core: &Self| core.targets.get(target).is_some_and(|known| known.session() == (peer, number));
        if !is_of_session(self) {
            // The poller that handed it on may have learned of the session first.
            self.commands_amid_completions();
        }
        if is_of_session(self) {
            self.wait(target, frame);
        } else if !self.targets.knows(target) {
            self.keep_unannounced(target, frame);
        }
    }

    /// Tells the other pollers that every frame of a closed session was handed on. The session is closed here
    /// once they have all done the same.
    pub(super) fn begin_closing(&mut self, peer: PeerKey, number: u32) {
        self.crossings.end(peer, number);
        self.wake_crossed();
        if self.closings.begin((peer, number), self.res.time.now(), self.crossings.others()) {
            self.finish_closing(peer, number);
        }
    }

    /// Counts another poller that has handed on everything it had of a session.
    fn end_received(&mut self, peer: PeerKey, number: u32) {
        if self.closings.end_received((peer, number), self.crossings.others()) {
            self.finish_closing(peer, number);
        }
    }

    /// Closes the sessions that have waited too long for other pollers.
    pub(super) fn expire_closing(&mut self) {
        for (peer, number) in self.closings.expire(self.res.time.now()) {
            tracing::warn!(%peer, "a poller is too busy to hand on what came before a session ended");
            self.finish_closing(peer, number);
        }
    }

    /// Takes everything other pollers have handed on for known sessions, before those end.
    pub(super) fn take_handed_on(&mut self) {
        for other in 0..self.crossings.others() {
            while let Some(crossing) = self.crossings.pop(other) {
                self.take_last(crossing);
            }
        }
    }

    /// Takes a frame or an end handed on by another poller, if its session is known.
    pub(super) fn take_last(&mut self, crossing: Crossing) {
        match crossing {
            Crossing::Frame { target, peer, number, frame } => {
                if self.targets.get(target).is_some_and(|known| known.session() == (peer, number)) {
                    self.take_line(peer);
                    self.take_late_frame(target, frame);
                }
            }
            Crossing::End { peer, number } => self.end_received(peer, number),
        }
    }
}
