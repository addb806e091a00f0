//! Families of devices.

use crate::{Device, VerbsError};
use std::fmt::Debug;
use std::sync::Arc;

/// What is known of a device before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name (`mlx5_0`, `trunkline0`).
    pub name: String,
    /// Node GUID.
    pub guid: u64,
}

/// A family of RDMA devices: `rdma-core` (hardware) or `softrdma` (ours).
pub trait Provider: Send + Sync + Debug {
    /// The family's name.
    fn name(&self) -> &'static str;

    /// The devices there are now.
    ///
    /// # Errors
    /// What the operating system answered.
    fn devices(&self) -> Result<Vec<DeviceInfo>, VerbsError>;

    /// Opens one of them.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] when there is none of that name.
    fn open(&self, name: &str) -> Result<Arc<dyn Device>, VerbsError>;
}
