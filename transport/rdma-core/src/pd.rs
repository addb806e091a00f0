//! Protection domains.

use crate::context::Opened;
use crate::error::{Doing, check, last};
use crate::handle::{Handle, dropped};
use crate::mr::Mr;
use rdma_sys::{ibv_alloc_pd, ibv_dealloc_pd, ibv_pd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use trunkline_verbs::{Access, IoAddress, Memory, MemoryRegion, ProtectionDomain, VerbsError};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    handle: Handle<ibv_pd>,
    opened: Arc<Opened>,
    /// Regions lean on their domain, so it needs itself as an `Arc`.
    this: Weak<Self>,
}

impl Pd {
    pub(crate) fn new(opened: Arc<Opened>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { ibv_alloc_pd(opened.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| last(Doing::Allocate))?;
        Ok(Arc::new_cyclic(|this| Self { handle: Handle::new(raw), opened, this: Weak::clone(this) }))
    }

    /// The C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_pd> {
        &self.handle
    }

    /// Whose it is.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

impl ProtectionDomain for Pd {
    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let start = memory.address(0);
        self.register_at(memory, start, access)
    }

    fn register_at(
        &self,
        memory: Arc<Memory>,
        start: IoAddress,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let this = self.this.upgrade().ok_or(VerbsError::Gone)?;
        Ok(Arc::new(Mr::new(this, memory, start, access)?))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.handle.destroy(
            // SAFETY: the handle lends a live domain, and takes it as gone when this succeeds.
            |pd| unsafe { ibv_dealloc_pd(pd) },
            |errno| check_destroy(errno, "a memory region, an SRQ or a QP belongs to this protection domain"),
        )
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        dropped("a protection domain", self.destroy());
    }
}

/// The error of a destruction that failed.
pub(crate) fn check_destroy(answer: i32, why_busy: &'static str) -> VerbsError {
    check(Doing::Destroy(why_busy), answer).err().unwrap_or(VerbsError::Gone)
}
