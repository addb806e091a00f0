//! Parts of queued messages, and the turns in which large messages are copied.
#![forbid(unsafe_code)]

use super::seal::ContentSeal;
use crate::buffer::Block;
use crate::messages::DeliveryReport;
use crate::{Body, Connect, Destination, MessageHeader, Outgoing, PollerChoice, Small};
use std::collections::VecDeque;
use std::ops::Range;
use trunkline_verbs::Time;

/// Number of empty heads that are kept for reuse.
const KEPT_HEADS: usize = 1024;
/// Largest capacity of a head that is kept for reuse, in bytes.
const KEPT_HEAD_BYTES: usize = 1024;
/// Number of bytes that a poller copies in one turn. A fresh page costs more than its copy, so a piece takes 50 to
/// 150 microseconds, as long as sixteen small calls. Smaller pieces would not make a busy poller copy faster, and
/// each turn checks all queues.
const PIECE: usize = 256 << 10;
/// Size of a piece in a simulation, where messages are smaller and faults must occur while a message is partly
/// copied.
const SIMULATED_PIECE: usize = 16 << 10;

/// A queued message.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(super) delivery: DeliveryReport,
    pub(super) destination: Destination,
    pub(super) choice: PollerChoice,
    pub(super) header: MessageHeader,
    pub(super) head: Vec<u8>,
    /// Number of bytes of the head that are sent with the announcement if the message is large.
    pub(super) announced: usize,
    pub(super) body: Body,
    pub(super) deadline: Option<Time>,
    pub(super) ordered: bool,
    /// Copy of a large message, for the peer to READ.
    pub(super) copying: Option<Box<Copying>>,
    pub(super) connect: Connect,
}

impl Outbound {
    /// Copies the head into reused memory. The delivery of a message that has to wait is always reported.
    pub(crate) fn new(message: &Outgoing<'_>, choice: PollerChoice, heads: &mut Heads) -> Self {
        let mut head = heads.0.pop().unwrap_or_default();
        head.extend_from_slice(message.head);
        Self {
            delivery: message.delivery().of_waiting(),
            destination: message.destination,
            choice,
            header: message.header,
            head,
            announced: message.announced,
            body: message.body.clone(),
            deadline: message.deadline,
            ordered: message.ordered,
            copying: None,
            connect: message.connect,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.head.len().saturating_add(self.body.len())
    }

    /// Returns the message, which must fit in one frame.
    pub(super) fn small(&self) -> Small<'_> {
        let Self { header, ref head, ref body, ordered, deadline, delivery, .. } = *self;
        let DeliveryReport { token, report } = delivery;
        Small { header, parts: [head, body, &[]], ordered, token, report, deadline }
    }
}

/// Empty heads of sent messages, kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct Heads(Vec<Vec<u8>>);

impl Heads {
    /// Keeps the head of a sent message for reuse.
    pub(super) fn rest(&mut self, mut head: Vec<u8>) {
        if head.capacity() <= KEPT_HEAD_BYTES && self.0.len() < KEPT_HEADS {
            head.clear();
            self.0.push(head);
        }
    }
}

/// Copy of a large message.
#[derive(Debug)]
pub(super) struct Copying {
    block: Block,
    /// Size of the message, in bytes.
    length: usize,
    done: usize,
    /// `None` if the message is not sealed.
    seal: Option<ContentSeal>,
}

impl Copying {
    pub(super) fn new(block: Block, length: usize, seal: Option<ContentSeal>) -> Self {
        Self { block, length, done: 0, seal }
    }

    pub(super) fn left(&self) -> usize {
        self.length - self.done
    }

    /// Returns the key of the message, if it is sealed.
    pub(super) fn key(&self) -> &[u8] {
        self.seal.as_ref().map_or(&[], ContentSeal::key)
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

    /// Copies the next bytes of a message with these parts. A sealed message is copied in whole pieces, through
    /// `piece`, so that memory accessible to READs never contains plaintext.
    pub(super) fn copy(&mut self, parts: [&[u8]; 2], bytes: usize, piece: &mut Vec<u8>) {
        let end = self.done + bytes;
        let Some(seal) = &mut self.seal else {
            for part in within(parts, self.done..end) {
                self.block.write(self.done, part);
                self.done += part.len();
            }
            return;
        };
        while self.done < end {
            let next = self.length.min(self.done + seal.piece());
            within(parts, self.done..next).for_each(|part| piece.extend_from_slice(part));
            let at = seal.sealed(self.done);
            seal.seal(piece);
            self.block.write(at, piece);
            piece.clear();
            self.done = next;
        }
    }
}

/// Returns the slices of consecutive parts that lie within a range.
fn within(parts: [&[u8]; 2], range: Range<usize>) -> impl Iterator<Item = &[u8]> {
    let [first, second] = parts;
    let split = first.len();
    let of_first = &first[range.start.min(split)..range.end.min(split)];
    let of_second = &second[range.start.saturating_sub(split)..range.end.saturating_sub(split)];
    [of_first, of_second].into_iter()
}

/// The number of bytes that the poller may still copy in this turn, and the trunks with more to copy, in order.
#[derive(Debug)]
pub(crate) struct CopyTurns {
    piece: usize,
    left: usize,
    /// Buffer for a piece of a sealed message, empty between uses.
    pub(super) sealing: Vec<u8>,
    waiting: VecDeque<usize>,
    /// Current trunk, by place in the poller's table.
    current: Option<usize>,
}

impl CopyTurns {
    pub(super) fn new(is_simulated: bool) -> Self {
        let piece = if is_simulated { SIMULATED_PIECE } else { PIECE };
        Self { piece, left: piece, sealing: Vec::new(), waiting: VecDeque::new(), current: None }
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

    /// Returns true if all copies are complete.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Removes a trunk without further copies.
    pub(super) fn remove(&mut self, slot: usize) {
        self.waiting.retain(|&other| other != slot);
    }

    /// Returns the number of bytes, at most `bytes`, that a trunk may copy now. If that is less than
    /// `bytes`, the trunk waits for its next turn.
    pub(super) fn allow(&mut self, slot: usize, bytes: usize) -> usize {
        let is_its_turn = self.current == Some(slot) || self.waiting.is_empty();
        let allowed = if is_its_turn { bytes.min(self.left) } else { 0 };
        self.left -= allowed;
        if allowed < bytes && !self.waiting.contains(&slot) {
            self.waiting.push_back(slot);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trunks copy different amounts, some of them less than a piece. Checks how much each trunk has copied after a
    /// number of the poller's turns.
    #[test]
    fn trunks_copy_in_turns_one_piece_per_poller_turn() {
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
            // Trunks with new messages are served first, always in the same order.
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
