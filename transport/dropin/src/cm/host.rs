//! The process-wide state of librdmacm: the open device, the table of ids, and the PD and XRC domain for ids that have
//! none.

use super::fields::Id;
use crate::abi::*;
use crate::border::{Errno, Handle, made};
use crate::verbs;
use crate::verbs::events::lock;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};
use trunkline_softrdma::device::SoftDevice;
use trunkline_verbs::CmIdNumber;

/// The process-wide state.
#[derive(Debug, Default)]
pub(super) struct Host {
    opened: Mutex<Opened>,
    /// Addresses of the C structures of ids that may get events. A lookup counts an event on the id before it unlocks the
    /// table. The destruction of the id waits until the event is acknowledged.
    ids: Mutex<HashMap<CmIdNumber, usize>>,
}

/// Objects that are created when first needed. They are kept, because ids and programs hold pointers to them.
#[derive(Debug)]
struct Opened {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
}

impl Default for Opened {
    fn default() -> Self {
        Self { context: null_mut(), pd: null_mut(), xrcd: null_mut() }
    }
}

// SAFETY: the pointers are to objects of this library that are never destroyed, and libibverbs lets any
// thread use them.
unsafe impl Send for Opened {}

/// Returns the state of this process.
pub(super) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(Host::default)
}

impl Host {
    /// Returns the context that is stored in ids.
    pub(super) fn context(&self) -> Result<*mut ibv_context, Errno> {
        lock(&self.opened).context()
    }

    /// Returns the device.
    pub(super) fn device(&self) -> Result<Arc<SoftDevice>, Errno> {
        let context = self.context()?;
        // SAFETY: `Opened` created the context, and never closes it.
        let context = unsafe { Handle::new(context)? };
        Ok(Arc::clone(&context.device))
    }

    /// Returns the protection domain for ids that have none.
    pub(super) fn pd(&self) -> Result<*mut ibv_pd, Errno> {
        let mut opened = lock(&self.opened);
        let context = opened.context()?;
        if opened.pd.is_null() {
            // SAFETY: `Opened` created the context, and never closes it.
            opened.pd = made(unsafe { verbs::ibv_alloc_pd(context) })?;
        }
        Ok(opened.pd)
    }

    /// Returns the XRC domain for ids that have none. It is private to the process (contract J3).
    pub(super) fn xrcd(&self) -> Result<*mut ibv_xrcd, Errno> {
        let mut opened = lock(&self.opened);
        let context = opened.context()?;
        if opened.xrcd.is_null() {
            let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            let mut init = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: `Opened` created the context, and never closes it; the attributes are local.
            opened.xrcd = made(unsafe { verbs::open_xrcd(context, &raw mut init) })?;
        }
        Ok(opened.xrcd)
    }

    /// Adds an id to the table, so that its events are found.
    pub(super) fn enter(&self, number: CmIdNumber, id: Id<'_>) {
        lock(&self.ids).insert(number, id.address());
    }

    /// Removes an id from the table. Later events for it are dropped.
    pub(super) fn leave(&self, number: CmIdNumber) {
        lock(&self.ids).remove(&number);
    }

    /// Returns the id of an event and counts the event on it. The id exists at least until the event is acknowledged.
    pub(super) fn report<'a>(&self, number: CmIdNumber) -> Option<Id<'a>> {
        let ids = lock(&self.ids);
        let address = *ids.get(&number)?;
        // SAFETY: an id is removed from the table before it is released, and then waits until its events are
        // acknowledged. This event is counted while the table is locked.
        let id: Id<'a> = unsafe { Handle::at(address) }.ok()?;
        id.outstanding.report();
        Some(id)
    }
}

impl Opened {
    fn context(&mut self) -> Result<*mut ibv_context, Errno> {
        // SAFETY: null, or a context that was created below and is never closed.
        if unsafe { Handle::optional(self.context) }.is_some_and(|context| context.device.is_removed()) {
            // Objects of the removed device are not destroyed, because ids and programs may hold pointers to them.
            *self = Self::default();
        }
        if self.context.is_null() {
            // SAFETY: the list may be taken without its length. It ends with null, so its first entry can
            // be read, and it is freed once, after the device is open.
            unsafe {
                let list = made(verbs::ibv_get_device_list(null_mut()))?;
                let device = list.read();
                let context = if device.is_null() { null_mut() } else { verbs::ibv_open_device(device) };
                let error = nix::errno::Errno::last_raw();
                verbs::ibv_free_device_list(list);
                if device.is_null() {
                    return Err(Errno(libc::ENODEV));
                }
                if context.is_null() {
                    return Err(Errno(error));
                }
                self.context = context;
            }
        }
        Ok(self.context)
    }
}
