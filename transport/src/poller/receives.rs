//! The receive path, from completions to messages. Receives are reposted before anything is handled.
//!
//! A frame's peer and poller are identified by the TGT that it came through, not by its own claims. A peer
//! that breaks the rules loses its session.
#![forbid(unsafe_code)]

use super::Core;
use super::targets::Target;
use super::turns::{Part, Waiting};
use crate::buffer::{ReceiveSlots, Received};
use crate::wire::BATCH;
use crate::wire::frame::{Bundle, FrameError, FrameKind};
use crate::{Message, Origin, PeerKey};
use bytes::Bytes;
use std::mem;
use trunkline_verbs::{Completion, QpNumber};

/// Completions of one poll of the CQ, and the frames they report. Empty between polls; kept to reuse the
/// memory.
#[derive(Debug, Default)]
pub(super) struct Batch {
    completions: Vec<Completion>,
    frames: Vec<Option<Received>>,
}

/// Receiver of the messages in frames.
pub(super) trait Take {
    /// Takes a message.
    fn message(&mut self, core: &mut Core, from: Origin, message: Message);

    /// Called after the last message of a frame.
    fn frame_ends(&mut self, core: &mut Core);

    /// Returns true if a frame must wait. `is_before_turn` is true if its peer has had its turn, or others have.
    fn must_wait(&self, peer: PeerKey, is_before_turn: bool) -> bool;

    /// Returns true if peers take turns.
    fn takes_turns(&self) -> bool;
}

/// Queues messages for the upper half.
#[derive(Debug)]
pub(super) struct Queue;

impl Take for Queue {
    fn message(&mut self, core: &mut Core, from: Origin, message: Message) {
        core.res.events.message(from, message);
    }

    fn frame_ends(&mut self, _: &mut Core) {}

    fn must_wait(&self, _: PeerKey, _: bool) -> bool {
        false
    }

    fn takes_turns(&self) -> bool {
        false
    }
}

/// Queues the messages of one peer, whose session ends.
#[derive(Debug)]
struct QueueLast(PeerKey);

impl Take for QueueLast {
    fn message(&mut self, core: &mut Core, from: Origin, message: Message) {
        Queue.message(core, from, message);
    }

    fn frame_ends(&mut self, _: &mut Core) {}

    fn must_wait(&self, peer: PeerKey, _: bool) -> bool {
        peer != self.0
    }

    fn takes_turns(&self) -> bool {
        false
    }
}

impl Batch {
    /// Grows the list of completions, the first time only.
    fn make_room(&mut self) {
        self.completions.resize_with(BATCH, Completion::default);
    }
}

impl Core {
    /// Takes completions, up to a few batches, and hands each message to `take`, in turns of their peers. Returns true
    /// if there were any.
    pub(super) fn poll_completions(&mut self, take: &mut impl Take) -> bool {
        self.turns.begin_round(self.res.time.now());
        if self.res.receives.is_missing_any() {
            // An SRQ that has run empty completes nothing, so slots that were returned are posted here.
            self.queues.repost(self.res.receives.slots(), 0);
        }
        let mut worked =
            if take.takes_turns() { self.take_turns(take, self.turns.peers()) } else { self.take_lines() };
        for _ in 0..4 {
            let count = self.poll_batch(take);
            worked |= count > 0;
            if count < BATCH {
                break;
            }
        }
        self.turns.polled();
        worked | self.take_turns(take, usize::MAX)
    }

    /// Takes everything in the CQ now, because a session of this peer ends. Frames from a destroyed TGT are among it, and
    /// their sender believes that they arrived.
    pub(super) fn take_arrived(&mut self, peer: PeerKey) {
        self.take_line(peer);
        for _ in 0..=self.queues.capacity_cqe() / BATCH {
            if self.poll_batch(&mut QueueLast(peer)) < BATCH {
                break;
            }
        }
        self.take_crossed();
    }

    /// Gives peers whose frames wait up to this number of turns, until the round is over. Returns true if there were any.
    fn take_turns(&mut self, take: &mut impl Take, turns: usize) -> bool {
        let mut worked = false;
        for _ in 0..turns {
            let is_over = worked && self.turns.is_round_over(self.res.shared.runtime.clock());
            if is_over || self.is_charged() {
                break;
            }
            let Some(peer) = self.turns.begin_turn() else { break };
            while let Some(frame) = self.turns.next(peer) {
                self.take_waiting(frame, take);
            }
            self.turns.end_turn(peer);
            worked = true;
        }
        if worked {
            self.res.grants.grant(self.res.time.now_ms());
        }
        worked
    }

    /// Queues the messages in all waiting frames, before later ones. Returns true if there were any.
    fn take_lines(&mut self) -> bool {
        let mut worked = false;
        while let Some(peer) = self.turns.first() {
            self.take_line(peer);
            worked = true;
        }
        worked
    }

    /// Queues the messages in a peer's waiting frames.
    pub(super) fn take_line(&mut self, peer: PeerKey) {
        if self.turns.has_line(peer) {
            while let Some(frame) = self.turns.take(peer) {
                self.take_waiting(frame, &mut Queue);
            }
            self.turns.end_turn(peer);
        }
    }

    fn take_waiting(&mut self, frame: Waiting, take: &mut impl Take) {
        match frame {
            Waiting::Frame { target, frame, uses_credit } => {
                if let Some(known) = self.targets.place(target).and_then(|place| self.targets.at(place)) {
                    known.waited(&mut self.res.grants, uses_credit);
                }
                self.frame_received(target, frame, take);
            }
            Waiting::Bundle(part, bytes, bundle) => {
                let (peer, number) = (part.from.peer, part.from.session.0);
                if let Err(error) = self.bundle_received(part, &bytes, bundle, take) {
                    self.targets
                        .of_session((peer, number))
                        .iter()
                        .for_each(|(_, qp)| self.targets.ignore(*qp));
                    self.misbehaved(peer, number, error);
                }
            }
        }
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
            // A failed receive only frees its slot; the sender sees the error.
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

    /// Takes a frame that came through a TGT, for us or for another poller.
    fn place(&mut self, target: QpNumber, frame: Received, take: &mut impl Take) {
        match self.crossings.other(&frame) {
            Some(poller) => self.cross(poller, target, frame),
            None => self.arrived(target, frame, take),
        }
    }

    /// Takes a frame for us, or lets it wait for its peer's turn.
    fn arrived(&mut self, qp: QpNumber, frame: Received, take: &mut impl Take) {
        let Some(place) = self.target_place(qp) else { return self.keep_unannounced(qp, frame) };
        let round = self.turns.round();
        let Some(target) = self.targets.at(place).filter(|target| !target.is_broken()) else { return };
        let (peer, left) = (target.session().0, target.turn_left(round));
        let is_before_turn = left == 0
            || self.turns.has_line(peer)
            || self.turns.is_round_over(self.res.shared.runtime.clock());
        if target.pair().is_some() && take.must_wait(peer, is_before_turn) {
            return self.wait(qp, frame);
        }
        self.turns.give(left);
        self.frame_received(qp, frame, take);
        let left = self.turns.left();
        if let Some(target) = self.targets.at(place) {
            target.set_turn_left(round, left);
        }
    }

    /// Lets a frame wait in its peer's line. Its credit is checked here: lines are bounded even if a peer has none.
    /// A session that is not up has no line.
    pub(super) fn wait(&mut self, qp: QpNumber, frame: Received) {
        let Some(target) = self.targets.get_mut(qp).filter(|target| !target.is_broken()) else { return };
        if target.pair().is_none() {
            return self.take_late_frame(qp, frame);
        }
        let uses_credit = Target::parse(&self.res, &frame).map_or(true, |header| header.released().is_none());
        let (peer, number) = target.session();
        if let Err(error) = target.wait(&mut self.res.grants, uses_credit) {
            target.ignore();
            return self.misbehaved(peer, number, error);
        }
        let frame = self.res.receives.keep(frame);
        self.turns.wait(peer, Waiting::Frame { target: qp, frame, uses_credit });
    }

    /// Takes a kept frame that came through a TGT earlier. Its messages are queued.
    pub(super) fn take_frame(&mut self, target: QpNumber, frame: Received) {
        self.place(target, frame, &mut Queue);
    }

    /// Takes a frame for us that was handed on by another poller, or kept. Its messages are queued.
    pub(super) fn take_late_frame(&mut self, target: QpNumber, frame: Received) {
        self.frame_received(target, frame, &mut Queue);
    }

    /// Keeps a frame of an unknown TGT if a command not yet taken may announce the TGT. Otherwise drops it.
    pub(super) fn keep_unannounced(&mut self, qp: QpNumber, frame: Received) {
        if self.inbox.is_held_back() {
            self.targets.keep_unannounced(qp, frame, self.crossings.homes());
        }
    }

    /// Returns the place of a TGT, if it is known.
    fn target_place(&mut self, qp: QpNumber) -> Option<usize> {
        self.targets.place(qp).or_else(|| {
            // The CM machine announces a TGT before the peer can use it, but that command may still be in
            // the queue.
            self.commands_amid_completions();
            self.targets.place(qp)
        })
    }

    /// Takes a frame for us, and hands on its message if it has one.
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
                if heard == Ok(true) && header.kind == FrameKind::Message {
                    trunk.count_received(lane);
                    let from = trunk.origin(lane);
                    self.targets.note_credit(qp);
                    let message = self.res.receives.message(frame);
                    self.turns.count();
                    take.message(self, from, message);
                    self.turns.took(self.res.shared.runtime.clock());
                    return take.frame_ends(self);
                }
                is_settings = header.kind == FrameKind::Settings;
                match heard {
                    Ok(true) if header.kind == FrameKind::Bundle => {
                        let part = Part { from: trunk.origin(lane), trunk: slot.unwrap_or_default(), lane };
                        let bytes = self.res.receives.bundle(frame);
                        self.bundle_received(part, &bytes, Bundle::new(header.word), take)
                    }
                    heard => {
                        self.turns.count();
                        heard.and_then(|_| trunk.frame(&mut self.res, lane, &header, frame))
                    }
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

    /// Hands on the remaining messages of a bundle, as far as the turn of its peer allows.
    fn bundle_received(
        &mut self,
        part: Part,
        bytes: &Bytes,
        mut bundle: Bundle,
        take: &mut impl Take,
    ) -> Result<(), FrameError> {
        let peer = part.from.peer;
        while !take.takes_turns()
            || bundle.is_over()
            || self.turns.goes_on(peer, self.res.shared.runtime.clock())
        {
            let Some(message) = bundle.next(bytes) else {
                take.frame_ends(self);
                return Ok(());
            };
            let message = Message::from(bytes.slice(message.inspect_err(|_| take.frame_ends(self))?));
            // A message may end the session; the remaining ones were received before that.
            let Some(trunk) = self
                .trunks
                .get(part.trunk)
                .filter(|trunk| trunk.peer() == part.from.peer && trunk.number() == part.from.session.0)
            else {
                return Ok(());
            };
            trunk.count_received(part.lane);
            self.turns.count();
            take.message(self, part.from, message);
            self.turns.took(self.res.shared.runtime.clock());
        }
        self.turns.put_back(peer, Waiting::Bundle(part, bytes.clone(), bundle));
        Ok(())
    }

    /// Keeps a frame of a peer that saw the session come up before we did.
    fn keep_early(&mut self, qp: QpNumber, kind: FrameKind, frame: Received) -> Result<(), FrameError> {
        let outdated = self.targets.keep_early(qp, kind, frame)?;
        if let Some(target) = outdated.and_then(|qp| self.targets.get(qp)) {
            let (peer, number) = target.session();
            self.refuse(peer, number, "it did not come up, and too many others wait to");
        }
        Ok(())
    }
}
