//! Multicast, which requires UD QPs and is not supported.

use crate::abi::*;
use crate::border::{Errno, value};
use libc::sockaddr;
use std::ffi::{c_int, c_void};

/// `rdma_join_multicast(3)`: `EOPNOTSUPP`.
#[unsafe(export_name = "trunkline_rdma_join_multicast")]
pub extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _address: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    value(|| Err(Errno::EOPNOTSUPP))
}

/// `rdma_join_multicast_ex(3)`: `EOPNOTSUPP`.
#[unsafe(export_name = "trunkline_rdma_join_multicast_ex")]
pub extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attributes: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    value(|| Err(Errno::EOPNOTSUPP))
}

/// `rdma_leave_multicast(3)`: `EADDRNOTAVAIL`, because groups cannot be joined.
#[unsafe(export_name = "trunkline_rdma_leave_multicast")]
pub extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _address: *mut sockaddr) -> c_int {
    value(|| Err(Errno(libc::EADDRNOTAVAIL)))
}
