//! Rendezvous on a trunk: requests out, READs in, FINs both ways.
#![forbid(unsafe_code)]

use super::{Event, Resources};
use crate::buffer::Received;
use crate::frame::{Fin, FinStatus, FrameError, Kind, REQUEST, Request};
use crate::rendezvous::{Hold, PATIENCE_MS, REQUESTS_PER_LANE, Sink, Source};
use crate::sizes::EAGER_BYTES;
use crate::trunk::{Outbound, Record, Staged, Trunk};
use crate::{Message, Origin, PeerDown, PollerIndex, SendFailure, SendOutcome, SessionNumber};
use bytes::Bytes;
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey};

/// A head up to this many bytes travels in the request itself.
const HEAD_IN_REQUEST: usize = 4096;

impl Trunk {
    /// Stages the request for a large message, if it can leave now.
    pub(super) fn try_request(&mut self, res: &mut Resources, lane: usize, message: &Outbound) -> bool {
        let blocked = self.lanes[lane].requests_out >= REQUESTS_PER_LANE
            || self.lanes[lane].spender.available() == 0
            || !self.has_room(1)
            || !res.sends.has_free();
        if blocked {
            return false;
        }
        let split = message.head.len() <= HEAD_IN_REQUEST.min(self.max_frame / 2) && !message.body.is_empty();
        let (head, copied_head) =
            if split { (&message.head[..], &[][..]) } else { (&[][..], &message.head[..]) };
        let Some(hold) = hold(res, copied_head, &message.body) else { return false };
        let id = self.next_source;
        let at = hold.remote_address();
        let request = Request {
            id,
            body: (copied_head.len() + message.body.len()) as u64,
            address: at.address.0,
            rkey: at.rkey.0,
            patience_ms: message.deadline.map_or(PATIENCE_MS, |deadline| {
                let left = deadline.saturating_duration_since(res.now).as_millis();
                u32::try_from(left).unwrap_or(u32::MAX).min(PATIENCE_MS)
            }),
        };
        let Some(place) = self.place(res, lane, &[&request.emit(), head]) else { return false };
        self.next_source += 1;
        self.sources.insert(id, Source { token: message.token, lane, _hold: hold });
        self.lanes[lane].requests_out += 1;
        self.lanes[lane].counters.count_sent();
        let payload = REQUEST + head.len();
        let record = Record::Request;
        self.staged.push(Staged::Frame { lane, kind: Kind::Request, place, payload, count: 0, record });
        res.mark(self);
        true
    }

    /// The peer asks us to READ a message.
    pub(super) fn take_request(
        &mut self,
        res: &mut Resources,
        lane: usize,
        mut frame: Received,
    ) -> Result<(), FrameError> {
        let request = Request::parse(frame.as_ref());
        frame.advance(REQUEST);
        let head_bytes = frame.as_ref().len();
        let body_bytes = usize::try_from(request.body).unwrap_or(usize::MAX);
        let total = head_bytes.saturating_add(body_bytes);
        if body_bytes == 0 || total > res.shared.limits.max_message_bytes {
            return Err(FrameError("rendezvous of nothing, or beyond the agreed size"));
        }
        // Those that only wait for the credit to send their FIN count, too: a peer that never
        // grants it would else make us remember ever more of them.
        let reading = self.sinks.iter().filter(|(_, sink)| sink.lane == lane).count();
        if reading + self.lanes[lane].fins.len() >= REQUESTS_PER_LANE as usize {
            return Err(FrameError("more rendezvous at once than agreed"));
        }
        let patience = Duration::from_millis(u64::from(request.patience_ms.min(PATIENCE_MS)));
        // Waiting for memory may take long; it must not use up the receive slots.
        let head = res.message(frame);
        let key = self.sinks.insert(Sink {
            lane,
            id: request.id,
            head: Some(head),
            head_bytes,
            body_bytes,
            from: RemoteAddress { address: IoAddress(request.address), rkey: Rkey(request.rkey) },
            deadline: res.now + patience,
            block: None,
            asked: 0,
            read: 0,
        });
        self.waiting_for_memory.push_back(key);
        res.mark(self);
        Ok(())
    }

    /// Allocates memory for the sinks that wait for it, in order, and stages READs up to the depth.
    pub(super) fn stage_reads(&mut self, res: &mut Resources) {
        while let Some(&key) = self.waiting_for_memory.front() {
            if let Some(sink) = self.sinks.get_mut(key) {
                let length = sink.head_bytes + sink.body_bytes;
                let Some(block) = res.shared.sinks.take(length, Some(res.handle.waker())) else { break };
                sink.feed(block);
                self.reading.push_back(key);
            }
            self.waiting_for_memory.pop_front();
        }
        while self.reads_out < self.read_depth && self.has_room(1) && res.outstanding < res.max_outstanding {
            let Some(&key) = self.reading.front() else { return };
            let Some(sink) = self.sinks.get_mut(key) else {
                self.reading.pop_front();
                continue;
            };
            let lane = sink.lane;
            if let Some((sge, from)) = sink.next_piece() {
                self.reads_out += 1;
                res.outstanding += 1;
                let record = Record::Read { sink: key, bytes: sge.length };
                self.staged.push(Staged::Read { sge, from, srq: self.lanes[lane].srq, record });
            }
            if self.sinks.get(key).is_none_or(Sink::is_asked) {
                self.reading.pop_front();
            }
        }
    }

    /// One READ has completed.
    pub(super) fn piece_read(&mut self, res: &mut Resources, key: usize, bytes: u32, success: bool) {
        self.reads_out = self.reads_out.saturating_sub(1);
        let Some(sink) = self.sinks.get_mut(key) else { return };
        let whole = sink.piece_read(if success { bytes } else { 0 });
        if !(success && whole) {
            return;
        }
        let sink = self.sinks.remove(key);
        let Some(bytes) = sink.block.and_then(crate::buffer::Block::freeze) else { return };
        if !mutant!(fin_is_not_sent) {
            self.lanes[sink.lane].fins.push_back(Fin { id: sink.id, status: FinStatus::Read });
        }
        self.hand_on(res, sink.lane, Message::from(bytes));
    }

    /// Queues a received message for the upper half.
    pub(super) fn hand_on(&mut self, res: &mut Resources, lane: usize, message: Message) {
        self.lanes[lane].counters.count_received();
        let poller = PollerIndex(u16::try_from(lane).unwrap_or(u16::MAX));
        res.events.push_back(Event::Message(
            Origin { peer: self.peer, session: SessionNumber(self.number), poller },
            message,
        ));
    }

    /// The peer is done with messages of ours.
    pub(super) fn take_fins(
        &mut self,
        res: &mut Resources,
        lane: usize,
        frame: &[u8],
    ) -> Result<(), FrameError> {
        for fin in Fin::parse_all(frame) {
            let fin = fin?;
            let source = self.sources.remove(&fin.id).ok_or(FrameError("FIN for no rendezvous of ours"))?;
            self.lanes[source.lane].requests_out -= 1;
            let outcome = match fin.status {
                FinStatus::Read => SendOutcome::Delivered,
                FinStatus::Exhausted => SendOutcome::Failed(SendFailure {
                    may_have_arrived: false,
                    cause: PeerDown::ResourceExhausted,
                }),
            };
            res.events.push_back(Event::Sent(source.token, outcome));
            if source.lane != lane {
                return Err(FrameError("FIN from another poller than the rendezvous went to"));
            }
        }
        res.mark(self);
        Ok(())
    }

    /// Gives up sinks that waited too long for memory.
    pub(super) fn expire_sinks(&mut self, res: &mut Resources) {
        let expired = |trunk: &Self, key: usize| {
            trunk.sinks.get(key).is_some_and(|sink| sink.block.is_none() && sink.deadline <= res.now)
        };
        let gone =
            self.waiting_for_memory.iter().copied().filter(|&key| expired(self, key)).collect::<Vec<_>>();
        for key in gone {
            let sink = self.sinks.remove(key);
            self.waiting_for_memory.retain(|&other| other != key);
            self.lanes[sink.lane].fins.push_back(Fin { id: sink.id, status: FinStatus::Exhausted });
            res.mark(self);
        }
    }
}

/// Memory that the peer can READ the message from: the application's own if it is registered,
/// else a copy. `None` while the pool for copies is used up.
fn hold(res: &Resources, head: &[u8], body: &Bytes) -> Option<Hold> {
    if head.is_empty()
        && body.len() > EAGER_BYTES / 2
        && let Some(at) = res.shared.registry.find(body)
    {
        return Some(Hold::Lent { at, _bytes: body.clone() });
    }
    let block = res.shared.sources.take(head.len() + body.len(), Some(res.handle.waker()))?;
    block.write(0, head);
    block.write(head.len(), body);
    Some(Hold::Copied(block))
}
