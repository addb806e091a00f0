//! Registration of memory in a protection domain.

use crate::mr::Mr;
use crate::pd::Pd;
use std::ops::Range;
use std::sync::Arc;
use trunkline_verbs::{Access, IoAddress, Memory, MemoryRegion, ProtectionDomain, VerbsError};

impl ProtectionDomain for Pd {
    fn register_range(
        &self,
        memory: Arc<Memory>,
        range: Range<usize>,
        start: IoAddress,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let pd = self.share().ok_or(VerbsError::Gone)?;
        Ok(Arc::new(Mr::new(pd, (memory, range), start, access)?))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.deallocate()
    }
}
