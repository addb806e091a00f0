//! The NICs that this build supports: those of rdma-core with the feature of that name, else none. No other
//! place in the crate checks the feature.
#![forbid(unsafe_code)]

use super::survey::Nics;

/// Returns the family of NICs, if this build has one.
#[cfg(not(feature = "rdma-core"))]
pub(super) fn nics() -> Option<&'static dyn Nics> {
    None
}

/// Returns the family of NICs, if this build has one.
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
