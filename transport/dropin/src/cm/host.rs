//! What librdmacm has one of in a process: its opened device, the default protection domain and
//! XRC domain, and the table of ids.

use super::id::IdObject;
use crate::abi::*;
use crate::border::Errno;
use crate::verbs;
use crate::verbs::events::lock;
use crate::verbs::objects::context_of;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};
use trunkline_softrdma::device::SoftDevice;
use trunkline_verbs::CmIdNumber;

/// The state.
#[derive(Debug, Default)]
pub(super) struct Host {
    opened: Mutex<Opened>,
    /// Ids that may have events, by the address of their C structure. Who looks one up reports
    /// an event on it before giving the lock back, and so keeps it.
    ids: Mutex<HashMap<CmIdNumber, usize>>,
}

/// Made when first asked for, and kept: ids and programs hold pointers to them.
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

// SAFETY: the objects behind the pointers may be used from any thread.
unsafe impl Send for Opened {}

/// The process's own.
pub(super) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(Host::default)
}

/// A pointer that a C function answered, or the errno that it left.
pub(super) fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(Errno(nix::errno::Errno::last_raw())) } else { Ok(pointer) }
}

impl Host {
    /// The device as ids show it.
    pub(super) fn context(&self) -> Result<*mut ibv_context, Errno> {
        lock(&self.opened).context()
    }

    /// The device.
    pub(super) fn device(&self) -> Result<Arc<SoftDevice>, Errno> {
        // SAFETY: the context is never closed.
        Ok(Arc::clone(unsafe { &context_of(self.context()?).device }))
    }

    /// The protection domain of ids whose program brings none.
    pub(super) fn pd(&self) -> Result<*mut ibv_pd, Errno> {
        let mut opened = lock(&self.opened);
        let context = opened.context()?;
        if opened.pd.is_null() {
            // SAFETY: the context is open.
            opened.pd = made(unsafe { verbs::ibv_alloc_pd(context) })?;
        }
        Ok(opened.pd)
    }

    /// The XRC domain of ids whose program brings none, private to the process (contract J3).
    pub(super) fn xrcd(&self) -> Result<*mut ibv_xrcd, Errno> {
        let mut opened = lock(&self.opened);
        let context = opened.context()?;
        if opened.xrcd.is_null() {
            let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            let mut init = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: the context is open and `init` lives.
            opened.xrcd = made(unsafe { verbs::open_xrcd(context, &raw mut init) })?;
        }
        Ok(opened.xrcd)
    }

    /// Events may come for an id from now on.
    pub(super) fn enter(&self, number: CmIdNumber, id: *mut rdma_cm_id) {
        lock(&self.ids).insert(number, id.addr());
    }

    /// No event is taken for an id any more.
    pub(super) fn leave(&self, number: CmIdNumber) {
        lock(&self.ids).remove(&number);
    }

    /// The id that an event is about, with the event counted as reported.
    pub(super) fn report(&self, number: CmIdNumber) -> Option<&'static IdObject> {
        let ids = lock(&self.ids);
        let address = *ids.get(&number)?;
        // SAFETY: ids leave the table before they go, and then wait for what was reported.
        let id = unsafe { &*std::ptr::with_exposed_provenance::<IdObject>(address) };
        id.outstanding.report();
        Some(id)
    }
}

impl Opened {
    fn context(&mut self) -> Result<*mut ibv_context, Errno> {
        // SAFETY: a context of ours is never closed.
        if !self.context.is_null() && unsafe { context_of(self.context) }.device.is_removed() {
            // Ids and programs may still point to what belongs to the removed device.
            *self = Self::default();
        }
        if self.context.is_null() {
            // SAFETY: null is allowed, and the list is given back once the device is open.
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
