//! A poller's part in the opening, failure and closing of sessions.
//!
//! A trunk ends in two phases. It is first taken down. It is freed, and the driver is notified, once the device has
//! completed its work and the CM machine has destroyed the TGTs of its session (`transport/src/trunk/ending.rs`).
//!
//! Over RC, a poller considers a session closed once its QPs are destroyed and all other pollers have reported its
//! end. After a second, the poller stops waiting for the reports, because a busy poller must not delay the report of
//! a dead peer.
#![forbid(unsafe_code)]

use super::Transport;
use super::peers::Next;
use super::targets::Target;
use crate::command::{CmCommand, SessionUp};
use crate::credit::GrantId;
use crate::trunk::{Trunk, destroy_ini};
use crate::wire::frame::FrameError;
use crate::{Connect, PeerDown, PeerKey, PollerIndex};
use std::collections::BTreeMap;
use std::time::Duration;
use trunkline_verbs::{QpNumber, Time};

impl Transport {
    pub(super) fn session_up(&mut self, session: Box<SessionUp>) {
        #[cfg(feature = "identity")]
        self.handshakes.end((session.peer, session.number));
        if let Some(session) = self.peers.session_up(session) {
            self.activate(*session);
        }
    }

    fn activate(&mut self, session: SessionUp) {
        let (peer, number) = (session.peer, session.number);
        let targets = self.targets.of_session((peer, number));
        if targets.len() != session.srqs.len() {
            // The session is about to be closed.
            destroy_ini(&self.res, session.qp.as_ref());
            return;
        }
        let Some(pairs) = self.charge(&targets) else {
            self.uncharge(&targets);
            destroy_ini(&self.res, session.qp.as_ref());
            self.refuse_for_depth(peer, number);
            return;
        };
        #[cfg(feature = "identity")]
        let renewed = session.renewed_by.map(|exchange| (session.identity.clone(), exchange));
        let slot = self.trunks.add(|slot| Trunk::new(&mut self.res, session, slot, pairs.into_iter()));
        self.peers.trunk_made(peer, slot);
        if let Some(trunk) = self.trunks.get_mut(slot) {
            trunk.begin(&mut self.res);
            #[cfg(feature = "identity")]
            if let Some((identity, exchange)) = renewed {
                trunk.renewed(&mut self.res, identity, exchange);
            }
        }
        self.take_early(peer, number, slot, &targets);
        self.open_trunk(slot);
    }

    /// Opens the trunk once the peer's settings have arrived, and moves messages that waited for the session
    /// to it.
    pub(super) fn open_trunk(&mut self, slot: usize) {
        let Some(trunk) = self.trunks.get_mut(slot).filter(|trunk| trunk.is_newly_open()) else { return };
        let mut waiting = self.peers.take_waiting(trunk.peer());
        trunk.open();
        while let Some(message) = waiting.pop() {
            trunk.queue(&mut self.res, message);
        }
    }

    /// Charges the base credits of a session's targets, and returns the grant for each of the peer's pollers. Returns
    /// `None` if the SRQ is not deep enough for all of them.
    fn charge(&mut self, targets: &[(u16, QpNumber)]) -> Option<Vec<(PollerIndex, GrantId)>> {
        let charge = |&(poller, qp): &(u16, QpNumber)| {
            self.make_room();
            let pair = self.targets.get_mut(qp)?.charge(qp, &mut self.res)?;
            Some((PollerIndex(poller), pair))
        };
        targets.iter().map(charge).collect()
    }

    /// Releases the targets' credit when a session fails to open.
    fn uncharge(&mut self, targets: &[(u16, QpNumber)]) {
        for &(_, qp) in targets {
            if let Some(pair) = self.targets.get_mut(qp).and_then(Target::uncharge) {
                self.res.grants.close(pair);
            }
        }
    }

    /// Ends a session because the SRQ is not deep enough for its targets.
    fn refuse_for_depth(&mut self, peer: PeerKey, number: u32) {
        let why = "its SRQs have no room for more pollers of peers: raise their depth (NodeBuilder::srq_depth), unless \
                   the log names a lack of memory";
        self.refuse(peer, number, why);
    }

    /// Ends a session that has no trunk.
    pub(super) fn refuse(&mut self, peer: PeerKey, number: u32, why: &'static str) {
        let cause = PeerDown::RefusedHere(why);
        self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
    }

    /// Takes the frames that arrived before the session was up on this poller, and counts the credit that they used.
    fn take_early(&mut self, peer: PeerKey, number: u32, slot: usize, targets: &[(u16, QpNumber)]) {
        for &(poller, qp) in targets {
            let Some(mut frame) = self.targets.take_early(qp) else { continue };
            let Some(target) = self.targets.get(qp) else { continue };
            let Some(trunk) = self.trunks.get_mut(slot) else { return };
            let lane = usize::from(poller);
            let opened = trunk.open_frame(lane, &mut frame, self.res.time.now());
            let result = opened.and_then(|()| Target::parse(&self.res, &frame)).and_then(|header| {
                if let Some(pair) = target.pair() {
                    target.apply_header(pair, &mut self.res, &header)?;
                }
                trunk.frame(&mut self.res, lane, &header, frame)
            });
            if let Err(error) = result {
                self.targets.ignore(qp);
                self.misbehaved(peer, number, error);
                return;
            }
            self.targets.note_credit(qp);
        }
    }

    /// Ends the session of a peer that broke the protocol.
    pub(super) fn misbehaved(&mut self, peer: PeerKey, number: u32, error: FrameError) {
        if let Some(suppressed) = self.log.line(self.res.time.now()) {
            tracing::warn!(%peer, %error, suppressed, "protocol violation by a peer");
        }
        let cause = PeerDown::from(error);
        let slot = self.peers.trunk(peer);
        match slot.filter(|&slot| self.trunks.get(slot).is_some_and(|trunk| trunk.number() == number)) {
            Some(slot) => self.break_trunk(slot, cause),
            None => self.res.shared.cm.command(CmCommand::Broken { peer, number, cause }),
        }
    }

    /// Takes down a trunk that can no longer be used, and notifies the CM machine.
    pub(super) fn break_trunk(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.get(slot).filter(|trunk| trunk.is_live()) else { return };
        let (peer, number) = (trunk.peer(), trunk.number());
        self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
        self.begin_dying(slot, cause);
    }

    /// Begins the first phase, in which posting stops and posted work is flushed.
    pub(super) fn begin_dying(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.get_mut(slot) else { return };
        if trunk.begin_dying(&mut self.res, cause) {
            self.peers.trunk_dying(trunk.peer(), slot);
        }
    }

    /// Takes down the trunk of a closed session, whose TGTs are destroyed. All messages received through them have
    /// been taken.
    pub(super) fn session_closed(&mut self, peer: PeerKey, number: u32, cause: PeerDown) {
        #[cfg(feature = "identity")]
        self.end_handshake(peer, number);
        if let Some(session) = self.peers.take_pending(peer, number) {
            destroy_ini(&self.res, session.qp.as_ref());
        }
        if let Some(slot) = self.find_trunk(peer, number) {
            // Another poller may have detected the device's removal first.
            let is_without_device = self.trunks.get(slot).is_some_and(Trunk::is_without_device);
            self.begin_dying(slot, if is_without_device { PeerDown::DeviceRemoved } else { cause });
        }
        self.begin_closing(peer, number);
    }

    /// Closes the targets of a session after its last frames have arrived.
    pub(super) fn finish_closing(&mut self, peer: PeerKey, number: u32) {
        // Frames wait only for sessions that are up. Otherwise, the peer's waiting frames belong to another session.
        let targets = self.targets.of_session((peer, number));
        if targets.iter().any(|(_, qp)| self.targets.get(*qp).is_some_and(|target| target.pair().is_some())) {
            self.take_line(peer);
            self.turns.forget(peer);
        }
        for (_, qp) in targets {
            if let Some(pair) = self.targets.remove(qp) {
                self.res.grants.close(pair);
            }
        }
        let Some(slot) = self.find_trunk(peer, number) else { return };
        if let Some(trunk) = self.trunks.get_mut(slot) {
            trunk.session_closed();
        }
        self.free_if_over(slot);
    }

    pub(super) fn peer_down(&mut self, peer: PeerKey, number: u32, cause: PeerDown, next: Option<Time>) {
        let Some(slot) = self.find_trunk(peer, number) else {
            let keeps_waiting = !self.shutdown.has_begun();
            if self.peers.down(peer, cause, next, keeps_waiting, &mut self.res) {
                self.ask(peer, Connect::FailFast);
            }
            return;
        };
        if let Some(next) = next {
            self.peers.went_away(peer, cause, next);
        }
        if let Some(trunk) = self.trunks.get_mut(slot) {
            trunk.session_over(cause);
        }
        self.free_if_over(slot);
    }

    /// Returns the place of a session's trunk, including one that is being taken down.
    pub(super) fn find_trunk(&self, peer: PeerKey, number: u32) -> Option<usize> {
        self.trunks.find(self.peers.trunk(peer), peer, number)
    }

    /// Begins the second phase if the trunk is ready for it.
    pub(super) fn free_if_over(&mut self, slot: usize) {
        if let Some(cause) = self.trunks.get(slot).and_then(|trunk| trunk.is_over(self.res.time.now())) {
            self.free_trunk(slot, cause);
        }
    }

    /// Frees a trunk, even if the device has not completed all of its work.
    pub(super) fn free_trunk(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.remove(slot) else { return };
        let peer = trunk.peer();
        if !trunk.is_open() {
            // The session never opened, so the attempt to connect has failed.
            let keeps_waiting = !self.shutdown.has_begun();
            self.peers.fail_waiting(peer, cause, keeps_waiting, &mut self.res);
        }
        trunk.free(&mut self.res, cause);
        match self.peers.trunk_freed(peer) {
            Next::Nothing => {}
            Next::Activate(session) => self.activate(*session),
            Next::Ask => self.ask(peer, Connect::FailFast),
        }
    }

    /// Requests a session from the CM machine, once.
    pub(super) fn ask(&mut self, peer: PeerKey, connect: Connect) {
        if let Some(connect) = self.peers.ask(peer, connect, self.res.time.now()) {
            self.res.shared.cm.command(CmCommand::Want { peer, connect });
        }
    }
}

/// Time for which a closed session waits for other pollers to forward earlier frames.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);

/// Identifies a session by the peer and this node's number for the session.
pub(super) type SessionOfPeer = (PeerKey, u32);

/// All sessions of a poller that are ending.
#[derive(Debug, Default)]
pub(super) struct Closings(BTreeMap<SessionOfPeer, Closing>);

#[derive(Debug, Default)]
struct Closing {
    /// Time at which the CM machine reported that the session's QPs are destroyed.
    since: Option<Time>,
    /// Number of other pollers that have reported the session's end.
    ends: usize,
    /// True if the session is closed although reports are missing.
    is_over: bool,
}

impl Closings {
    /// Records that the session's QPs are destroyed. Returns true if the session is now closed, because all other
    /// pollers have already reported its end.
    pub(super) fn begin(&mut self, session: SessionOfPeer, now: Time, others: usize) -> bool {
        self.0.entry(session).or_default().since.get_or_insert(now);
        self.take_if_all_ended(session, others)
    }

    /// Counts a report from one of the `others`. Returns true if the session is now closed.
    pub(super) fn end_received(&mut self, session: SessionOfPeer, others: usize) -> bool {
        self.0.entry(session).or_default().ends += 1;
        self.take_if_all_ended(session, others)
    }

    fn take_if_all_ended(&mut self, session: SessionOfPeer, others: usize) -> bool {
        let is_ended = |closing: &Closing| closing.since.is_some() && closing.ends >= others;
        if !self.0.get(&session).is_some_and(is_ended) {
            return false;
        }
        self.0.remove(&session).is_some_and(|closing| !closing.is_over)
    }

    /// Closes and returns the sessions for which other pollers have not reported the end within
    /// [`CLOSING_LIMIT`]. Later reports are ignored.
    pub(super) fn expire(&mut self, now: Time) -> Vec<SessionOfPeer> {
        let is_late = |closing: &Closing| {
            !closing.is_over && closing.since.is_some_and(|since| now - since > CLOSING_LIMIT)
        };
        let late = self.0.iter_mut().filter(|(_, closing)| is_late(closing));
        late.map(|(&session, closing)| {
            closing.is_over = true;
            session
        })
        .collect()
    }

    /// Returns true if a session waits for reports from other pollers.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.values().any(|closing| !closing.is_over)
    }

    /// Removes all sessions when the device and the rings are released.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
