//! Messages to other members of the host.
//!
//! Owns what is written and has not been sent. What finds no room with its receiver stays, in order and
//! bounded; what no longer fits is dropped, and its sender asks again if it waits for an answer. It
//! knows nothing of what the messages mean.
#![forbid(unsafe_code)]

use crate::host::{MemberId, Members, Undelivered};
use std::collections::VecDeque;
use std::sync::Arc;

/// Messages that wait at most.
const MAX_WAITING: usize = 2048;
/// Buffers kept for the next messages.
const MAX_SPARE: usize = 64;

/// See the module.
#[derive(Debug)]
pub(in crate::device) struct MemberOutbox {
    /// `None` on a network in process, and after a removal.
    members: Option<Arc<Members>>,
    waiting: VecDeque<(MemberId, u8, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl MemberOutbox {
    pub(super) fn new(members: Option<Arc<Members>>) -> Self {
        Self { members, waiting: VecDeque::new(), spare: Vec::new() }
    }

    /// Adds the message that `write` appends, of the kind that it returns; `false` when there is no
    /// room.
    pub(in crate::device) fn push(&mut self, to: MemberId, write: impl FnOnce(&mut Vec<u8>) -> u8) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        let kind = write(&mut bytes);
        self.waiting.push_back((to, kind, bytes));
        true
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends what waits to its receivers; `gone` is called for each that cannot be reached any more.
    pub(super) fn send(&mut self, mut gone: impl FnMut(MemberId)) {
        let mut full: Vec<MemberId> = Vec::new();
        for _ in 0..self.waiting.len() {
            let Some((to, kind, bytes)) = self.waiting.pop_front() else { break };
            // Later messages to a receiver without room must not overtake.
            let sent = match &self.members {
                Some(_) if full.contains(&to) => Err(Undelivered::Full),
                Some(members) => members.send(to, kind, &[&bytes]),
                None => Err(Undelivered::Gone),
            };
            match sent {
                Err(Undelivered::Full) => {
                    full.push(to);
                    self.waiting.push_back((to, kind, bytes));
                    continue;
                }
                Err(Undelivered::Gone) => gone(to),
                Ok(()) | Err(Undelivered::TooLong) => {}
            }
            if self.spare.len() < MAX_SPARE {
                self.spare.push(bytes);
            }
        }
    }

    /// From now on nobody is reached.
    pub(super) fn cut(&mut self) {
        self.members = None;
    }
}
