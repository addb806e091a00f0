//! The receive path, from completions to messages. Receives are reposted before anything is handled.
//!
//! A frame's peer and poller are identified by the TGT through which it arrived, not by its contents. If a peer
//! breaks the rules, its session is closed.
#![forbid(unsafe_code)]

use super::targets::Target;
use super::trunks::Trunks;
use super::turns::{Part, Waiting};
use super::{Transport, run};
use crate::buffer::{ReceiveSlots, Received};
use crate::trunk::Trunk;
use crate::wire::BATCH;
use crate::wire::frame::{Bundle, Bundled, FrameError, FrameKind, Header};
use crate::{Event, Message, Origin, PeerKey};
use bytes::Bytes;
use std::mem;
use trunkline_verbs::{Completion, QpNumber};

/// Receive state of a round. The lists are empty between polls of the CQ, and are kept to reuse their memory.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    stage: Stage,
    completions: Vec<Completion>,
    /// Frames of the completions; `None` for a receive that failed.
    frames: Vec<Option<Received>>,
    /// Number of completions from the last poll of the CQ, and how many of them were taken.
    count: usize,
    taken: usize,
    taken_frames: usize,
    /// Bundle whose messages are being returned to the driver.
    bundle: Option<(Part, Bytes, Bundle)>,
    /// Place of the TGT of the frame whose messages are being returned, if it came from the CQ.
    place: Option<usize>,
    /// True if a message was returned and its handling is not counted yet.
    is_handling: bool,
}

/// Source of the round's next message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Begin,
    /// Waiting frames, for this number of further turns.
    Waiting {
        turns: usize,
        worked: bool,
    },
    /// The turn of this peer, then [`Stage::Waiting`].
    Turn {
        peer: PeerKey,
        turns: usize,
    },
    /// Completions, from this number of further polls.
    Completions {
        polls: u8,
    },
    Crossed,
}

/// Messages in a frame.
enum Opened {
    Message(Origin, Message),
    Bundle(Part, Bytes, Bundle),
}

/// Maximum number of polls of the CQ in a round.
const POLLS: u8 = 4;

impl Receiving {
    fn is_polled(&self) -> bool {
        self.taken < self.count
    }

    /// Returns true if some messages of a bundle were returned and others remain.
    #[inline]
    pub(super) fn is_amid_bundle(&self) -> bool {
        self.bundle.is_some()
    }
}

/// Returns the next message of a bundle; `None` at the end of the bundle, or if the session has ended. Handling a
/// message may end the session, although the remaining messages were received before that.
///
/// # Errors
/// Returns an error if the bundle is malformed.
#[inline]
fn message_of(
    trunks: &Trunks,
    part: &Part,
    bytes: &Bytes,
    bundle: &mut Bundle,
) -> Result<Option<Message>, FrameError> {
    let Some(message) = bundle.next(bytes) else { return Ok(None) };
    let message = message?;
    let of_session = |trunk: &&Trunk| trunk.peer() == part.from.peer && trunk.number() == part.from.session.0;
    let Some(trunk) = trunks.get(part.trunk).filter(of_session) else { return Ok(None) };
    trunk.count_received(part.lane);
    let Bundled { header, time_left_us, contents } = message;
    Ok(Some(Message::new(header, time_left_us, bytes.slice(contents))))
}

impl Transport {
    /// Executes one step of receiving, in which the peers take turns. Returns a message if the step yields one.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<Event> {
        if self.receiving.bundle.is_some() {
            return self.next_bundled();
        }
        match self.receiving.stage {
            Stage::Completions { polls } if self.receiving.is_polled() => self.next_completed(polls),
            stage => self.next_waiting(stage),
        }
    }

    /// Counts the last returned message, after it was handled.
    #[inline]
    pub(super) fn message_handled(&mut self) {
        if !mem::take(&mut self.receiving.is_handling) {
            return;
        }
        self.turns.took(self.res.shared.runtime.clock());
        if self.receiving.bundle.is_none() {
            self.frame_ends();
        }
    }

    /// Finishes a frame whose messages were returned to the driver.
    #[inline]
    fn frame_ends(&mut self) {
        if let Some(target) = self.receiving.place.take().and_then(|place| self.targets.at(place)) {
            target.set_turn_left(self.turns.round(), self.turns.left());
        }
    }

    /// Returns a message to the driver, after the events that precede it.
    #[inline]
    fn hand_out(&mut self, from: Origin, message: Message) -> Option<Event> {
        if !self.res.events.is_empty() {
            self.res.events.message(from, message);
            return None;
        }
        // Wake other pollers now, since the message's handler may take long.
        if self.crossings.is_anyone_unwoken() {
            self.wake_crossed();
        }
        self.receiving.is_handling = true;
        Some(Event::Message(from, message))
    }

    /// Returns the first message of a frame.
    #[inline]
    fn open(&mut self, target: QpNumber, frame: Received) -> Option<Event> {
        match self.frame_received(target, frame) {
            Some(Opened::Message(from, message)) => self.hand_out(from, message),
            Some(Opened::Bundle(part, bytes, bundle)) => {
                self.receiving.bundle = Some((part, bytes, bundle));
                None
            }
            None => {
                self.frame_ends();
                None
            }
        }
    }

    /// Returns the next message of the open bundle, within the turn of its peer.
    #[inline]
    fn next_bundled(&mut self) -> Option<Event> {
        let Some((part, bytes, bundle)) = &mut self.receiving.bundle else { return None };
        if !bundle.is_over() && !self.turns.goes_on(part.from.peer, self.res.shared.runtime.clock()) {
            self.put_bundle_back();
            return None;
        }
        match message_of(&self.trunks, part, bytes, bundle) {
            Ok(Some(message)) => {
                self.turns.count();
                let from = part.from;
                self.hand_out(from, message)
            }
            Ok(None) => {
                self.receiving.bundle = None;
                self.frame_ends();
                None
            }
            Err(error) => {
                if let Some((part, ..)) = self.receiving.bundle.take() {
                    self.bundle_is_broken(&part, error);
                }
                self.frame_ends();
                None
            }
        }
    }

    /// Returns the remaining messages of the open bundle to the queue of its peer.
    #[inline(never)]
    fn put_bundle_back(&mut self) {
        if let Some((part, bytes, bundle)) = self.receiving.bundle.take() {
            self.turns.put_back(part.from.peer, Waiting::Bundle(part, bytes, bundle));
        }
        self.frame_ends();
    }

    #[cold]
    fn bundle_is_broken(&mut self, part: &Part, error: FrameError) {
        let (peer, number) = (part.from.peer, part.from.session.0);
        for (_, qp) in self.targets.of_session((peer, number)) {
            self.targets.ignore(qp);
        }
        self.misbehaved(peer, number, error);
    }

    #[inline]
    fn next_completed(&mut self, polls: u8) -> Option<Event> {
        let receiving = &mut self.receiving;
        let completion = &receiving.completions[receiving.taken];
        receiving.taken += 1;
        let (is_last, qp) = (!receiving.is_polled(), completion.qp_number);
        if is_last {
            // A poll that was not full has emptied the CQ.
            let polls = if receiving.count < BATCH { 0 } else { polls };
            receiving.stage = Stage::Completions { polls };
        }
        if ReceiveSlots::slot_of(completion.wr_id).is_none() {
            let completion = *completion;
            self.send_completed(&completion);
            return None;
        }
        let at = receiving.taken_frames;
        receiving.taken_frames += 1;
        match receiving.frames.get_mut(at).and_then(Option::take) {
            Some(frame) => self.place(qp, frame),
            None => None,
        }
    }

    /// Handles a frame that arrived through a TGT, or forwards it to its target poller.
    #[inline]
    fn place(&mut self, target: QpNumber, frame: Received) -> Option<Event> {
        match self.crossings.other(&frame) {
            Some(poller) => {
                self.cross(poller, target, frame);
                None
            }
            None => self.arrived(target, frame),
        }
    }

    /// Handles a frame for this poller, or lets it wait for its peer's turn.
    #[inline]
    fn arrived(&mut self, qp: QpNumber, frame: Received) -> Option<Event> {
        let Some(place) = self.target_place(qp) else {
            self.keep_unannounced(qp, frame);
            return None;
        };
        let round = self.turns.round();
        let target = self.targets.at(place).filter(|target| !target.is_broken())?;
        let (peer, left) = (target.session().0, target.turn_left(round));
        let is_before_turn = left == 0
            || self.turns.has_line(peer)
            || self.turns.is_round_over(self.res.shared.runtime.clock());
        if target.pair().is_some() && is_before_turn {
            self.wait(qp, frame);
            return None;
        }
        self.turns.give(left);
        self.receiving.place = Some(place);
        self.open(qp, frame)
    }

    /// Takes the next waiting frame, polls the CQ, or moves to the round's next source.
    #[inline(never)]
    fn next_waiting(&mut self, mut stage: Stage) -> Option<Event> {
        loop {
            stage = match stage {
                Stage::Begin => {
                    self.turns.begin_round(self.res.time.now());
                    self.repost_missing();
                    Stage::Waiting { turns: self.turns.peers(), worked: false }
                }
                Stage::Waiting { turns, worked } => {
                    let is_over =
                        turns == 0 || worked && self.turns.is_round_over(self.res.shared.runtime.clock());
                    match if is_over { None } else { self.turns.begin_turn() } {
                        Some(peer) => Stage::Turn { peer, turns: turns - 1 },
                        None => {
                            if worked {
                                self.res.grants.grant(self.res.time.now_ms());
                            }
                            if self.turns.has_polled() {
                                Stage::Crossed
                            } else {
                                Stage::Completions { polls: POLLS }
                            }
                        }
                    }
                }
                Stage::Turn { peer, turns } => match self.turns.next(peer) {
                    Some(frame) => {
                        self.receiving.stage = stage;
                        return self.open_waiting(frame);
                    }
                    None => {
                        self.turns.end_turn(peer);
                        self.worked = true;
                        // End the step, since the simulated time of the last message may have to pass first.
                        self.receiving.stage = Stage::Waiting { turns, worked: true };
                        return None;
                    }
                },
                Stage::Completions { polls } => {
                    if self.receiving.count > 0 {
                        self.completions_taken();
                    }
                    if polls > 0 && self.poll_queue() > 0 {
                        self.worked = true;
                        self.receiving.stage = Stage::Completions { polls: polls - 1 };
                        return None;
                    }
                    self.turns.polled();
                    Stage::Waiting { turns: usize::MAX, worked: false }
                }
                Stage::Crossed => {
                    self.worked |= self.take_crossed();
                    self.receiving.stage = Stage::Begin;
                    self.stage = run::Stage::Command;
                    return None;
                }
            };
        }
    }

    /// Posts receives into returned slots. An empty SRQ does not produce completions, so completions alone cannot
    /// trigger this.
    fn repost_missing(&mut self) {
        if self.res.receives.is_missing_any() {
            self.queues.repost(self.res.receives.slots(), 0);
        }
    }

    fn open_waiting(&mut self, frame: Waiting) -> Option<Event> {
        match frame {
            Waiting::Frame { target, frame, uses_credit } => {
                self.has_waited(target, uses_credit);
                self.open(target, frame)
            }
            Waiting::Bundle(part, bytes, bundle) => {
                self.receiving.bundle = Some((part, bytes, bundle));
                None
            }
        }
    }

    /// Updates the counts for a frame that waited and is now handled.
    fn has_waited(&mut self, target: QpNumber, uses_credit: bool) {
        if let Some(known) = self.targets.place(target).and_then(|place| self.targets.at(place)) {
            known.waited(&mut self.res.grants, uses_credit);
        }
    }

    /// Polls the CQ, and reposts receives. Returns the number of completions.
    fn poll_queue(&mut self) -> usize {
        let Receiving { completions, frames, .. } = &mut self.receiving;
        // The list grows only at the first call.
        completions.resize_with(BATCH, Completion::default);
        let count = self.queues.poll(completions);
        let mut received = 0;
        for completion in &completions[..count] {
            let Some(slot) = ReceiveSlots::slot_of(completion.wr_id) else { continue };
            let is_whole = completion.status.is_success();
            let frame =
                self.res.receives.slots().complete(slot, if is_whole { completion.byte_length } else { 0 });
            received += usize::from(frame.is_some());
            // A failed receive only frees its slot. The error is reported to the sender.
            frames.push(frame.filter(|_| is_whole));
        }
        if count > 0 {
            self.queues.repost(self.res.receives.slots(), received);
        }
        (self.receiving.count, self.receiving.taken, self.receiving.taken_frames) = (count, 0, 0);
        count
    }

    /// Finishes the completions of one poll of the CQ.
    fn completions_taken(&mut self) {
        self.receiving.frames.clear();
        self.receiving.count = 0;
        self.receiving.taken = 0;
        self.wake_crossed();
        self.res.grants.grant(self.res.time.now_ms());
    }

    /// Empties the CQ before a session of this peer ends. The CQ may hold frames that arrived through a destroyed TGT
    /// and were acknowledged to their sender.
    pub(super) fn take_arrived(&mut self, peer: PeerKey) {
        self.take_line(peer);
        for _ in 0..=self.queues.capacity_cqe() / BATCH {
            if self.queue_completions(Some(peer)) < BATCH {
                break;
            }
        }
        self.take_crossed();
    }

    /// Queues messages for the driver's next round. They are taken from all waiting frames, and from arrived frames
    /// up to a few polls of the CQ. Returns true if there were any.
    pub(super) fn take_all(&mut self) -> bool {
        self.repost_missing();
        let mut worked = false;
        while let Some(peer) = self.turns.first() {
            self.take_line(peer);
            worked = true;
        }
        for _ in 0..POLLS {
            let count = self.queue_completions(None);
            worked |= count > 0;
            if count < BATCH {
                break;
            }
        }
        worked
    }

    /// Polls the CQ and queues the messages of the frames. Frames of peers other than `only` wait for their
    /// turns.
    fn queue_completions(&mut self, only: Option<PeerKey>) -> usize {
        let count = self.poll_queue();
        let mut frames = mem::take(&mut self.receiving.frames);
        let mut left = frames.drain(..);
        for at in 0..count {
            let completion = self.receiving.completions[at];
            if ReceiveSlots::slot_of(completion.wr_id).is_none() {
                self.send_completed(&completion);
            } else if let Some(Some(frame)) = left.next() {
                self.queue_placed(completion.qp_number, frame, only);
            }
        }
        drop(left);
        self.receiving.frames = frames;
        if count > 0 {
            self.completions_taken();
        }
        count
    }

    /// Queues the messages of a frame that arrived through a TGT, or forwards the frame. A frame of a peer other than
    /// `only` waits.
    fn queue_placed(&mut self, target: QpNumber, frame: Received, only: Option<PeerKey>) {
        if let Some(poller) = self.crossings.other(&frame) {
            return self.cross(poller, target, frame);
        }
        let known = self.target_place(target).and_then(|place| self.targets.at(place));
        let must_wait = known.is_some_and(|known| {
            known.pair().is_some() && only.is_some_and(|only| only != known.session().0)
        });
        if must_wait { self.wait(target, frame) } else { self.take_frame(target, frame) }
    }

    /// Queues the messages in a peer's waiting frames.
    pub(super) fn take_line(&mut self, peer: PeerKey) {
        if self.turns.has_line(peer) {
            while let Some(frame) = self.turns.take(peer) {
                match frame {
                    Waiting::Frame { target, frame, uses_credit } => {
                        self.has_waited(target, uses_credit);
                        self.take_frame(target, frame);
                    }
                    Waiting::Bundle(part, bytes, bundle) => self.queue_bundle(&part, &bytes, bundle),
                }
            }
            self.turns.end_turn(peer);
        }
    }

    /// Queues a frame in its peer's line. Credit is checked here, so that lines stay bounded even if a peer
    /// exceeds its credit. Lines exist only for sessions that are up.
    pub(super) fn wait(&mut self, qp: QpNumber, frame: Received) {
        let Some(target) = self.targets.get_mut(qp).filter(|target| !target.is_broken()) else { return };
        if target.pair().is_none() {
            return self.take_frame(qp, frame);
        }
        let uses_credit = Header::peek_uses_credit(frame.as_ref());
        let (peer, number) = target.session();
        if let Err(error) = target.wait(&mut self.res.grants, uses_credit) {
            target.ignore();
            return self.misbehaved(peer, number, error);
        }
        let frame = self.res.receives.keep(frame);
        self.turns.wait(peer, Waiting::Frame { target: qp, frame, uses_credit });
    }

    /// Queues the messages of a frame that arrived through a TGT earlier, or forwards the frame.
    pub(super) fn take_early_frame(&mut self, target: QpNumber, frame: Received) {
        self.queue_placed(target, frame, None);
    }

    /// Queues the messages of a frame for this poller.
    pub(super) fn take_frame(&mut self, target: QpNumber, frame: Received) {
        match self.frame_received(target, frame) {
            Some(Opened::Message(from, message)) => self.res.events.message(from, message),
            Some(Opened::Bundle(part, bytes, bundle)) => self.queue_bundle(&part, &bytes, bundle),
            None => {}
        }
    }

    fn queue_bundle(&mut self, part: &Part, bytes: &Bytes, mut bundle: Bundle) {
        loop {
            match message_of(&self.trunks, part, bytes, &mut bundle) {
                Ok(Some(message)) => {
                    self.turns.count();
                    self.res.events.message(part.from, message);
                }
                Ok(None) => break,
                Err(error) => break self.bundle_is_broken(part, error),
            }
        }
    }

    /// Keeps a frame from an unknown TGT if a pending command may announce the TGT. Otherwise drops the frame.
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

    /// Handles a frame for this poller. Returns its messages if it has any.
    fn frame_received(&mut self, qp: QpNumber, mut frame: Received) -> Option<Opened> {
        let Some(place) = self.target_place(qp) else {
            self.keep_unannounced(qp, frame);
            return None;
        };
        let target = self.targets.at(place).filter(|target| !target.is_broken())?;
        let (peer, number) = target.session();
        let likely = target.trunk().or_else(|| self.peers.trunk(peer));
        let slot = self.trunks.find(likely, peer, number);
        target.found_trunk(slot);
        let lane = usize::from(target.poller());
        let mut trunk = slot.and_then(|slot| self.trunks.get_mut(slot));
        let mut is_settings = false;
        let now = self.res.time.now();
        let opened = trunk.as_mut().map_or(Ok(()), |trunk| trunk.open_frame(lane, &mut frame, now));
        let header = opened.and_then(|()| Target::parse(&self.res, &frame));
        let result = match (header, target.pair(), trunk) {
            (Ok(header), Some(pair), Some(trunk)) => {
                let applied = target.apply_header(pair, &mut self.res, &header);
                let applied = applied.and_then(|()| trunk.apply_header(&mut self.res, lane, &header));
                if applied == Ok(true) && header.kind == FrameKind::Message {
                    trunk.count_received(lane);
                    let from = trunk.origin(lane);
                    self.targets.note_credit(qp);
                    self.turns.count();
                    return Some(Opened::Message(from, self.res.receives.message(&header, frame)));
                }
                is_settings = header.kind == FrameKind::Settings;
                if applied == Ok(true) && header.kind == FrameKind::Bundle {
                    let part = Part { from: trunk.origin(lane), trunk: slot.unwrap_or_default(), lane };
                    self.targets.note_credit(qp);
                    let bytes = self.res.receives.bundle(frame);
                    return Some(Opened::Bundle(part, bytes, Bundle::new(header.message.word)));
                }
                self.turns.count();
                applied.and_then(|_| trunk.frame(&mut self.res, lane, &header, frame))
            }
            #[cfg(feature = "identity")]
            (Ok(header), ..) if header.kind == FrameKind::Handshake => self.handshake_arrived(qp, &frame),
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
        None
    }

    /// Keeps an early frame, which arrived because the session came up first on the peer.
    fn keep_early(&mut self, qp: QpNumber, kind: FrameKind, frame: Received) -> Result<(), FrameError> {
        let outdated = self.targets.keep_early(qp, kind, frame)?;
        if let Some(target) = outdated.and_then(|qp| self.targets.get(qp)) {
            let (peer, number) = target.session();
            self.refuse(peer, number, "it did not come up, and too many others wait to");
        }
        Ok(())
    }
}
