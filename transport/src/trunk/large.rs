//! Rendezvous on a trunk, with the requests, READs and FINs of both sides.
#![forbid(unsafe_code)]

use super::pipeline::{Parts, Read, Record};
use super::seal::CONTENT_KEY;
use super::{Outbound, Resources, Trunk};
use crate::buffer::{Block, NotNow, Received};
use crate::trunk::rendezvous::{Hold, PATIENCE_MS, Piece, REQUESTS_PER_LANE, Sink, Source};
use crate::wire::frame::{
    self, ANNOUNCEMENT, Announcement, Fin, FinStatus, FrameError, Header, TIMED_HEADER, flags,
};
use crate::wire::{EAGER_BYTES, MOST_ANNOUNCED};
use crate::{Message, PeerDown, Screening, SendFailure, SendOutcome};
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey, Time};

impl Trunk {
    /// Stages the announcement of a large message, if it can be sent now.
    pub(super) fn try_request(&mut self, res: &mut Resources, lane: usize, message: &mut Outbound) -> bool {
        let blocked = !self.lanes[lane].is_open()
            || self.lanes[lane].requests_out >= self.large_messages.min(REQUESTS_PER_LANE)
            || self.lanes[lane].spender.available() == 0
            || !self.pipeline.has_room()
            || !res.sends.has_room()
            || !res.sends.has_slot()
            || message.copying.as_ref().is_some_and(|copying| !copying.is_whole());
        if blocked || !res.shares.pin(self.peer) {
            return false;
        }
        match self.stage_request(res, lane, message) {
            Ok(()) => res.shares.pinned(self.peer),
            Err(NotNow::Wait) => {
                res.shares.unpin(self.peer);
                return false;
            }
            Err(NotNow::Refused(cause)) => {
                res.shares.unpin(self.peer);
                self.cannot_register(res, lane, message, cause);
            }
        }
        true
    }

    fn stage_request(
        &mut self,
        res: &mut Resources,
        lane: usize,
        message: &mut Outbound,
    ) -> Result<(), NotNow> {
        let is_copied = message.copying.as_ref().is_some_and(|copying| copying.is_whole());
        let lent = if is_copied { None } else { Some(self.lend(res, message)?) };
        let announced = self.announced_of(message);
        let (head, copied_head) = message.head.split_at_checked(announced).ok_or(NotNow::Wait)?;
        let id = self.sources.next_id();
        let copied = message.copying.as_ref().map(|copying| copying.block().remote_address());
        let at = lent.as_ref().map(Hold::remote_address).or(copied).ok_or(NotNow::Wait)?;
        let announcement = Announcement {
            id,
            body: (copied_head.len() + message.body.len()) as u64,
            address: at.address.0,
            rkey: at.rkey.0,
            patience_ms: patience_ms(res, message),
        };
        let left = message.deadline.map(|deadline| frame::time_left(deadline, res.time.now()));
        let (header, size) = frame::message(message.header, flags::ANNOUNCES, 0, left);
        let key = message.copying.as_ref().map_or(&[][..], |copying| copying.key());
        let parts: [&[u8]; 4] = [&header[..size], &announcement.emit(), key, head];
        let frame = Parts { parts: &parts, deadline: message.deadline.unwrap_or(Time::MAX) };
        self.stage(res, lane, false, &frame, Record::Announcement(id)).ok_or(NotNow::Wait)?;
        let copied = message.copying.take().map(|copying| Hold::Copied(copying.into_block()));
        let hold = lent.or(copied).ok_or(NotNow::Wait)?;
        let (delivery, bytes, ordered) = (message.delivery, message.bytes(), message.ordered);
        self.sources.add(Source { delivery, lane, bytes, ordered, _hold: hold });
        self.lanes[lane].request_left(ordered);
        Ok(())
    }

    /// Lends the application's memory to the peer if it is registered, under a key that covers only this memory.
    /// Unregistered memory is copied first.
    fn lend(&self, res: &Resources, message: &Outbound) -> Result<Hold, NotNow> {
        let announced = Some(&message.body).filter(|_| self.is_lendable(message));
        let announced = announced.and_then(|body| res.shared.registry.announce(body)).ok_or(NotNow::Wait)?;
        Ok(Hold::Lent { at: announced?, _bytes: message.body.clone() })
    }

    /// Returns true if the peer can READ everything beyond the announcing frame from the message's body without a
    /// copy.
    pub(super) fn is_lendable(&self, message: &Outbound) -> bool {
        let is_sealed = self.pipeline.overhead() > 0;
        let is_alone = self.announced_of(message) == message.head.len();
        is_alone && message.body.len() > EAGER_BYTES / 2 && !is_sealed
    }

    /// Returns the number of bytes of a message's head that the announcing frame carries.
    pub(super) fn announced_of(&self, message: &Outbound) -> usize {
        let most = MOST_ANNOUNCED.min(self.max_frame / 2).saturating_sub(TIMED_HEADER);
        let has_room = message.head.len() <= most;
        if has_room && !message.body.is_empty() { message.head.len() } else { message.announced.min(most) }
    }

    /// Handles an announcement, with which the peer requests that this node READ a message.
    pub(super) fn take_request(
        &mut self,
        res: &mut Resources,
        lane: usize,
        header: &Header,
        frame: Received,
    ) -> Result<(), FrameError> {
        let after = frame.as_ref().get(header.bytes..).unwrap_or_default();
        let request = Announcement::parse(after);
        let seal = self.lanes[lane].seal.as_ref();
        let key = after.get(ANNOUNCEMENT..).and_then(<[u8]>::first_chunk);
        if seal.is_some() && key.is_none() {
            return Err(FrameError::Broken("rendezvous without the key of its message"));
        }
        let is_simulated = res.shared.runtime.is_simulated();
        let seal = seal.zip(key).map(|(seal, key)| seal.content(key, is_simulated));
        // The rest of the frame is the first part of the contents.
        let announced = ANNOUNCEMENT + if seal.is_some() { CONTENT_KEY } else { 0 };
        let header = Header { bytes: header.bytes + announced, ..*header };
        let head_bytes = frame.as_ref().len().saturating_sub(header.bytes);
        let body_bytes = usize::try_from(request.body).unwrap_or(usize::MAX);
        let total = head_bytes.saturating_add(body_bytes);
        if body_bytes == 0 || total > res.shared.limits.max_message_bytes {
            return Err(FrameError::Broken("rendezvous of nothing, or beyond the agreed size"));
        }
        if frame.as_ref().len() > MOST_ANNOUNCED + announced {
            return Err(FrameError::Broken("rendezvous whose head is longer than agreed"));
        }
        // Also count messages that wait for credit to send their FIN. Otherwise their number would grow
        // without limit if a peer never grants credit.
        if self.sinks.count_of(lane) + self.lanes[lane].fins.len() >= REQUESTS_PER_LANE as usize {
            return Err(FrameError::Broken("more rendezvous at once than agreed"));
        }
        if res.shares.announce(self.peer).is_err() {
            let fin = Fin { id: request.id, status: FinStatus::Exhausted };
            self.lanes[lane].push_fin(fin, res.time.now_ms());
            self.mark(res);
            let part = res.receives.message(&header, frame);
            res.events.given_up(self.origin(lane), part, total);
            return Ok(());
        }
        let patience = Duration::from_millis(u64::from(request.patience_ms.min(PATIENCE_MS)));
        // The message may wait long for memory, and must not use up the receive slots.
        let head = res.receives.message(&header, frame);
        self.sinks.add(Sink {
            lane,
            id: request.id,
            header: header.message,
            time_left_us: header.time_left_us,
            head: Some(head),
            head_bytes,
            body_bytes,
            screening: if res.screens { None } else { Some(Screening::Undecided) },
            from: RemoteAddress { address: IoAddress(request.address), rkey: Rkey(request.rkey) },
            deadline: res.time.now() + patience,
            block: None,
            asked: 0,
            read: 0,
            seal,
            opened: 0,
        });
        if res.screens {
            res.events.announced(self.origin(lane));
        }
        self.mark(res);
        Ok(())
    }

    /// Takes the first part of the oldest announced message that waits for a decision. Call [`Self::screened`] next.
    pub(crate) fn take_unscreened(&mut self) -> Option<Message> {
        self.sinks.unscreened().and_then(|sink| sink.head.take())
    }

    /// Applies the decision about the announcement from [`Self::take_unscreened`], given the first part. A refused
    /// message is not READ, and its FIN allows the sender to free it.
    pub(crate) fn screened(&mut self, res: &mut Resources, part: Message, screening: Screening) {
        let Some(sink) = self.sinks.screened(part, screening) else { return self.mark(res) };
        res.shares.unannounce(self.peer, 1);
        let fin = Fin { id: sink.id, status: FinStatus::Read };
        self.lanes[sink.lane].push_fin(fin, res.time.now_ms());
        self.lanes[sink.lane].counters.count_received();
        self.mark(res);
    }

    /// Allocates memory for the waiting sinks, in order, and stages the READs that the path admits now.
    /// Other READs are staged after each completed READ, so that small messages do not wait behind them.
    pub(super) fn stage_reads(&mut self, res: &mut Resources) {
        let peer = Some(self.peer);
        self.sinks.feed(|length| res.shared.sinks.take(length, peer, Some(&res.waker)).ok());
        if !self.sinks.has_next_read() {
            return;
        }
        let mut allowance = self.pipeline.qp().read_allowance();
        while self.pipeline.has_room() && res.sends.has_room() {
            let Some(Piece { sink, lane, to, from }) = self.sinks.next_read(&mut allowance) else { return };
            let record = Record::Read { sink, bytes: to.length };
            let read = Read { sge: to, from, srq: self.lanes[lane].srq };
            self.pipeline.stage_read(&mut res.sends, read, record);
        }
    }

    /// Handles a completed READ.
    pub(super) fn piece_read(&mut self, res: &mut Resources, key: usize, bytes: u32, success: bool) {
        if let Some(sink) = self.sinks.piece_read(key, bytes, success) {
            self.message_read(res, sink);
        }
    }

    /// Decrypts pieces of sealed messages that were READ, within the limits of this turn of the poller.
    ///
    /// # Errors
    /// Returns an error if a piece is not the one that the peer sealed.
    pub(super) fn open_pieces(&mut self, res: &mut Resources) -> Result<(), FrameError> {
        while let Some(sink) = self.sinks.opening() {
            let allowed = res.copies.allow(self.pipeline.slot(), sink.unopened());
            if allowed == 0 {
                break;
            }
            sink.open(allowed)?;
            if let Some(sink) = self.sinks.opened() {
                self.message_read(res, sink);
            }
        }
        Ok(())
    }

    /// Passes on a message that was READ completely.
    fn message_read(&mut self, res: &mut Resources, sink: Sink) {
        res.shares.unannounce(self.peer, 1);
        let length = sink.bytes();
        let Some(bytes) = sink.block.and_then(Block::freeze) else { return };
        let bytes = bytes.slice(..length);
        if !mutant!(fin_is_not_sent) {
            let fin = Fin { id: sink.id, status: FinStatus::Read };
            self.lanes[sink.lane].push_fin(fin, res.time.now_ms());
        }
        self.lanes[sink.lane].counters.count_received();
        let is_accepted = sink.screening == Some(Screening::Accepted);
        let create = if is_accepted { Message::accepted } else { Message::new };
        let message = create(sink.header, sink.time_left_us, bytes);
        res.events.message(self.origin(sink.lane), message);
    }

    /// Handles the peer's FINs, for messages that the peer has READ, refused or dropped.
    pub(super) fn take_fins(
        &mut self,
        res: &mut Resources,
        lane: usize,
        frame: &[u8],
    ) -> Result<(), FrameError> {
        for fin in Fin::parse_all(frame) {
            let fin = fin?;
            let source =
                self.sources.finish(fin.id).ok_or(FrameError::Broken("FIN for no rendezvous of ours"))?;
            self.lanes[source.lane].request_ended(source.ordered);
            self.lanes[source.lane].took(res.time.now_ms());
            res.shares.finish(self.peer, source.bytes);
            let outcome = match fin.status {
                FinStatus::Read => SendOutcome::Delivered,
                FinStatus::Exhausted => SendOutcome::Failed(SendFailure {
                    may_have_arrived: false,
                    cause: PeerDown::ResourceExhausted,
                }),
            };
            res.events.sent(source.delivery, outcome);
            if source.lane != lane {
                return Err(FrameError::Broken("FIN from another poller than the rendezvous went to"));
            }
        }
        self.mark(res);
        Ok(())
    }

    /// Drops sinks that waited too long for memory.
    pub(super) fn expire_sinks(&mut self, res: &mut Resources) {
        for sink in self.sinks.expire(res.time.now()) {
            res.shares.unannounce(self.peer, 1);
            let fin = Fin { id: sink.id, status: FinStatus::Exhausted };
            self.lanes[sink.lane].push_fin(fin, res.time.now_ms());
            self.mark(res);
            let bytes = sink.bytes();
            if let Some(head) = sink.head {
                res.events.given_up(self.origin(sink.lane), head, bytes);
            }
        }
    }

    /// Returns the size of the oldest message that waits for memory on this node, among the messages that `is_it`
    /// selects by their first part.
    pub(crate) fn waiting_bytes(&self, is_it: &dyn Fn(&Message) -> bool) -> Option<usize> {
        self.sinks.waiting_bytes(is_it)
    }
}

/// Returns the time for which the peer may wait for memory. It ends at the deadline at the latest, and before the
/// peer would count as stalled.
fn patience_ms(res: &Resources, message: &Outbound) -> u32 {
    let most = u64::from(PATIENCE_MS).min(res.shared.limits.stall_ms / 2);
    let left = message.deadline.map_or(most, |deadline| {
        let left = deadline.saturating_duration_since(res.time.now()).as_millis();
        u64::try_from(left).unwrap_or(u64::MAX).min(most)
    });
    u32::try_from(left).unwrap_or(PATIENCE_MS)
}
