//! The application's registered buffers: filled once, frozen, sent without a copy.
//!
//! A frozen buffer is recognised by its address when a `Bytes` that is a part of it is sent, so it
//! can pass through any code that knows only `Bytes`. When the device of the buffer has gone, it is
//! not recognised any more, and is sent by a copy.

use super::Block;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, RwLock};
use trunkline_verbs::{IoAddress, RemoteAddress};

/// Where frozen buffers lie.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Where each begins in this process, to its length and where peers see it.
    ranges: RwLock<BTreeMap<u64, (u64, RemoteAddress)>>,
}

impl Registry {
    /// The device has gone, after the pool was closed: from now on buffers are sent as any other
    /// memory is, by a copy.
    pub(crate) fn clear(&self) {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The remote address of bytes that lie in a frozen buffer.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<RemoteAddress> {
        let start = bytes.as_ptr().addr() as u64;
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let (&begin, &(length, at)) = ranges.range(..=start).next_back()?;
        let inside = start - begin <= length && bytes.len() as u64 <= length - (start - begin);
        let address = IoAddress(at.address.0.wrapping_add(start - begin));
        inside.then_some(RemoteAddress { address, rkey: at.rkey })
    }
}

/// Registered memory to fill and send. It comes from `Node::buffer`.
#[derive(Debug)]
pub struct RegisteredBuffer {
    block: Block,
    registry: Arc<Registry>,
}

impl RegisteredBuffer {
    pub(crate) fn new(block: Block, registry: Arc<Registry>) -> Self {
        Self { block, registry }
    }

    /// Shared bytes that are sent without a copy, whole or in slices, when they are large.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        let at = self.block.remote_address();
        let length = self.block.len() as u64;
        let mut ranges = self.registry.ranges.write().unwrap_or_else(PoisonError::into_inner);
        if self.block.is_registered() {
            ranges.insert(self.block.local_address(), (length, at));
        }
        drop(ranges);
        Bytes::from_owner(FrozenBuffer { block: self.block, registry: self.registry })
    }
}

impl Deref for RegisteredBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is told to nobody before `freeze`.
        unsafe { self.block.slice() }
    }
}

impl DerefMut for RegisteredBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block is told to nobody before `freeze`.
        unsafe { self.block.slice_mut() }
    }
}

struct FrozenBuffer {
    block: Block,
    registry: Arc<Registry>,
}

impl AsRef<[u8]> for FrozenBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: after `freeze` the block is only read, by us and by peers; its region gives no
        // right to write.
        unsafe { self.block.slice() }
    }
}

impl Drop for FrozenBuffer {
    fn drop(&mut self) {
        // Before the block returns to its pool: its address may then be somebody else's.
        let mut ranges = self.registry.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.remove(&self.block.local_address());
    }
}
