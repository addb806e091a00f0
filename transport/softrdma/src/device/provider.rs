//! The provider, which lists the devices that a program can open.
#![forbid(unsafe_code)]

use super::DEVICE_NAME;
use super::options::{OpenError, SoftOptions};
use super::soft_device::SoftDevice;
use super::tables::gid_table::GidTable;
use crate::host::AwayFiles;
use std::sync::Arc;
use trunkline_verbs::{Device, DeviceInfo, Provider, VerbsError};

/// Provider of one software device, `trunkline0`, which is configured by environment variables.
#[derive(Debug, Clone, Copy, Default)]
pub struct SoftProvider;

impl Provider for SoftProvider {
    fn name(&self) -> &'static str {
        "softrdma"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError> {
        let options = SoftOptions::from_env()?;
        let first = match options.addresses.first() {
            Some(first) => Some(*first),
            None => GidTable::of_host()?.addresses().first().copied(),
        };
        if options.removable {
            let addresses = match options.addresses.is_empty() {
                true => GidTable::of_host()?.addresses().to_vec(),
                false => options.addresses.clone(),
            };
            let files = AwayFiles::new(options.runtime_directory.as_deref(), &addresses);
            if files.map_err(OpenError::from)?.any() {
                return Ok(Vec::new());
            }
        }
        Ok(vec![DeviceInfo { name: DEVICE_NAME.to_owned(), guid: SoftDevice::guid_of(first) }])
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError> {
        if name != DEVICE_NAME {
            return Err(VerbsError::NoDevice);
        }
        let options = SoftOptions::from_env()?;
        let device = SoftDevice::open(options)
            .inspect_err(|error| tracing::error!(device = name, %error, "software device not opened"))?;
        Ok(device)
    }
}
