//! The provider, which lists and opens the devices of libibverbs.

use crate::device::RdmaDevice;
use crate::listing;
use std::sync::Arc;
use trunkline_verbs::{Device, DeviceInfo, Provider, VerbsError};

/// The provider of the kernel's RDMA devices, through libibverbs and librdmacm.
#[derive(Debug, Clone, Copy, Default)]
pub struct RdmaCore;

impl Provider for RdmaCore {
    fn name(&self) -> &'static str {
        "rdma-core"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        listing::devices()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        Ok(Arc::new(RdmaDevice::open(name)?))
    }
}
