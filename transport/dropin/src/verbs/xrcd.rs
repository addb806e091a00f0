//! XRC domains (contract A).

use super::objects::{XrcdObject, context_of, hand_out, take_back, xrcd_of};
use crate::abi::*;
use crate::border::{Errno, object, status};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use trunkline_verbs::{Device, XrcdFlags};

/// `ibv_open_xrcd(3)`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    object(|| {
        // SAFETY: the caller's request, read once.
        let init = unsafe { init.read() };
        // contract A8
        if init.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if init.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
            return Err(Errno::EINVAL);
        }
        // contract A7: other bits mean nothing.
        let mut flags = XrcdFlags::empty();
        flags.set(XrcdFlags::CREATE, init.oflags & libc::O_CREAT != 0);
        flags.set(XrcdFlags::EXCLUSIVE, init.oflags & libc::O_EXCL != 0);
        let file = match init.fd {
            // contract A6
            -1 => None,
            fd if fd < 0 => return Err(Errno(libc::EBADF)),
            // SAFETY: not -1. That it may not be open is found out by its use, which answers EBADF;
            // it is kept no longer than this call.
            fd => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
        };
        // SAFETY: an opened context of the caller's.
        let owner = unsafe { context_of(context) };
        let inner = owner.device.open_xrcd(file, flags)?;
        let xrcd = hand_out(XrcdObject { base: UnsafeCell::new(ibv_xrcd { context }), inner: inner.clone() });
        owner.live.xrcds.insert(xrcd, &inner);
        Ok(xrcd.cast())
    })
}

/// `ibv_close_xrcd(3)`: 0 or a positive error number (contract A13).
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(|| {
        // SAFETY: a handle of the caller's, and its context.
        let (object, owner) = unsafe { (xrcd_of(xrcd), context_of((*xrcd).context)) };
        object.inner.close()?;
        owner.live.xrcds.remove(xrcd);
        // SAFETY: handed out above; the caller gives it up.
        unsafe { take_back(xrcd.cast::<XrcdObject>()) };
        Ok(())
    })
}
