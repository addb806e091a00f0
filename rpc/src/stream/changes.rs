//! Collects streams for processing by their poller, as reported by readers and writers on any thread.

use super::Charge;
use super::state::{CallStream, Flushed};
use crate::node::fork_lock::Lock;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trunkline_transport::{PeerKey, Transport};
use trunkline_verbs::Time;

/// Pause after an attempt that found no room. It doubles after each further such attempt.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// Maximum number of a peer's streams tried in one round.
const TRIES: usize = 256;
/// Maximum number of a peer's streams tried without success in one round.
const FAILURES: usize = 16;

/// The changed streams of one poller. The list contains each stream at most once.
#[derive(Default)]
pub(crate) struct Changes {
    any: AtomicBool,
    streams: Lock<Vec<Arc<CallStream>>>,
}

impl Changes {
    pub(crate) fn add(&self, stream: Arc<CallStream>) {
        self.streams.lock().push(stream);
        // SYNC: changes
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn any(&self) -> bool {
        // SYNC: changes
        self.any.load(Ordering::Acquire)
    }

    /// Takes all streams. `list` must be empty and is swapped with the list of streams.
    fn take(&self, list: &mut Vec<Arc<CallStream>>) {
        self.any.store(false, Ordering::Release);
        mem::swap(&mut *self.streams.lock(), list);
    }

    /// Drops all streams, because their poller has ended.
    pub(crate) fn clear(&self) {
        let mut list = Vec::new();
        self.take(&mut list);
    }
}

/// The streams of one poller that wait for room in the message queue. Owned by the poller.
///
/// The streams to one peer form a line. While the message queue has no room for the peer, only a few of them are tried, at
/// growing intervals, because a peer may have many streams and accept no messages.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    lines: BTreeMap<PeerKey, BlockedPeer>,
    next_round: Option<Time>,
    /// Reused to avoid an allocation per flush.
    list: Vec<Arc<CallStream>>,
    scratch: Vec<u8>,
}

/// The streams to a peer that wait for room in the message queue.
#[derive(Debug)]
struct BlockedPeer {
    streams: VecDeque<Arc<CallStream>>,
    due: Time,
    pause: Duration,
}

impl Unsent {
    /// Sends the pending frames of streams. Returns true if there were streams to process.
    pub(crate) fn flush(&mut self, changes: &Changes, transport: &mut Transport, charge: Charge<'_>) -> bool {
        let now = transport.now();
        let is_round = self.next_round.is_some_and(|due| due <= now);
        if !changes.any() && !is_round {
            return false;
        }
        if is_round {
            self.flush_lines(now, transport, charge);
        }
        let mut list = mem::take(&mut self.list);
        changes.take(&mut list);
        for stream in list.drain(..) {
            let line = if self.lines.is_empty() { None } else { stream.destination() };
            if let Some(line) = line.and_then(|peer| self.lines.get_mut(&peer)) {
                line.streams.push_back(stream);
            } else if let Flushed::NoRoom(peer) = stream.flush(transport, charge, &mut self.scratch) {
                let line = BlockedPeer { streams: VecDeque::from([stream]), due: now + PAUSE, pause: PAUSE };
                self.lines.insert(peer, line);
            }
        }
        self.list = list;
        self.next_round = self.lines.values().map(|line| line.due).min();
        true
    }

    /// Sends the pending frames of lines whose retry time has been reached.
    fn flush_lines(&mut self, now: Time, transport: &mut Transport, charge: Charge<'_>) {
        let scratch = &mut self.scratch;
        self.lines.retain(|_, line| {
            if line.due > now {
                return true;
            }
            let (mut tried, mut failed) = (0, 0);
            while tried < TRIES && failed < FAILURES {
                let Some(stream) = line.streams.pop_front() else { return false };
                tried += 1;
                if let Flushed::NoRoom(_) = stream.flush(transport, charge, scratch) {
                    line.streams.push_back(stream);
                    failed += 1;
                    // All streams of the line were tried.
                    if failed >= line.streams.len() {
                        break;
                    }
                }
            }
            line.pause = if tried > failed { PAUSE } else { (2 * line.pause).min(LONGEST_PAUSE) };
            line.due = if failed == 0 { now } else { now + line.pause };
            true
        });
    }

    /// Returns the time when `flush` must be called next.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.next_round
    }
}
