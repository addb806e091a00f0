//! The process-wide state of the library: the device and the router of its events.
//!
//! The C interface has no handle that could hold this state. The device is opened with the first context, and stays open
//! after the last context is closed. If it were closed then, objects that the program has not destroyed would keep its
//! addresses in use, and it could not be opened again. If a removed device is restored, it is opened again. Old contexts
//! keep the removed device.

use super::events::{Router, lock};
use crate::border::Errno;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use trunkline_softrdma::device::{OpenError, SoftDevice, SoftOptions};

/// The process-wide state.
#[derive(Debug, Default)]
pub(crate) struct Host {
    device: Mutex<Option<Arc<SoftDevice>>>,
    pub(crate) router: Router,
    next_id: AtomicU64,
    next_handle: AtomicU32,
}

/// Returns the state of this process.
pub(crate) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(Host::default)
}

impl Host {
    /// Returns the device, and opens it if necessary. All contexts of the process share it, because an address can be used
    /// only once.
    pub(crate) fn device(&self) -> Result<Arc<SoftDevice>, Errno> {
        let mut known = lock(&self.device);
        if let Some(device) = known.as_ref().filter(|device| !device.is_removed()) {
            return Ok(Arc::clone(device));
        }
        let opened = SoftOptions::from_env().and_then(SoftDevice::open);
        let device = opened.map_err(|error| {
            // Print the cause, because programs print at most errno. A removed device needs no message.
            if !matches!(error, OpenError::Removed) {
                let _unwritten = writeln!(io::stderr(), "trunkline0: cannot open the device: {error}");
            }
            Errno::from(trunkline_verbs::VerbsError::from(error))
        })?;
        super::fork::install();
        super::end::install();
        device.on_async_event(|event| host().router.deliver(event));
        *known = Some(Arc::clone(&device));
        Ok(device)
    }

    /// Returns the device, if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<SoftDevice>> {
        lock(&self.device).clone()
    }

    /// Returns the device if it is open. Does not wait while another thread opens it.
    pub(super) fn left_open(&self) -> Option<Arc<SoftDevice>> {
        self.device.try_lock().ok()?.clone()
    }

    /// Returns a number that is unique among the objects of the process.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a number for the field `handle` of an object. Programs only print this field.
    pub(crate) fn next_handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }
}
