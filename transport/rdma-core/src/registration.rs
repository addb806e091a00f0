//! What a program does with a protection domain: registering memory in it.

use crate::mr::Mr;
use crate::pd::Pd;
use std::sync::Arc;
use trunkline_verbs::{Access, IoAddress, Memory, MemoryRegion, ProtectionDomain, VerbsError};

impl ProtectionDomain for Pd {
    fn register_at(
        &self,
        memory: Arc<Memory>,
        start: IoAddress,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let pd = self.share().ok_or(VerbsError::Gone)?;
        Ok(Arc::new(Mr::new(pd, memory, start, access)?))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.deallocate()
    }
}
