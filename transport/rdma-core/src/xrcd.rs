//! Opening and closing of XRC domains.

use crate::context::Opened;
use crate::error::{Doing, check_destroy, last};
use crate::handle::{Handle, dropped};
use crate::inlines;
use rdma_sys::{ibv_xrcd, ibv_xrcd_init_attr, ibv_xrcd_init_attr_mask};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use trunkline_verbs::{VerbsError, XrcDomain, XrcdFlags};

/// A handle for an XRC domain.
#[derive(Debug)]
pub(crate) struct Xrcd {
    handle: Handle<ibv_xrcd>,
    opened: Arc<Opened>,
}

impl Xrcd {
    pub(crate) fn open(
        opened: Arc<Opened>,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Self, VerbsError> {
        let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD
            | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut oflags = 0;
        if flags.contains(XrcdFlags::CREATE) {
            oflags |= libc::O_CREAT;
        }
        if flags.contains(XrcdFlags::EXCLUSIVE) {
            oflags |= libc::O_EXCL;
        }
        let fd = file.map_or(-1, |file| file.as_raw_fd());
        let mut attributes = ibv_xrcd_init_attr { comp_mask: mask.0, fd, oflags };
        let raw = inlines::open_xrcd(opened.live(), &mut attributes);
        let raw = NonNull::new(raw).ok_or_else(|| last(Doing::OpenXrcd))?;
        // SAFETY: libibverbs has just created it, and only this value destroys it.
        let handle = unsafe { Handle::new(raw) };
        Ok(Self { handle, opened })
    }

    /// Returns the C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_xrcd> {
        &self.handle
    }

    /// Returns the opening to which the domain belongs.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

impl XrcDomain for Xrcd {
    fn close(&self) -> Result<(), VerbsError> {
        self.handle.destroy(
            // SAFETY: if the call succeeds, `Handle::destroy` clears the pointer, so the domain is not used
            // afterwards.
            |xrcd| unsafe { inlines::close_xrcd(xrcd) },
            |errno| check_destroy(errno, "an SRQ or a TGT handle was made with this XRC domain handle"),
        )
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        dropped("an XRC domain", self.close());
    }
}
