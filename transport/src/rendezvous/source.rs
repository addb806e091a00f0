//! The sender's side of large messages: memory that the peer READs until its FIN.
#![forbid(unsafe_code)]

use crate::Body;
use crate::buffer::{Announced, Block};
use crate::upper::Receipt;
use std::collections::BTreeMap;
use trunkline_verbs::RemoteAddress;

/// Owner of a source's memory.
#[derive(Debug)]
pub(crate) enum Hold {
    /// The application's registered bytes. Their key becomes invalid before they are released.
    Lent { at: Announced, _bytes: Body },
    /// A copy.
    Copied(Block),
}

impl Hold {
    /// Returns the address at which the peer finds the memory.
    pub(crate) fn remote_address(&self) -> RemoteAddress {
        match self {
            Self::Lent { at, .. } => at.remote_address(),
            Self::Copied(block) => block.remote_address(),
        }
    }
}

/// A message that the peer has not READ yet.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) receipt: Receipt,
    pub(crate) lane: usize,
    /// Bytes charged to the peer.
    pub(crate) bytes: usize,
    /// True if ordered small messages wait for the end of this one.
    pub(crate) ordered: bool,
    /// Owner of the memory, which is released when this is dropped.
    pub(crate) _hold: Hold,
}

/// All sources of one trunk, by the number that their requests carry and their FINs return.
#[derive(Debug)]
pub(crate) struct Sources {
    open: BTreeMap<u64, Source>,
    next: u64,
}

impl Sources {
    pub(crate) fn new() -> Self {
        Self { open: BTreeMap::new(), next: 1 }
    }

    /// Returns the number of the next source.
    pub(crate) fn next_id(&self) -> u64 {
        self.next
    }

    /// Adds a source, with the number [`Sources::next_id`].
    pub(crate) fn add(&mut self, source: Source) {
        self.open.insert(self.next, source);
        self.next += 1;
    }

    /// Removes a source that the peer is done with. Returns `None` if no source has this number.
    pub(crate) fn finish(&mut self, id: u64) -> Option<Source> {
        self.open.remove(&id)
    }

    /// Removes all sources, in the order of their numbers. Dropping them frees their memory.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Source> + use<> {
        std::mem::take(&mut self.open).into_values()
    }

    /// Returns the number of sources, and their total size in bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.open.len(), self.open.values().map(|source| source.bytes).sum())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
