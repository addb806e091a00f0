//! Why no NIC is used: each cause with what to do about it.
//!
//! Made by the provider's `choose` and `survey`. It becomes an error where a NIC was required, and the
//! reason for the software device where it was not.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::path::PathBuf;

/// Why no RDMA NIC can be used: the cause and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoNic {
    /// The program was built without the adapter.
    #[error("no rdma-core support in this build (build with --features rdma-core)")]
    NotBuilt,
    /// The kernel's RDMA subsystem is not there.
    #[error(
        "there is no /dev/infiniband: load the driver of the NIC, with ib_uverbs and rdma_ucm, or make a soft \
         RoCE device (modprobe rdma_rxe; rdma link add rxe0 type rxe netdev INTERFACE)"
    )]
    NoSubsystem,
    /// A device file may not be opened.
    #[error("{} may not be opened by this user: allow it to read and write there, by group or udev rule", .0.display())]
    NoPermission(PathBuf),
    /// libibverbs lists nothing.
    #[error(
        "there is no RDMA device (ibv_devices lists none): load the driver of the NIC and install its provider \
         (package ibverbs-providers), or make a soft RoCE device (rdma link add rxe0 type rxe netdev INTERFACE)"
    )]
    NoDevice,
    /// The list of devices could not be read.
    #[error("the RDMA devices cannot be listed: {0}")]
    NoList(String),
    /// None has the name that was asked for.
    #[error("no RDMA device is called {name}; there are: {there}")]
    NotNamed {
        /// Which was asked for.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// It cannot be opened.
    #[error("the RDMA device {device} cannot be opened: {cause}")]
    CannotOpen {
        /// Which.
        device: String,
        /// Why.
        cause: String,
    },
    /// Its port has no link.
    #[error(
        "no port of the RDMA device {0} is active: see that its network interface is up and has a link (ip link)"
    )]
    NoActivePort(String),
    /// It has no GID at all, or none for RoCE v2.
    #[error(
        "the RDMA device {0} has no RoCE v2 GID: give its network interface an IP address; InfiniBand and RoCE v1 \
         are not supported"
    )]
    NoRoceV2(String),
    /// Its RoCE v2 GIDs are link-local.
    #[error(
        "the only RoCE v2 GIDs of the RDMA device {0} are link-local: give its network interface an IP address \
         (ip addr add ADDRESS/PREFIX dev INTERFACE)"
    )]
    OnlyLinkLocal(String),
    /// The GID that was asked for cannot be used.
    #[error("GID {index} of the RDMA device {device} {what}; usable are: {usable}")]
    BadGid {
        /// Which device.
        device: String,
        /// Which GID.
        index: u16,
        /// What is wrong with it.
        what: String,
        /// Those that can be.
        usable: String,
    },
    /// No device has the address that the node is to have.
    #[error("no RDMA device has the address {address}; {there}")]
    NoSuchAddress {
        /// Which.
        address: IpAddr,
        /// What the devices have.
        there: String,
    },
    /// An address to listen on is link-local.
    #[error(
        "{0} is link-local, and RoCE v2 GIDs that are link-local are never used: listen on another address"
    )]
    LinkLocal(IpAddr),
    /// No single device has all addresses.
    #[error("the addresses to listen on belong to no single RDMA device: start a node for each ({there})")]
    Scattered {
        /// What the devices have.
        there: String,
    },
    /// A client would have to show itself to other hosts.
    #[error(
        "the address {address} of the RDMA device {device} can be reached by other hosts, and peers are not \
         authenticated: call `allow_unauthenticated(true)` where the program builds its node, or pass \
         --allow-unauthenticated if it has that flag"
    )]
    NotLoopback {
        /// Which device.
        device: String,
        /// Its address.
        address: IpAddr,
    },
}

impl NoNic {
    /// How near to serving the device came: of several devices, the nearest one's reason is reported.
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
