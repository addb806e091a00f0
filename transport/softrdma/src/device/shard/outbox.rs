//! Output of a shard besides packets: messages to other members of the host, and events for control.
//!
//! Owns messages that are not sent yet. A message stays queued, in order, while its receiver lacks room; the queue is
//! bounded. A message that does not fit in the queue is dropped, and its sender repeats it if it waits for an answer.
//! The outbox does not interpret messages.
#![forbid(unsafe_code)]

use crate::host::{AreaHandle, MemberId, Members, Undelivered};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_roce::cm::UnreachableReport;
use trunkline_roce::wire::Mad;
use trunkline_verbs::QpNumber;

/// Maximum number of queued messages.
const MAX_WAITING: usize = 2048;
/// Maximum number of queued messages for one member, so that a member that does not read does not fill the
/// queue.
const MAX_WAITING_OF_ONE: usize = 1024;
/// Maximum number of buffers kept for reuse.
const MAX_SPARE: usize = 64;

/// An event that control handles. The shard queues events in order, and control takes them at the end of each
/// turn, so the queue holds the events of one turn at most.
#[derive(Debug)]
pub(in crate::device) enum ControlEvent {
    /// A management datagram for QP 1.
    Mad {
        /// Sender's address and UDP port.
        from: SocketAddr,
        /// True if the sender's address and port belong to a member of this host's registry.
        is_member: bool,
        /// Local address and UDP port of the datagram.
        to: SocketAddr,
        /// Exclusive or of the datagram's ICRC and the ICRC computed from its headers.
        difference: u32,
        mad: Box<Mad>,
    },
    /// A management datagram that was not delivered.
    Unreachable(UnreachableReport),
    /// The first packet received by a QP whose connection awaits its RTU. The packet stands in for an RTU that was lost
    /// or overtaken (contract rocev2 12.4).
    FirstPacket(QpNumber),
    /// A message about shared memory from this shard to another shard of the device.
    OwnMessage {
        /// This process.
        me: MemberId,
        /// Kind of the message.
        kind: u8,
        /// Body of the message.
        bytes: Vec<u8>,
        /// Shared memory handed over with the message.
        area: Option<AreaHandle>,
    },
    /// A member of the host that could not be reached when a message was sent.
    MemberGone(MemberId),
}

/// Unread part of a message between members. Integers are little-endian.
#[derive(Debug)]
pub(in crate::device) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::device) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(in crate::device) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::device) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(in crate::device) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(in crate::device) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(in crate::device) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(in crate::device) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// A message that is not sent yet.
#[derive(Debug)]
struct Waiting {
    to: MemberId,
    kind: u8,
    bytes: Vec<u8>,
    /// Shared memory handed over with the message.
    area: Option<AreaHandle>,
}

/// Queue of messages to other members.
#[derive(Debug)]
pub(in crate::device) struct MemberOutbox {
    /// `None` on an in-process network, and after the device was removed.
    members: Option<Arc<Members>>,
    waiting: VecDeque<Waiting>,
    spare: Vec<Vec<u8>>,
}

impl MemberOutbox {
    pub(super) fn new(members: Option<Arc<Members>>) -> Self {
        Self { members, waiting: VecDeque::new(), spare: Vec::new() }
    }

    /// Queues a message for another member. `write` appends the body and returns the kind. Returns false if the message
    /// does not fit in the queue.
    pub(in crate::device) fn push(&mut self, to: MemberId, write: impl FnOnce(&mut Vec<u8>) -> u8) -> bool {
        self.push_with(to, None, write)
    }

    /// Queues a message together with an area of this process. See [`MemberOutbox::push`].
    pub(super) fn hand_over(
        &mut self,
        to: MemberId,
        area: AreaHandle,
        write: impl FnOnce(&mut Vec<u8>) -> u8,
    ) -> bool {
        self.push_with(to, Some(area), write)
    }

    fn push_with(
        &mut self,
        to: MemberId,
        area: Option<AreaHandle>,
        write: impl FnOnce(&mut Vec<u8>) -> u8,
    ) -> bool {
        if !self.has_room(to) {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        let kind = write(&mut bytes);
        self.waiting.push_back(Waiting { to, kind, bytes, area });
        true
    }

    fn has_room(&self, to: MemberId) -> bool {
        let all = self.waiting.len();
        // Count this member's messages only if the queue is long enough to hold too many, which is rare.
        all < MAX_WAITING_OF_ONE
            || all < MAX_WAITING
                && self.waiting.iter().filter(|waiting| waiting.to == to).count() < MAX_WAITING_OF_ONE
    }

    /// Returns true if a message from another member is waiting.
    pub(super) fn has_messages(&self) -> bool {
        self.members.as_ref().is_some_and(|members| members.has_queued())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends the queued messages. Adds to `events` the messages for this process itself, and the members that
    /// cannot be reached.
    pub(super) fn send(&mut self, events: &mut Vec<ControlEvent>) {
        let mut full: Vec<MemberId> = Vec::new();
        let me = self.members.as_ref().map(|members| members.host().me());
        for _ in 0..self.waiting.len() {
            let Some(Waiting { to, kind, bytes, area }) = self.waiting.pop_front() else { break };
            if me == Some(to) {
                events.push(ControlEvent::OwnMessage { me: to, kind, bytes, area });
                continue;
            }
            // Messages to a receiver without room must stay in order.
            let sent = match &self.members {
                Some(_) if full.contains(&to) => Err(Undelivered::Full),
                Some(members) => match &area {
                    Some(area) => members.hand_over(to, kind, &bytes, area),
                    None => members.send(to, kind, &[&bytes]),
                },
                None => Err(Undelivered::Gone),
            };
            match sent {
                Err(Undelivered::Full) => {
                    full.push(to);
                    self.waiting.push_back(Waiting { to, kind, bytes, area });
                    continue;
                }
                Err(Undelivered::Gone) => events.push(ControlEvent::MemberGone(to)),
                // The sender of an area offers it again later.
                Ok(()) | Err(Undelivered::TooLong | Undelivered::TooManyDescriptors) => {}
            }
            if self.spare.len() < MAX_SPARE {
                self.spare.push(bytes);
            }
        }
    }

    /// Returns the kind and body of each queued message.
    #[cfg(test)]
    pub(super) fn waiting_for_tests(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.waiting.iter().map(|waiting| (waiting.kind, &*waiting.bytes))
    }

    /// Disconnects from the other members. Queued and later messages are dropped.
    pub(super) fn cut(&mut self) {
        self.members = None;
    }
}
