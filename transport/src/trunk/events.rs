//! Events for the driver.
#![forbid(unsafe_code)]

use crate::messages::DeliveryReport;
use crate::{
    Event, Message, MessageHeader, Origin, PeerDown, PeerEvent, PeerKey, Report, SendFailure, SendOutcome,
};
use std::collections::{BTreeSet, VecDeque};

/// Events for the driver, in order.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    /// Peers to which a message was lost without a report to its sender.
    lost: BTreeSet<PeerKey>,
}

impl Events {
    pub(crate) fn message(&mut self, from: Origin, message: Message) {
        self.queue.push_back(Event::Message(from, message));
    }

    /// Reports the outcome of a message, if requested.
    pub(crate) fn sent(&mut self, of: DeliveryReport, outcome: SendOutcome) {
        let is_told = match of.report {
            Report::Always => true,
            Report::Failure => outcome != SendOutcome::Delivered,
            Report::Never => false,
        };
        if is_told {
            self.queue.push_back(Event::Sent(of.token, outcome));
        }
    }

    /// Reports the outcome of a message that was not sent.
    pub(crate) fn never_sent(&mut self, peer: PeerKey, of: DeliveryReport, cause: PeerDown) {
        if of.report == Report::Never && !cause.ends_a_session() {
            self.lost.insert(peer);
        }
        self.sent(of, SendOutcome::Failed(SendFailure { may_have_arrived: false, cause }));
    }

    /// Reports that a message with this header and head cannot be sent, although its session continues. The driver is
    /// notified even with [`Report::Never`], since the peer may wait for the message.
    pub(crate) fn not_sent(
        &mut self,
        to: Origin,
        header: MessageHeader,
        head: Vec<u8>,
        of: DeliveryReport,
        cause: PeerDown,
    ) {
        if of.report == Report::Never {
            self.queue.push_back(Event::NotSent { to, header, head, cause });
        } else {
            self.never_sent(to.peer, of, cause);
        }
    }

    pub(crate) fn peer(&mut self, peer: PeerKey, event: PeerEvent) {
        self.lost.remove(&peer);
        self.queue.push_back(Event::Peer(peer, event));
    }

    pub(crate) fn announced(&mut self, from: Origin) {
        self.queue.push_back(Event::Announced(from));
    }

    pub(crate) fn given_up(&mut self, from: Origin, part: Message, bytes: usize) {
        self.queue.push_back(Event::GivenUp { from, part, bytes });
    }

    /// Returns true if a message to the peer was lost in a live session, without a report to its sender.
    pub(crate) fn has_lost(&self, peer: PeerKey) -> bool {
        self.lost.contains(&peer)
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Token;

    #[test]
    fn lost_message_counts_for_receiver_until_session_is_down() {
        let [one, other] = [1_u16, 2].map(|port| PeerKey::new(([127, 0, 0, 1], port).into()));
        let delivery = |report| DeliveryReport { token: Token(1), report };
        let mut events = Events::default();
        events.never_sent(one, delivery(Report::Never), PeerDown::Deadline);
        events.never_sent(other, delivery(Report::Never), PeerDown::Deadline);
        events.peer(other, PeerEvent::Down { cause: PeerDown::Closed });
        assert!(events.has_lost(one) && !events.has_lost(other));
        events.never_sent(other, delivery(Report::Always), PeerDown::Deadline);
        events.never_sent(other, delivery(Report::Never), PeerDown::Closed);
        assert!(!events.has_lost(other), "its sender or its receiver knows");
    }
}
