//! A gate at which futures wait until the test opens it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

/// A gate. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<Passes>>);

#[derive(Debug, Default)]
struct Passes {
    is_open: bool,
    waiting: Vec<Waker>,
    /// Number of futures that have arrived.
    arrived: usize,
}

impl Gate {
    /// Waits until the gate is open.
    pub(crate) async fn pass(&self) {
        self.arrive();
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            if state.is_open {
                return Poll::Ready(());
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Counts the arrival of a future that waits elsewhere.
    pub(crate) fn arrive(&self) {
        self.0.lock().unwrap().arrived += 1;
    }

    /// Returns the number of futures that have arrived.
    pub(crate) fn arrived(&self) -> usize {
        self.0.lock().unwrap().arrived
    }

    /// Opens the gate permanently.
    pub(crate) fn open(&self) {
        let mut state = self.0.lock().unwrap();
        state.is_open = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}
