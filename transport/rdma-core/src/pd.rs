//! Protection domains as C objects. `registration.rs` implements the trait for them.

use crate::context::Opened;
use crate::error::{Doing, check_destroy, last};
use crate::handle::{Handle, dropped};
use rdma_sys::{ibv_alloc_pd, ibv_dealloc_pd, ibv_pd};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use trunkline_verbs::VerbsError;

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    handle: Handle<ibv_pd>,
    opened: Arc<Opened>,
    /// A reference for regions, which hold their domain. `register_range` receives only `&self`.
    this: Weak<Self>,
}

impl Pd {
    pub(crate) fn new(opened: Arc<Opened>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: `opened` keeps the context open.
        let raw = unsafe { ibv_alloc_pd(opened.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| last(Doing::Allocate))?;
        // SAFETY: libibverbs has just created it, and only this value destroys it.
        let handle = unsafe { Handle::new(raw) };
        Ok(Arc::new_cyclic(|this| Self { handle, opened, this: Weak::clone(this) }))
    }

    /// Returns the C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_pd> {
        &self.handle
    }

    /// Returns the opening to which the domain belongs.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// Returns a reference for an object that is created in this domain, or `None` while the domain is being dropped.
    pub(crate) fn share(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// Deallocates the C object. Later calls return [`VerbsError::Gone`].
    pub(crate) fn deallocate(&self) -> Result<(), VerbsError> {
        self.handle.destroy(
            // SAFETY: the domain is `Live`. If the call succeeds, `Handle::destroy` clears the pointer, so
            // the domain is not used afterwards.
            |pd| unsafe { ibv_dealloc_pd(pd.raw()) },
            |errno| check_destroy(errno, "a memory region, an SRQ or a QP belongs to this protection domain"),
        )
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        dropped("a protection domain", self.deallocate());
    }
}
