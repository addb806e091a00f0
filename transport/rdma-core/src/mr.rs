//! Memory regions, which keep their memory allocated until they are deregistered.

use crate::error::{Doing, check_destroy, last};
use crate::handle::{Handle, dropped};
use crate::pd::Pd;
use rdma_sys::{ibv_dereg_mr, ibv_mr, ibv_reg_mr, ibv_reg_mr_iova};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use trunkline_verbs::{Access, IoAddress, Lkey, Memory, MemoryRegion, Rkey, VerbsError};

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    handle: Handle<ibv_mr>,
    lkey: Lkey,
    rkey: Rkey,
    access: Access,
    start: IoAddress,
    /// The memory that contains the region's range, which the kernel pins. The destructor deregisters the region before the
    /// fields are dropped.
    memory: Arc<Memory>,
    _pd: Arc<Pd>,
}

impl Mr {
    pub(crate) fn new(
        pd: Arc<Pd>,
        (memory, range): (Arc<Memory>, Range<usize>),
        start: IoAddress,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::Invalid("remote write and atomic rights need LOCAL_WRITE"));
        }
        if !memory.contains(&range) {
            return Err(VerbsError::Invalid("the range is not inside the memory"));
        }
        let length = range.len();
        if start.0.checked_add(length as u64).is_none() {
            return Err(VerbsError::Invalid("the range of addresses would wrap"));
        }
        let own = memory.address(range.start);
        let place =
            usize::try_from(own.0).map_err(|_| VerbsError::Invalid("not an address of this process"))?;
        let place = with_exposed_provenance_mut::<c_void>(place);
        let flags = flags(access);
        let raw = pd.handle().with(|pd| {
            if start == own {
                // SAFETY: the PD is `Live`, `contains` has found the range inside the memory, and the region holds
                // the memory until it is deregistered.
                unsafe { ibv_reg_mr(pd.raw(), place, length, flags) }
            } else {
                // SAFETY: the PD is `Live`, `contains` has found the range inside the memory, and the region holds
                // the memory until it is deregistered.
                unsafe { ibv_reg_mr_iova(pd.raw(), place, length, start.0, flags) }
            }
        })?;
        let raw = NonNull::new(raw).ok_or_else(|| last(Doing::Register))?;
        // SAFETY: libibverbs has just created the region, with its keys.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        // SAFETY: libibverbs has just created it, and only this value destroys it.
        let handle = unsafe { Handle::new(raw) };
        Ok(Self { handle, lkey: Lkey(lkey), rkey: Rkey(rkey), access, start, memory, _pd: pd })
    }
}

/// Returns the bits of `ibv_access_flags`, which equal the bits of [`Access`].
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
        self.handle.destroy(
            // SAFETY: the region is `Live`. If the call succeeds, `Handle::destroy` clears the pointer, so
            // the region is not used afterwards.
            |mr| unsafe { ibv_dereg_mr(mr.raw()) },
            |errno| check_destroy(errno, "a memory window is bound to this region"),
        )
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // If the region cannot be deregistered, its memory is leaked, because the device may still write to it.
        let result = self.destroy();
        if !matches!(result, Ok(()) | Err(VerbsError::Gone)) {
            std::mem::forget(Arc::clone(&self.memory));
        }
        dropped("a memory region", result);
    }
}
