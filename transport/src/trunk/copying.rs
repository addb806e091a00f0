//! Copies of large messages into memory that the peer may READ, a piece at a time.
//!
//! A poller copies one piece in each of its turns, so that a large message delays its other work only that
//! long. Trunks take turns, and so do the messages of a trunk. Each message gets all of its memory at once,
//! and is announced when it is copied whole. Small messages are posted before a piece is copied.
//!
//! Nothing here outlives its message: dropping a message that waits returns its memory.
#![forbid(unsafe_code)]

use super::queue::Outbound;
use super::{Resources, Trunk, lane};
use crate::PeerDown;
use crate::buffer::{Block, NotNow};
use crate::trunk::rendezvous::REQUESTS_PER_LANE;
use std::collections::VecDeque;

/// Bytes that a poller copies in one turn. A fresh page costs more than its copy, so a piece takes 50 to 150
/// microseconds, as long as sixteen small calls. Smaller pieces would not let a busy poller copy faster, and
/// each turn looks at all queues.
const PIECE: usize = 256 << 10;
/// The same in a simulation. Its messages are smaller, and its faults must meet messages that are copied in
/// part.
const SIMULATED_PIECE: usize = 16 << 10;
/// Number of unordered messages of a lane that are copied in turns. With more, all of them would be announced
/// later.
const AT_ONCE: usize = 4;

/// Copy of a large message.
#[derive(Debug)]
pub(super) struct Copying {
    block: Block,
    done: usize,
}

impl Copying {
    fn left(&self) -> usize {
        self.block.len() - self.done
    }

    pub(super) fn is_whole(&self) -> bool {
        self.left() == 0
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    pub(super) fn into_block(self) -> Block {
        self.block
    }

    /// Copies the next bytes of a message with these parts.
    fn copy(&mut self, parts: [&[u8]; 2], bytes: usize) {
        let (mut start, end) = (0, self.done + bytes);
        for part in parts {
            let (from, to) = (self.done.max(start), end.min(start + part.len()));
            if from < to {
                self.block.write(from, &part[from - start..to - start]);
                self.done = to;
            }
            start += part.len();
        }
    }
}

/// The bytes that the poller may still copy in this turn, and the trunks with more to copy, in order.
#[derive(Debug)]
pub(crate) struct CopyTurns {
    piece: usize,
    left: usize,
    waiting: VecDeque<usize>,
    /// Current trunk, by place in the poller's table.
    current: Option<usize>,
}

impl CopyTurns {
    pub(super) fn new(is_simulated: bool) -> Self {
        let piece = if is_simulated { SIMULATED_PIECE } else { PIECE };
        Self { piece, left: piece, waiting: VecDeque::new(), current: None }
    }

    /// Begins a turn of the poller.
    pub(crate) fn begin(&mut self) {
        self.left = self.piece;
        self.current = None;
    }

    /// Returns the next trunk, if more may be copied in this turn of the poller.
    pub(crate) fn next_trunk(&mut self) -> Option<usize> {
        self.current = if self.left > 0 { self.waiting.pop_front() } else { None };
        self.current
    }

    /// Returns true if no trunk has anything to copy.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets all trunks.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Removes a trunk that has nothing more to copy.
    pub(super) fn remove(&mut self, slot: usize) {
        self.waiting.retain(|&other| other != slot);
    }

    /// Returns how many of `bytes` a trunk may copy now. If that is not all, the trunk waits for its next
    /// turn.
    fn allow(&mut self, slot: usize, bytes: usize) -> usize {
        let is_its_turn = self.current == Some(slot) || self.waiting.is_empty();
        let allowed = if is_its_turn { bytes.min(self.left) } else { 0 };
        self.left -= allowed;
        if allowed < bytes && !self.waiting.contains(&slot) {
            self.waiting.push_back(slot);
        }
        allowed
    }
}

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

    /// Allocates memory for the oldest large messages of a lane, as far as there is any.
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

    /// Allocates memory for the copy of a queue's oldest message. Returns true if it did.
    fn begin_copy(&mut self, res: &mut Resources, lane: usize, queue: usize) -> bool {
        while let Some(mut message) = self.lanes[lane].queues[queue].pop() {
            let taken = if self.needs_copy(res, &message) {
                let bytes = message.bytes() - self.announced_of(&message);
                res.shared.sources.take(bytes, Some(self.peer), Some(&res.waker)).map(Some)
            } else {
                Ok(None)
            };
            match taken {
                Ok(block) => {
                    let has_begun = block.is_some();
                    if let Some(block) = block {
                        message.copying = Some(Box::new(Copying { block, done: 0 }));
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

    /// Copies the next piece of a queue's oldest message. An incomplete one goes to the end of the queue,
    /// unless order must be kept.
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
        copying.copy([head.get(announced..).unwrap_or_default(), body], bytes);
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
        if let Some(left_out) = res.log.line(res.time.now()) {
            let bytes = message.bytes();
            tracing::warn!(peer = %self.peer, bytes, %cause, left_out, "a message cannot be registered");
        }
        self.cannot_send(res, lane, message, PeerDown::NotRegistered(cause));
    }
}

/// Outcome of a copy step for one queue.
enum Copied {
    /// The queue has nothing to copy.
    Nothing,
    /// The poller has copied enough in this turn.
    NotNow,
    Part,
    Whole,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trunks copy different amounts, some less than a piece. Checks what each has copied after a number of
    /// the poller's turns.
    #[test]
    fn trunks_copy_in_turns_and_a_poller_one_piece_in_each_of_its_turns() {
        let mut turns = CopyTurns::new(false);
        let mut left = [5 * PIECE, 3 * PIECE + 1, PIECE / 4, 9 * PIECE];
        let mut order = Vec::new();
        while left.iter().any(|&left| left > 0) {
            turns.begin();
            let before = left.iter().sum::<usize>();
            let mut copy = |turns: &mut CopyTurns, trunk: usize| {
                let copied = if left[trunk] > 0 { turns.allow(trunk, left[trunk]) } else { 0 };
                left[trunk] -= copied;
                if copied > 0 {
                    order.push(trunk);
                }
            };
            // A trunk with new messages is pushed out first, and always in the same order.
            (0..4).for_each(|trunk| copy(&mut turns, trunk));
            while let Some(trunk) = turns.next_trunk() {
                copy(&mut turns, trunk);
            }
            assert_eq!(before - left.iter().sum::<usize>(), PIECE.min(before), "a turn copies one piece");
        }
        assert!(turns.is_empty());
        assert_eq!(order[..8], [0, 0, 1, 2, 3, 0, 1, 3], "nobody waits for more than one turn of each other");
    }
}
