//! Protection domains.
#![forbid(unsafe_code)]

use super::mr::SoftMr;
use crate::device::core::Core;
use crate::device::tables::keys::PdNumber;
use crate::device::tables::use_count::{Counted, UseCount, UseGuard};
use std::ops::Range;
use std::sync::{Arc, Weak};
use trunkline_verbs::{Access, IoAddress, Memory, MemoryRegion, ProtectionDomain, VerbsError};

/// A protection domain: a number that regions and queues share.
#[derive(Debug)]
pub(in crate::device) struct SoftPd {
    core: Arc<Core>,
    number: PdNumber,
    use_count: UseCount,
    /// This PD, since regions hold their domain as an `Arc`.
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
        Ok(Arc::new(SoftMr::new(Arc::clone(&self.core), self.number, guard, (memory, range), start, access)?))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.use_count.retire("a memory region, an SRQ or a QP belongs to this protection domain")
    }
}
