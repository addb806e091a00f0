//! Memory regions.
#![forbid(unsafe_code)]

use crate::device::core::Core;
use crate::device::tables::keys::PdNumber;
use crate::device::threads::signal::lock;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use trunkline_verbs::{Access, IoAddress, Lkey, Memory, MemoryRegion, Rkey, VerbsError};

/// A registration: one key for local and remote access. `U` is the region's use of the protection domain,
/// which ends with the region.
#[derive(Debug)]
pub(in crate::device) struct SoftMr<U: Debug + Send + Sync + 'static> {
    core: Arc<Core>,
    key: u32,
    start: IoAddress,
    memory: Arc<Memory>,
    access: Access,
    /// `None` once destroyed.
    domain_use: Mutex<Option<U>>,
}

impl<U: Debug + Send + Sync + 'static> SoftMr<U> {
    pub(in crate::device) fn new(
        core: Arc<Core>,
        pd: PdNumber,
        domain_use: U,
        (memory, range): (Arc<Memory>, Range<usize>),
        start: IoAddress,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let key = core.tables().keys.insert((Arc::clone(&memory), range), start, pd, access)?;
        Ok(Self { core, key, start, memory, access, domain_use: Mutex::new(Some(domain_use)) })
    }
}

impl<U: Debug + Send + Sync + 'static> MemoryRegion for SoftMr<U> {
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
        // Returns once no copy is in progress.
        let removed = self.core.tables().keys.remove(self.key);
        drop(domain_use);
        removed
    }
}

impl<U: Debug + Send + Sync + 'static> Drop for SoftMr<U> {
    fn drop(&mut self) {
        let _destroyed_before = self.destroy();
    }
}
