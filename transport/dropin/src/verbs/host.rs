//! What a process has one of: the device, and what finds events their way.
//!
//! Owns the process-wide state of the library; C's interface has no handle that could hold it.
//! The device is opened with the first context and stays: what a program leaves behind would keep
//! the device's addresses anyway, and then it could not be opened again. One that was removed is
//! replaced when it is back; whoever still has contexts of it keeps it.

use super::events::{Router, lock};
use crate::border::Errno;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use trunkline_softrdma::device::{OpenError, SoftDevice, SoftOptions};

/// The state.
#[derive(Debug, Default)]
pub(crate) struct Host {
    device: Mutex<Option<Arc<SoftDevice>>>,
    pub(crate) router: Router,
    next_id: AtomicU64,
    next_handle: AtomicU32,
}

/// The process's own.
pub(crate) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(Host::default)
}

impl Host {
    /// The device, opened when it is not: contexts of one process share it, since an address
    /// can be taken once.
    pub(crate) fn device(&self) -> Result<Arc<SoftDevice>, Errno> {
        let mut known = lock(&self.device);
        if let Some(device) = known.as_ref().filter(|device| !device.is_removed()) {
            return Ok(Arc::clone(device));
        }
        let opened = SoftOptions::from_env().and_then(SoftDevice::open);
        let device = opened.map_err(|error| {
            // Programs print errno at most, and that tells no remedy; who took it away knows.
            if !matches!(error, OpenError::Removed) {
                eprintln!("trunkline0: cannot open the device: {error}");
            }
            Errno::from(trunkline_verbs::VerbsError::from(error))
        })?;
        super::fork::install();
        super::end::install();
        device.on_async_event(|event| host().router.deliver(event));
        *known = Some(Arc::clone(&device));
        Ok(device)
    }

    /// The device, when it is open.
    pub(crate) fn opened(&self) -> Option<Arc<SoftDevice>> {
        lock(&self.device).clone()
    }

    /// The device, when it is open and nobody is just opening it.
    pub(super) fn left_open(&self) -> Option<Arc<SoftDevice>> {
        self.device.try_lock().ok()?.clone()
    }

    /// A number that no other object of the process has.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// What programs see in the `handle` of an object.
    pub(crate) fn next_handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }
}
