//! Messages that wait to leave, in order: for a session, or for credit and room on a lane.
#![forbid(unsafe_code)]

use super::resources::{Events, TurnTime};
use crate::sizes::EAGER_BYTES;
use crate::{Outgoing, PeerDown, PollerIndex, SendOutcome, Token};
use bytes::Bytes;
use std::collections::VecDeque;
use trunkline_verbs::Time;

/// Messages that may wait for one peer, or for one of its pollers.
const QUEUE_LIMIT: usize = 16_384;
/// Bytes of long ones among them.
const QUEUE_BYTES: usize = 1 << 30;

/// A message that waits to leave.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(super) token: Token,
    pub(super) poller: Option<PollerIndex>,
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
    pub(super) deadline: Option<Time>,
}

impl Outbound {
    /// Copies the head.
    pub(crate) fn new(message: &Outgoing<'_>) -> Self {
        Self {
            token: message.token,
            poller: message.poller,
            head: message.head.to_vec(),
            body: message.body.clone(),
            deadline: message.deadline,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.head.len().saturating_add(self.body.len())
    }
}

/// Messages in the order in which they leave.
#[derive(Debug, Default)]
pub(crate) struct MessageQueue(VecDeque<Outbound>);

impl MessageQueue {
    /// Whether a message of so many bytes may wait after those that wait already. Short ones are bounded
    /// by their number, long ones by their bytes too: a peer that asks for much and takes nothing must
    /// not make us hold it all.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let fits = || self.0.iter().map(Outbound::bytes).fold(bytes, usize::saturating_add) <= QUEUE_BYTES;
        self.0.len() < QUEUE_LIMIT && (self.0.is_empty() || bytes <= EAGER_BYTES || fits())
    }

    pub(crate) fn push(&mut self, message: Outbound) {
        self.0.push_back(message);
    }

    /// The oldest message.
    pub(crate) fn pop(&mut self) -> Option<Outbound> {
        self.0.pop_front()
    }

    /// Returns a message that could not leave after all to its place.
    pub(super) fn put_back(&mut self, message: Outbound) {
        self.0.push_front(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many wait, as frames report it.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    /// Removes a message; returns whether it was there.
    pub(crate) fn cancel(&mut self, token: Token) -> bool {
        let Some(at) = self.0.iter().position(|message| message.token == token) else { return false };
        self.0.remove(at).is_some()
    }

    /// Fails the messages whose deadline has passed.
    pub(crate) fn expire(&mut self, time: TurnTime, events: &mut Events) {
        self.0.retain(|message| {
            let late = message.deadline.is_some_and(|deadline| deadline <= time.now());
            if late {
                events.never_sent(message.token, PeerDown::Deadline);
            }
            !late
        });
    }

    /// The earliest deadline of a message.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.0.iter().filter_map(|message| message.deadline).min()
    }

    /// Fails all messages.
    pub(crate) fn fail(&mut self, outcome: SendOutcome, events: &mut Events) {
        for message in self.0.drain(..) {
            events.sent(message.token, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(count: usize, body: &Bytes) -> MessageQueue {
        let message = || Outbound {
            token: Token(0),
            poller: None,
            head: Vec::new(),
            body: body.clone(),
            deadline: None,
        };
        MessageQueue((0..count).map(|_| message()).collect())
    }

    #[test]
    fn what_waits_is_bounded_by_number_and_by_bytes() {
        let (short, long) = (Bytes::from_static(&[0; 8]), Bytes::from(vec![0; 64 << 20]));
        assert!(waiting(QUEUE_LIMIT - 1, &short).has_room(8));
        assert!(!waiting(QUEUE_LIMIT, &short).has_room(8));
        assert!(waiting(15, &long).has_room(long.len()));
        assert!(!waiting(16, &long).has_room(long.len()));
        assert!(waiting(16, &long).has_room(8), "a short one is no burden");
        assert!(
            waiting(0, &long).has_room(usize::MAX),
            "the length of a single message has a bound of its own"
        );
    }
}
