//! Which device a node runs on, and why.
#![forbid(unsafe_code)]

use crate::StartError;
use crate::options::{NodeOptions, ProviderChoice};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_softrdma::device::SoftDevice;
use trunkline_verbs::{Device, DeviceCapabilities};

/// An opened device with the reason for it.
pub(crate) struct Chosen {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) provider: &'static str,
    pub(crate) why: String,
}

const NO_HARDWARE: &str = "no rdma-core support in this build";

/// Opens the device that the options ask for. Unless they say otherwise it has the addresses
/// that the node listens on and no others, so that its name on the wire is that of the node.
///
/// # Errors
/// When there is none, or it cannot do XRC.
pub(crate) fn open(options: &NodeOptions, listen: &[SocketAddr]) -> Result<Chosen, StartError> {
    let why = match options.provider {
        ProviderChoice::Require => return Err(StartError::NoHardware(NO_HARDWARE)),
        ProviderChoice::Auto => format!("softrdma: {NO_HARDWARE}"),
        ProviderChoice::Soft => "softrdma: asked for".to_owned(),
    };
    let mut device = options.device.clone();
    if device.addresses.is_empty() && !listen.iter().any(|address| address.ip().is_unspecified()) {
        for address in listen {
            if !device.addresses.contains(&address.ip()) {
                device.addresses.push(address.ip());
            }
        }
    }
    let device = SoftDevice::open(device)?;
    if !device.attributes().capabilities.contains(DeviceCapabilities::XRC) {
        return Err(StartError::Incapable("XRC"));
    }
    Ok(Chosen { device, provider: "softrdma", why })
}
