//! What an errno of librdmacm means.

use crate::error::last_errno;
use std::ffi::c_int;
use trunkline_verbs::VerbsError;

/// What was asked of librdmacm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// A channel or an id.
    Create,
    /// An own address.
    Bind,
    /// The way to a peer.
    Resolve,
    /// To connect, accept, reject, disconnect.
    Connect,
    /// An option.
    Option,
    /// What brings a QP up.
    QpChanges,
}

/// `Ok` for 0, else the error of the last C call of this thread.
pub(super) fn check(asked: Asked, answer: c_int) -> Result<(), VerbsError> {
    if answer == 0 { Ok(()) } else { Err(last(asked)) }
}

/// The error of the last C call of this thread.
pub(super) fn last(asked: Asked) -> VerbsError {
    named(asked, last_errno())
}

/// The error that an errno stands for.
pub(super) fn named(asked: Asked, errno: c_int) -> VerbsError {
    match errno {
        libc::EADDRINUSE => VerbsError::AddressInUse("another endpoint is bound to this port"),
        // The kernel's words for an address that no RDMA device has.
        libc::EADDRNOTAVAIL | libc::ENODEV if asked != Asked::Create => {
            VerbsError::AddressNotAvailable("no RDMA device has this address (`rdma link`, `ip address`)")
        }
        libc::EINVAL => VerbsError::Invalid(match asked {
            Asked::Create => "librdmacm refuses such an endpoint",
            Asked::Bind => "the endpoint is bound, or the address is none of a device",
            Asked::Resolve => "the endpoint's state or its address does not fit this",
            Asked::Connect => "the endpoint's state, its private data or its counts do not fit this",
            Asked::Option => "the option's value is out of range, or comes too late",
            Asked::QpChanges => "the endpoint's state does not tell this yet",
        }),
        libc::ENOMEM => VerbsError::OutOfResources("the kernel has no memory left for connections"),
        libc::EOPNOTSUPP | libc::ENOSYS => VerbsError::NotSupported("this operation on connections"),
        libc::ENODEV => VerbsError::NoDevice,
        libc::EIO => VerbsError::Gone,
        errno => VerbsError::Os(errno),
    }
}
