//! Messages that wait to leave, in order: for a session, or for credit and room on a lane.
//!
//! Whoever adds a message has charged its peer with it ([`Shares::queue`]), and so has whoever takes one out to
//! discharge the peer; those that fail here are discharged here.
#![forbid(unsafe_code)]

use super::Resources;
use crate::budget::Shares;
use crate::{Body, Connect, Outgoing, PeerDown, PeerKey, SendOutcome, Token, Toward, Turn};
use std::collections::VecDeque;
use trunkline_verbs::Time;

/// An empty queue keeps room for so many messages.
const KEPT: usize = 1024;

/// A message that waits to leave.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(super) token: Token,
    pub(super) toward: Toward,
    pub(super) turn: Turn,
    pub(super) head: Vec<u8>,
    /// Bytes of the head that go with the announcement if the message is large.
    pub(super) announced: usize,
    pub(super) body: Body,
    pub(super) deadline: Option<Time>,
    pub(super) ordered: bool,
    connect: Connect,
}

impl Outbound {
    /// Copies the head.
    pub(crate) fn new(message: &Outgoing<'_>, turn: Turn) -> Self {
        Self {
            token: message.token,
            toward: message.toward,
            turn,
            head: message.head.to_vec(),
            announced: message.announced,
            body: message.body.clone(),
            deadline: message.deadline,
            ordered: message.ordered,
            connect: message.connect,
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
    pub(crate) fn push(&mut self, message: Outbound) {
        self.0.push_back(message);
    }

    /// The oldest message.
    pub(crate) fn pop(&mut self) -> Option<Outbound> {
        let message = self.0.pop_front();
        if self.0.is_empty() && self.0.capacity() > KEPT {
            // Room for all that ever waited would be kept for each poller of each peer.
            self.0 = VecDeque::new();
        }
        message
    }

    /// Returns a message that could not leave after all to its place.
    pub(super) fn put_back(&mut self, message: Outbound) {
        self.0.push_front(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// How many wait, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.0.len(), self.0.iter().map(Outbound::bytes).sum())
    }

    /// Removes a message for the peer; returns whether it was there.
    pub(crate) fn cancel(&mut self, peer: PeerKey, token: Token, shares: &mut Shares) -> bool {
        let Some(at) = self.0.iter().position(|message| message.token == token) else { return false };
        let removed = self.0.remove(at);
        removed.inspect(|message| shares.unqueue(peer, message.bytes())).is_some()
    }

    /// Fails the messages for the peer whose deadline has passed.
    pub(crate) fn expire(&mut self, peer: PeerKey, res: &mut Resources) {
        self.0.retain(|message| {
            let late = message.deadline.is_some_and(|deadline| deadline <= res.time.now());
            if late {
                res.shares.unqueue(peer, message.bytes());
                res.events.never_sent(message.token, PeerDown::Deadline);
            }
            !late
        });
    }

    /// The earliest deadline of a message.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.0.iter().filter_map(|message| message.deadline).min()
    }

    /// Fails all messages, which are for the peer.
    pub(crate) fn fail(&mut self, peer: PeerKey, outcome: SendOutcome, res: &mut Resources) {
        for message in self.0.drain(..) {
            res.shares.unqueue(peer, message.bytes());
            res.events.sent(message.token, outcome);
        }
    }

    /// Fails the messages, which are for the peer, but for those that wait for a session.
    pub(crate) fn fail_fast(&mut self, peer: PeerKey, outcome: SendOutcome, res: &mut Resources) {
        let waiting = std::mem::take(&mut self.0);
        let (waiting, failed) = waiting.into_iter().partition(|message| message.connect == Connect::Wait);
        self.0 = failed;
        self.fail(peer, outcome, res);
        self.0 = waiting;
    }

    /// Whether any message waits for a session, however many attempts to connect fail.
    pub(crate) fn waits(&self) -> bool {
        self.0.iter().any(|message| message.connect == Connect::Wait)
    }
}
