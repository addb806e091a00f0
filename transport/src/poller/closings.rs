//! Sessions that are ending and wait for frames that other pollers still hand on, over RC.
//!
//! A poller considers a session closed once its QPs are destroyed and all other pollers have sent its end.
//! After a second it stops waiting for them: a busy poller must not delay the report of a dead peer. Plain
//! state; the poller's `crossing.rs` feeds it.
#![forbid(unsafe_code)]

use crate::PeerKey;
use std::collections::BTreeMap;
use std::time::Duration;
use trunkline_verbs::Time;

/// Time for which a closed session waits for other pollers to hand on earlier frames.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);

/// Name of a session: the peer and our session number.
type Name = (PeerKey, u32);

/// All sessions of a poller that are ending.
#[derive(Debug, Default)]
pub(super) struct Closings(BTreeMap<Name, Closing>);

#[derive(Debug, Default)]
struct Closing {
    /// Time at which the CM machine reported that the session's QPs are destroyed.
    since: Option<Time>,
    /// Number of other pollers that have sent the session's end.
    ends: usize,
    /// True if it was closed before all ends had come.
    is_over: bool,
}

impl Closings {
    /// Records that the session's QPs are destroyed. Returns true if the session is now closed, because every
    /// other poller has already sent its end.
    pub(super) fn begin(&mut self, session: Name, now: Time, others: usize) -> bool {
        self.0.entry(session).or_default().since.get_or_insert(now);
        self.take_if_all_ended(session, others)
    }

    /// Counts the end sent by one of the `others`. Returns the same as [`Closings::begin`].
    pub(super) fn end_received(&mut self, session: Name, others: usize) -> bool {
        self.0.entry(session).or_default().ends += 1;
        self.take_if_all_ended(session, others)
    }

    fn take_if_all_ended(&mut self, session: Name, others: usize) -> bool {
        let is_ended = |closing: &Closing| closing.since.is_some() && closing.ends >= others;
        if !self.0.get(&session).is_some_and(is_ended) {
            return false;
        }
        self.0.remove(&session).is_some_and(|closing| !closing.is_over)
    }

    /// Closes the sessions that have waited too long for other pollers, and returns them. Ends that come
    /// later have no effect.
    pub(super) fn expire(&mut self, now: Time) -> Vec<Name> {
        let is_late = |closing: &Closing| {
            !closing.is_over && closing.since.is_some_and(|since| now - since > CLOSING_LIMIT)
        };
        let late = self.0.iter_mut().filter(|(_, closing)| is_late(closing));
        late.map(|(&session, closing)| {
            closing.is_over = true;
            session
        })
        .collect()
    }

    /// Returns true if a session waits for other pollers to hand on its frames.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.values().any(|closing| !closing.is_over)
    }

    /// Forgets all sessions, when the device and its rings are released.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
