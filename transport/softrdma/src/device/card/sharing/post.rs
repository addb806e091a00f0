//! Messages that leave.
//!
//! Owns what is written and has not left. What finds no room with its receiver stays, in order and
//! bounded; what no longer fits is dropped, and asked for again by whoever waits for its answer.
#![forbid(unsafe_code)]

use super::message::Message;
use crate::device::card::Card;
use crate::host::MemberId;
use crate::host::local::LocalError;
use crate::link::UdpLink;
use std::collections::VecDeque;
use std::time::Instant;

/// Messages that wait at most.
const MAX_WAITING: usize = 2048;
/// Buffers kept for the next messages.
const MAX_SPARE: usize = 64;

/// The messages.
#[derive(Debug, Default)]
pub(in crate::device::card) struct Outbox {
    waiting: VecDeque<(MemberId, u8, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Outbox {
    /// Adds a message; `false` when there is no room.
    pub(super) fn push(&mut self, to: MemberId, message: &Message<'_>) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        let kind = message.write(&mut bytes);
        self.waiting.push_back((to, kind, bytes));
        true
    }

    /// Whether something waits.
    pub(in crate::device::card) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(bytes);
        }
    }
}

impl Card {
    /// Hands what waits to the local link.
    pub(in crate::device::card) fn send_to_members(&mut self, now: Instant) {
        let Some(sharing) = &mut self.sharing else { return };
        let mut gone: Vec<MemberId> = Vec::new();
        let mut full: Vec<MemberId> = Vec::new();
        for _ in 0..sharing.outbox.waiting.len() {
            let Some((to, kind, bytes)) = sharing.outbox.waiting.pop_front() else { break };
            // What is behind a message without room waits behind it.
            let sent = match self.link.udp().and_then(UdpLink::local) {
                Some(_) if full.contains(&to) => Err(LocalError::Full),
                Some(local) => local.send(to, kind, &[&bytes]),
                None => Err(LocalError::Gone),
            };
            match sent {
                Err(LocalError::Full) => {
                    full.push(to);
                    sharing.outbox.waiting.push_back((to, kind, bytes));
                    continue;
                }
                Err(LocalError::Gone) => gone.push(to),
                Ok(()) | Err(LocalError::TooLong) => {}
            }
            sharing.outbox.recycle(bytes);
        }
        for member in gone {
            sharing.suspect(member, now);
        }
    }
}
