//! The way out: from a lane's queue to staged frames, and what their completions mean.
//!
//! A message leaves when its lane has credit, a slot is free and the send queue has room.
#![forbid(unsafe_code)]

use super::pipeline::{Place, Record, Staged};
use super::{Outbound, Resources, Trunk};
use crate::budget::Shares;
use crate::frame::{FIN_ENTRIES, Fin, HEADER, Kind};
use crate::sizes::SLOT_BYTES;
use crate::{Outgoing, PeerDown, PollerIndex, SendError, SendOutcome, Token};
use trunkline_verbs::PostError;

impl Trunk {
    /// Takes a message for this peer: stages it at once if it can leave, else queues it.
    ///
    /// # Errors
    /// When it is larger than the peer takes, or too much waits.
    pub(crate) fn send(&mut self, res: &mut Resources, message: &Outgoing<'_>) -> Result<(), SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
        if bytes > self.max_message {
            return Err(SendError::TooLarge { bytes, limit: self.max_message });
        }
        let Some(lane) = self.choose_lane(message.poller) else {
            // A message to a poller that the peer's new incarnation does not have.
            res.events.never_sent(message.token, PeerDown::Restarted);
            return Ok(());
        };
        let at_once = self.lanes[lane].is_empty()
            && self.is_eager(bytes)
            && self.try_eager(res, lane, message.head, &message.body, message.token);
        if !at_once {
            res.shares.queue(self.peer, bytes).map_err(SendError::QueueFull)?;
            self.lanes[lane].push(Outbound::new(message), res.time.now_ms());
            self.mark(res);
        }
        Ok(())
    }

    /// Queues a message that has waited for the session, and was charged, or fails it when it does not fit this one.
    pub(crate) fn queue(&mut self, res: &mut Resources, message: Outbound) {
        let cause = if message.bytes() > self.max_message {
            PeerDown::Refused("the message is larger than the peer takes")
        } else if let Some(lane) = self.choose_lane(message.poller) {
            self.lanes[lane].push(message, res.time.now_ms());
            return self.mark(res);
        } else {
            PeerDown::Restarted
        };
        res.shares.unqueue(self.peer, message.bytes());
        res.events.never_sent(message.token, cause);
    }

    /// Removes a message that has not left; returns whether it was there.
    pub(crate) fn cancel(&mut self, token: Token, shares: &mut Shares) -> bool {
        self.lanes.iter_mut().any(|lane| lane.queue.cancel(self.peer, token, shares))
    }

    /// Stages what can leave, and posts it.
    ///
    /// # Errors
    /// When the device refuses work that fits its queue: the trunk cannot be used any more.
    pub(crate) fn push_out(&mut self, res: &mut Resources) -> Result<(), PostError> {
        self.pump(res);
        // What staging marked is posted right here.
        self.marked = false;
        self.pipeline.flush(res, &self.lanes)
    }

    /// Stages a frame that carries nothing but positions; uses no credit. Returns whether there
    /// was room.
    pub(crate) fn stage_credit(&mut self, res: &mut Resources, lane: usize) -> bool {
        if !self.can_stage_credit(res, lane) {
            return false;
        }
        let Some(place) = self.pipeline.place(&mut res.sends, &[]) else { return false };
        self.lanes[lane].credits_out += 1;
        let record = Record::Credit { lane };
        self.pipeline.stage(Staged::Frame { lane, kind: Kind::Credit, place, payload: 0, count: 0, record });
        self.mark(res);
        true
    }

    /// Whether [`Trunk::stage_credit`] would find room.
    pub(super) fn can_stage_credit(&self, res: &Resources, lane: usize) -> bool {
        self.is_live() && self.pipeline.can_place_header(&res.sends) && self.lanes[lane].may_announce_credit()
    }

    /// Work up to `sequence` has completed; only the last of it may have failed.
    pub(crate) fn complete(&mut self, res: &mut Resources, sequence: u64, success: bool) {
        if !self.pipeline.has_posted(sequence) {
            return;
        }
        while let Some((record, completed)) = self.pipeline.pop_completed(&mut res.sends) {
            let last = completed == sequence;
            self.finish(res, record, success || !last);
            if last {
                break;
            }
        }
        self.keepalive_out &= !self.pipeline.is_idle();
        if success {
            self.heard(res);
        }
        self.mark(res);
    }

    fn finish(&mut self, res: &mut Resources, record: Record, success: bool) {
        match record {
            Record::Message(token) => {
                let outcome = if success { SendOutcome::Delivered } else { self.failure(true) };
                res.events.sent(token, outcome);
            }
            Record::Credit { lane } => {
                self.lanes[lane].credits_out = self.lanes[lane].credits_out.saturating_sub(1);
            }
            Record::Read { sink, bytes } => self.piece_read(res, sink, bytes, success),
            Record::Keepalive => self.keepalive_out = false,
            Record::Request | Record::Fin => {}
        }
    }

    /// The lane of a message: the named poller's, or the next in turn, beginning with the one
    /// of our own index so that the pollers of a node spread out.
    fn choose_lane(&mut self, poller: Option<PollerIndex>) -> Option<usize> {
        if let Some(poller) = poller {
            let lane = usize::from(poller.0);
            return (lane < self.lanes.len()).then_some(lane);
        }
        let lane = self.next_lane % self.lanes.len().max(1);
        self.next_lane = lane + 1;
        Some(lane)
    }

    /// Whether a message goes by SEND.
    fn is_eager(&self, bytes: usize) -> bool {
        let frame = bytes.saturating_add(HEADER);
        frame <= self.max_frame && frame <= SLOT_BYTES
    }

    /// Moves what can leave from the queues to the stage.
    fn pump(&mut self, res: &mut Resources) {
        if !self.is_live() {
            return;
        }
        for lane in 0..self.lanes.len() {
            self.stage_fins(res, lane);
            while let Some(front) = self.lanes[lane].queue.pop() {
                if !self.try_message(res, lane, &front) {
                    self.lanes[lane].queue.put_back(front);
                    break;
                }
            }
        }
        self.stage_reads(res);
    }

    fn try_message(&mut self, res: &mut Resources, lane: usize, message: &Outbound) -> bool {
        let bytes = message.bytes();
        if !self.is_eager(bytes) {
            return self.try_request(res, lane, message);
        }
        let staged = self.try_eager(res, lane, &message.head, &message.body, message.token);
        if staged {
            res.shares.unqueue(self.peer, bytes);
        }
        staged
    }

    /// Stages a small message, if it can leave now.
    fn try_eager(
        &mut self,
        res: &mut Resources,
        lane: usize,
        head: &[u8],
        body: &[u8],
        token: Token,
    ) -> bool {
        let Some(place) = self.place(res, lane, &[head, body]) else { return false };
        let payload = head.len() + body.len();
        self.lanes[lane].counters.count_sent();
        let record = Record::Message(token);
        self.pipeline.stage(Staged::Frame { lane, kind: Kind::Eager, place, payload, count: 0, record });
        self.mark(res);
        true
    }

    fn stage_fins(&mut self, res: &mut Resources, lane: usize) {
        while !self.lanes[lane].fins.is_empty() {
            let count = self.lanes[lane].fins.len().min(FIN_ENTRIES);
            let bytes = self.lanes[lane].fins.iter().take(count).flat_map(Fin::emit).collect::<Vec<_>>();
            let Some(place) = self.place(res, lane, &[&bytes]) else { return };
            self.lanes[lane].fins.drain(..count);
            self.pipeline.stage(Staged::Frame {
                lane,
                kind: Kind::Fin,
                place,
                payload: bytes.len(),
                count: u16::try_from(count).unwrap_or(0),
                record: Record::Fin,
            });
        }
    }

    /// Takes a credit and somewhere to put a frame, and writes its payload there.
    pub(super) fn place(&mut self, res: &mut Resources, lane: usize, parts: &[&[u8]]) -> Option<Place> {
        if self.lanes[lane].spender.available() == 0 {
            return None;
        }
        let place = self.pipeline.place(&mut res.sends, parts)?;
        self.lanes[lane].spender.spend(res.time.now_ms());
        self.lanes[lane].took(res.time.now_ms());
        Some(place)
    }
}
