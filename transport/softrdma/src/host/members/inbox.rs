//! Messages between members of a simulated host.
//!
//! The counterpart of [`super::connections`] in a simulation, with the same outcomes. A message arrives whole
//! and in order, or not at all, and the end of a member is reported once to each member that has exchanged
//! messages with it.
#![forbid(unsafe_code)]

use super::connections::{Arrived, MAX_MESSAGE_BYTES};
use super::outcome::{Counts, Undelivered};
use crate::host::memory::simulated::{HostMemory, InboxItem, NotTaken};
use crate::host::{AreaHandle, Host, MemberId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use trunkline_verbs::{Counter, Memory};

/// A member's inbox, and the members with which it has exchanged messages.
#[derive(Debug)]
pub(super) struct SimulatedInbox {
    memory: Arc<HostMemory>,
    host: Arc<Host>,
    /// Members to which this member has connected.
    to: BTreeSet<MemberId>,
    /// Members that have connected to this member.
    from: BTreeSet<MemberId>,
    lost: VecDeque<MemberId>,
    /// Body of the last received message.
    buffer: Vec<u8>,
    counts: Counts,
}

impl SimulatedInbox {
    pub(super) fn new(memory: Arc<HostMemory>, host: Arc<Host>) -> Self {
        memory.open_inbox(host.me());
        Self {
            memory,
            host,
            to: BTreeSet::new(),
            from: BTreeSet::new(),
            lost: VecDeque::new(),
            buffer: Vec::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn send(&mut self, to: MemberId, kind: u8, parts: &[&[u8]]) -> Result<(), Undelivered> {
        self.send_entry(to, kind, parts.concat(), None)
    }

    pub(super) fn hand_over(
        &mut self,
        to: MemberId,
        kind: u8,
        body: &[u8],
        area: &AreaHandle,
    ) -> Result<(), Undelivered> {
        let AreaHandle::Memory(memory) = area else { return Err(Undelivered::TooLong) };
        self.send_entry(to, kind, body.to_vec(), Some(Arc::clone(memory)))
    }

    fn send_entry(
        &mut self,
        to: MemberId,
        kind: u8,
        bytes: Vec<u8>,
        area: Option<Arc<Memory>>,
    ) -> Result<(), Undelivered> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(Undelivered::TooLong);
        }
        let from = self.host.me();
        let result = self.connect(to).and_then(|()| {
            self.memory.put(to, InboxItem::Message { from, kind, bytes, area }).map_err(Into::into)
        });
        self.counts.sending(&result);
        if result == Err(Undelivered::Gone) && self.to.contains(&to) {
            self.lose(to);
        }
        result
    }

    pub(super) fn watch(&mut self, to: MemberId) -> bool {
        match self.connect(to) {
            Err(Undelivered::Gone) => {
                self.lose(to);
                true
            }
            connected => connected.is_ok(),
        }
    }

    pub(super) fn receive(&mut self) -> Option<Arrived<'_>> {
        loop {
            if let Some(member) = self.lost.pop_front() {
                return Some(Arrived::Lost(member));
            }
            if !self.is_alive() {
                return None;
            }
            match self.memory.take(self.host.me()) {
                Some(InboxItem::Connected(from)) => {
                    self.from.insert(from);
                }
                Some(InboxItem::Message { from, kind, bytes, area }) => {
                    self.counts.received();
                    self.buffer = bytes;
                    let bytes = &self.buffer;
                    return Some(match area.map(AreaHandle::Memory) {
                        Some(area) => Arrived::Handover { from, kind, bytes, area },
                        None => Arrived::Message { from, kind, bytes },
                    });
                }
                // Check for the end only when the inbox is empty, since messages sent before it still arrive.
                None => {
                    let ended = self.ended()?;
                    self.lose(ended);
                }
            }
        }
    }

    pub(super) fn has_arrivals(&self) -> bool {
        !self.lost.is_empty()
            || (self.is_alive() && (self.memory.has_entries(self.host.me()) || self.ended().is_some()))
    }

    pub(super) fn counters(&self, into: &mut Vec<Counter>) {
        self.counts.list(into);
    }

    fn is_alive(&self) -> bool {
        self.memory.lives(self.host.me())
    }

    /// Returns a member that ended after it exchanged messages with this one.
    fn ended(&self) -> Option<MemberId> {
        self.to.union(&self.from).find(|member| !self.memory.is_open(**member)).copied()
    }

    pub(super) fn connect(&mut self, to: MemberId) -> Result<(), Undelivered> {
        if !self.is_alive() || self.host.current(to.slot) != Some(to) {
            return Err(Undelivered::Gone);
        }
        if self.to.contains(&to) {
            return Ok(());
        }
        self.memory.put(to, InboxItem::Connected(self.host.me()))?;
        self.to.insert(to);
        Ok(())
    }

    fn lose(&mut self, member: MemberId) {
        self.to.remove(&member);
        self.from.remove(&member);
        if !self.lost.contains(&member) {
            self.lost.push_back(member);
        }
    }
}

impl From<NotTaken> for Undelivered {
    fn from(error: NotTaken) -> Self {
        match error {
            NotTaken::Gone => Self::Gone,
            NotTaken::Full => Self::Full,
        }
    }
}

impl Drop for SimulatedInbox {
    fn drop(&mut self) {
        self.memory.close_inbox(self.host.me());
    }
}
