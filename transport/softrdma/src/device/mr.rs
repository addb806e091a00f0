//! Memory regions.
#![forbid(unsafe_code)]

use super::core::Core;
use super::pd::SoftPd;
use super::signal::lock;
use super::use_count::UseGuard;
use std::sync::{Arc, Mutex};
use trunkline_verbs::{Access, IoAddress, Lkey, Memory, MemoryRegion, Rkey, VerbsError};

/// A registration: one key for local and remote work.
#[derive(Debug)]
pub(super) struct SoftMr {
    core: Arc<Core>,
    key: u32,
    start: IoAddress,
    memory: Arc<Memory>,
    access: Access,
    /// `None` once destroyed.
    pd: Mutex<Option<UseGuard<SoftPd>>>,
}

impl SoftMr {
    pub(super) fn new(
        core: Arc<Core>,
        pd: UseGuard<SoftPd>,
        memory: Arc<Memory>,
        start: IoAddress,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let mut card = core.card();
        card.present()?;
        let key = card.keys.insert(Arc::clone(&memory), start, pd.number(), access)?;
        drop(card);
        Ok(Self { core, key, start, memory, access, pd: Mutex::new(Some(pd)) })
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
        let guard = lock(&self.pd).take().ok_or(VerbsError::Gone)?;
        // The card copies under its lock only, so once it is ours no copy is under way.
        let removed = self.core.card().keys.remove(self.key);
        drop(guard);
        removed
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        let _destroyed_before = self.destroy();
    }
}
