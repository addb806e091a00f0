//! Protection domains.

use crate::{Access, IoAddress, Memory, MemoryRegion, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// A protection domain. Queues can access only the regions of their own domain.
pub trait ProtectionDomain: Any + Send + Sync + Debug {
    /// Registers all of `memory`, which stays allocated at least as long as the region.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for remote write or atomic rights without `LOCAL_WRITE`;
    /// [`VerbsError::OutOfResources`] when the table is full or memory cannot be pinned.
    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let start = memory.address(0);
        self.register_at(memory, start, access)
    }

    /// Registers all of `memory` so that its first byte has the address `start` for work requests and peers
    /// (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// Same as [`ProtectionDomain::register`]; [`VerbsError::Invalid`] when the range would wrap.
    fn register_at(
        &self,
        memory: Arc<Memory>,
        start: IoAddress,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let all = 0..memory.len();
        self.register_range(memory, all, start, access)
    }

    /// Registers the bytes of `range` in `memory`. `start` is the address of the first byte for work requests and peers. The
    /// keys do not give access to bytes outside the range. All of `memory` stays allocated at least as long as the region.
    /// Ranges of several regions may overlap.
    ///
    /// NICs register pages, so `start` must have the same offset in its page as the first byte has in this process
    /// ([`IoAddress::from_random_like`]).
    ///
    /// # Errors
    /// Same as [`ProtectionDomain::register_at`]; [`VerbsError::Invalid`] when the range is not inside the memory.
    fn register_range(
        &self,
        memory: Arc<Memory>,
        range: Range<usize>,
        start: IoAddress,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError>;

    /// Deallocates the domain.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a region, an SRQ or a QP belongs to it (contract I3).
    fn destroy(&self) -> Result<(), VerbsError>;
}
