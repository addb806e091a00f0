//! Why a verb was refused.

use std::io;

/// A refused verb. Each has the errno that libibverbs would return ([`VerbsError::errno`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// `EINVAL`: the arguments are wrong; the text names the argument.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// `EBUSY`: another object still uses this one; the text names it.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// `ENOMEM`: memory or a table of the device is used up; the text names it.
    #[error("out of resources: {0}")]
    OutOfResources(&'static str),
    /// `EOPNOTSUPP`: the device has no such feature.
    #[error("not supported by this device: {0}")]
    NotSupported(&'static str),
    /// `EAGAIN`: no XRC domain exists for the file and `O_CREAT` was not given (contract A5).
    #[error("no XRC domain exists for this file, and it was not asked to be created")]
    NoSuchDomain,
    /// `EBADF`: the file descriptor is not open.
    #[error("bad file descriptor")]
    BadFile,
    /// `ENODEV`: no such device.
    #[error("no such device")]
    NoDevice,
    /// `ENODEV`: there are no devices of this family on this host; the text says what to look at.
    #[error("{0}")]
    Missing(&'static str),
    /// `EACCES`: the process may not use the device; the text says what to allow.
    #[error("permission denied: {0}")]
    Denied(&'static str),
    /// `EADDRNOTAVAIL`: no port of the device has this address (no such GID).
    #[error("address not available: {0}")]
    AddressNotAvailable(&'static str),
    /// `EADDRINUSE`: somebody else holds the address or port.
    #[error("address in use: {0}")]
    AddressInUse(&'static str),
    /// `EIO`: the device was removed under its user, or the object was destroyed.
    #[error("the device or object is gone")]
    Gone,
    /// Another operating system error.
    #[error("operating system error {0}: {what}", what = io::Error::from_raw_os_error(*.0))]
    Os(i32),
}

impl VerbsError {
    /// The errno that libibverbs answers for it.
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
            Self::AddressNotAvailable(_) => 99,
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

/// A list of work requests that was taken only in part: those before `index` are posted, that
/// at `index` was refused for `cause`, the rest was not looked at (the `bad_wr` of verbs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} was refused: {cause}")]
pub struct PostError {
    /// Position of the refused request in the list.
    pub index: usize,
    /// Why.
    #[source]
    pub cause: VerbsError,
}
