//! Copies of large messages into memory that the peer may READ, a piece at a time.
//!
//! A poller copies one piece in each of its turns, so that a large message delays other work only for that time. Trunks
//! take turns, and so do the messages of a trunk. The memory for a message is allocated before its first piece is
//! copied, and the message is announced when it is completely copied. Small messages are posted before a piece is
//! copied.
//!
//! Dropping a waiting message returns its memory.
#![forbid(unsafe_code)]

use super::outbound::{Copying, Outbound};
use super::{Resources, Trunk, lane};
use crate::PeerDown;
use crate::buffer::NotNow;
use crate::trunk::rendezvous::REQUESTS_PER_LANE;

/// Number of unordered messages of a lane that are copied in turns. With a larger number, all of them would be
/// announced later.
const AT_ONCE: usize = 4;

impl Trunk {
    /// Copies as much as this turn of the poller allows. Returns true if a message can be announced.
    pub(super) fn copy_some(&mut self, res: &mut Resources) -> bool {
        if !self.is_live() || !self.lanes.iter().any(lane::Lane::may_have_copies) {
            return false;
        }
        for lane in 0..self.lanes.len() {
            self.begin_copies(res, lane);
        }
        let (places, mut idle, mut is_any_whole) = (2 * self.lanes.len(), 0, false);
        while idle < places {
            let place = self.next_copy % places;
            let queue = if place.is_multiple_of(2) { lane::COPYING } else { lane::ORDERED };
            match self.copy_front(res, place / 2, queue) {
                Copied::Nothing => idle += 1,
                Copied::Whole => (idle, is_any_whole) = (0, true),
                Copied::Part => idle = 0,
                Copied::NotNow => break,
            }
            self.next_copy = place + 1;
            if idle == 0 {
                self.begin_copies(res, place / 2);
            }
        }
        is_any_whole
    }

    /// Allocates memory for the oldest large messages of a lane, while memory and the lane's limits permit.
    fn begin_copies(&mut self, res: &mut Resources, lane: usize) {
        let most = self.large_messages.min(REQUESTS_PER_LANE);
        loop {
            let known = &mut self.lanes[lane];
            let under_way = known.queues[lane::COPYING].count();
            let announced = usize::try_from(known.requests_out).unwrap_or(usize::MAX);
            let may_begin = known.is_open() && under_way < AT_ONCE && under_way + announced < most as usize;
            if !may_begin || !self.begin_copy(res, lane, lane::LARGE) {
                break;
            }
            let known = &mut self.lanes[lane];
            if let Some(message) = known.queues[lane::LARGE].pop() {
                known.queues[lane::COPYING].push(message);
            }
        }
        if self.lanes[lane].is_open() {
            self.begin_copy(res, lane, lane::ORDERED);
        }
    }

    /// Allocates memory for the copy of a queue's oldest message. Returns true if a copy has begun.
    fn begin_copy(&mut self, res: &mut Resources, lane: usize, queue: usize) -> bool {
        while let Some(mut message) = self.lanes[lane].queues[queue].pop() {
            let taken = if self.needs_copy(res, &message) {
                let bytes = message.bytes() - self.announced_of(&message);
                let is_simulated = res.shared.runtime.is_simulated();
                let seal = self.lanes[lane].seal.as_mut().map(|seal| seal.new_content(is_simulated));
                let sealed = seal.as_ref().map_or(bytes, |seal| seal.sealed(bytes));
                let block = res.shared.sources.take(sealed, Some(self.peer), Some(&res.waker));
                block.map(|block| Some(Copying::new(block, bytes, seal)))
            } else {
                Ok(None)
            };
            match taken {
                Ok(copying) => {
                    let has_begun = copying.is_some();
                    if has_begun {
                        message.copying = copying.map(Box::new);
                    }
                    self.lanes[lane].queues[queue].put_back(message);
                    return has_begun;
                }
                Err(NotNow::Wait) => {
                    self.lanes[lane].queues[queue].put_back(message);
                    return false;
                }
                Err(NotNow::Refused(cause)) => self.cannot_register(res, lane, &mut message, cause),
            }
        }
        false
    }

    /// Returns true if a message must be copied and the copy has not begun.
    fn needs_copy(&self, res: &Resources, message: &Outbound) -> bool {
        message.copying.is_none()
            && !self.is_eager(message.bytes())
            && !(self.is_lendable(message) && res.shared.registry.has(&message.body))
    }

    /// Copies the next piece of a queue's oldest message. An incomplete message goes to the end of the
    /// queue, unless order must be kept.
    fn copy_front(&mut self, res: &mut Resources, lane: usize, queue: usize) -> Copied {
        let Some(mut message) = self.lanes[lane].queues[queue].pop() else { return Copied::Nothing };
        let copied = self.copy_piece(res, &mut message);
        let queues = &mut self.lanes[lane].queues;
        match copied {
            Copied::Part if queue == lane::COPYING => queues[queue].push(message),
            Copied::Whole if queue == lane::COPYING => queues[lane::LARGE].put_back(message),
            _ => queues[queue].put_back(message),
        }
        copied
    }

    fn copy_piece(&self, res: &mut Resources, message: &mut Outbound) -> Copied {
        let announced = self.announced_of(message);
        let Outbound { head, body, copying: Some(copying), .. } = message else { return Copied::Nothing };
        if copying.is_whole() {
            return Copied::Nothing;
        }
        let bytes = res.copies.allow(self.pipeline.slot(), copying.left());
        if bytes == 0 {
            return Copied::NotNow;
        }
        let parts = [head.get(announced..).unwrap_or_default(), body];
        copying.copy(parts, bytes, &mut res.copies.sealing);
        if copying.is_whole() { Copied::Whole } else { Copied::Part }
    }

    /// Fails a message whose memory the device will never register.
    pub(super) fn cannot_register(
        &mut self,
        res: &mut Resources,
        lane: usize,
        message: &mut Outbound,
        cause: trunkline_verbs::VerbsError,
    ) {
        if let Some(suppressed) = res.log.line(res.time.now()) {
            let bytes = message.bytes();
            tracing::warn!(peer = %self.peer, bytes, error = %cause, suppressed, "memory registration of a large message refused");
        }
        self.cannot_send(res, lane, message, PeerDown::NotRegistered(cause));
    }
}

/// Outcome of a copy step for one queue.
enum Copied {
    /// The queue is empty, or its oldest message is fully copied.
    Nothing,
    /// The poller has copied enough in this turn.
    NotNow,
    Part,
    Whole,
}
