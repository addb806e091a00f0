//! Conversion of librdmacm's errnos to errors.

use crate::error::last_errno;
use std::ffi::c_int;
use trunkline_verbs::VerbsError;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Creating a channel or an id.
    Create,
    /// Binding to a local address.
    Bind,
    /// Resolving a peer's address or the route to the peer.
    Resolve,
    /// Connecting, accepting, rejecting or disconnecting.
    Connect,
    /// Setting an option.
    Option,
    /// Querying the attributes for the next QP state.
    QpChanges,
}

/// Converts the result of a C function. Returns `Ok` if it is 0, and otherwise the error of this thread's last C call.
pub(super) fn check(asked: Asked, status: c_int) -> Result<(), VerbsError> {
    if status == 0 { Ok(()) } else { Err(last(asked)) }
}

/// Returns the error of this thread's last C call.
pub(super) fn last(asked: Asked) -> VerbsError {
    named(asked, last_errno())
}

/// Returns the error that an errno means for an operation.
pub(super) fn named(asked: Asked, errno: c_int) -> VerbsError {
    match errno {
        libc::EADDRINUSE => VerbsError::AddressInUse("another endpoint is bound to this port"),
        // The kernel returns these errnos for an address that belongs to no RDMA device, and for a route from such an
        // address.
        libc::EADDRNOTAVAIL | libc::ENODEV if asked == Asked::Resolve => VerbsError::AddressNotAvailable(
            "no RDMA device leads there from the local address, as none does from a loopback address to \
             another host (`ip route get`, `rdma link`)",
        ),
        libc::EADDRNOTAVAIL | libc::ENODEV if asked != Asked::Create => {
            VerbsError::AddressNotAvailable("no RDMA device has this address (`rdma link`, `ip address`)")
        }
        libc::EINVAL => VerbsError::Invalid(match asked {
            Asked::Create => "librdmacm refuses such an endpoint",
            Asked::Bind => "the endpoint is bound already, or the address is not a device's",
            Asked::Resolve => "the endpoint is in the wrong state, or the address is not valid",
            Asked::Connect => {
                "the endpoint is in the wrong state, or the private data or a count is not valid"
            }
            Asked::Option => "the option's value is out of range, or it is too late to set it",
            Asked::QpChanges => "the endpoint does not know these attributes in its state",
        }),
        libc::ENOMEM => VerbsError::OutOfResources("the kernel has no memory left for connections"),
        libc::EOPNOTSUPP | libc::ENOSYS => VerbsError::NotSupported("this operation on connections"),
        libc::ENODEV => VerbsError::NoDevice,
        libc::EIO => VerbsError::Gone,
        errno => VerbsError::Os(errno),
    }
}
