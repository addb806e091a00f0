//! The reason why NICs cannot be used, with the remedy.
//!
//! Created by the provider's `choose` and `survey`. If a NIC is required, it is an error. Otherwise it is the reason
//! for using the software device.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::path::PathBuf;

/// The reason why RDMA NICs are unusable. Its text names the cause and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoNic {
    /// The program was built without support for NICs.
    #[error("no rdma-core support in this build (build with --features rdma-core)")]
    NotBuilt,
    /// The kernel's RDMA subsystem is missing.
    #[error(
        "there is no /dev/infiniband: load the driver of the NIC, with ib_uverbs and rdma_ucm, or make a soft \
         RoCE device (modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE)"
    )]
    NoSubsystem,
    /// Permission to open a device file is denied.
    #[error("permission denied opening {}: allow this user to read and write it, by owner, group or udev rule", .0.display())]
    NoPermission(PathBuf),
    /// libibverbs returned an empty device list.
    #[error(
        "there is no RDMA device (ibv_devices lists none): load the driver of the NIC and install its provider \
         (package ibverbs-providers), or make a soft RoCE device (rdma link add rxe0 type rxe netdev INTERFACE)"
    )]
    NoDevice,
    /// The list of devices could not be read.
    #[error("the RDMA devices cannot be listed: {0}")]
    NoList(String),
    /// The requested device name was not found.
    #[error("no RDMA device is called {name}; there are: {there}")]
    NotNamed {
        /// Requested name.
        name: String,
        /// Names of the devices that exist.
        there: String,
    },
    /// The device cannot be opened.
    #[error("the RDMA device {device} cannot be opened: {cause}")]
    CannotOpen {
        /// Name of the device.
        device: String,
        /// Cause of the failure.
        cause: String,
    },
    /// All ports of the device are inactive.
    #[error(
        "no port of the RDMA device {0} is active: see that its network interface is up and has a link (ip link)"
    )]
    NoActivePort(String),
    /// The device lacks a RoCE v2 GID.
    #[error(
        "the RDMA device {0} has no RoCE v2 GID: give its network interface an IP address; InfiniBand and RoCE v1 \
         are not supported"
    )]
    NoRoceV2(String),
    /// All RoCE v2 GIDs of the device are link-local.
    #[error(
        "the only RoCE v2 GIDs of the RDMA device {0} are link-local: give its network interface an IP address \
         (ip addr add ADDRESS/PREFIX dev INTERFACE)"
    )]
    OnlyLinkLocal(String),
    /// The requested GID is not usable.
    #[error("GID {index} of the RDMA device {device} {what}; usable are: {usable}")]
    BadGid {
        /// Name of the device.
        device: String,
        /// Index of the GID.
        index: u16,
        /// Reason why the GID is not usable.
        what: String,
        /// Usable GIDs.
        usable: String,
    },
    /// The devices do not have the node's address.
    #[error("no RDMA device has the address {address}; {there}")]
    NoSuchAddress {
        /// Requested address.
        address: IpAddr,
        /// Addresses of the devices.
        there: String,
    },
    /// An address to listen on is link-local.
    #[error(
        "{0} is link-local, and RoCE v2 GIDs that are link-local are never used: listen on another address"
    )]
    LinkLocal(IpAddr),
    /// The addresses belong to several devices.
    #[error("the addresses to listen on belong to no single RDMA device: start a node for each ({there})")]
    Scattered {
        /// Addresses of the devices.
        there: String,
    },
    /// The device's address is reachable from other hosts, and peers are not authenticated.
    #[error(
        "the address {address} of the RDMA device {device} can be reached by other hosts, and peers are not \
         authenticated: give the node an identity, call `allow_unauthenticated(true)` where the program builds it, \
         or pass --allow-unauthenticated if it has that flag"
    )]
    NotLoopback {
        /// Name of the device.
        device: String,
        /// Address of the device.
        address: IpAddr,
    },
}

impl NoNic {
    /// Returns how close the device came to being usable. With several devices, the reason for the closest one is
    /// reported.
    pub(crate) fn nearness(&self) -> u8 {
        match self {
            Self::CannotOpen { .. } => 1,
            Self::NoActivePort(_) => 2,
            Self::NoRoceV2(_) => 3,
            Self::OnlyLinkLocal(_) => 4,
            Self::NoSuchAddress { .. } => 5,
            Self::BadGid { .. } => 6,
            Self::NotLoopback { .. } => 7,
            _ => 0,
        }
    }
}
