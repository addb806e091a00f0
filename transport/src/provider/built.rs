//! The NICs that this build knows: those of rdma-core with the feature of that name, else none.
//! The one place of the crate where the feature is asked for.
#![forbid(unsafe_code)]

use super::survey::Nics;

/// The family of NICs, if this build has one.
#[cfg(not(feature = "rdma-core"))]
pub(super) fn nics() -> Option<&'static dyn Nics> {
    None
}

/// The family of NICs, if this build has one.
#[cfg(feature = "rdma-core")]
pub(super) fn nics() -> Option<&'static dyn Nics> {
    Some(&trunkline_rdma_core::RdmaCore)
}

#[cfg(feature = "rdma-core")]
impl Nics for trunkline_rdma_core::RdmaCore {
    fn holder(&self, address: std::net::IpAddr) -> Result<String, trunkline_verbs::VerbsError> {
        trunkline_rdma_core::device_for(address)
    }
}
