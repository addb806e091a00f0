//! Warns of handlers and tasks that keep their poller from going on.
//!
//! The node's control plane calls it a few times within the limit. It compares the numbers of the pollers' turns: one that is the same
//! for longer than the limit, while code of the program occupies the poller, is reported, once per turn. Pollers
//! pay for it by counting their turns.

use crate::inboxes::Inboxes;
use crate::occupant::Occupation;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trunkline_transport::{LogLimit, Watch};
use trunkline_verbs::Time;

/// How long code may keep a poller, if the program does not choose.
pub(crate) const HOLD_LIMIT: Duration = Duration::from_secs(1);
/// How often it looks within the limit, and most and least time between two looks.
const LOOKS: u32 = 4;
const MOST: Duration = Duration::from_millis(250);
const LEAST: Duration = Duration::from_millis(1);

/// What is known of one poller.
#[derive(Debug, Clone, Copy)]
struct Seen {
    turn: u32,
    since: Time,
    is_reported: bool,
}

/// The watch over the pollers of a node.
pub(crate) struct Watchdog {
    inboxes: Arc<Inboxes>,
    limit: Duration,
    state: Mutex<(Vec<Seen>, LogLimit)>,
    /// Turns that took longer than the limit.
    held: AtomicU64,
}

impl Watchdog {
    /// Over these pollers, with this limit.
    pub(crate) fn new(inboxes: Arc<Inboxes>, limit: Duration) -> Arc<Self> {
        let seen = vec![Seen { turn: 0, since: Time(0), is_reported: true }; inboxes.len()];
        Arc::new(Self {
            inboxes,
            limit,
            state: Mutex::new((seen, LogLimit::default())),
            held: AtomicU64::new(0),
        })
    }

    /// Turns that were reported since the start.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn report(&self, poller: usize, occupation: Occupation, held: Duration, left_out: u64) {
        tracing::warn!(
            poller,
            occupied_by = %occupation,
            ?held,
            left_out,
            "a poller does not go on, and all its other calls wait: mark the method #[blocking] or #[offload], or have it \
             await (the limit is hold_limit)"
        );
    }
}

impl Watch for Watchdog {
    fn look(&self, now: Time) -> Time {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, log) = &mut *state;
        for (poller, (inbox, seen)) in self.inboxes.iter().zip(seen).enumerate() {
            let (turn, occupation) = (inbox.occupant().turn(), inbox.occupant().occupation());
            if turn != seen.turn || occupation == Occupation::Nothing {
                *seen = Seen { turn, since: now, is_reported: false };
            }
            let held = now.saturating_duration_since(seen.since);
            if held >= self.limit && !seen.is_reported {
                seen.is_reported = true;
                self.held.fetch_add(1, Ordering::Relaxed);
                if let Some(left_out) = log.line(now) {
                    self.report(poller, occupation, held, left_out);
                }
            }
        }
        now + (self.limit / LOOKS).clamp(LEAST, MOST)
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog")
            .field("limit", &self.limit)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::Inbox;
    use crate::lifecycle::Lifecycle;
    use crate::name::{MethodName, ServiceName};

    static SERVICE: ServiceName =
        ServiceName { name: "test.Kv", version: 1, oldest: 1, codec: 0, codec_name: "bincode", hash: 7 };
    static GET: MethodName = MethodName {
        service: &SERVICE,
        name: "get",
        hash: 8,
        one_way: false,
        streams: crate::name::Streams::Neither,
    };

    #[test]
    fn a_turn_that_takes_longer_than_the_limit_counts_once_and_a_poller_that_sleeps_does_not() {
        let lifecycle = Lifecycle::new(2);
        let inboxes = Inboxes::new((0..2).map(|_| Arc::new(Inbox::new(Arc::clone(&lifecycle)))));
        let watchdog = Watchdog::new(Arc::clone(&inboxes), Duration::from_millis(100));
        let at = |ms: u64| Time(1_000_000 * ms);
        let busy = inboxes[1].occupant();
        busy.set_methods(vec![&GET]);
        busy.turn_begins();
        busy.handler(0);
        assert_eq!(watchdog.look(at(1000)), at(1025), "it looks four times within the limit");
        let held = |ms: u64| {
            watchdog.look(at(ms));
            watchdog.held()
        };
        assert_eq!((held(1099), held(1100), held(5000)), (0, 1, 1));
        busy.turn_begins();
        assert_eq!((held(5050), held(5149), held(5150)), (1, 1, 2));
        busy.nobody();
        assert_eq!(held(9000), 2, "neither does one that is in its own code");
        busy.handler(0);
        assert_eq!((held(9001), held(9050)), (2, 2), "the time before does not count");
    }
}
