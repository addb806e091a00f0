//! The application's registered buffers, which are filled once, frozen, and sent without a copy.
//!
//! When `Bytes` are sent, a frozen buffer is recognised by its address, so it can pass through any code that handles
//! `Bytes`. After the removal of its device, it is no longer recognised, and its contents are copied for sending.
//!
//! A whole buffer is sent under its permanent key. A part is registered for the message, and its key is valid only
//! for this part, until the message is READ. A node with an identity also registers whole buffers for each message,
//! so peers can READ a buffer only while a session in clear announces it.

use super::block::Registration;
use super::{Block, BlockPool, NotNow};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, PoisonError, RwLock};
use trunkline_verbs::{Memory, RemoteAddress};

#[derive(Debug)]
struct Frozen {
    length: usize,
    /// Remote address of the whole buffer; `None` if it is registered for each message.
    at: Option<RemoteAddress>,
    memory: Arc<Memory>,
    pool: Arc<BlockPool>,
}

/// Registry of frozen buffers.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Buffers, by their start in this process.
    buffers: RwLock<BTreeMap<u64, Frozen>>,
    /// Pool that registers whole buffers for each message; `None` if peers may READ them from the start.
    per_message: Option<Arc<BlockPool>>,
}

impl Registry {
    /// Creates a registry of buffers that `pool` registers for each message.
    pub(crate) fn per_message(pool: Arc<BlockPool>) -> Self {
        Self { per_message: Some(pool), ..Self::default() }
    }

    /// Removes all buffers after the device was removed and the pool closed. From then on their contents
    /// are copied for sending, like any other memory.
    pub(crate) fn clear(&self) {
        self.buffers.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns true if the bytes are in a frozen buffer.
    pub(crate) fn has(&self, bytes: &[u8]) -> bool {
        let buffers = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        find(&buffers, bytes).is_some()
    }

    /// Returns a key that covers exactly these bytes of a frozen buffer. Returns `None` if they are not in a frozen
    /// buffer.
    pub(crate) fn announce(&self, bytes: &[u8]) -> Option<Result<Announced, NotNow>> {
        let buffers = self.buffers.read().unwrap_or_else(PoisonError::into_inner);
        let (buffer, Range { start, end }) = find(&buffers, bytes)?;
        if let Some(at) = buffer.at.filter(|_| bytes.len() == buffer.length) {
            return Some(Ok(Announced { at, own: None }));
        }
        let (memory, pool) = (Arc::clone(&buffer.memory), Arc::clone(&buffer.pool));
        // Release the lock first, since registration in the kernel may take long.
        drop(buffers);
        let registration = pool.register(&memory, start..end);
        let announced = |registration: Registration| Announced {
            at: registration.remote_address(),
            own: Some((pool, registration)),
        };
        Some(registration.map(announced))
    }
}

/// Returns the buffer that contains the bytes, and their range in it.
fn find<'a>(buffers: &'a BTreeMap<u64, Frozen>, bytes: &[u8]) -> Option<(&'a Frozen, Range<usize>)> {
    let address = bytes.as_ptr().addr() as u64;
    let (&begin, buffer) = buffers.range(..=address).next_back()?;
    let start = usize::try_from(address - begin).ok()?;
    let end = start.checked_add(bytes.len()).filter(|end| *end <= buffer.length)?;
    Some((buffer, start..end))
}

/// Access by a peer to bytes of a buffer. A key registered for these bytes becomes invalid on drop; the key of the
/// whole buffer stays valid.
#[derive(Debug)]
pub(crate) struct Announced {
    at: RemoteAddress,
    own: Option<(Arc<BlockPool>, Registration)>,
}

impl Announced {
    /// Returns the address at which the peer READs the bytes.
    pub(crate) fn remote_address(&self) -> RemoteAddress {
        self.at
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some((pool, registration)) = self.own.take() {
            pool.deregister(registration);
        }
    }
}

/// Registered memory to fill and send; see `Node::buffer`.
#[derive(Debug)]
pub struct RegisteredBuffer {
    block: Block,
    registry: Arc<Registry>,
}

impl RegisteredBuffer {
    pub(crate) fn new(block: Block, registry: Arc<Registry>) -> Self {
        Self { block, registry }
    }

    /// Converts the buffer to shared bytes. Large buffers and slices of them are sent without a copy.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        let (at, length) = (self.block.remote_address(), self.block.len());
        if self.block.is_forked() {
            return Bytes::from_owner(FrozenBuffer { block: self.block, registry: self.registry });
        }
        let mut buffers = self.registry.buffers.write().unwrap_or_else(PoisonError::into_inner);
        if self.block.is_registered()
            && let Some((memory, pool)) = self.block.parts()
        {
            let (at, pool) = match &self.registry.per_message {
                None => (Some(at), pool),
                Some(pool) => (None, Arc::clone(pool)),
            };
            buffers.insert(self.block.local_address(), Frozen { length, at, memory, pool });
        }
        drop(buffers);
        Bytes::from_owner(FrozenBuffer { block: self.block, registry: self.registry })
    }
}

impl Deref for RegisteredBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is not shared before `freeze`.
        unsafe { self.block.slice() }
    }
}

impl DerefMut for RegisteredBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the block is not shared before `freeze`.
        unsafe { self.block.slice_mut() }
    }
}

struct FrozenBuffer {
    block: Block,
    registry: Arc<Registry>,
}

impl AsRef<[u8]> for FrozenBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: after `freeze` the block is only read, by this node and by peers; its region gives no
        // right to write.
        unsafe { self.block.slice() }
    }
}

impl Drop for FrozenBuffer {
    fn drop(&mut self) {
        if self.block.is_forked() {
            return;
        }
        // Remove the entry before the block returns to its pool, since its address may then be reused.
        let mut buffers = self.registry.buffers.write().unwrap_or_else(PoisonError::into_inner);
        buffers.remove(&self.block.local_address());
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::pool;
    use super::*;
    use crate::Limit;
    use std::cell::RefCell;
    use trunkline_testkit::{in_forked_child, runs_alone};
    use trunkline_verbs::{Access, Device as _};

    #[test]
    fn buffers_of_node_with_identity_have_rkey_only_while_announced() {
        let (sources, device) = pool();
        let limit = Limit { per_peer: 1 << 20, in_all: 1 << 20 };
        let buffers = sources.sibling(Access::LOCAL_WRITE, "buffers", limit);
        buffers.open(device.alloc_pd().unwrap());
        let registry = Arc::new(Registry::per_message(Arc::clone(&sources)));
        let buffer = RegisteredBuffer::new(buffers.take(100, None, None).unwrap(), Arc::clone(&registry));
        let (own, bytes) = (buffer.block.remote_address(), buffer.freeze());
        let readable = || sources.ledger().regions.0;
        assert_eq!(readable(), 0);
        let announced = [&bytes[..], &bytes[1..]].map(|bytes| registry.announce(bytes).unwrap().unwrap());
        assert_eq!(readable(), 2);
        assert!(announced.iter().all(|announced| announced.remote_address().rkey != own.rkey));
        drop(announced);
        assert_eq!(readable(), 0);
    }

    #[test]
    fn buffers_in_forked_child_do_not_lock_their_registry() {
        if !runs_alone(module_path!(), "buffers_in_forked_child_do_not_lock_their_registry") {
            return;
        }
        let (pool, _device) = pool();
        let registry = Arc::<Registry>::default();
        let buffer = || RegisteredBuffer::new(pool.take(100, None, None).unwrap(), Arc::clone(&registry));
        let (frozen, filled) = (RefCell::new(Some(buffer().freeze())), RefCell::new(Some(buffer())));
        // A thread that does not exist in the child may have left the lock held.
        let mut buffers = registry.buffers.write().unwrap();
        in_forked_child(|| {
            drop(frozen.take());
            drop(filled.take().map(RegisteredBuffer::freeze));
        });
        assert_eq!(std::mem::take(&mut *buffers).len(), 1);
    }
}
