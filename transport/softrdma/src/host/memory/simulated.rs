//! A simulated host within one process, which provides segments, liveness and messages without files or sockets.
//!
//! Owns the segments that the simulated processes of a host share, and their inboxes. The stores and messages
//! of a killed process are dropped, although its code may run until the simulation drops it. A process may be
//! killed between two stores, which leaves other members with an incomplete write.
//!
//! Used by `member` and `members::inbox` for members that joined with
//! [`Host::in_memory`](crate::host::Host::in_memory), and by the module `simulation`.
#![forbid(unsafe_code)]

use super::segment::{HeapWords, Life};
use crate::host::{HostError, MemberId};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use trunkline_machine::Runtime;
use trunkline_verbs::Memory;

/// Capacity of a member's inbox in bytes, like a socket's buffer.
const INBOX_BYTES: usize = 1 << 20;

/// An entry of a member's inbox.
#[derive(Debug)]
pub(in crate::host) enum InboxItem {
    /// A member has connected. Its end is then reported as a loss.
    Connected(MemberId),
    Message {
        from: MemberId,
        kind: u8,
        bytes: Vec<u8>,
        /// Memory handed over with the message.
        area: Option<Arc<Memory>>,
    },
}

#[derive(Debug, Default)]
struct MemberInbox {
    entries: VecDeque<InboxItem>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct HostTables {
    segments: BTreeMap<&'static str, Arc<HeapWords>>,
    lives: BTreeMap<MemberId, Arc<Life>>,
    inboxes: BTreeMap<MemberId, MemberInbox>,
    /// Areas that were handed over, with the members that created them.
    areas: Vec<(MemberId, Weak<Memory>)>,
}

/// The shared state of a simulated host.
#[derive(Debug)]
pub(crate) struct HostMemory {
    runtime: Runtime,
    state: Mutex<HostTables>,
}

/// Reason why an inbox did not accept a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::host) enum NotTaken {
    /// The member has died or left.
    Gone,
    /// The inbox is full.
    Full,
}

impl HostMemory {
    pub(crate) fn new(runtime: Runtime) -> Arc<Self> {
        Arc::new(Self { runtime, state: Mutex::default() })
    }

    /// Returns a number from the simulation's random source.
    pub(in crate::host) fn random(&self) -> u64 {
        self.runtime.random()
    }

    /// Returns the words of a segment, which are initially zero.
    pub(in crate::host) fn segment(
        &self,
        name: &'static str,
        length: usize,
    ) -> Result<Arc<HeapWords>, HostError> {
        let mut state = self.lock();
        let words = state.segments.entry(name).or_insert_with(|| Arc::new(HeapWords::new(length)));
        if words.length() == length {
            Ok(Arc::clone(words))
        } else {
            Err(HostError::OtherVersion(PathBuf::from(name)))
        }
    }

    pub(in crate::host) fn enter(&self, member: MemberId, life: &Arc<Life>) {
        self.lock().lives.insert(member, Arc::clone(life));
    }

    pub(in crate::host) fn leave(&self, member: MemberId) {
        self.lock().lives.remove(&member);
    }

    /// Returns true if a member has joined and its process lives.
    pub(in crate::host) fn lives(&self, member: MemberId) -> bool {
        self.lock().lives.get(&member).is_some_and(|life| life.is_alive())
    }

    pub(in crate::host) fn open_inbox(&self, member: MemberId) {
        self.lock().inboxes.insert(member, MemberInbox::default());
    }

    pub(in crate::host) fn close_inbox(&self, member: MemberId) {
        self.lock().inboxes.remove(&member);
    }

    /// Returns true if a member lives and accepts messages.
    pub(in crate::host) fn is_open(&self, member: MemberId) -> bool {
        self.lives(member) && self.lock().inboxes.contains_key(&member)
    }

    pub(in crate::host) fn put(&self, to: MemberId, entry: InboxItem) -> Result<(), NotTaken> {
        if !self.lives(to) {
            return Err(NotTaken::Gone);
        }
        let mut state = self.lock();
        if let InboxItem::Message { from, area: Some(area), .. } = &entry {
            let handed_over = (*from, Arc::downgrade(area));
            state.areas.retain(|(_, area)| area.strong_count() > 0);
            state.areas.push(handed_over);
        }
        let inbox = state.inboxes.get_mut(&to).ok_or(NotTaken::Gone)?;
        let bytes = entry.bytes();
        if inbox.bytes + bytes > INBOX_BYTES {
            return Err(NotTaken::Full);
        }
        inbox.bytes += bytes;
        inbox.entries.push_back(entry);
        Ok(())
    }

    /// Returns the areas of the process with this life that other members may have mapped.
    pub(crate) fn areas_of(&self, life: &Arc<Life>) -> Vec<Arc<Memory>> {
        let state = self.lock();
        let is_its = |member: &MemberId| state.lives.get(member).is_some_and(|of| Arc::ptr_eq(of, life));
        let its = state.areas.iter().filter(|(maker, _)| is_its(maker));
        its.filter_map(|(_, area)| area.upgrade()).collect()
    }

    /// Takes the oldest entry out of a member's inbox.
    pub(in crate::host) fn take(&self, member: MemberId) -> Option<InboxItem> {
        let mut state = self.lock();
        let inbox = state.inboxes.get_mut(&member)?;
        let entry = inbox.entries.pop_front()?;
        inbox.bytes -= entry.bytes();
        Some(entry)
    }

    /// Returns true if a member's inbox holds an entry.
    pub(in crate::host) fn has_entries(&self, member: MemberId) -> bool {
        self.lock().inboxes.get(&member).is_some_and(|inbox| !inbox.entries.is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, HostTables> {
        // The state is consistent even if a thread panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InboxItem {
    /// Returns the size of the entry in an inbox, in bytes. Empty messages also take space.
    fn bytes(&self) -> usize {
        match self {
            Self::Connected(_) => 0,
            Self::Message { bytes, .. } => 64 + bytes.len(),
        }
    }
}
