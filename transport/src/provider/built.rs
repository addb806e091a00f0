//! The NICs that this build knows: those of rdma-core with the feature of that name, else none.
//! The one place of the crate where the feature is asked for.
#![forbid(unsafe_code)]

use super::survey::Nics;

/// The family of NICs, if this build has one.
#[cfg(not(feature = "rdma-core"))]
pub(super) fn nics() -> Option<Box<dyn Nics>> {
    None
}
