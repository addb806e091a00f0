//! The way out: from a lane's queue to posted work, and what its completions mean.
//!
//! A message leaves when its lane has credit, a slot is free and the send queue has room. Frames
//! are staged and posted together, one doorbell per trunk and round of the loop. The last of a
//! flush and every sixteenth are signalled; since an INI completes in order, one completion
//! tells of all before it.
#![forbid(unsafe_code)]

use super::{Core, Event, Resources};
use crate::frame::{FIN_ENTRIES, HEADER, Header, Kind};
use crate::sizes::SLOT_BYTES;
use crate::trunk::{Health, Outbound, Place, Posted, Record, Staged, Trunk};
use crate::{PeerDown, SendFailure, SendOutcome, Token};
use trunkline_verbs::{
    Completion, CompletionStatus, IoAddress, PostError, RemoteAddress, Rkey, SendData, SendFlags,
    SendOperation, SendRequest, Sge, SrqNumber, VerbsError,
};

/// Work requests posted by one call.
const DOORBELL: usize = 16;
/// Every so many work requests one is signalled.
const SIGNAL_EVERY: u32 = 16;
/// Bits of a work request number that count; those above name the trunk.
const SEQUENCE_BITS: u32 = 40;

/// A work request whose numbers and bytes are settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready {
    wr_id: u64,
    operation: SendOperation,
    data: Data,
    flags: SendFlags,
    srq: SrqNumber,
}

#[derive(Debug, Clone, Copy)]
enum Data {
    Registered(Sge),
    Inline { start: usize, length: usize },
    Nothing,
}

impl Trunk {
    /// Whether a message goes by SEND.
    pub(super) fn is_eager(&self, bytes: usize) -> bool {
        let frame = bytes.saturating_add(HEADER);
        frame <= self.max_frame && frame <= SLOT_BYTES
    }

    /// Stages a small message, if it can leave now.
    pub(super) fn try_eager(
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
        self.staged.push(Staged::Frame { lane, kind: Kind::Eager, place, payload, count: 0, record });
        res.mark(self);
        true
    }

    /// Takes a credit and somewhere to put a frame, and writes its payload there.
    pub(super) fn place(&mut self, res: &mut Resources, lane: usize, parts: &[&[u8]]) -> Option<Place> {
        if !self.has_room(1) || res.outstanding >= res.max_outstanding {
            return None;
        }
        let total = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let inline = total <= self.max_inline;
        if self.lanes[lane].spender.available() == 0 || !(inline || res.sends.has_free()) {
            return None;
        }
        let place = if inline {
            self.place_inline(parts)
        } else {
            let slot = res.sends.take()?;
            parts.iter().fold(HEADER, |at, part| res.sends.write(slot, at, part));
            Place::Slot(slot)
        };
        self.lanes[lane].spender.spend(res.now_ms);
        res.outstanding += 1;
        Some(place)
    }

    fn place_inline(&mut self, parts: &[&[u8]]) -> Place {
        let start = self.inline.len();
        self.inline.extend([0; HEADER]);
        for part in parts {
            self.inline.extend_from_slice(part);
        }
        Place::Inline(start)
    }

    /// Moves what can leave from the queues to the stage.
    pub(super) fn pump(&mut self, res: &mut Resources) {
        if !self.is_live() {
            return;
        }
        for lane in 0..self.lanes.len() {
            self.stage_fins(res, lane);
            while let Some(front) = self.lanes[lane].queue.pop_front() {
                if !self.try_message(res, lane, &front) {
                    self.lanes[lane].queue.push_front(front);
                    break;
                }
            }
        }
        self.stage_reads(res);
    }

    fn try_message(&mut self, res: &mut Resources, lane: usize, message: &Outbound) -> bool {
        if self.is_eager(message.head.len() + message.body.len()) {
            self.try_eager(res, lane, &message.head, &message.body, message.token)
        } else {
            self.try_request(res, lane, message)
        }
    }

    fn stage_fins(&mut self, res: &mut Resources, lane: usize) {
        while !self.lanes[lane].fins.is_empty() {
            let count = self.lanes[lane].fins.len().min(FIN_ENTRIES);
            let bytes =
                self.lanes[lane].fins.iter().take(count).flat_map(|fin| fin.emit()).collect::<Vec<_>>();
            let Some(place) = self.place(res, lane, &[&bytes]) else { return };
            self.lanes[lane].fins.drain(..count);
            self.staged.push(Staged::Frame {
                lane,
                kind: Kind::Fin,
                place,
                payload: bytes.len(),
                count: u16::try_from(count).unwrap_or(0),
                record: Record::Fin,
            });
        }
    }

    /// Whether [`Trunk::stage_credit`] would find room.
    pub(super) fn can_stage_credit(&self, res: &Resources, lane: usize) -> bool {
        self.is_live()
            && self.has_room(1)
            && res.outstanding < res.max_outstanding
            && self.lanes[lane].may_tell()
            && (self.max_inline >= HEADER || res.sends.has_free())
    }

    /// Stages a frame that carries nothing but positions; uses no credit. Answers whether there
    /// was room.
    pub(super) fn stage_credit(&mut self, res: &mut Resources, lane: usize) -> bool {
        if !self.can_stage_credit(res, lane) {
            return false;
        }
        let place = if self.max_inline >= HEADER {
            self.place_inline(&[])
        } else {
            let Some(slot) = res.sends.take() else { return false };
            Place::Slot(slot)
        };
        self.lanes[lane].credits_out += 1;
        res.outstanding += 1;
        let record = Record::Credit { lane };
        self.staged.push(Staged::Frame { lane, kind: Kind::Credit, place, payload: 0, count: 0, record });
        res.mark(self);
        true
    }

    /// Posts what is staged.
    ///
    /// # Errors
    /// When the device refuses work that fits its queue: the trunk is of no use any more.
    pub(super) fn flush(&mut self, res: &mut Resources) -> Result<(), PostError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        // Both lists keep their room for the next flush.
        let mut staged = std::mem::take(&mut self.staged);
        let mut ready = std::mem::take(&mut res.ready);
        let count = staged.len();
        for (index, work) in staged.drain(..).enumerate() {
            ready.push(self.settle(res, work, index + 1 == count));
        }
        self.staged = staged;
        let result = self.post(&ready);
        ready.clear();
        res.ready = ready;
        self.inline.clear();
        result
    }

    fn post(&self, ready: &[Ready]) -> Result<(), PostError> {
        for chunk in ready.chunks(DOORBELL) {
            let sges: [Sge; DOORBELL] = std::array::from_fn(|i| match chunk.get(i).map(|ready| ready.data) {
                Some(Data::Registered(sge)) => sge,
                _ => Sge::default(),
            });
            let requests: [SendRequest<'_>; DOORBELL] = std::array::from_fn(|i| {
                let ready = chunk.get(i).unwrap_or(&chunk[0]);
                SendRequest {
                    wr_id: ready.wr_id,
                    operation: ready.operation,
                    data: match ready.data {
                        Data::Registered(_) => SendData::Gather(&sges[i..=i]),
                        Data::Inline { start, length } => {
                            SendData::Inline(&self.inline[start..start + length])
                        }
                        Data::Nothing => SendData::Gather(&[]),
                    },
                    flags: ready.flags,
                    remote_srq: ready.srq,
                }
            });
            self.qp.post_send(&requests[..chunk.len()])?;
        }
        Ok(())
    }

    /// Gives staged work its header, number and flags, and records it as in flight.
    fn settle(&mut self, res: &mut Resources, work: Staged, last: bool) -> Ready {
        let sequence = self.next_sequence;
        self.next_sequence = (self.next_sequence + 1) & ((1 << SEQUENCE_BITS) - 1);
        let wr_id = (self.slot as u64) << SEQUENCE_BITS | sequence;
        let (operation, data, srq, record, slot, must_signal) = match work {
            Staged::Frame { lane, kind, place, payload, count, record } => {
                let header = self.header(res, lane, kind, payload, count);
                let (data, slot) = match place {
                    Place::Slot(slot) => {
                        res.sends.write(slot, 0, &header);
                        (Data::Registered(res.sends.sge(slot, HEADER + payload)), Some(slot))
                    }
                    Place::Inline(start) => {
                        self.inline[start..start + HEADER].copy_from_slice(&header);
                        (Data::Inline { start, length: HEADER + payload }, None)
                    }
                };
                (SendOperation::Send, data, self.lanes[lane].srq, record, slot, false)
            }
            Staged::Read { sge, from, srq, record } => {
                (SendOperation::RdmaRead(from), Data::Registered(sge), srq, record, None, true)
            }
            Staged::Keepalive { srq } => {
                let nowhere = RemoteAddress { address: IoAddress(0), rkey: Rkey(0) };
                (SendOperation::RdmaWrite(nowhere), Data::Nothing, srq, Record::Keepalive, None, true)
            }
        };
        self.unsignaled += 1;
        let signaled = must_signal || last || self.unsignaled >= SIGNAL_EVERY;
        if signaled {
            self.unsignaled = 0;
        }
        self.in_flight.push_back(Posted { sequence, record, slot });
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        Ready { wr_id, operation, data, flags, srq }
    }

    fn header(
        &self,
        res: &mut Resources,
        lane: usize,
        kind: Kind,
        payload: usize,
        count: u16,
    ) -> [u8; HEADER] {
        let target = u16::try_from(lane).unwrap_or(u16::MAX);
        let lane = &self.lanes[lane];
        let header = Header {
            kind,
            source: res.index.0,
            want: u16::try_from(lane.queue.len()).unwrap_or(u16::MAX),
            count,
            grant: res.grants.tell(lane.pair),
            released: lane.spender.released(),
            length: u32::try_from(payload).unwrap_or(u32::MAX),
            target,
        };
        header.emit()
    }

    /// Work up to `sequence` has completed; only the last of it may have failed.
    pub(super) fn complete(&mut self, res: &mut Resources, sequence: u64, success: bool) {
        let known = self.in_flight.front().zip(self.in_flight.back());
        if known.is_none_or(|(first, last)| !(first.sequence..=last.sequence).contains(&sequence)) {
            return;
        }
        while let Some(posted) = self.in_flight.pop_front() {
            let last = posted.sequence == sequence;
            self.finish(res, posted, success || !last);
            if last {
                break;
            }
        }
        self.keepalive_out &= !self.in_flight.is_empty();
        if success {
            self.heard_ms = res.now_ms;
        }
        res.mark(self);
    }

    fn finish(&mut self, res: &mut Resources, posted: Posted, success: bool) {
        res.outstanding = res.outstanding.saturating_sub(1);
        if let Some(slot) = posted.slot {
            res.sends.put_back(slot);
        }
        match posted.record {
            Record::Message(token) => {
                let outcome = if success { SendOutcome::Delivered } else { self.failure(true) };
                res.events.push_back(Event::Sent(token, outcome));
            }
            Record::Credit { lane } => {
                self.lanes[lane].credits_out = self.lanes[lane].credits_out.saturating_sub(1);
            }
            Record::Read { sink, bytes } => self.piece_read(res, sink, bytes, success),
            Record::Keepalive => self.keepalive_out = false,
            Record::Request | Record::Fin => {}
        }
    }

    /// How a message on this trunk fails.
    pub(super) fn failure(&self, may_have_arrived: bool) -> SendOutcome {
        let cause = match self.health {
            Health::Dying { cause, .. } => cause,
            Health::Live => PeerDown::Died,
        };
        SendOutcome::Failed(SendFailure { may_have_arrived, cause })
    }

    /// Gives up what was never posted.
    pub(super) fn fail_unposted(&mut self, res: &mut Resources) {
        let outcome = self.failure(false);
        for staged in std::mem::take(&mut self.staged) {
            res.outstanding = res.outstanding.saturating_sub(1);
            if let Staged::Frame { place, record, .. } = staged {
                if let Place::Slot(slot) = place {
                    res.sends.put_back(slot);
                }
                if let Record::Message(token) = record {
                    res.events.push_back(Event::Sent(token, outcome));
                }
            }
        }
        self.inline.clear();
        for lane in &mut self.lanes {
            lane.fins.clear();
            for message in lane.queue.drain(..) {
                res.events.push_back(Event::Sent(message.token, outcome));
            }
        }
    }
}

impl Core {
    /// A completion of an INI.
    pub(super) fn send_completed(&mut self, completion: &Completion) {
        let slot = usize::try_from(completion.wr_id >> SEQUENCE_BITS).unwrap_or(usize::MAX);
        let sequence = completion.wr_id & ((1 << SEQUENCE_BITS) - 1);
        let Some(trunk) = self.trunks.get(slot) else { return };
        let success = completion.status.is_success();
        if !success && trunk.is_live() {
            tracing::debug!(peer = trunk.peer.0, status = completion.status.explain(), "trunk broken");
            self.break_trunk(slot, cause_of(completion.status));
        }
        if let Some(trunk) = self.trunks.get_mut(slot) {
            trunk.complete(&mut self.res, sequence, success);
        }
    }

    /// Pumps and flushes the trunks that have something, then tells of credit what no frame took
    /// along.
    pub(super) fn push_out(&mut self) {
        self.flush_marked();
        self.tell_credit();
        if !self.res.marked.is_empty() {
            self.flush_marked();
        }
    }

    pub(super) fn flush_marked(&mut self) {
        let mut marked = std::mem::take(&mut self.res.marked);
        for slot in marked.drain(..) {
            let Some(trunk) = self.trunks.get_mut(slot) else { continue };
            trunk.pump(&mut self.res);
            // What pumping marked is flushed right here.
            trunk.marked = false;
            if let Err(error) = trunk.flush(&mut self.res) {
                let removed = error.cause == VerbsError::Gone;
                let cause = if removed { PeerDown::DeviceRemoved } else { PeerDown::DeviceFailed };
                self.break_trunk(slot, cause);
            }
        }
        marked.append(&mut self.res.marked);
        self.res.marked = marked;
    }

    fn tell_credit(&mut self) {
        self.res.grants.take_granted(&mut self.res.untold);
        if self.res.untold.is_empty() {
            return;
        }
        let mut targets = std::mem::take(&mut self.res.untold);
        std::mem::swap(&mut self.res.untold, &mut self.res.spare);
        for target in targets.drain(..) {
            let Some(known) = self.targets.get(&target) else { continue };
            if !self.res.grants.must_tell(known.pair) {
                continue;
            }
            let slot = self.peers.get(&known.peer).and_then(|peer| peer.trunk);
            let staged = slot.and_then(|slot| self.trunks.get_mut(slot)).is_some_and(|trunk| {
                trunk.number == known.number && trunk.stage_credit(&mut self.res, usize::from(known.poller))
            });
            if !staged && !self.res.untold.contains(&target) {
                // Until the session is up, or an earlier credit frame is acknowledged.
                self.res.untold.push(target);
            }
        }
        self.res.spare = targets;
    }
}

/// What a failed completion says about the peer.
fn cause_of(status: CompletionStatus) -> PeerDown {
    use CompletionStatus as S;
    match status {
        S::RemoteInvalidRequest | S::RemoteOperationError | S::BadResponse => {
            PeerDown::Misbehaved("it refused a request that fits the session")
        }
        S::LocalLengthError | S::LocalQpOperationError | S::LocalProtectionError | S::FatalError => {
            PeerDown::DeviceFailed
        }
        // Among them the answers of a peer whose SRQ or keys are gone.
        _ => PeerDown::Died,
    }
}
