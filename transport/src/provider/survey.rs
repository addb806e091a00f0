//! Survey of the host's NICs. Each NIC is opened once to read its state, and the chosen NIC stays open.
//!
//! Called by `decide`. A device that cannot be opened is part of the result, not an error.
#![forbid(unsafe_code)]

use super::choose::{Nic, NicState};
use crate::NoNic;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use trunkline_verbs::{Device, PortState, Provider, VerbsError};

/// A family of NICs, with its connection manager.
pub(super) trait Nics: Provider {
    /// Returns the name of the device that connections from this address use.
    fn holder(&self, address: IpAddr) -> Result<String, VerbsError>;
}

/// Directory of the kernel's device files for RDMA.
pub(super) const DEVICE_FILES: &str = "/dev/infiniband";

/// Returns every NIC, and adds opened NICs to `opened`. `addresses` are the addresses requested for the
/// node.
pub(super) fn survey(
    nics: &dyn Nics,
    addresses: impl Iterator<Item = IpAddr>,
    device_files: &Path,
    opened: &mut Vec<(String, Arc<dyn Device>)>,
) -> Result<Vec<Nic>, NoNic> {
    // Resolve first, because some devices add an address at its first lookup.
    let mut held: Vec<(String, IpAddr)> = Vec::new();
    for address in addresses.filter(|address| !address.is_unspecified()) {
        if let Ok(name) = nics.holder(address) {
            held.push((name, address));
        }
    }
    let devices = match nics.devices() {
        Ok(devices) if !devices.is_empty() => devices,
        // libibverbs does not distinguish a missing device from a missing subsystem.
        Ok(_) | Err(VerbsError::Missing(_)) => return Err(why_none(device_files)),
        Err(error) => return Err(NoNic::NoList(error.to_string())),
    };
    let mut found = Vec::new();
    for info in devices {
        let state = nics.open(&info.name).map(|device| {
            let attributes = device.attributes();
            let port = |port| device.port(port).map_or(PortState::Down, |port| port.state);
            let state = NicState {
                ports: (1..=attributes.ports).map(port).collect(),
                gids: device.gid_table(),
                holds: held.iter().filter(|(name, _)| *name == info.name).map(|(_, ip)| *ip).collect(),
            };
            opened.push((info.name.clone(), device));
            state
        });
        found.push(Nic { name: info.name, state: state.map_err(|error| error.to_string()) });
    }
    Ok(found)
}

/// Returns the reason for an empty device list. libibverbs omits devices that it may not open.
fn why_none(device_files: &Path) -> NoNic {
    let files = match fs::read_dir(device_files) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return NoNic::NoPermission(device_files.to_owned());
        }
        Err(_) => return NoNic::NoSubsystem,
    };
    for path in files.flatten().map(|file| file.path()) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name != "rdma_cm" && !name.starts_with("uverbs") {
            continue;
        }
        let denied = File::options().read(true).write(true).open(&path);
        if denied.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return NoNic::NoPermission(path);
        }
    }
    NoNic::NoDevice
}

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
    fn holder(&self, address: IpAddr) -> Result<String, VerbsError> {
        trunkline_rdma_core::device_for(address)
    }
}
