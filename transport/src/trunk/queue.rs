//! Queues of messages that wait for a session, or for credit and room on a lane.
//!
//! The caller charges the peer for a message before it adds the message ([`Shares::queue`]), and discharges the peer
//! when it takes the message. Messages that fail in this module are discharged here.
#![forbid(unsafe_code)]

use super::events::Events;
use super::outbound::Outbound;
use crate::budget::Shares;
use crate::{Connect, PeerDown, PeerKey, SendOutcome, Token};
use std::collections::{BTreeSet, VecDeque};
use trunkline_verbs::Time;

/// Capacity, in messages, that an empty queue keeps.
const KEPT: usize = 1024;

/// Messages to be cancelled, in all queues.
#[derive(Debug)]
pub(crate) struct Cancelling<'a> {
    tokens: &'a BTreeSet<Token>,
    cancelled: BTreeSet<Token>,
}

impl<'a> Cancelling<'a> {
    /// Cancels the messages with these tokens.
    pub(crate) fn new(tokens: &'a BTreeSet<Token>) -> Self {
        Self { tokens, cancelled: BTreeSet::new() }
    }

    /// Returns the tokens of the messages that were found.
    pub(crate) fn cancelled(self) -> BTreeSet<Token> {
        self.cancelled
    }

    fn is_done(&self) -> bool {
        self.cancelled.len() == self.tokens.len()
    }

    /// Returns true if the message with this token is to be cancelled and was not found before.
    fn take(&mut self, token: Token) -> bool {
        self.tokens.contains(&token) && self.cancelled.insert(token)
    }
}

/// Queued messages, in sending order.
#[derive(Debug, Default)]
pub(crate) struct MessageQueue {
    messages: VecDeque<Outbound>,
    /// Lower bound of the deadlines. The message with this deadline may already have been sent. A search of the
    /// queue, which is due at this time, makes the bound exact.
    earliest: Option<Time>,
}

impl MessageQueue {
    pub(crate) fn push(&mut self, message: Outbound) {
        self.note(&message);
        self.messages.push_back(message);
    }

    pub(crate) fn pop(&mut self) -> Option<Outbound> {
        let message = self.messages.pop_front()?;
        if self.messages.is_empty() {
            self.earliest = None;
            if self.messages.capacity() > KEPT {
                // Free the memory. Otherwise the queue for each poller of each peer would keep memory for its maximum
                // length.
                self.messages = VecDeque::new();
            }
        }
        Some(message)
    }

    /// Returns a message to the front, because it could not be sent.
    pub(super) fn put_back(&mut self, message: Outbound) {
        self.note(&message);
        self.messages.push_front(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.messages.len()
    }

    /// Returns the number of messages that wait, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.messages.len(), self.messages.iter().map(Outbound::bytes).sum())
    }

    /// Removes the peer's messages that are being cancelled.
    pub(crate) fn cancel(&mut self, peer: PeerKey, cancelling: &mut Cancelling<'_>, shares: &mut Shares) {
        if self.messages.is_empty() || cancelling.is_done() {
            return;
        }
        self.messages.retain(|message| {
            let is_given_up = cancelling.take(message.delivery.token);
            if is_given_up {
                shares.unqueue(peer, message.bytes());
            }
            !is_given_up
        });
    }

    /// Fails the peer's messages whose deadline has passed.
    pub(crate) fn expire(&mut self, peer: PeerKey, now: Time, shares: &mut Shares, events: &mut Events) {
        self.remove_late(now, |message| {
            shares.unqueue(peer, message.bytes());
            events.never_sent(peer, message.delivery, PeerDown::Deadline);
        });
    }

    fn remove_late(&mut self, now: Time, mut each: impl FnMut(&Outbound)) {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        let mut earliest = None::<Time>;
        self.messages.retain(|message| {
            let Some(deadline) = message.deadline else { return true };
            if deadline <= now {
                each(message);
                return false;
            }
            earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
            true
        });
        self.earliest = earliest;
    }

    /// Returns the time of the next call of [`MessageQueue::expire`]. All deadlines are at this time or
    /// later.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.earliest
    }

    fn note(&mut self, message: &Outbound) {
        self.earliest = [self.earliest, message.deadline].into_iter().flatten().min();
    }

    /// Fails all messages, which are for `peer`.
    pub(crate) fn fail(
        &mut self,
        peer: PeerKey,
        outcome: SendOutcome,
        shares: &mut Shares,
        events: &mut Events,
    ) {
        self.earliest = None;
        for message in self.messages.drain(..) {
            shares.unqueue(peer, message.bytes());
            events.sent(message.delivery, outcome);
        }
    }

    /// Fails the messages for this peer, except those that wait for a session through failed attempts.
    pub(crate) fn fail_fast(
        &mut self,
        peer: PeerKey,
        outcome: SendOutcome,
        shares: &mut Shares,
        events: &mut Events,
    ) {
        let waiting = std::mem::take(&mut self.messages);
        let (waiting, failed) = waiting.into_iter().partition(|message| message.connect == Connect::Wait);
        self.messages = failed;
        let earliest = self.earliest;
        self.fail(peer, outcome, shares, events);
        (self.messages, self.earliest) = (waiting, earliest);
    }

    /// Returns true if any message waits for a session through failed attempts to connect.
    pub(crate) fn waits(&self) -> bool {
        self.messages.iter().any(|message| message.connect == Connect::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Counted, NodeBudgets, NodeLimits};
    use crate::messages::DeliveryReport;
    use crate::{Body, Destination, Leaves, MessageHeader, PollerChoice, Report};
    use std::sync::Arc;

    fn message(token: u64, deadline: Option<u64>) -> Outbound {
        Outbound {
            delivery: DeliveryReport { token: Token(token), report: Report::Always },
            destination: Destination::Any,
            choice: PollerChoice::new(0),
            header: MessageHeader { kind: 0x10, flags: 0, word: 0 },
            head: Vec::new(),
            announced: 0,
            body: Body::default(),
            deadline: deadline.map(Time),
            ordered: false,
            copying: None,
            connect: Connect::FailFast,
        }
    }

    #[test]
    fn only_cancelled_messages_leave_queue_and_are_discharged() {
        let (peer, limits) = (PeerKey::numbered(1), NodeLimits::default());
        let mut shares = Shares::new(&NodeBudgets::new(limits, 1, &Arc::default()), 0);
        let mut queue = MessageQueue::default();
        for token in 0..10 {
            shares.queue(peer, 0, Leaves::Nothing).expect("there is room");
            queue.push(message(token, None));
        }
        let tokens = [3, 7, 11].map(Token).into();
        let mut cancelling = Cancelling::new(&tokens);
        queue.cancel(peer, &mut cancelling, &mut shares);
        assert_eq!(cancelling.cancelled(), [3, 7].map(Token).into(), "one has left before");
        let left = std::iter::from_fn(|| queue.pop()).map(|message| message.delivery.token.0);
        assert_eq!(left.collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 8, 9]);
        let messages = &shares.ledger(Counted::default())[0];
        assert_eq!(messages.used, [(peer, 8)].into());
    }

    /// In any order of pushes, removals and returns, messages fail at their deadlines, and the queue is not searched
    /// before the earliest deadline.
    #[test]
    fn messages_fail_at_their_deadlines() {
        let mut queue = MessageQueue::default();
        let mut random = 1_u64;
        for now in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match random >> 61 {
                0..3 => queue.push(message(now, Some(now + 1 + (random >> 50) % 400))),
                3 => queue.push(message(now, None)),
                4 | 5 => _ = queue.pop(),
                _ => {
                    if let Some(front) = queue.pop() {
                        queue.put_back(front);
                    }
                }
            }
            let is_late = |message: &Outbound| message.deadline.is_some_and(|deadline| deadline <= Time(now));
            let late = queue.messages.iter().filter(|&message| is_late(message)).count();
            let must_look = queue.next_deadline().is_some_and(|deadline| deadline <= Time(now));
            let mut removed = 0;
            queue.remove_late(Time(now), |message| removed += usize::from(is_late(message)));
            assert_eq!(removed, late);
            let earliest = queue.messages.iter().filter_map(|message| message.deadline).min();
            assert!(queue.next_deadline() <= earliest || earliest.is_none());
            assert!(!must_look || queue.next_deadline() == earliest, "a search leaves the exact moment");
        }
    }
}
