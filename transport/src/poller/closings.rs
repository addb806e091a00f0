//! Sessions that end, and wait for what other pollers still hand on of them, over RC.
//!
//! A poller considers a session closed when it knows itself that the QPs are destroyed and all others have
//! sent the end of the session, or after a second: a home that is busy for longer must not keep a dead peer
//! from being reported. Plain state; the poller's `crossing.rs` feeds it.
#![forbid(unsafe_code)]

use crate::PeerKey;
use std::collections::BTreeMap;
use std::time::Duration;
use trunkline_verbs::Time;

/// A session that is closed waits this long for other pollers to hand on what came before.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);

/// The name of a session: the peer, and our number.
type Name = (PeerKey, u32);

/// All sessions of a poller that are being closed.
#[derive(Debug, Default)]
pub(super) struct Closings(BTreeMap<Name, Closing>);

#[derive(Debug, Default)]
struct Closing {
    /// Time at which the CM machine reported that the session's QPs are destroyed.
    since: Option<Time>,
    /// Other pollers that have sent the end of it.
    ends: usize,
    /// It was closed without the ends that are missing.
    is_over: bool,
}

impl Closings {
    /// The QPs of the session are destroyed. Returns whether it is closed now, because that was the last
    /// thing that was waited for.
    pub(super) fn begin(&mut self, session: Name, now: Time, others: usize) -> bool {
        self.0.entry(session).or_default().since.get_or_insert(now);
        self.take_if_all_ended(session, others)
    }

    /// One of the `others` has handed on all that it had of the session. Returns as [`Closings::begin`].
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

    /// The sessions that have waited too long for other pollers. They are closed now; ends that come later
    /// change nothing.
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

    /// Returns true if a session waits for other pollers to hand on what they have of it.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.values().any(|closing| !closing.is_over)
    }

    /// The device is released, and with it the rings.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
