//! Choice of a node's device, and its opening.
//!
//! Called when a node starts, and to preview the choice. `survey` finds the NICs that this build supports, and `choose`
//! selects one of them without I/O. [`crate::NoNic`] is the reason why NICs cannot be used.
#![forbid(unsafe_code)]

mod choose;
pub(crate) mod connections;
mod no_nic;
mod survey;
#[cfg(test)]
mod tests;

pub use connections::Connections;
pub use no_nic::NoNic;

use crate::node::options::{NodeOptions, ProviderChoice};
use crate::{DeviceError, StartError};
use choose::{Choice, ClientAddress, NicChoice, Wish};
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use survey::Nics;
use trunkline_softrdma::device::{LinkChoice, SoftDevice};
use trunkline_verbs::{Device, GidKind, PathChoice};

/// The family of the software device.
pub(crate) const SOFTWARE: &str = "softrdma";

/// An opened device, and the reason for its choice.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) provider: &'static str,
    pub(crate) why: String,
    /// Addresses to listen on, never empty. Port 0 stands for a free port.
    pub(crate) listen: Vec<SocketAddr>,
}

/// Opens the device that the options select, for listening on these addresses. Without addresses, the node is a client.
///
/// # Errors
/// Returns an error if all devices are unusable.
pub(crate) fn open(options: &NodeOptions, listen: &[SocketAddr]) -> Result<Chosen, StartError> {
    open_from(options, listen, survey::nics(), Path::new(survey::DEVICE_FILES))
}

fn open_from(
    options: &NodeOptions,
    listen: &[SocketAddr],
    nics: Option<&dyn Nics>,
    device_files: &Path,
) -> Result<Chosen, StartError> {
    let client = client_address(options);
    let mut opened = Vec::new();
    let chosen = match decide(options, listen, client, nics, device_files, &mut opened) {
        Choice::Nothing(reason) => return Err(StartError::NoHardware(reason)),
        Choice::Software(why) => open_software(options, listen, client.ip(), why)?,
        Choice::Nic(NicChoice { device: name, listen, why }) => {
            let device = opened.into_iter().find(|(of, _)| *of == name).map(|(_, device)| device);
            let device = device.ok_or(StartError::NoHardware(NoNic::NoDevice))?;
            Chosen { device, provider: nics.map_or("", |nics| nics.name()), why, listen }
        }
    };
    tell(options, &chosen);
    Ok(chosen)
}

/// Chooses the device from the NICs of the host, and adds opened NICs to `opened`.
fn decide(
    options: &NodeOptions,
    listen: &[SocketAddr],
    client: ClientAddress,
    nics: Option<&dyn Nics>,
    device_files: &Path,
    opened: &mut Vec<(String, Arc<dyn Device>)>,
) -> Choice {
    let wish = Wish {
        choice: options.provider.unwrap_or_default(),
        device: options.nic.device.as_deref(),
        gid_index: options.nic.gid_index,
        listen,
        client,
        may_leave_host: options.may_leave_host(),
        software_only: software_only(options),
    };
    choose::choose(&wish, || {
        let nics = nics.ok_or(NoNic::NotBuilt)?;
        let addresses = listen.iter().map(SocketAddr::ip);
        let own = listen.is_empty().then_some(client.ip());
        survey::survey(nics, addresses.chain(own), device_files, opened)
    })
}

/// Returns the device that a node with these options would open and the reason, such as `softrdma: no rdma-core support
/// in this build`. Opens NICs, but not the software device.
///
/// # Errors
/// Returns the reason why NICs cannot be used, if the options require one.
pub fn preview_device(options: &NodeOptions, listen: &[SocketAddr]) -> Result<String, NoNic> {
    let device_files = Path::new(survey::DEVICE_FILES);
    let client = client_address(options);
    match decide(options, listen, client, survey::nics(), device_files, &mut Vec::new()) {
        Choice::Nothing(reason) => Err(reason),
        Choice::Software(why) | Choice::Nic(NicChoice { why, .. }) => Ok(why),
    }
}

/// Opens the software device. By default, its addresses are the node's listening addresses, so that packets
/// carry the node's address.
fn open_software(
    options: &NodeOptions,
    listen: &[SocketAddr],
    client: IpAddr,
    why: String,
) -> Result<Chosen, StartError> {
    let mut listen = listen.to_vec();
    if listen.is_empty() {
        listen.push(SocketAddr::new(client, 0));
    }
    let mut device = options.software();
    if device.addresses.is_empty() && !listen.iter().any(|address| address.ip().is_unspecified()) {
        for address in &listen {
            if !device.addresses.contains(&address.ip()) {
                device.addresses.push(address.ip());
            }
        }
    } else {
        warn_of_other_addresses(&device.addresses, &listen);
    }
    let device = SoftDevice::open(device).map_err(|cause| StartError::Open(DeviceError::new(cause)))?;
    Ok(Chosen { device, provider: SOFTWARE, why, listen })
}

/// Warns about addresses of the device that the node does not listen on.
fn warn_of_other_addresses(named: &[IpAddr], listen: &[SocketAddr]) {
    let is_other = |address: &&SocketAddr| !address.ip().is_unspecified() && !named.contains(&address.ip());
    if let (Some(other), false) = (listen.iter().find(is_other), named.is_empty()) {
        tracing::warn!(
            address = %other,
            addresses = ?named,
            remedy = "listen on one of the addresses or on 0.0.0.0, or leave out TRUNKLINE_ADDRESS",
            "node listens on an address that its device does not have"
        );
    }
}

/// Returns the first option that is set and supported only by the software device.
fn software_only(options: &NodeOptions) -> Option<&'static str> {
    let device = options.software();
    if !matches!(device.link, LinkChoice::Udp) {
        Some("a network inside the process was asked for")
    } else if device.faults.is_some() {
        Some("faults on the link were asked for")
    } else if device.without_xrc {
        Some("a device without XRC was asked for")
    } else if device.capture.is_some() {
        Some("a capture of all packets was asked for")
    } else if device.path == PathChoice::Shm {
        Some("shared memory only was asked for")
    } else {
        None
    }
}

/// Logs the choice. The level is a warning if a NIC was named and is not used.
fn tell(options: &NodeOptions, chosen: &Chosen) {
    let Chosen { device, provider, why, listen } = chosen;
    let (name, address) = (&device.attributes().name, listen.first().map(SocketAddr::ip));
    let gid_index = address.and_then(|address| gid_index(device.as_ref(), address));
    let address = address.map(tracing::field::display);
    let named = options.nic.device.is_some() || options.nic.gid_index.is_some();
    if named && *provider == SOFTWARE && options.provider != Some(ProviderChoice::Soft) {
        tracing::warn!(provider, device = name, address, gid_index, cause = why, "named NIC not used");
    } else {
        tracing::info!(provider, device = name, address, gid_index, cause = why, "RDMA provider chosen");
    }
}

/// Returns the index of the GID of this address.
pub(crate) fn gid_index(device: &dyn Device, address: IpAddr) -> Option<u16> {
    let is_it = |entry: &trunkline_verbs::GidEntry| {
        entry.kind == GidKind::RoceV2 && entry.gid.ip() == address.to_canonical()
    };
    device.gid_table().into_iter().find(is_it).map(|entry| entry.index)
}

/// Returns the address of a node that does not listen. This is the device's first address if the node may use it, and
/// otherwise a separate loopback address, because a process of another user may hold the RoCE port of 127.0.0.1. On a
/// host without IPv4, the address is ::1.
fn client_address(options: &NodeOptions) -> ClientAddress {
    if let Some(&first) = options.software().addresses.first()
        && (first.is_loopback() || options.may_leave_host())
    {
        return ClientAddress::Named(first);
    }
    let [a, b, c, ..] = options.runtime.random().to_le_bytes();
    let v4 = Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(2, 254)).into();
    let v6 = Ipv6Addr::LOCALHOST.into();
    let is_on_host =
        matches!(options.software().link, LinkChoice::Udp) && options.clock().as_virtual().is_none();
    let has_only_v6 = is_on_host && !host_has(v4) && host_has(v6);
    ClientAddress::Drawn(if has_only_v6 { v6 } else { v4 })
}

/// Opens a file for reading. Does not wait for the writer of a FIFO, or for another user's lease on the file.
///
/// # Errors
/// Returns the error of opening the file.
pub fn open_without_waiting(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)
}

/// Returns false if the address is missing on this host's interfaces, or if the host lacks its family.
#[must_use]
pub fn host_has(address: IpAddr) -> bool {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => {
            error.kind() != ErrorKind::AddrNotAvailable
                && error.raw_os_error() != Some(Errno::EAFNOSUPPORT as i32)
        }
    }
}
