//! Opening and closing of XRC domains (contract A).

use super::objects::XrcdObject;
use crate::abi::*;
use crate::border::{Errno, Handle, In, hand_out, object, status};
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
        // SAFETY: as `ibv_open_xrcd(3)` requires, the program passes an open context, and
        // attributes that do not change during the call.
        let (owner, init) = unsafe { (Handle::new(context)?, In::new(init)?) };
        // contract A8
        if init.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if init.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
            return Err(Errno::EINVAL);
        }
        // contract A7: other bits are ignored.
        let mut flags = XrcdFlags::empty();
        flags.set(XrcdFlags::CREATE, init.oflags & libc::O_CREAT != 0);
        flags.set(XrcdFlags::EXCLUSIVE, init.oflags & libc::O_EXCL != 0);
        let file = match init.fd {
            // contract A6
            -1 => None,
            fd if fd < 0 => return Err(Errno(libc::EBADF)),
            // SAFETY: not -1, and used during this call only, in which the program does not close it. If
            // it is not open, its use fails with EBADF.
            fd => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
        };
        let inner = owner.device.open_xrcd(file, flags)?;
        let base = UnsafeCell::new(ibv_xrcd { context: owner.as_ptr() });
        let xrcd: Handle<'_, ibv_xrcd> = hand_out(XrcdObject { base, inner: inner.clone() });
        owner.live.xrcds.insert(xrcd.address(), &inner);
        Ok(xrcd.as_ptr())
    })
}

/// `ibv_close_xrcd(3)`: 0 or a positive error number (contract A13).
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(|| {
        // SAFETY: as `ibv_close_xrcd(3)` requires, the program passes an open XRC domain.
        let xrcd = unsafe { Handle::new(xrcd)? };
        let owner = xrcd.owner()?;
        xrcd.inner.close()?;
        owner.live.xrcds.remove(xrcd.address());
        // SAFETY: this is the program's last use of the handle, and its context does not list it any
        // more.
        unsafe { xrcd.release() };
        Ok(())
    })
}
