//! Registered blocks for large messages, in size classes and within a limit.
//!
//! A pool belongs to the node. Pollers take blocks, and a block returns to the pool when it is dropped. The memory for
//! one peer's messages is also limited. Freed memory is kept for later messages, up to a limit. Memory that peers may
//! READ is registered again for each message, and only the part in use. A peer's key therefore gives access to one
//! message only.
//!
//! A block that the application holds may outlive its device and its node. It keeps only memory alive, since
//! registrations belong to the pool, which drops them when the device is removed. A generation number distinguishes
//! registrations of earlier devices.

use crate::budget::{Budget, Share};
use crate::report::ledger::MemoryLedger;
use crate::{BudgetReport, Limit, PeerKey};
use arrayvec::ArrayVec;
use bytes::Bytes;
use slab::Slab;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_machine::mutant;
use trunkline_machine::{Runtime, Waker};
use trunkline_verbs::fork::Process;
use trunkline_verbs::{
    Access, IoAddress, Lkey, Memory, MemoryRegion, ProtectionDomain, RemoteAddress, Rkey, Sge, VerbsError,
    headroom,
};

/// Smallest size class.
const SMALLEST: usize = 32 * 1024;
/// Maximum number of freed bytes that a pool keeps.
const KEPT_BYTES: usize = 128 << 20;

/// Maximum number of concurrent READs into a block.
pub(crate) const MOST_WRITING: usize = 8;

/// The reason why a block or a registration is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// A limit or the machine's memory is exhausted, or the device is away. A later attempt may succeed.
    Wait,
    /// The device refuses to register the memory.
    Refused(VerbsError),
}

/// Returns the size class of a block of `length` bytes, which is at least [`SMALLEST`]. There are four classes per
/// power of two, so a larger block wastes at most a fifth.
fn class_of(length: usize) -> usize {
    let length = length.max(SMALLEST);
    let step = (length.checked_next_power_of_two().unwrap_or(usize::MAX) / 8).max(1);
    length.div_ceil(step).saturating_mul(step)
}

#[derive(Debug)]
struct Chunk {
    memory: Arc<Memory>,
    registration: Registration,
    class: usize,
}

/// Registration of a region that the pool keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registration {
    /// Generation of the device, which is the number of earlier devices of the pool.
    generation: u64,
    /// Index in the pool's table.
    at: usize,
    /// Address of the first byte for the device and for peers. It does not depend on the address in this
    /// process.
    start: IoAddress,
    lkey: Lkey,
    rkey: Rkey,
}

impl Registration {
    /// Returns the address at which peers see the first byte.
    pub(super) fn remote_address(&self) -> RemoteAddress {
        RemoteAddress { address: self.start, rkey: self.rkey }
    }
}

/// Unused memory. It is still registered unless peers could READ it.
#[derive(Debug)]
struct Spare {
    memory: Arc<Memory>,
    registration: Option<Registration>,
}

#[derive(Debug)]
struct Blocks {
    /// `None` while the device is away.
    pd: Option<Arc<dyn ProtectionDomain>>,
    /// Number of devices removed so far.
    generation: u64,
    regions: Slab<Arc<dyn MemoryRegion>>,
    in_use: usize,
    /// Share of the budget to which memory in use for peers is charged.
    share: Share,
    cached_bytes: usize,
    cached: BTreeMap<usize, Vec<Spare>>,
}

/// Wakers of pollers that wait for memory of a pool or of the machine.
type Waiting = Arc<Mutex<Vec<Waker>>>;

impl Blocks {
    /// Subtracts bytes that are no longer in use.
    fn discharge(&mut self, bytes: usize, peer: Option<PeerKey>) {
        self.in_use -= bytes;
        if let Some(peer) = peer {
            self.share.put_back(peer, bytes);
            if self.share.used_by(peer) == 0 {
                self.share.leave(peer);
            }
        }
    }

    /// Removes a region, unless it was removed with its device.
    fn remove(&mut self, registration: Registration) -> Option<Arc<dyn MemoryRegion>> {
        let known = registration.generation == self.generation;
        known.then(|| self.regions.try_remove(registration.at)).flatten()
    }
}

/// Pool of blocks, with limits per peer, per host and in total.
#[derive(Debug)]
pub(crate) struct BlockPool {
    access: Access,
    /// Maximum number of freed bytes that the pool keeps.
    kept_bytes: usize,
    budget: Arc<Budget>,
    runtime: Runtime,
    /// Process whose memory is registered.
    process: Process,
    state: Mutex<Blocks>,
    /// Wakers that the pools of a node share, since memory freed by one pool may serve waiters of another. May be
    /// locked while the state is locked, but not the reverse.
    waiting: Waiting,
}

impl BlockPool {
    /// Creates a pool for a budget with one poller. The pool has no memory before [`BlockPool::open`].
    pub(crate) fn new(access: Access, budget: Arc<Budget>, runtime: Runtime) -> Arc<Self> {
        Self::with(access, budget, runtime, Waiting::default())
    }

    /// Creates another pool of the same node.
    pub(crate) fn sibling(&self, access: Access, name: &'static str, limit: Limit) -> Arc<Self> {
        let budget = self.budget.sibling(name, limit);
        Self::with(access, budget, self.runtime.clone(), Arc::clone(&self.waiting))
    }

    fn with(access: Access, budget: Arc<Budget>, runtime: Runtime, waiting: Waiting) -> Arc<Self> {
        let share = Share::new(&budget, 0);
        // A block kept by one pool is not available to the others.
        let kept_bytes = if headroom::is_limited() { 0 } else { KEPT_BYTES.min(share.limit().in_all / 2) };
        let state = Blocks {
            pd: None,
            generation: 0,
            regions: Slab::new(),
            in_use: 0,
            share,
            cached_bytes: 0,
            cached: BTreeMap::new(),
        };
        let process = Process::current();
        Arc::new(Self { access, kept_bytes, budget, runtime, process, state: Mutex::new(state), waiting })
    }

    /// Opens the pool. Its memory is registered with `pd`.
    pub(crate) fn open(&self, pd: Arc<dyn ProtectionDomain>) {
        self.lock().pd = Some(pd);
    }

    /// Takes a block of `length` bytes, for a peer's message or, without a limit, for the application. If the pool is
    /// exhausted, `waiting` is woken when a block is returned.
    pub(crate) fn take(
        self: &Arc<Self>,
        length: usize,
        peer: Option<PeerKey>,
        waiting: Option<&Waker>,
    ) -> Result<Block, NotNow> {
        let class = class_of(length);
        let cached = {
            let mut state = self.lock();
            if peer.is_some_and(|peer| state.share.take(peer, length).is_err()) {
                // Register before the lock is released; otherwise a block returned now would not wake the
                // waiter.
                self.awaits(waiting);
                return Err(NotNow::Wait);
            }
            state.in_use += length;
            let cached = state.cached.get_mut(&class).and_then(Vec::pop);
            if cached.is_some() {
                state.cached_bytes -= class;
            }
            cached
        };
        let chunk = match cached {
            Some(spare) => self.reuse(spare, class, length),
            None => self.make(class, length),
        };
        let chunk = chunk.or_else(|_| {
            // Try again, since a block may have been returned before this waker was registered.
            self.awaits(waiting);
            self.make(class, length)
        });
        let chunk = chunk.inspect_err(|_| self.lock().discharge(length, peer))?;
        Ok(Block { chunk: Some(chunk), pool: Arc::clone(self), length, peer, writing: ArrayVec::new() })
    }

    /// Returns true if at most half of a peer's limit, reduced by a block of `largest` bytes, is in use.
    pub(crate) fn has_spare(&self, largest: usize) -> bool {
        let state = self.lock();
        state.in_use <= state.share.limit().per_peer.saturating_sub(largest) / 2
    }

    /// Returns the memory in use, and the registered memory.
    pub(crate) fn ledger(&self) -> MemoryLedger {
        let state = self.lock();
        let kept = state.cached.values().flatten().filter(|spare| spare.registration.is_some());
        MemoryLedger { bytes: state.in_use, regions: (state.regions.len(), kept.count()) }
    }

    pub(crate) fn report(&self) -> BudgetReport {
        self.budget.report()
    }

    /// Closes the pool when the device is removed or the node ends. All keys become invalid, and the device
    /// is released.
    pub(crate) fn close(&self) {
        let (pd, regions, cached) = {
            let mut state = self.lock();
            state.generation += 1;
            state.cached_bytes = 0;
            (state.pd.take(), std::mem::take(&mut state.regions), std::mem::take(&mut state.cached))
        };
        drop((cached, regions, pd));
    }

    /// Registers a poller to be woken when a block is returned.
    fn awaits(&self, waker: Option<&Waker>) {
        let Some(waker) = waker else { return };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|other| other.wakes_same(waker)) {
            waiting.push(waker.clone());
        }
    }

    fn make(&self, class: usize, length: usize) -> Result<Chunk, NotNow> {
        if !self.access.contains(Access::REMOTE_READ) {
            // A request must leave memory for a reply of its size. Otherwise requests could take all memory
            // and wait forever for replies.
            headroom::check(class.saturating_mul(2)).map_err(|_| NotNow::Wait)?;
        }
        let memory = Memory::zeroed(class).map_err(|_| NotNow::Wait)?;
        self.register_chunk(memory, class, length)
    }

    fn reuse(&self, spare: Spare, class: usize, length: usize) -> Result<Chunk, NotNow> {
        let Spare { memory, registration } = spare;
        match registration {
            Some(registration) => Ok(Chunk { memory, registration, class }),
            None => self.register_chunk(memory, class, length),
        }
    }

    /// Registers the whole memory if only the local device accesses it, since it then stays registered. Otherwise
    /// registers only the part in use, since the rest may contain bytes of other messages.
    fn register_chunk(&self, memory: Arc<Memory>, class: usize, length: usize) -> Result<Chunk, NotNow> {
        let used = if self.access.contains(Access::REMOTE_READ) { length.max(1) } else { class };
        let registration = self.register(&memory, 0..used)?;
        Ok(Chunk { memory, registration, class })
    }

    /// Registers a range of memory, until [`BlockPool::deregister`].
    pub(super) fn register(&self, memory: &Arc<Memory>, range: Range<usize>) -> Result<Registration, NotNow> {
        let (pd, generation) = {
            let state = self.lock();
            (state.pd.clone().ok_or(NotNow::Wait)?, state.generation)
        };
        let first = IoAddress::from_random_like(self.runtime.random(), memory.address(range.start));
        let (range, start) = if mutant!(key_covers_the_neighbours) {
            (0..memory.len(), IoAddress(first.0 - range.start as u64))
        } else {
            (range, first)
        };
        let region = pd.register_range(Arc::clone(memory), range, start, self.access);
        let region = region.map_err(|cause| match cause {
            // The device is being removed.
            VerbsError::Gone | VerbsError::NoDevice => NotNow::Wait,
            cause => NotNow::Refused(cause),
        })?;
        let (lkey, rkey) = (region.lkey(), region.rkey());
        let mut state = self.lock();
        if state.generation != generation {
            // The device was removed in the meantime.
            return Err(NotNow::Wait);
        }
        let at = state.regions.insert(region);
        Ok(Registration { generation, at, start: first, lkey, rkey })
    }

    /// Returns true in a forked child, where the registrations belong to the parent, and a thread of the parent may
    /// have left a lock held.
    pub(super) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Ends a registration, which makes its keys invalid.
    pub(super) fn deregister(&self, registration: Registration) {
        if !self.is_forked() && !mutant!(key_outlives_its_message) {
            let region = self.lock().remove(registration);
            drop(region);
        }
    }

    fn release(&self, chunk: Chunk, length: usize, peer: Option<PeerKey>, reusable: bool) {
        let Chunk { memory, registration, class } = chunk;
        let stays = reusable && !self.access.contains(Access::REMOTE_READ);
        let region =
            if stays || mutant!(key_outlives_its_message) { None } else { self.lock().remove(registration) };
        // Dropping the region ends the device's access. The memory is reused only after that.
        drop(region);
        let surplus = {
            let mut state = self.lock();
            if !mutant!(memory_is_not_returned) {
                state.discharge(length, peer);
            }
            let stays = stays && registration.generation == state.generation;
            let spare = Spare { memory, registration: Some(registration).filter(|_| stays) };
            let open = state.pd.is_some();
            let keep = open && reusable && state.cached_bytes + class <= self.kept_bytes;
            if keep {
                state.cached_bytes += class;
                state.cached.entry(class).or_default().push(spare);
                None
            } else {
                let region = spare.registration.and_then(|kept| state.remove(kept));
                Some((region, spare))
            }
        };
        drop(surplus);
        let woken = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in woken {
            waker.wake();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Blocks> {
        // The code under the lock does not panic, and the counters would stay correct if it did.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registered memory that returns to its pool when dropped.
pub(crate) struct Block {
    /// `Some` until the block is dropped.
    chunk: Option<Chunk>,
    pool: Arc<BlockPool>,
    length: usize,
    /// Peer of the message.
    peer: Option<PeerKey>,
    /// Ranges that READs in progress write to, in the order of the READs.
    writing: ArrayVec<Range<usize>, MOST_WRITING>,
}

impl Block {
    /// Returns the number of usable bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the start of the memory, as the device and the peer see it.
    pub(crate) fn remote_address(&self) -> RemoteAddress {
        self.chunk.as_ref().map_or_else(RemoteAddress::default, |chunk| chunk.registration.remote_address())
    }

    /// Returns the block's memory and the pool that registers it.
    pub(super) fn parts(&self) -> Option<(Arc<Memory>, Arc<BlockPool>)> {
        self.chunk.as_ref().map(|chunk| (Arc::clone(&chunk.memory), Arc::clone(&self.pool)))
    }

    /// Returns the address of the memory in this process, which identifies the block.
    pub(super) fn local_address(&self) -> u64 {
        self.chunk.as_ref().map_or(0, |chunk| chunk.memory.address(0).0)
    }

    /// Returns true in a forked child.
    pub(super) fn is_forked(&self) -> bool {
        self.pool.is_forked()
    }

    /// Returns true if the block's keys belong to the current device.
    pub(super) fn is_registered(&self) -> bool {
        let generation = self.pool.lock().generation;
        self.chunk.as_ref().is_some_and(|chunk| chunk.registration.generation == generation)
    }

    /// Copies bytes into the block. Bytes that do not fit are a bug in the caller, and are not written.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= self.length);
        if let Some(chunk) = &self.chunk {
            let written = chunk.memory.write(offset, bytes);
            debug_assert!(written.is_ok());
        }
    }

    /// Returns a range for the device to write to. Each range needs a call of [`Block::written`] before the
    /// block can be read.
    pub(crate) fn writable(&mut self, offset: usize, length: u32) -> Option<Sge> {
        let chunk = self.chunk.as_ref()?;
        let bytes = usize::try_from(length).ok()?;
        chunk.memory.offset_of(chunk.memory.address(offset), bytes).ok()?;
        self.writing.try_push(offset..offset + bytes).ok()?;
        let address = IoAddress(chunk.registration.start.0.wrapping_add(offset as u64));
        Some(Sge { address, length, lkey: chunk.registration.lkey })
    }

    /// Records that the device has completed the oldest write to the block.
    pub(crate) fn written(&mut self) {
        self.writing.pop_at(0);
    }

    /// Changes bytes in place. Returns `None` if the device may still write to them, or if peers may READ them.
    pub(crate) fn change<T>(
        &mut self,
        range: Range<usize>,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let is_written = self.writing.iter().any(|other| other.start < range.end && range.start < other.end);
        if is_written || self.pool.access.contains(Access::REMOTE_READ) {
            return None;
        }
        let chunk = self.chunk.as_mut()?;
        // SAFETY: the device writes only to the ranges in `writing`, and peers have no key. In this process, the block
        // is borrowed exclusively, and `freeze`, which lends it, consumes it.
        let bytes = unsafe { chunk.memory.slice_mut(range.start, range.len()) }.ok()?;
        Some(change(bytes))
    }

    /// Returns the whole block as shared bytes; `None` while the device may still write to it.
    pub(crate) fn freeze(self) -> Option<Bytes> {
        self.writing.is_empty().then(|| Bytes::from_owner(Frozen(self)))
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// The device must not be writing to the block.
    pub(super) unsafe fn slice(&self) -> &[u8] {
        // SAFETY: the caller guarantees that the device does not write. Other writers use `&mut self` or `write`, which
        // the owner no longer calls once it lends slices.
        let slice = self.chunk.as_ref().and_then(|chunk| unsafe { chunk.memory.slice(0, self.length) }.ok());
        slice.unwrap_or_default()
    }

    /// Returns the bytes, exclusively.
    ///
    /// # Safety
    /// The block must not be accessible to the device or a peer.
    pub(super) unsafe fn slice_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        // SAFETY: the caller guarantees that the block is accessible only through `&mut self`.
        let slice = self.chunk.as_mut().and_then(|chunk| unsafe { chunk.memory.slice_mut(0, length) }.ok());
        slice.unwrap_or_default()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take().filter(|_| !self.is_forked()) {
            // Memory that a READ may still be writing to is not reused. Dropping its region ends the READ.
            self.pool.release(chunk, self.length, self.peer, self.writing.is_empty());
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("bytes", &self.length).field("writing", &self.writing).finish()
    }
}

/// A block without writers.
struct Frozen(Block);

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `freeze` created this value when all writes of the device had completed, and consumed the
        // only handle through which more writes could be started.
        unsafe { self.0.slice() }
    }
}

/// Creates a pool on a software device, for tests.
#[cfg(test)]
pub(crate) fn pool() -> (Arc<BlockPool>, Arc<trunkline_softrdma::device::SoftDevice>) {
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_verbs::Device as _;
    let link = LinkChoice::InProcess(Arc::default());
    let addresses = vec!["127.0.0.1".parse().unwrap()];
    let device = SoftDevice::open(SoftOptions { link, addresses, ..SoftOptions::default() }).unwrap();
    let limit = Limit { per_peer: 1 << 20, in_all: 1 << 20 };
    let budget = Budget::new("bytes", limit, 1, &Arc::default());
    let pool = BlockPool::new(Access::REMOTE_READ, budget, Runtime::default());
    pool.open(device.alloc_pd().unwrap());
    (pool, device)
}

#[cfg(test)]
mod tests {
    use super::super::registered::{RegisteredBuffer, Registry};
    use super::*;
    use std::cell::RefCell;
    use trunkline_testkit::{in_forked_child, runs_alone};

    #[test]
    fn block_in_forked_child_does_not_lock_its_pool() {
        if !runs_alone(module_path!(), "block_in_forked_child_does_not_lock_its_pool") {
            return;
        }
        let (pool, _device) = pool();
        let blocks =
            RefCell::new(vec![pool.take(100, None, None).unwrap(), pool.take(100, None, None).unwrap()]);
        let registry = Arc::<Registry>::default();
        // A thread that does not exist in the child may have left the lock held.
        let state = pool.lock();
        in_forked_child(|| {
            drop(blocks.borrow_mut().pop());
            let buffer = RegisteredBuffer::new(blocks.borrow_mut().pop().unwrap(), Arc::clone(&registry));
            drop(buffer.freeze());
        });
        drop(state);
        assert_eq!(pool.ledger().regions.0, 2, "those of the parent stay");
    }

    #[test]
    fn classes_waste_at_most_fifth() {
        for length in [1, SMALLEST, SMALLEST + 1, 1 << 20, (1 << 26) + 65_536, 5_000_001, usize::MAX] {
            let class = class_of(length);
            assert!(class >= length);
            assert!(class <= SMALLEST || class - length <= length / 4, "{length} in {class}");
        }
    }
}
