//! Families of devices.

use crate::{Device, VerbsError};
use std::fmt::Debug;
use std::sync::Arc;

/// Properties of a device that are available before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the device (`mlx5_0`, `trunkline0`).
    pub name: String,
    /// Node GUID.
    pub guid: u64,
}

/// A family of RDMA devices, which is `rdma-core` for hardware, or `softrdma` for the software device of this project.
pub trait Provider: Send + Sync + Debug {
    /// Returns the family's name.
    fn name(&self) -> &'static str;

    /// Returns the devices that exist now.
    ///
    /// # Errors
    /// The error of the operating system.
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError>;

    /// Opens a device by name.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] if the name is unknown.
    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError>;
}
