//! Stop flag, which is set by SIGTERM or Ctrl-C. In a process started by the supervisor, the end of standard input also
//! sets it.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read as _;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    Signal,
    /// The supervisor closed the pipe or died.
    Supervisor,
}

/// A flag that is set once, with a reason. Threads can wait for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<(Mutex<Option<Why>>, Condvar)>);

impl Stop {
    /// Creates a flag that SIGTERM and SIGINT set.
    pub(crate) fn on_signals() -> std::io::Result<Self> {
        let stop = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let setter = stop.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_some() {
                setter.set(Why::Signal);
            }
        })?;
        Ok(stop)
    }

    /// Sets the flag at the end of standard input.
    pub(crate) fn at_end_of_input(&self) -> std::io::Result<()> {
        let setter = self.clone();
        std::thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut scrap = [0; 64];
            while matches!(std::io::stdin().read(&mut scrap), Ok(1..)) {}
            setter.set(Why::Supervisor);
        })?;
        Ok(())
    }

    /// Waits until the flag is set, for at most `limit`. Returns the reason, if the flag is set.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Why> {
        let (why, changed) = &*self.0;
        let guard = why.lock().unwrap_or_else(PoisonError::into_inner);
        let (guard, _) = changed
            .wait_timeout_while(guard, limit, |why| why.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *guard
    }

    pub(crate) fn asked(&self) -> bool {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, reason: Why) {
        let (why, changed) = &*self.0;
        why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        changed.notify_all();
    }
}
