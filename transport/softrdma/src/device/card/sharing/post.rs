//! Messages that leave.
//!
//! Owns what is written and has not left. What finds no room with its receiver stays, in order and
//! bounded; what no longer fits is dropped, and asked for again by whoever waits for its answer.
#![forbid(unsafe_code)]

use super::message::Message;
use crate::device::card::Card;
use crate::host::{MemberId, Undelivered};
use std::collections::VecDeque;
use trunkline_verbs::Time;

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
    /// Sends what waits to its receivers.
    pub(in crate::device::card) fn send_to_members(&mut self, now: Time) {
        let Some(sharing) = &mut self.sharing else { return };
        let mut gone: Vec<MemberId> = Vec::new();
        let mut full: Vec<MemberId> = Vec::new();
        for _ in 0..sharing.outbox.waiting.len() {
            let Some((to, kind, bytes)) = sharing.outbox.waiting.pop_front() else { break };
            // What is behind a message without room waits behind it.
            let sent = match &self.members {
                Some(_) if full.contains(&to) => Err(Undelivered::Full),
                Some(members) => members.send(to, kind, &[&bytes]),
                None => Err(Undelivered::Gone),
            };
            match sent {
                Err(Undelivered::Full) => {
                    full.push(to);
                    sharing.outbox.waiting.push_back((to, kind, bytes));
                    continue;
                }
                Err(Undelivered::Gone) => gone.push(to),
                Ok(()) | Err(Undelivered::TooLong) => {}
            }
            sharing.outbox.recycle(bytes);
        }
        for member in gone {
            sharing.member_disconnected(member, now);
        }
    }
}
