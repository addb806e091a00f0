//! Outcomes of a member's messages over any transport, and their counters.
#![forbid(unsafe_code)]

use trunkline_verbs::Counter;

/// Reason why a message was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Undelivered {
    /// The member has died or left.
    #[error("the member has left or died")]
    Gone,
    /// The socket is full.
    #[error("the member has more messages waiting than its socket holds")]
    Full,
    /// Too many descriptors of this user are in flight.
    #[error("too many descriptors of this user have been sent and not received")]
    TooManyDescriptors,
    /// The body exceeds [`MAX_MESSAGE_BYTES`](super::MAX_MESSAGE_BYTES), or there are too many parts.
    #[error("the message is too long")]
    TooLong,
}

/// The counters of one member's messages.
#[derive(Debug, Default)]
pub(super) struct Counts {
    sent: u64,
    received: u64,
    full: u64,
    gone: u64,
    nonsense: u64,
}

impl Counts {
    /// Counts an attempt to send a message.
    pub(super) const fn sending(&mut self, outcome: &Result<(), Undelivered>) {
        match outcome {
            Ok(()) => self.sent += 1,
            Err(Undelivered::Gone) => self.gone += 1,
            Err(_) => self.full += 1,
        }
    }

    pub(super) const fn received(&mut self) {
        self.received += 1;
    }

    pub(super) const fn nonsense(&mut self) {
        self.nonsense += 1;
    }

    pub(super) fn list(&self, into: &mut Vec<Counter>) {
        into.extend([
            Counter { name: "local_sent", value: self.sent },
            Counter { name: "local_received", value: self.received },
            Counter { name: "drop_local_full", value: self.full },
            Counter { name: "drop_local_gone", value: self.gone },
            Counter { name: "drop_local_nonsense", value: self.nonsense },
        ]);
    }
}
