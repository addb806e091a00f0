//! Retries of stream cancellations that could not be sent because the message queue was full.

use crate::wire::frame::{Encoded, Header, send, without_call};
use std::mem;
use std::time::Duration;
use trunkline_transport::{Destination, PeerKey, SendError, Transport};
use trunkline_verbs::Time;

/// Delay before a retry after the message queue was full.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct Cancel {
    pub(super) peer: PeerKey,
    pub(super) destination: Destination,
    pub(super) call: u64,
    /// True for a stream, whose cancellation must not overtake the request.
    pub(super) ordered: bool,
}

/// The cancellations to retry, and the time of the next attempt.
#[derive(Debug, Default)]
pub(super) struct Cancels {
    list: Vec<Cancel>,
    due: Option<Time>,
}

impl Cancels {
    pub(super) fn push(&mut self, cancel: Cancel, now: Time) {
        self.list.push(cancel);
        self.due.get_or_insert(now + PAUSE);
    }

    pub(super) fn next_timer(&self) -> Option<Time> {
        self.due
    }

    /// Takes all cancellations once the delay has passed.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<Cancel> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.due = None;
        mem::take(&mut self.list)
    }

    /// Discards the cancellations to a peer whose session is over.
    pub(super) fn forget(&mut self, peer: PeerKey) {
        self.list.retain(|cancel| cancel.peer != peer);
    }
}

/// Sends a frame that does not belong to a waiting call. `scratch` is reused to avoid an allocation.
pub(super) fn send_control(
    scratch: &mut Vec<u8>,
    transport: &mut Transport,
    peer: PeerKey,
    destination: Destination,
    ordered: bool,
    header: &Header,
) -> Result<(), SendError> {
    let mut out = without_call(peer, destination, None, ordered);
    send(transport, header, &mut Encoded::default(), scratch, &mut out).map(drop)
}
