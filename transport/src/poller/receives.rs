//! The way in: from completions to messages. Receives are reposted before anything is handled.
//!
//! Which peer and poller a frame comes from is known from the TGT it came through, never from
//! what it claims. A peer that breaks the rules loses its session.
#![forbid(unsafe_code)]

use super::{Core, Resources, Target};
use crate::buffer::{ReceiveSlots, Received};
use crate::command::CmCommand;
use crate::frame::{FrameError, HEADER, Header, Kind};
use crate::sizes::BATCH;
use crate::trunk::Trunk;
use crate::{Message, PeerDown, PeerKey};
use bytes::Bytes;
use trunkline_mutants::mutant;
use trunkline_verbs::{Completion, QpNumber};

/// Frames that wait for a session to come up here, per poller of the peer. Its credit allows one
/// message; the rest is room for credit frames.
const HELD: usize = 8;

impl Core {
    /// Takes what the CQ has, up to a few batches; returns whether there was anything.
    pub(super) fn poll_completions(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..4 {
            let count = self.poll_batch();
            worked |= count > 0;
            if count < BATCH {
                break;
            }
        }
        worked
    }

    /// Takes what the CQ has by now: what came through a TGT that is destroyed was there before, and its
    /// sender believes that it arrived.
    pub(super) fn take_arrived(&mut self) {
        let Some(attached) = &self.res.attached else { return };
        let most = usize::try_from(attached.cq.capacity_cqe()).unwrap_or(usize::MAX) / BATCH + 1;
        for _ in 0..most {
            if self.poll_batch() < BATCH {
                break;
            }
        }
        self.take_crossed();
    }

    fn poll_batch(&mut self) -> usize {
        let mut completions = [Completion::default(); BATCH];
        let Some(attached) = &self.res.attached else { return 0 };
        let count = attached.cq.poll(&mut completions).min(BATCH);
        if count > 0 {
            self.take(&completions[..count]);
        }
        count
    }

    fn take(&mut self, completions: &[Completion]) {
        let mut frames: [Option<(QpNumber, Received)>; BATCH] = std::array::from_fn(|_| None);
        let mut received = 0;
        for completion in completions {
            let Some(slot) = ReceiveSlots::slot_of(completion.wr_id) else { continue };
            let length = if completion.status.is_success() { completion.byte_length } else { 0 };
            if let Some(frame) = self.res.receives.complete(slot, length) {
                // A failed receive only gives its slot back; its sender sees the error.
                frames[received] = completion.status.is_success().then_some((completion.qp_number, frame));
                received += 1;
            }
        }
        self.res.repost(received);
        let mut frames = frames.into_iter();
        for completion in completions {
            if ReceiveSlots::slot_of(completion.wr_id).is_none() {
                self.send_completed(completion);
            } else if let Some(Some((target, frame))) = frames.next() {
                self.place(target, frame);
            }
        }
        self.wake_crossed();
        self.res.grants.grant(self.res.now_ms);
    }

    /// A frame that came through a TGT, for us or for another poller.
    pub(super) fn place(&mut self, target: QpNumber, frame: Received) {
        match self.res.crossings.other(&frame) {
            Some(poller) => self.cross(poller, target, frame),
            None => self.frame_received(target, frame),
        }
    }

    /// Keeps a frame of a TGT that this poller does not know yet, if the command that announces the TGT
    /// may be queued after the deferred one. Otherwise the frame is dropped.
    pub(super) fn keep_unknown_target_frame(&mut self, qp: QpNumber, frame: Received) {
        let of_it = self.unknown_target_frames.iter().filter(|(other, _)| *other == qp).count();
        if self.deferred.is_some() && of_it < HELD {
            self.unknown_target_frames.push((qp, frame));
        }
    }

    pub(super) fn frame_received(&mut self, qp: QpNumber, frame: Received) {
        if !self.targets.contains_key(&qp) {
            // The CM machine announces a TGT before the peer can use it, but that command may still be in
            // the queue.
            self.commands_within(true);
        }
        let Some(target) = self.targets.get(&qp) else { return self.keep_unknown_target_frame(qp, frame) };
        let (peer, number) = (target.peer, target.number);
        let slot = self.trunk_of(peer, number);
        let Some(target) = self.targets.get_mut(&qp).filter(|target| !target.broken) else { return };
        let result = target.hear(&mut self.res, &frame).and_then(|header| {
            match slot.and_then(|slot| self.trunks.get_mut(slot)) {
                Some(trunk) => trunk.frame(&mut self.res, usize::from(target.poller), &header, frame),
                None if target.held.len() >= HELD => Err(FrameError("too much before the session is up")),
                None => {
                    // The peer saw the session come up before we did.
                    target.held.push(frame);
                    Ok(())
                }
            }
        });
        if self.res.untold.last() != Some(&qp) {
            self.res.untold.push(qp);
        }
        if let Err(FrameError(what)) = result {
            if let Some(target) = self.targets.get_mut(&qp) {
                target.broken = true;
            }
            self.misbehaved(peer, number, what);
        }
    }

    /// The trunk of a session, also one that is being taken down.
    fn trunk_of(&self, peer: PeerKey, number: u32) -> Option<usize> {
        let current = self.peers.get(&peer).and_then(|peer| peer.trunk);
        let is_it = |&slot: &usize| self.trunks.get(slot).is_some_and(|trunk| trunk.number == number);
        current.filter(is_it).or_else(|| self.find_trunk(peer, number))
    }

    /// A peer broke the protocol: its session ends.
    pub(super) fn misbehaved(&mut self, peer: PeerKey, number: u32, what: &'static str) {
        if let Some(left_out) = self.res.log.line(self.res.now) {
            tracing::warn!(peer = peer.0, what, left_out, "peer misbehaved");
        }
        let cause = PeerDown::Misbehaved(what);
        let slot = self.peers.get(&peer).and_then(|peer| peer.trunk);
        match slot.filter(|&slot| self.trunks.get(slot).is_some_and(|trunk| trunk.number == number)) {
            Some(slot) => self.break_trunk(slot, cause),
            None => self.res.shared.cm.command(CmCommand::Broken { peer, number, cause }),
        }
    }
}

impl Resources {
    /// Posts `count` fresh receives, or fewer if slots are short.
    pub(super) fn repost(&mut self, count: usize) {
        let count = if mutant!(receive_is_not_reposted) { count.saturating_sub(1) } else { count };
        if let Some(attached) = &self.attached {
            self.receives.post(attached.srq.as_ref(), count);
        }
    }

    /// The message in a frame: lent while receive slots are plentiful, else copied.
    pub(super) fn message(&mut self, frame: Received) -> Message {
        // One that came from another poller was copied there if need be.
        if self.receives.lends(&frame) && self.receives.free() < self.low_water {
            Message::from(Bytes::copy_from_slice(frame.as_ref()))
        } else {
            Message::lent(frame)
        }
    }
}

impl Target {
    /// Checks a frame and takes note of what it says about credit.
    fn hear(&mut self, res: &mut Resources, frame: &Received) -> Result<Header, FrameError> {
        let header = Header::parse(frame.as_ref())?;
        if header.source != self.poller {
            return Err(FrameError("frame names another poller than its trunk belongs to"));
        }
        if header.target != res.index.0 {
            return Err(FrameError("frame for another poller than it came to"));
        }
        let uses_credit = header.kind != Kind::Credit;
        res.grants
            .hear(self.pair, res.now_ms, header.want, header.released, uses_credit)
            .map_err(|violation| FrameError(violation.0))?;
        Ok(header)
    }
}

impl Trunk {
    /// A checked frame from the peer's poller `lane`.
    pub(super) fn frame(
        &mut self,
        res: &mut Resources,
        lane: usize,
        header: &Header,
        mut frame: Received,
    ) -> Result<(), FrameError> {
        if !self.is_live() {
            // It came before the end, and its sender may believe that it arrived.
            if header.kind == Kind::Eager {
                frame.advance(HEADER);
                let message = res.message(frame);
                self.hand_on(res, lane, message);
            }
            return Ok(());
        }
        self.heard_ms = res.now_ms;
        let Some(known) = self.lanes.get_mut(lane) else {
            return Err(FrameError("frame from a poller that the session does not have"));
        };
        known.spender.hear(header.grant).map_err(|violation| FrameError(violation.0))?;
        if header.kind == Kind::Credit {
            known.spender.hear_credit_frame(res.now_ms).map_err(|violation| FrameError(violation.0))?;
        }
        if !known.queue.is_empty() || !known.fins.is_empty() {
            res.mark(self);
        }
        frame.advance(HEADER);
        match header.kind {
            Kind::Eager => {
                let message = res.message(frame);
                self.hand_on(res, lane, message);
                Ok(())
            }
            Kind::Request => self.take_request(res, lane, frame),
            Kind::Fin => self.take_fins(res, lane, frame.as_ref()),
            Kind::Credit => Ok(()),
        }
    }
}
