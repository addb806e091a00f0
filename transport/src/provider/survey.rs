//! Survey of the NICs: opened once, read, and kept for the chosen one.
//!
//! Called by `open`. A device that cannot be opened is part of the answer, not an error.
#![forbid(unsafe_code)]

use super::choose::{Nic, NicState};
use crate::NoNic;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use trunkline_verbs::{Device, PortState, Provider, VerbsError};

/// A family of NICs, with what its connection manager knows.
pub(super) trait Nics: Provider {
    /// The name of the device that connections from this address go through.
    fn holder(&self, address: IpAddr) -> Result<String, VerbsError>;
}

/// Directory of the kernel's files of RDMA devices.
pub(super) const DEVICE_FILES: &str = "/dev/infiniband";

/// Every NIC; opened ones go to `opened`, too. `addresses` are those that the node is to have.
pub(super) fn survey(
    nics: &dyn Nics,
    addresses: impl Iterator<Item = IpAddr>,
    device_files: &Path,
    opened: &mut Vec<(String, Arc<dyn Device>)>,
) -> Result<Vec<Nic>, NoNic> {
    // First, because some devices make an address theirs when it is first asked for.
    let mut held: Vec<(String, IpAddr)> = Vec::new();
    for address in addresses.filter(|address| !address.is_unspecified()) {
        if let Ok(name) = nics.holder(address) {
            held.push((name, address));
        }
    }
    let devices = match nics.devices() {
        Ok(devices) if !devices.is_empty() => devices,
        // No device and no subsystem look the same to libibverbs.
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

/// Why libibverbs lists no device: it leaves those out that it may not open.
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
