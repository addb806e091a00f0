//! The process-wide state of the library, which is the device and the router of its events.
//!
//! The C interface has no handle that could hold this state. The device is opened with the first context and stays
//! open after the last one is closed. Objects that a program has not destroyed would keep its addresses in use, so it
//! could not be opened again. After its restoration, a removed device is opened again; old contexts keep the removed
//! one.

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
    /// Returns the device, and opens it if it is not open. All contexts of the process share it, since an
    /// address can be taken only once.
    pub(crate) fn device(&self) -> Result<Arc<SoftDevice>, Errno> {
        let mut known = lock(&self.device);
        if let Some(device) = known.as_ref().filter(|device| !device.is_removed()) {
            return Ok(Arc::clone(device));
        }
        let opened = SoftOptions::from_env().and_then(SoftDevice::open);
        let device = opened.map_err(|error| {
            // Print the cause, because programs print at most errno. A removal needs no
            // message.
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

    /// Returns the device if it is open. Does not wait while it is being opened.
    pub(super) fn left_open(&self) -> Option<Arc<SoftDevice>> {
        self.device.try_lock().ok()?.clone()
    }

    /// Returns a number that differs from the numbers of all other objects of the process.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a number for an object's field `handle`, which programs only print.
    pub(crate) fn next_handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }
}
