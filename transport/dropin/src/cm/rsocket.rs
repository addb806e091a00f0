//! Sockets over RDMA (`rsocket(7)`), which librdmacm also exports. This library does not support them.
//!
//! `rsocket` returns `EOPNOTSUPP`. The other functions return `EBADF`, because no rsocket exists. The exceptions are
//! `rpoll` and `rselect`, which also accept ordinary descriptors.

use crate::border::{Errno, guarded, value};
use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use std::ffi::{c_int, c_void};

/// `rsocket(7)`: `EOPNOTSUPP`.
#[unsafe(export_name = "trunkline_rsocket")]
pub extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    value(|| Err(Errno::EOPNOTSUPP))
}

fn none() -> c_int {
    value(|| Err(Errno(libc::EBADF)))
}

fn no_bytes() -> ssize_t {
    none();
    -1
}

macro_rules! no_rsocket {
    ($($symbol:literal $name:ident($($argument:ty),*) -> $type:ty = $with:ident;)*) => {
        $(
            /// Returns `EBADF`, because the descriptor cannot be an rsocket.
            #[unsafe(export_name = $symbol)]
            pub extern "C" fn $name(_socket: c_int, $(_: $argument),*) -> $type {
                $with()
            }
        )*
    };
}

no_rsocket! {
    "trunkline_rbind" rbind(*const sockaddr, socklen_t) -> c_int = none;
    "trunkline_rlisten" rlisten(c_int) -> c_int = none;
    "trunkline_raccept" raccept(*mut sockaddr, *mut socklen_t) -> c_int = none;
    "trunkline_rconnect" rconnect(*const sockaddr, socklen_t) -> c_int = none;
    "trunkline_rshutdown" rshutdown(c_int) -> c_int = none;
    "trunkline_rclose" rclose() -> c_int = none;
    "trunkline_rrecv" rrecv(*mut c_void, usize, c_int) -> ssize_t = no_bytes;
    "trunkline_rrecvfrom" rrecvfrom(*mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t = no_bytes;
    "trunkline_rrecvmsg" rrecvmsg(*mut msghdr, c_int) -> ssize_t = no_bytes;
    "trunkline_rsend" rsend(*const c_void, usize, c_int) -> ssize_t = no_bytes;
    "trunkline_rsendto" rsendto(*const c_void, usize, c_int, *const sockaddr, socklen_t) -> ssize_t = no_bytes;
    "trunkline_rsendmsg" rsendmsg(*const msghdr, c_int) -> ssize_t = no_bytes;
    "trunkline_rread" rread(*mut c_void, usize) -> ssize_t = no_bytes;
    "trunkline_rreadv" rreadv(*const iovec, c_int) -> ssize_t = no_bytes;
    "trunkline_rwrite" rwrite(*const c_void, usize) -> ssize_t = no_bytes;
    "trunkline_rwritev" rwritev(*const iovec, c_int) -> ssize_t = no_bytes;
    "trunkline_rgetpeername" rgetpeername(*mut sockaddr, *mut socklen_t) -> c_int = none;
    "trunkline_rgetsockname" rgetsockname(*mut sockaddr, *mut socklen_t) -> c_int = none;
    "trunkline_rsetsockopt" rsetsockopt(c_int, c_int, *const c_void, socklen_t) -> c_int = none;
    "trunkline_rgetsockopt" rgetsockopt(c_int, c_int, *mut c_void, *mut socklen_t) -> c_int = none;
    "trunkline_rfcntl" rfcntl(c_int, c_int) -> c_int = none;
    "trunkline_riomap" riomap(*mut c_void, usize, c_int, c_int, off_t) -> off_t = no_offset;
    "trunkline_riounmap" riounmap(*mut c_void, usize) -> c_int = none;
    "trunkline_riowrite" riowrite(*const c_void, usize, off_t, c_int) -> usize = no_place;
}

fn no_offset() -> off_t {
    off_t::from(none())
}

/// Returns -1 as the unsigned type in the header.
fn no_place() -> usize {
    none();
    usize::MAX
}

/// `poll(2)` for rsockets.
///
/// # Safety
/// Same as `poll`.
#[unsafe(export_name = "trunkline_rpoll")]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: this function's contract is the contract of `poll`, and the program keeps it.
    guarded(-1, || unsafe { libc::poll(fds, count, timeout) })
}

/// `select(2)` for rsockets.
///
/// # Safety
/// Same as `select`.
#[unsafe(export_name = "trunkline_rselect")]
pub unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: this function's contract is the contract of `select`, and the program keeps it.
    guarded(-1, || unsafe { libc::select(count, read, write, except, timeout) })
}
