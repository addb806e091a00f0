//! Why a link refused an address.
#![forbid(unsafe_code)]

use std::io;
use std::net::IpAddr;
use trunkline_verbs::VerbsError;

/// A refused address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Somebody else has it.
    #[error(
        "UDP port 4791 at {address} is taken: another program, or the kernel's rxe driver, already \
         serves RoCE there; stop it (`rdma link` shows rxe, `ss -lunp sport = 4791` the program) or \
         use another address by TRUNKLINE_ADDRESS"
    )]
    AddressInUse {
        /// Which.
        address: IpAddr,
    },
    /// This host does not have it.
    #[error("no interface of this host has the address {address}; `ip address` shows those it has")]
    NoSuchAddress {
        /// Which.
        address: IpAddr,
    },
    /// The operating system refused for another reason.
    #[error("cannot {doing} for {address}: {source}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// For which address.
        address: IpAddr,
        /// What it answered.
        source: io::Error,
    },
}

impl From<LinkError> for VerbsError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::AddressInUse { .. } => Self::AddressInUse(
                "UDP port 4791 there is taken by another program or by the kernel's rxe driver; stop it, or \
                 use another address by TRUNKLINE_ADDRESS",
            ),
            LinkError::NoSuchAddress { .. } => {
                Self::AddressNotAvailable("no interface of this host has it; `ip address` shows those it has")
            }
            LinkError::Os { source, .. } => source.into(),
        }
    }
}
