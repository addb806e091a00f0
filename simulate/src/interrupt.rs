//! SIGINT and SIGTERM during a campaign: it begins no further run, and reports the runs so far.
//!
//! A second signal ends the program at once.

use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Flag that a signal sets. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Creates a flag that both signals set.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let (number, again) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        for (signal, code) in [(SIGINT, 2_u8), (SIGTERM, 15)] {
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + i32::from(code),
                Arc::clone(&again),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&again))?;
            signal_hook::flag::register_usize(signal, Arc::clone(&number), usize::from(code))?;
        }
        Ok(Self(number))
    }

    /// Returns the number and name of the first signal, if one has arrived.
    pub(crate) fn signal(&self) -> Option<(u8, &'static str)> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            2 => Some((2, "SIGINT")),
            _ => Some((15, "SIGTERM")),
        }
    }
}
