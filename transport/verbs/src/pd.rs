//! Protection domains.

use crate::{Access, IoAddress, Memory, MemoryRegion, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A protection domain: queues can access only the regions of their own domain.
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

    /// Registers `memory` so that its first byte has the address `start` for work requests and peers
    /// (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`]; [`VerbsError::Invalid`] when the range would wrap.
    fn register_at(
        &self,
        memory: Arc<Memory>,
        start: IoAddress,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError>;

    /// Deallocates the domain.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a region, an SRQ or a QP belongs to it (contract I3).
    fn destroy(&self) -> Result<(), VerbsError>;
}
