//! Errors of opening an address.
#![forbid(unsafe_code)]

use crate::host::HostError;
use std::io;
use std::net::IpAddr;
use trunkline_verbs::{VerbsError, headroom};

/// Reason why a link refused an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The port is in use by a process that is not a member of this host's registry, or by the kernel.
    #[error(
        "UDP port {port} at {address} is taken: another program, or the kernel's rxe driver, already \
         serves RoCE there; stop it (`rdma link` shows rxe, `ss -lunp sport = {port}` the program), use another \
         address by TRUNKLINE_ADDRESS, or another port by TRUNKLINE_PORT"
    )]
    AddressInUse {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// The host does not have the address.
    #[error("no interface of this host has the address {address}; `ip address` shows those it has")]
    NoSuchAddress {
        /// The address.
        address: IpAddr,
    },
    /// The address is valid on one interface only.
    #[error("{address}: {why}")]
    Scoped {
        /// The address.
        address: IpAddr,
        /// The reason.
        why: VerbsError,
    },
    /// The port cannot be recorded in the host's registry, so other members would drop packets from it.
    #[error("the port for {address} cannot be recorded for this host's other processes: {source}")]
    NotRecorded {
        /// The address.
        address: IpAddr,
        /// The registry's error.
        source: HostError,
    },
    /// The operating system refused the operation for another reason.
    #[error("cannot {doing} for {address}: {source}{}", headroom::remedy(source.raw_os_error()))]
    Os {
        /// The operation that failed, as a verb.
        doing: &'static str,
        /// The address.
        address: IpAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// Reason that [`VerbsError::AddressInUse`] gives for a [`LinkError::AddressInUse`].
/// [`PortOwner`](super::PortOwner) finds the owner of the port.
pub const ROCE_PORT_TAKEN: &str = "the UDP port of the software device there is taken by a program of another user or runtime directory, by one of this \
     user that runs since before its runtime directory was removed, or by the kernel's rxe driver; stop it, \
     set TRUNKLINE_PORT to another port, or use another address, such as another one of 127.0.0.0/8: that which the \
     program listens on, or if it names none TRUNKLINE_ADDRESS";

impl From<LinkError> for VerbsError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::AddressInUse { .. } => Self::AddressInUse(ROCE_PORT_TAKEN),
            LinkError::NoSuchAddress { .. } => {
                Self::AddressNotAvailable("no interface of this host has it; `ip address` shows those it has")
            }
            LinkError::Scoped { why, .. } => why,
            LinkError::NotRecorded { source, .. } => source.into(),
            LinkError::Os { source, .. } => source.into(),
        }
    }
}
