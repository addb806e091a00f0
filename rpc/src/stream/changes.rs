//! Streams that their poller has to process, reported by readers and writers on any thread.

use super::state::{Flushed, Stream};
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_transport::{Carrier, PeerKey};
use trunkline_verbs::Time;

/// Time until a full queue of messages is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// Changes the charge of a peer from one number of bytes to another. Returns false if it may not use them.
pub(super) type Charge<'a> = &'a dyn Fn(PeerKey, usize, usize) -> bool;

/// The streams of one poller that have changed. Each is in the list at most once.
#[derive(Default)]
pub(crate) struct Changes {
    any: AtomicBool,
    streams: Mutex<Vec<Arc<Stream>>>,
}

impl Changes {
    pub(crate) fn add(&self, stream: Arc<Stream>) {
        self.lock().push(stream);
        // SYNC: changes
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn any(&self) -> bool {
        // SYNC: changes
        self.any.load(Ordering::Acquire)
    }

    /// Takes all streams, in exchange for an empty list.
    fn take(&self, list: &mut Vec<Arc<Stream>>) {
        self.any.store(false, Ordering::Release);
        mem::swap(&mut *self.lock(), list);
    }

    /// Drops all streams: their poller has ended.
    pub(crate) fn clear(&self) {
        let mut list = Vec::new();
        self.take(&mut list);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("any", &self.any).finish_non_exhaustive()
    }
}

/// The streams of one poller that wait for room in the queue of messages. The poller owns it.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    waiting: Vec<Arc<Stream>>,
    next_round: Option<Time>,
    /// Reused to avoid an allocation per flush.
    list: Vec<Arc<Stream>>,
    scratch: Vec<u8>,
}

impl Unsent {
    /// Sends the frames that streams have handed over. Returns true if there was a stream to process.
    pub(crate) fn flush(&mut self, changes: &Changes, carrier: &mut dyn Carrier, charge: Charge<'_>) -> bool {
        let now = carrier.now();
        let is_round = self.next_round.is_some_and(|due| due <= now);
        if !changes.any() && !is_round {
            return false;
        }
        let mut list = mem::take(&mut self.list);
        if is_round {
            self.next_round = None;
            list.append(&mut self.waiting);
        }
        let waited = list.len();
        if waited == 0 {
            changes.take(&mut list);
        } else {
            let mut changed = Vec::new();
            changes.take(&mut changed);
            list.append(&mut changed);
        }
        for stream in list.drain(..) {
            if stream.flush(carrier, charge, &mut self.scratch) == Flushed::NoRoom {
                self.waiting.push(stream);
                self.next_round.get_or_insert(now + PAUSE);
            }
        }
        self.list = list;
        true
    }

    /// Returns the number of streams that wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the time of the next `flush`.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.next_round
    }
}
