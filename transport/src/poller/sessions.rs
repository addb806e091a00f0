//! Sessions as a poller sees them: coming up, breaking, being taken down in two phases.
//!
//! A trunk that ends is first taken down; it is freed, and the upper half notified, when the device is done with it
//! and the CM machine has destroyed the TGTs of its session (`transport/src/trunk/ending.rs`).
#![forbid(unsafe_code)]

use super::Core;
use super::peers::Next;
use crate::command::{CmCommand, SessionUp};
use crate::credit::GrantId;
use crate::frame::{FrameError, Header};
use crate::trunk::{Trunk, destroy_ini};
use crate::{PeerDown, PeerEvent, PeerKey, PollerIndex};
use trunkline_verbs::QpNumber;

impl Core {
    pub(super) fn session_up(&mut self, session: Box<SessionUp>) {
        if let Some(session) = self.peers.session_up(session) {
            self.activate(*session);
        }
    }

    fn activate(&mut self, session: SessionUp) {
        let (peer, number, epoch) = (session.peer, session.number, session.epoch);
        let targets = self.targets.of_session((peer, number));
        if targets.len() != session.srqs.len() {
            // The session is about to be closed.
            destroy_ini(&self.res, session.qp.as_ref());
            return;
        }
        let Some(pairs) = self.charge(&targets) else {
            destroy_ini(&self.res, session.qp.as_ref());
            self.refuse_for_depth(peer, number);
            return;
        };
        let slot = self.trunks.add(|slot| Trunk::new(&mut self.res, session, slot, pairs.into_iter()));
        let pollers = u16::try_from(targets.len()).unwrap_or(u16::MAX);
        self.res.events.peer(peer, PeerEvent::Up { epoch, pollers });
        let mut waiting = self.peers.trunk_made(peer, slot);
        if let Some(trunk) = self.trunks.get_mut(slot) {
            while let Some(message) = waiting.pop() {
                trunk.queue(&mut self.res, message);
            }
        }
        self.release_held(peer, number, slot, &targets);
    }

    /// The credits of a session's targets, by the peer's poller; `None` when the SRQ's depth does not bear
    /// them all. What was taken is free again when the session is closed.
    fn charge(&mut self, targets: &[(u16, QpNumber)]) -> Option<Vec<(PollerIndex, GrantId)>> {
        let charge = |&(poller, qp): &(u16, QpNumber)| {
            self.make_room();
            let pair = self.targets.get_mut(qp)?.charge(qp, &mut self.res)?;
            Some((PollerIndex(poller), pair))
        };
        targets.iter().map(charge).collect()
    }

    /// A session has no credit: it ends.
    pub(super) fn refuse_for_depth(&mut self, peer: PeerKey, number: u32) {
        let cause = PeerDown::Refused(
            "too many peers for the depth of the SRQ; raise srq_depth_limit, or srq_depth over RC",
        );
        self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
    }

    /// Frames that came before the session was up here.
    fn release_held(&mut self, peer: PeerKey, number: u32, slot: usize, targets: &[(u16, QpNumber)]) {
        for &(poller, qp) in targets {
            let Some(target) = self.targets.get_mut(qp) else { continue };
            for frame in target.take_held() {
                let Some(trunk) = self.trunks.get_mut(slot) else { return };
                let result = Header::parse(frame.as_ref())
                    .and_then(|header| trunk.frame(&mut self.res, usize::from(poller), &header, frame));
                if let Err(FrameError(what)) = result {
                    self.misbehaved(peer, number, what);
                    return;
                }
            }
            self.targets.note_credit(qp);
        }
    }

    /// A peer broke the protocol: its session ends.
    pub(super) fn misbehaved(&mut self, peer: PeerKey, number: u32, what: &'static str) {
        if let Some(left_out) = self.log.line(self.res.time.now()) {
            tracing::warn!(peer = peer.0, what, left_out, "peer misbehaved");
        }
        let cause = PeerDown::Misbehaved(what);
        let slot = self.peers.trunk(peer);
        match slot.filter(|&slot| self.trunks.get(slot).is_some_and(|trunk| trunk.number() == number)) {
            Some(slot) => self.break_trunk(slot, cause),
            None => self.res.shared.cm.command(CmCommand::Broken { peer, number, cause }),
        }
    }

    /// A trunk cannot be used any more, as seen from here.
    pub(super) fn break_trunk(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.get(slot).filter(|trunk| trunk.is_live()) else { return };
        let (peer, number) = (trunk.peer(), trunk.number());
        self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
        self.begin_dying(slot, cause);
    }

    /// First phase: nothing new is posted, and what is posted comes back.
    pub(super) fn begin_dying(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.get_mut(slot) else { return };
        if trunk.begin_dying(&mut self.res, cause) {
            self.peers.trunk_dying(trunk.peer(), slot);
        }
    }

    /// The QPs through which the peer reached us are destroyed, and what came through ours was taken.
    pub(super) fn session_closed(&mut self, peer: PeerKey, number: u32) {
        if let Some(session) = self.peers.take_pending(peer, number) {
            destroy_ini(&self.res, session.qp.as_ref());
        }
        if let Some(slot) = self.find_trunk(peer, number) {
            // The reason follows in `PeerDown`; until then the messages' own cause is this.
            self.begin_dying(slot, PeerDown::Died);
        }
        self.begin_closing(peer, number);
    }

    /// Nothing of the session comes any more.
    pub(super) fn finish_closing(&mut self, peer: PeerKey, number: u32) {
        for (_, qp) in self.targets.of_session((peer, number)) {
            if let Some(mut target) = self.targets.remove(qp) {
                target.hand_on_held(&mut self.res);
                if let Some(pair) = target.pair() {
                    self.res.grants.close(pair);
                }
            }
        }
        let Some(slot) = self.find_trunk(peer, number) else { return };
        if let Some(trunk) = self.trunks.get_mut(slot) {
            trunk.session_closed();
        }
        self.free_if_over(slot);
    }

    pub(super) fn peer_down(&mut self, peer: PeerKey, number: u32, cause: PeerDown) {
        let Some(slot) = self.find_trunk(peer, number) else {
            return self.peers.down(peer, cause, &mut self.res);
        };
        if let Some(trunk) = self.trunks.get_mut(slot) {
            trunk.session_over(cause);
        }
        self.free_if_over(slot);
    }

    /// The trunk of a session, also one that is being taken down.
    pub(super) fn find_trunk(&self, peer: PeerKey, number: u32) -> Option<usize> {
        self.trunks.find(self.peers.trunk(peer), peer, number)
    }

    /// Second phase, if the trunk is ready for it.
    pub(super) fn free_if_over(&mut self, slot: usize) {
        if let Some(cause) = self.trunks.get(slot).and_then(|trunk| trunk.is_over(self.res.time.now())) {
            self.free_trunk(slot, cause);
        }
    }

    /// Frees a trunk, whatever the device still has of it.
    pub(super) fn free_trunk(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.remove(slot) else { return };
        let peer = trunk.peer();
        trunk.free(&mut self.res, cause);
        match self.peers.trunk_freed(peer) {
            Next::Nothing => {}
            Next::Activate(session) => self.activate(*session),
            Next::Ask => self.ask(peer),
        }
    }

    /// Asks the CM machine for a session, once.
    pub(super) fn ask(&mut self, peer: PeerKey) {
        if let Some(address) = self.peers.ask(peer) {
            self.res.shared.cm.command(CmCommand::Want { peer, address });
        }
    }
}
