//! Memory regions.

use crate::error::{Doing, last};
use crate::handle::{Handle, dropped};
use crate::pd::{Pd, check_destroy};
use rdma_sys::{ibv_dereg_mr, ibv_mr, ibv_reg_mr, ibv_reg_mr_iova};
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use trunkline_verbs::{Access, IoAddress, Lkey, Memory, MemoryRegion, Rkey, VerbsError};

/// A registration.
#[derive(Debug)]
pub(crate) struct Mr {
    handle: Handle<ibv_mr>,
    lkey: Lkey,
    rkey: Rkey,
    access: Access,
    /// Pinned by the kernel; freed after the registration, by the order of the fields.
    memory: Arc<Memory>,
    _pd: Arc<Pd>,
}

impl Mr {
    pub(crate) fn new(
        pd: Arc<Pd>,
        memory: Arc<Memory>,
        start: IoAddress,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::Invalid("remote write and atomic rights need LOCAL_WRITE"));
        }
        let length = memory.len() as u64;
        if start.0.checked_add(length).is_none() {
            return Err(VerbsError::Invalid("the range of addresses would wrap"));
        }
        let own = memory.address(0);
        let place =
            usize::try_from(own.0).map_err(|_| VerbsError::Invalid("not an address of this process"))?;
        let place = with_exposed_provenance_mut::<c_void>(place);
        let flags = flags(access);
        let raw = pd.handle().with(|pd| {
            if start == own {
                // SAFETY: the domain lives, and the memory stays allocated as long as this region,
                // which holds it.
                unsafe { ibv_reg_mr(pd, place, memory.len(), flags) }
            } else {
                // SAFETY: as above.
                unsafe { ibv_reg_mr_iova(pd, place, memory.len(), start.0, flags) }
            }
        })?;
        let raw = NonNull::new(raw).ok_or_else(|| last(Doing::Register))?;
        // SAFETY: libibverbs has just filled the keys in.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Self { handle: Handle::new(raw), lkey: Lkey(lkey), rkey: Rkey(rkey), access, memory, _pd: pd })
    }
}

/// The bits of `ibv_access_flags`, which are those of [`Access`].
pub(crate) fn flags(access: Access) -> c_int {
    c_int::try_from(access.bits()).unwrap_or(0)
}

impl MemoryRegion for Mr {
    fn lkey(&self) -> Lkey {
        self.lkey
    }

    fn rkey(&self) -> Rkey {
        self.rkey
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn access(&self) -> Access {
        self.access
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.handle.destroy(
            // SAFETY: the handle lends a live region, and takes it as gone when this succeeds.
            |mr| unsafe { ibv_dereg_mr(mr) },
            |errno| check_destroy(errno, "a memory window is bound to this region"),
        )
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // A region that could not be given up keeps its memory: the device may still write there.
        let result = self.destroy();
        if !matches!(result, Ok(()) | Err(VerbsError::Gone)) {
            std::mem::forget(Arc::clone(&self.memory));
        }
        dropped("a memory region", result);
    }
}
