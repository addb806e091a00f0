//! Errors of verbs.

use crate::headroom;
use std::io;
use std::net::IpAddr;

/// Error of a verbs call. [`VerbsError::errno`] returns the errno of libibverbs for each variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// `EINVAL`: an argument is invalid; the text names it.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// `EBUSY`: another object, which the text names, still uses this one.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// `ENOMEM`: a resource of the device, which the text names, is exhausted.
    #[error("out of resources: {0}")]
    OutOfResources(&'static str),
    /// `EOPNOTSUPP`: the device does not support the feature, which the text names.
    #[error("not supported by this device: {0}")]
    NotSupported(&'static str),
    /// `EAGAIN`: no XRC domain exists for the file and `O_CREAT` was not given (contract A5).
    #[error("no XRC domain exists for this file; pass O_CREAT to create one")]
    NoSuchDomain,
    /// `EBADF`: the file descriptor is not open.
    #[error("bad file descriptor")]
    BadFile,
    /// `ENODEV`: no such device.
    #[error("no such device")]
    NoDevice,
    /// `ENODEV`: the host has no device of this family; the text names the likely cause.
    #[error("{0}")]
    Missing(&'static str),
    /// `EACCES`: the process may not use the device; the text names the permission to grant.
    #[error("permission denied: {0}")]
    Denied(&'static str),
    /// `EADDRNOTAVAIL`: no port of the device has this address (no such GID).
    #[error("address not available: {0}")]
    AddressNotAvailable(&'static str),
    /// `EADDRINUSE`: the address or port is in use. `EADDRNOTAVAIL` for [`WILDCARD_TAKEN`].
    #[error("address in use: {0}")]
    AddressInUse(&'static str),
    /// `EIO`: the device was removed, or the object was destroyed.
    #[error("the device was removed or the object destroyed")]
    Gone,
    /// Another operating system error.
    #[error("operating system error {0}: {what}{remedy}", what = io::Error::from_raw_os_error(*.0), remedy = headroom::remedy(Some(*.0)))]
    Os(i32),
}

/// Text in [`VerbsError::AddressInUse`] for a port that another endpoint uses, if one of the two endpoints is bound to all
/// addresses. Linux then returns `EADDRNOTAVAIL`, and `EADDRINUSE` only if both endpoints name the same address
/// (`cma_check_port` in drivers/infiniband/core/cma.c).
pub const WILDCARD_TAKEN: &str = "another endpoint has this port, at all addresses or at one of them; take another port, or port 0 for a free one";

impl VerbsError {
    /// Refuses a link-local IPv6 address. Such an address identifies a host only together with an interface, which neither
    /// GIDs nor the connection manager's messages contain.
    ///
    /// # Errors
    /// [`VerbsError::AddressNotAvailable`] with the remedy.
    pub fn check_scope(address: IpAddr) -> Result<(), Self> {
        match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Err(Self::AddressNotAvailable(
                "it is link-local, so it may be another host on each interface; use a global or a unique local \
                 address, such as one of fd00::/8",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the errno that libibverbs returns for this error.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::Invalid(_) => 22,
            Self::Busy(_) => 16,
            Self::OutOfResources(_) => 12,
            Self::NotSupported(_) => 95,
            Self::NoSuchDomain => 11,
            Self::BadFile => 9,
            Self::NoDevice | Self::Missing(_) => 19,
            Self::Denied(_) => 13,
            Self::AddressNotAvailable(_) | Self::AddressInUse(WILDCARD_TAKEN) => 99,
            Self::AddressInUse(_) => 98,
            Self::Gone => 5,
            Self::Os(errno) => errno,
        }
    }
}

impl From<io::Error> for VerbsError {
    fn from(error: io::Error) -> Self {
        Self::Os(error.raw_os_error().unwrap_or(5))
    }
}

/// Refusal of a request in a list of work requests. The requests before `index` are posted, the request at `index` was
/// refused for `cause`, and later requests were not examined (`bad_wr` in C).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} was refused: {cause}")]
pub struct PostError {
    /// Position of the refused request in the list.
    pub index: usize,
    /// Reason for the refusal.
    #[source]
    pub cause: VerbsError,
}
