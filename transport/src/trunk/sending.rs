//! The send path, from a lane's queue to staged frames, and the effects of their completions.
//!
//! A message is staged when its lane has credit, a slot is free and the send queue has room.
#![forbid(unsafe_code)]

use super::lane::Lane;
use super::pipeline::{Completed, Late, Parts, Record};
use super::queue::Cancelling;
use super::{Outbound, Resources, Trunk};
use crate::budget::Shares;
use crate::node::shared::Limits;
use crate::trunk::rendezvous::REQUESTS_PER_LANE;
use crate::wire::frame::{self, FIN_ENTRIES, Fin, TIMED_HEADER};
#[cfg(feature = "identity")]
use crate::wire::handshake::{Fragment, Part};
use crate::wire::settings::Settings;
use crate::wire::{BUNDLE_BYTES, MOST_ANNOUNCED, SLOT_BYTES};
use crate::{Destination, Outgoing, PeerDown, PollerChoice, SendError, SendOutcome, Small};
use std::mem;
use trunkline_machine::mutant;
use trunkline_verbs::{Time, VerbsError};

impl Trunk {
    /// Stages a message for this peer if it can be sent now, and otherwise queues it. Returns true if it is staged.
    ///
    /// # Errors
    /// Returns an error if the message is larger than the peer accepts, or the queue is full.
    #[inline]
    pub(crate) fn send(
        &mut self,
        res: &mut Resources,
        message: &Outgoing<'_>,
        choice: PollerChoice,
    ) -> Result<bool, SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
        if bytes > self.max_message {
            return Err(SendError::TooLarge { bytes, limit: self.max_message });
        }
        if message.announced > message.head.len().min(MOST_ANNOUNCED) {
            return Err(SendError::BadHeader);
        }
        let Some(lane) = self.lane_of(message.destination, choice) else {
            // The peer's new incarnation lacks the poller of the message.
            res.events.never_sent(self.peer, message.delivery(), PeerDown::Restarted);
            return Ok(false);
        };
        let at_once = self.lanes[lane].is_clear(message.ordered)
            && self.is_eager(bytes)
            && self.try_eager(res, lane, &message.into());
        if !at_once {
            res.shares.queue(self.peer, bytes, message.leaves).map_err(SendError::QueueFull)?;
            let is_large = !self.is_eager(bytes);
            let message = Outbound::new(message, choice, &mut res.heads);
            self.lanes[lane].push(message, is_large, res.time.now_ms());
            self.mark(res);
        }
        Ok(at_once)
    }

    /// Queues a message that waited for the session and is already charged. Fails it if it exceeds this session's
    /// limits.
    pub(crate) fn queue(&mut self, res: &mut Resources, mut message: Outbound) {
        let (bytes, limit) = (message.bytes(), self.max_message);
        let Some(lane) = self.lane_of(message.destination, message.choice) else {
            res.shares.unqueue(self.peer, bytes);
            return res.events.never_sent(self.peer, message.delivery, PeerDown::Restarted);
        };
        if bytes > limit {
            return self.cannot_send(res, lane, &mut message, PeerDown::TooLarge { bytes, limit });
        }
        let is_large = !self.is_eager(bytes);
        self.lanes[lane].push(message, is_large, res.time.now_ms());
        self.mark(res);
    }

    /// Fails a message that was taken from the head of its queue. Later messages may then be sent.
    pub(super) fn cannot_send(
        &mut self,
        res: &mut Resources,
        lane: usize,
        message: &mut Outbound,
        cause: PeerDown,
    ) {
        res.shares.unqueue(self.peer, message.bytes());
        let (header, head) = (message.header, mem::take(&mut message.head));
        res.events.not_sent(self.origin(lane), header, head, message.delivery, cause);
        self.mark(res);
    }

    /// Removes cancelled messages from all queues.
    pub(crate) fn cancel(&mut self, cancelling: &mut Cancelling<'_>, shares: &mut Shares) {
        for queue in self.lanes.iter_mut().flat_map(|lane| &mut lane.queues) {
            queue.cancel(self.peer, cancelling, shares);
        }
    }

    /// Stages and posts all work that is ready, then copies the next parts of large messages.
    ///
    /// # Errors
    /// Returns an error if the device refuses work that fits in its queue, or a sealed message cannot be decrypted.
    /// The trunk can then no longer be used.
    pub(crate) fn push_out(&mut self, res: &mut Resources) -> Result<(), PeerDown> {
        self.open_pieces(res)?;
        self.post(res)?;
        if self.copy_some(res) { self.post(res) } else { Ok(()) }
    }

    fn post(&mut self, res: &mut Resources) -> Result<(), PeerDown> {
        self.pump(res);
        self.drop_late(res);
        // The flush below also posts the work that staging marked.
        self.marked = false;
        self.pipeline.flush(res, &mut self.lanes).map_err(|error| match error.cause {
            VerbsError::Gone => PeerDown::DeviceRemoved,
            cause => {
                tracing::warn!(%cause, "work request refused by the RDMA device; its session ends");
                PeerDown::DeviceFailed
            }
        })
    }

    /// Stages a frame that carries only positions, without using credit. Returns true if there was room.
    pub(crate) fn stage_credit(&mut self, res: &mut Resources, lane: usize) -> bool {
        if !self.can_stage_credit(res, lane) {
            return false;
        }
        let (parts, now) = (&[&frame::credit()[..]], res.time.now());
        let (parts, record) = (Parts::own(parts), Record::Credit { lane });
        let is_staged = self.pipeline.stage(&mut res.sends, lane, false, &parts, record, now).is_some();
        if is_staged {
            self.lanes[lane].credits_out += 1;
            self.mark(res);
        }
        is_staged
    }

    /// Returns true if [`Trunk::stage_credit`] would find room.
    pub(super) fn can_stage_credit(&self, res: &Resources, lane: usize) -> bool {
        self.is_live() && self.pipeline.can_place_header(&res.sends) && self.lanes[lane].may_announce_credit()
    }

    /// Handles the completion of all work up to `sequence`. Only the last request may have failed.
    pub(crate) fn complete(&mut self, res: &mut Resources, sequence: u64, success: bool) {
        let count = self.pipeline.count_up_to(sequence);
        if count == 0 {
            return;
        }
        let succeeded = if success { count } else { count - 1 };
        for index in 0..count {
            let Some(completed) = self.pipeline.pop_completed(&mut res.sends) else { break };
            self.completed(res, completed, index < succeeded);
        }
        if success {
            self.heard(res);
            self.probe_soon(res);
        }
        self.mark(res);
    }

    /// Handles completed work, and the messages that joined its frame.
    pub(super) fn completed(&mut self, res: &mut Resources, completed: Completed, success: bool) {
        let Completed { record, bundled, is_told } = completed;
        self.finish(res, record, success);
        if is_told || !success {
            let has_arrived = success || mutant!(joined_messages_do_not_fail_with_their_frame);
            let outcome = if has_arrived { SendOutcome::Delivered } else { self.failure(true) };
            bundled.iter().for_each(|bundled| res.events.sent(bundled.delivery(), outcome));
        }
        self.pipeline.rest(bundled);
    }

    fn finish(&mut self, res: &mut Resources, record: Record, success: bool) {
        match record {
            Record::Message(delivery) => {
                let outcome = if success { SendOutcome::Delivered } else { self.failure(true) };
                res.events.sent(delivery, outcome);
            }
            Record::Credit { lane } => {
                self.lanes[lane].credits_out = self.lanes[lane].credits_out.saturating_sub(1);
            }
            Record::Read { sink, bytes } => self.piece_read(res, sink, bytes, success),
            #[cfg(feature = "identity")]
            Record::Switch => {}
            Record::Keepalive
            | Record::Announcement(_)
            | Record::Fin
            | Record::Settings
            | Record::Nothing => {}
        }
    }

    /// Returns the lane of a message, which is the lane of the named poller if the peer has it, or the lane that
    /// `choice` selects.
    pub(crate) fn lane_of(&self, destination: Destination, choice: PollerChoice) -> Option<usize> {
        let poller = match destination {
            Destination::Poller(poller) => poller,
            Destination::Any | Destination::Choice(_) => {
                choice.of(u16::try_from(self.lanes.len()).unwrap_or(u16::MAX))
            }
        };
        Some(usize::from(poller.0)).filter(|lane| *lane < self.lanes.len())
    }

    /// Returns true if a message with contents of this size is sent with SEND.
    pub(super) fn is_eager(&self, bytes: usize) -> bool {
        bytes.saturating_add(TIMED_HEADER + self.pipeline.overhead()) <= self.max_frame.min(SLOT_BYTES)
    }

    /// Stages all queued messages that can be sent.
    fn pump(&mut self, res: &mut Resources) {
        if !self.is_live() {
            return;
        }
        for lane in 0..self.lanes.len() {
            self.stage_settings(res, lane);
            self.stage_fins(res, lane);
            #[cfg(feature = "identity")]
            self.stage_handshake(res, lane);
            self.stage_queued(res, lane);
        }
        self.stage_reads(res);
    }

    /// Stages the messages in a lane's queues that are ready, round robin among the queues.
    fn stage_queued(&mut self, res: &mut Resources, lane: usize) {
        if !self.lanes[lane].has_messages() {
            return;
        }
        let mut idle = 0;
        while idle < Lane::queues_in_turn() {
            let queue = self.lanes[lane].next_queue();
            idle = if self.try_front(res, lane, queue) { 0 } else { idle + 1 };
        }
    }

    /// Stages the oldest message of one of a lane's queues, if it can be sent. Returns true if it was staged.
    fn try_front(&mut self, res: &mut Resources, lane: usize, queue: usize) -> bool {
        let Some(mut front) = self.lanes[lane].queues[queue].pop() else { return false };
        let staged = self.try_message(res, lane, &mut front);
        if staged {
            res.heads.rest(front.head);
        } else {
            self.lanes[lane].queues[queue].put_back(front);
        }
        staged
    }

    fn try_message(&mut self, res: &mut Resources, lane: usize, message: &mut Outbound) -> bool {
        let bytes = message.bytes();
        if !self.is_eager(bytes) {
            return self.try_request(res, lane, message);
        }
        if self.lanes[lane].waits_for_read(message.ordered) {
            return false;
        }
        let staged = self.try_eager(res, lane, &message.small());
        if staged {
            res.shares.unqueue(self.peer, bytes);
        }
        staged
    }

    /// Stages a small message, if it can be sent now.
    fn try_eager(&mut self, res: &mut Resources, lane: usize, message: &Small<'_>) -> bool {
        if self.try_join(res, lane, message) {
            return true;
        }
        let (header, size) = message.header(res.time.now());
        let deadline = message.deadline.unwrap_or(Time::MAX);
        let [first, second, third] = message.parts;
        let parts = Parts { parts: &[&header[..size], first, second, third], deadline };
        let may_join = parts.len() <= self.max_bundled;
        let number = self.stage(res, lane, may_join, &parts, Record::Message(message.delivery()));
        self.lanes[lane].last = number.filter(|_| may_join);
        number.is_some()
    }

    /// Adds a new small message to the last frame of its lane, if it may be sent with that frame. Joining
    /// uses no credit.
    #[inline]
    pub(crate) fn join(&mut self, res: &mut Resources, lane: usize, message: &Small<'_>) -> bool {
        self.lanes.get(lane).is_some_and(|lane| lane.is_next(message.ordered))
            && self.try_join(res, lane, message)
    }

    /// Adds the next queued small message to the last frame of its lane.
    #[inline]
    fn try_join(&mut self, res: &mut Resources, lane: usize, message: &Small<'_>) -> bool {
        let Some(last) = self.lanes[lane].last else { return false };
        message.contents().saturating_add(TIMED_HEADER) <= self.max_bundled
            && self.pipeline.join(&mut res.sends, last, message, self.max_bundle, res.time.now())
    }

    /// Stages this node's settings, the first frame of a lane. Settings use no credit.
    fn stage_settings(&mut self, res: &mut Resources, lane: usize) {
        if self.lanes[lane].has_begun || mutant!(settings_are_not_sent) {
            return;
        }
        let settings = own_settings(&res.shared.limits);
        let (header, body) = (frame::settings(), settings.emit());
        let parts: [&[u8]; 2] = [&header, &body];
        let parts = Parts::own(&parts);
        let (record, now) = (Record::Settings, res.time.now());
        let staged = self.pipeline.stage(&mut res.sends, lane, false, &parts, record, now);
        self.lanes[lane].has_begun = staged.is_some();
    }

    fn stage_fins(&mut self, res: &mut Resources, lane: usize) {
        while !self.lanes[lane].fins.is_empty() {
            let count = self.lanes[lane].fins.len().min(FIN_ENTRIES);
            let entries = self.lanes[lane].fins.iter().take(count).flat_map(Fin::emit).collect::<Vec<_>>();
            let header = frame::fin(count);
            let parts: [&[u8]; 2] = [&header, &entries];
            if self.stage(res, lane, false, &Parts::own(&parts), Record::Fin).is_none() {
                return;
            }
            self.lanes[lane].fins.drain(..count);
        }
    }

    #[cfg(feature = "identity")]
    fn stage_handshake(&mut self, res: &mut Resources, lane: usize) {
        while let Some(frame) = self.lanes[lane].handshake.pop_front() {
            if self.stage(res, lane, false, &Parts::own(&[&frame]), Record::Fin).is_none() {
                return self.lanes[lane].handshake.push_front(frame);
            }
        }
        if let Some(exchange) = self.lanes[lane].switch {
            self.stage_switch(res, lane, exchange);
        }
    }

    /// Stages the last frame of a lane that is sealed with the keys before a renewal.
    #[cfg(feature = "identity")]
    #[cold]
    fn stage_switch(&mut self, res: &mut Resources, lane: usize, exchange: u32) {
        for fragment in Fragment::all(exchange, false, Part::Switch, &[]) {
            let frame = fragment.emit();
            if self.stage(res, lane, false, &Parts::own(&[&frame]), Record::Switch).is_some() {
                self.lanes[lane].switch = None;
                self.switched(res);
            }
        }
    }

    /// Withdraws staged messages whose deadline has passed. They are not sent, so their credit can be used again.
    fn drop_late(&mut self, res: &mut Resources) {
        if mutant!(late_frames_are_posted) {
            return;
        }
        while let Some(Late { lane, record, is_frame }) =
            self.pipeline.take_late(res.time.now(), &mut res.sends)
        {
            if is_frame {
                self.lanes.iter_mut().for_each(|lane| lane.last = None);
            }
            if is_frame && !mutant!(late_frames_keep_their_credit) {
                self.lanes[lane].spender.unspend();
            }
            let delivery = match record {
                Record::Message(delivery) => delivery,
                Record::Announcement(id) => {
                    let Some(source) = self.sources.finish(id) else { continue };
                    self.lanes[lane].request_ended(source.ordered);
                    res.shares.finish(self.peer, source.bytes);
                    source.delivery
                }
                // Control frames have no deadline.
                #[cfg(feature = "identity")]
                Record::Switch => continue,
                Record::Fin
                | Record::Settings
                | Record::Credit { .. }
                | Record::Read { .. }
                | Record::Keepalive
                | Record::Nothing => {
                    continue;
                }
            };
            res.events.never_sent(self.peer, delivery, PeerDown::Deadline);
        }
    }

    /// Takes a credit and stages a frame. Returns the frame's number, or `None` if the frame must wait.
    pub(super) fn stage(
        &mut self,
        res: &mut Resources,
        lane: usize,
        may_be_joined: bool,
        parts: &Parts<'_>,
        record: Record,
    ) -> Option<u64> {
        let waits = self.is_silent(res) && self.must_prove(res);
        let known = &mut self.lanes[lane];
        if waits || !known.is_open() || known.spender.available() == 0 {
            return None;
        }
        let now = res.time.now();
        let number = self.pipeline.stage(&mut res.sends, lane, may_be_joined, parts, record, now)?;
        known.spender.spend(res.time.now_ms());
        known.took(res.time.now_ms());
        // Later messages must not join an earlier frame.
        known.last = None;
        self.mark(res);
        Some(number)
    }
}

/// Returns the settings of a node.
pub(crate) fn own_settings(limits: &Limits) -> Settings {
    Settings {
        max_message: limits.max_message_bytes as u64,
        max_frame: u32::try_from(SLOT_BYTES).unwrap_or(u32::MAX),
        large_messages: REQUESTS_PER_LANE,
        max_bundle: u32::try_from(BUNDLE_BYTES).unwrap_or(0),
    }
}
