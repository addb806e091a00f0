//! READs and atomics that a responder keeps to repeat their responses.
//!
//! The list is ordered from oldest to newest, bounded by the negotiated depth instead of the device's maximum, and marks the
//! responses being sent. The other parts of the responder add to the list, look up the request of a duplicate in it, and
//! send from it.

use crate::wire::Reth;
use std::collections::VecDeque;
use trunkline_verbs::Psn;

/// Maximum depth of saved READs and atomics, even if the attributes request more.
pub const MAX_SAVED: usize = 128;

/// An accepted READ or atomic, whose response is being sent or kept for repetition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) is_atomic: bool,
    /// True if the response is being sent.
    pub(super) is_active: bool,
    /// True if the response was sent before.
    pub(super) is_replay: bool,
    pub(super) first_psn: u32,
    /// Number of PSNs that the response covers.
    pub(super) psns: u32,
    /// The message number in the response.
    pub(super) msn: u32,
    pub(super) srq: u32,
    pub(super) rkey: u32,
    pub(super) address: u64,
    pub(super) length: u32,
    /// First packet of the current response, next packet to send, and byte at which the response ends; READs only.
    pub(super) start: u32,
    pub(super) next: u32,
    pub(super) end: u32,
    /// Old value; atomics only.
    pub(super) old: u64,
}

/// Saved READs and atomics, from oldest to newest. Memory is allocated when the depth is set.
#[derive(Debug, Clone, Default)]
pub(super) struct SavedAnswers {
    entries: VecDeque<Saved>,
    /// The negotiated depth.
    depth: u8,
    /// Index before which no entry is active.
    first_active: usize,
}

impl SavedAnswers {
    /// Sets the number of entries to keep and allocates memory for them. Older entries stay until new ones
    /// replace them.
    pub(super) fn set_depth(&mut self, depth: u8) {
        self.depth = depth;
        self.entries.reserve_exact(self.limit().saturating_sub(self.entries.len()));
    }

    pub(super) const fn depth(&self) -> u8 {
        self.depth
    }

    /// Returns true if another READ or atomic may be accepted. If an entry must be replaced, its response must have been
    /// sent (contract rocev2 7.6).
    pub(super) fn has_room(&self) -> bool {
        let oldest_is_answered =
            || self.entries.front().is_none_or(|oldest| !oldest.is_active || oldest.is_replay);
        self.limit() > 0 && (self.entries.len() < self.limit() || oldest_is_answered())
    }

    /// Keeps an accepted READ or atomic, in place of the oldest entry if the list is full.
    pub(super) fn keep(&mut self, saved: Saved) {
        while self.entries.len() >= self.room() {
            self.entries.pop_front();
            self.first_active = self.first_active.saturating_sub(1);
        }
        self.entries.push_back(saved);
    }

    /// Returns the index of the oldest entry whose response is being sent.
    pub(super) fn active(&self) -> Option<usize> {
        let from = self.first_active.min(self.entries.len());
        self.entries.range(from..).position(|saved| saved.is_active).map(|index| from + index)
    }

    /// Returns the entry at an index from [`Self::active`].
    pub(super) fn get(&self, index: usize) -> Saved {
        self.entries.get(index).copied().unwrap_or_default()
    }

    /// Records that `psns` packets of the response at `index` were sent. `is_last` ends the response.
    pub(super) fn sent(&mut self, index: usize, psns: u32, is_last: bool) {
        let Some(saved) = self.entries.get_mut(index) else { return };
        saved.next = saved.next.saturating_add(psns);
        if is_last {
            saved.is_active = false;
            // The oldest active entry is sent next, so earlier entries are inactive.
            self.first_active = index;
        }
    }

    /// Starts the response to a saved READ again from `psn`. Returns false if the requested range is neither the rest of a
    /// saved READ nor a part of that rest.
    pub(super) fn repeat_read(&mut self, psn: Psn, reth: &Reth, mtu: u32) -> bool {
        let covers = |saved: &Saved| {
            let packet = u32::try_from(psn.after(Psn::new(saved.first_psn)));
            !saved.is_atomic && packet.is_ok_and(|packet| packet < saved.psns)
        };
        let Some(index) = self.entries.iter().position(covers) else { return false };
        let Some(saved) = self.entries.get_mut(index) else { return false };
        let packet = u32::try_from(psn.after(Psn::new(saved.first_psn))).unwrap_or(0);
        let offset = packet.saturating_mul(mtu);
        let is_inside = reth.rkey.0 == saved.rkey
            && reth.address.0 == saved.address.wrapping_add(u64::from(offset))
            && offset.checked_add(reth.length).is_some_and(|end| end <= saved.length);
        if !is_inside {
            return false;
        }
        let end = offset.saturating_add(reth.length);
        // A response in progress continues to its end or to the end of the repeat.
        saved.end = if saved.is_active { saved.end.max(end) } else { end };
        // Ignore a duplicate request whose first packet has not been sent yet.
        if !saved.is_active || packet < saved.next {
            (saved.start, saved.next) = (packet, packet);
            self.replay(index);
        }
        true
    }

    /// Sends the saved result again. The atomic itself is never executed a second time. Returns false if the result is not
    /// saved.
    pub(super) fn repeat_atomic(&mut self, psn: Psn) -> bool {
        let is_it = |saved: &Saved| saved.is_atomic && saved.first_psn == psn.get();
        let Some(index) = self.entries.iter().position(is_it) else { return false };
        if !self.get(index).is_active {
            self.replay(index);
        }
        true
    }

    fn replay(&mut self, index: usize) {
        if let Some(saved) = self.entries.get_mut(index) {
            saved.is_replay = true;
            saved.is_active = true;
            self.first_active = self.first_active.min(index);
        }
    }

    /// Stops all responses. The entries stay.
    pub(super) fn stop(&mut self) {
        for saved in &mut self.entries {
            saved.is_active = false;
        }
    }

    /// Returns true if the response to the newest entry ends just before `expected`.
    pub(super) fn ends_at(&self, expected: Psn) -> bool {
        self.entries.back().is_some_and(|newest| Psn::new(newest.first_psn).plus(newest.psns) == expected)
    }

    /// Returns the entries, from oldest to newest.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Saved> {
        self.entries.iter()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the maximum number of kept entries.
    fn limit(&self) -> usize {
        usize::from(self.depth).min(MAX_SAVED)
    }

    /// Returns the maximum number of kept entries, but at least 1, for a placement that was requested before the depth
    /// became 0.
    fn room(&self) -> usize {
        self.limit().max(1)
    }
}
