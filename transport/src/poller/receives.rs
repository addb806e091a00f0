//! The way in: from completions to messages. Receives are reposted before anything is handled.
//!
//! The TGT that a frame came through identifies its peer and poller, not
//! the claims in the frame. A peer that breaks the rules loses its session.
#![forbid(unsafe_code)]

use super::Core;
use super::targets::Target;
use crate::buffer::{ReceiveSlots, Received};
use crate::frame::{self, FrameError, Kind};
use crate::sizes::BATCH;
use crate::{Message, Origin};
use std::mem;
use trunkline_verbs::{Completion, QpNumber};

/// Completions as they are taken from the CQ, and the frames that they report; empty in between, for its room.
#[derive(Debug, Default)]
pub(super) struct Batch {
    completions: Vec<Completion>,
    frames: Vec<Option<Received>>,
}

/// The receiver of the messages that frames hold.
pub(super) trait Take {
    /// A message came.
    fn message(&mut self, core: &mut Core, from: Origin, message: Message);

    /// It was the last one of its frame.
    fn frame_ends(&mut self, core: &mut Core);
}

/// Queues messages for the upper half.
#[derive(Debug)]
pub(super) struct Queue;

impl Take for Queue {
    fn message(&mut self, core: &mut Core, from: Origin, message: Message) {
        core.res.events.message(from, message);
    }

    fn frame_ends(&mut self, _: &mut Core) {}
}

impl Batch {
    /// Nothing to do, but the first time.
    fn make_room(&mut self) {
        self.completions.resize_with(BATCH, Completion::default);
    }
}

impl Core {
    /// Takes what the CQ has, up to a few batches, and hands each message to `take`; returns whether there was anything.
    pub(super) fn poll_completions(&mut self, take: &mut impl Take) -> bool {
        if self.res.receives.is_missing_any() {
            // An SRQ that has run empty completes nothing, so slots that were returned are posted here.
            self.queues.repost(self.res.receives.slots(), 0);
        }
        let mut worked = false;
        for _ in 0..4 {
            let count = self.poll_batch(take);
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
        for _ in 0..=self.queues.capacity_cqe() / BATCH {
            if self.poll_batch(&mut Queue) < BATCH {
                break;
            }
        }
        self.take_crossed();
    }

    fn poll_batch(&mut self, take: &mut impl Take) -> usize {
        let mut batch = mem::take(&mut self.batch);
        batch.make_room();
        let count = self.queues.poll(&mut batch.completions);
        if count > 0 {
            self.take(&batch.completions[..count], &mut batch.frames, take);
        }
        self.batch = batch;
        count
    }

    fn take(&mut self, completions: &[Completion], frames: &mut Vec<Option<Received>>, take: &mut impl Take) {
        let mut received = 0;
        for completion in completions {
            let Some(slot) = ReceiveSlots::slot_of(completion.wr_id) else { continue };
            let is_whole = completion.status.is_success();
            let frame =
                self.res.receives.slots().complete(slot, if is_whole { completion.byte_length } else { 0 });
            received += usize::from(frame.is_some());
            // A failed receive only gives its slot back; its sender sees the error.
            frames.push(frame.filter(|_| is_whole));
        }
        self.queues.repost(self.res.receives.slots(), received);
        let mut frames = frames.drain(..);
        for completion in completions {
            if ReceiveSlots::slot_of(completion.wr_id).is_none() {
                self.send_completed(completion);
            } else if let Some(Some(frame)) = frames.next() {
                self.place(completion.qp_number, frame, take);
            }
        }
        self.wake_crossed();
        self.res.grants.grant(self.res.time.now_ms());
    }

    /// A frame that came through a TGT, for us or for another poller.
    fn place(&mut self, target: QpNumber, frame: Received, take: &mut impl Take) {
        match self.crossings.other(&frame) {
            Some(poller) => self.cross(poller, target, frame),
            None => self.frame_received(target, frame, take),
        }
    }

    /// A frame that came through a TGT before, and was kept: the message in it is queued.
    pub(super) fn take_frame(&mut self, target: QpNumber, frame: Received) {
        self.place(target, frame, &mut Queue);
    }

    /// A frame for us that another poller has handed on, or that was kept: the message in it is queued.
    pub(super) fn take_late_frame(&mut self, target: QpNumber, frame: Received) {
        self.frame_received(target, frame, &mut Queue);
    }

    /// Keeps a frame of a TGT that this poller does not know yet, if a command that was not taken yet may
    /// announce the TGT. Otherwise the frame is dropped.
    pub(super) fn keep_unannounced(&mut self, qp: QpNumber, frame: Received) {
        if self.inbox.is_held_back() {
            self.targets.keep_unannounced(qp, frame, self.crossings.homes());
        }
    }

    /// The place of a TGT, if it is known.
    fn target_place(&mut self, qp: QpNumber) -> Option<usize> {
        self.targets.place(qp).or_else(|| {
            // The CM machine announces a TGT before the peer can use it, but that command may still be in
            // the queue.
            self.commands_amid_completions();
            self.targets.place(qp)
        })
    }

    /// A frame for us; hands on the message in it, if it holds one.
    fn frame_received(&mut self, qp: QpNumber, frame: Received, take: &mut impl Take) {
        let Some(place) = self.target_place(qp) else { return self.keep_unannounced(qp, frame) };
        let Some(target) = self.targets.at(place).filter(|target| !target.is_broken()) else { return };
        let (peer, number) = target.session();
        let likely = target.trunk().or_else(|| self.peers.trunk(peer));
        let slot = self.trunks.find(likely, peer, number);
        target.found_trunk(slot);
        let lane = usize::from(target.poller());
        let trunk = slot.and_then(|slot| self.trunks.get_mut(slot));
        let mut is_settings = false;
        let result = match (Target::parse(&self.res, &frame), target.pair(), trunk) {
            (Ok(header), Some(pair), Some(trunk)) => {
                let heard = target.hear(pair, &mut self.res, &header);
                let heard = heard.and_then(|()| trunk.hear(&mut self.res, lane, &header));
                if heard == Ok(true) && header.kind == Kind::Message {
                    trunk.count_received(lane);
                    let from = trunk.origin(lane);
                    self.targets.note_credit(qp);
                    let message = self.res.receives.message(frame);
                    take.message(self, from, message);
                    return take.frame_ends(self);
                }
                is_settings = header.kind == Kind::Settings;
                match heard {
                    Ok(true) if header.kind == Kind::Bundle => {
                        let of = (slot.unwrap_or_default(), lane, header.word);
                        let from = trunk.origin(lane);
                        self.bundle_received(of, from, frame, take)
                    }
                    heard => heard.and_then(|_| trunk.frame(&mut self.res, lane, &header, frame)),
                }
            }
            (Ok(header), ..) => self.keep_early(qp, header.kind, frame),
            (Err(error), ..) => Err(error),
        };
        if let Err(error) = result {
            self.targets.ignore(qp);
            self.misbehaved(peer, number, error);
        }
        self.targets.note_credit(qp);
        if let Some(slot) = slot.filter(|_| is_settings) {
            self.open_trunk(slot);
        }
    }

    /// Hands on the messages of a bundle, of which there are `count`.
    fn bundle_received(
        &mut self,
        (trunk, lane, count): (usize, usize, u16),
        from: Origin,
        bundle: Received,
        take: &mut impl Take,
    ) -> Result<(), FrameError> {
        let bundle = self.res.receives.bundle(bundle);
        let mut result = Ok(());
        for message in frame::bundled(&bundle, count) {
            let message = match message {
                Ok(message) => Message::from(bundle.slice(message)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            // A message may lead to the end of the session; the others were received before that.
            let Some(trunk) = self.trunks.get(trunk) else { break };
            trunk.count_received(lane);
            take.message(self, from, message);
        }
        take.frame_ends(self);
        result
    }

    /// The peer saw the session come up before we did.
    fn keep_early(&mut self, qp: QpNumber, kind: Kind, frame: Received) -> Result<(), FrameError> {
        let outdated = self.targets.keep_early(qp, kind, frame)?;
        if let Some(target) = outdated.and_then(|qp| self.targets.get(qp)) {
            let (peer, number) = target.session();
            self.refuse(peer, number, "it does not come up while too many others wait to");
        }
        Ok(())
    }
}
