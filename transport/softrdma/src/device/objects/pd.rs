//! Protection domains and their memory regions.
#![forbid(unsafe_code)]

use crate::device::core::Core;
use crate::device::tables::keys::PdNumber;
use crate::device::tables::use_count::{Counted, UseCount, UseGuard};
use crate::device::threads::signal::lock;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use trunkline_verbs::{Access, IoAddress, Lkey, Memory, MemoryRegion, ProtectionDomain, Rkey, VerbsError};

/// A protection domain, identified by the number that its regions and queues have in common.
#[derive(Debug)]
pub(in crate::device) struct SoftPd {
    core: Arc<Core>,
    number: PdNumber,
    use_count: UseCount,
    /// Reference to this PD, since regions hold their domain as an `Arc`.
    this: Weak<Self>,
}

impl SoftPd {
    pub(in crate::device) fn new(core: Arc<Core>, number: PdNumber) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { core, number, use_count: UseCount::default(), this: Weak::clone(this) })
    }

    /// Returns the PD's number.
    pub(in crate::device) fn number(&self) -> PdNumber {
        self.number
    }

    /// Returns the PD's device.
    pub(in crate::device) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Counted for SoftPd {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}

impl ProtectionDomain for SoftPd {
    fn register_range(
        &self,
        memory: Arc<Memory>,
        range: Range<usize>,
        start: IoAddress,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        if !memory.contains(&range) {
            return Err(VerbsError::Invalid("the range is not inside the memory"));
        }
        if start.0.checked_add(range.len() as u64).is_none() {
            return Err(VerbsError::Invalid("the region would wrap around the end of addresses"));
        }
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !access.contains(Access::LOCAL_WRITE)
        {
            return Err(VerbsError::Invalid("remote write and atomic rights need LOCAL_WRITE too"));
        }
        let guard = UseGuard::new(self.this.upgrade().ok_or(VerbsError::Gone)?)?;
        Ok(Arc::new(SoftMr::new(Arc::clone(&self.core), guard, memory, range, start, access)?))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.use_count.retire("a memory region, an SRQ or a QP belongs to this protection domain")
    }
}

/// A memory region, with one key for local and remote access.
#[derive(Debug)]
struct SoftMr {
    core: Arc<Core>,
    key: u32,
    start: IoAddress,
    memory: Arc<Memory>,
    access: Access,
    /// `None` once the region is destroyed.
    domain_use: Mutex<Option<UseGuard<SoftPd>>>,
}

impl SoftMr {
    fn new(
        core: Arc<Core>,
        domain_use: UseGuard<SoftPd>,
        memory: Arc<Memory>,
        range: Range<usize>,
        start: IoAddress,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let key =
            core.tables().keys.insert((Arc::clone(&memory), range), start, domain_use.number, access)?;
        Ok(Self { core, key, start, memory, access, domain_use: Mutex::new(Some(domain_use)) })
    }
}

impl MemoryRegion for SoftMr {
    fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }

    fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }

    fn address(&self, offset: usize) -> IoAddress {
        self.start.plus(offset as u64)
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn access(&self) -> Access {
        self.access
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        let domain_use = lock(&self.domain_use).take().ok_or(VerbsError::Gone)?;
        // `remove` waits until copies from and to the memory have ended.
        let removed = self.core.tables().keys.remove(self.key);
        drop(domain_use);
        removed
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        let _destroyed_before = self.destroy();
    }
}
