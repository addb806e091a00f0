//! State machine that releases a removed device completely, and searches for it until it is back.
//!
//! ```text
//! Present --- removed ---> Emptying --- every poller has taken what had arrived ---> Releasing
//!    ^                                                                                  |
//!    `------- opened --- Looking <--- every poller has released it ---------------------'
//! ```
//!
//! The kernel removes a device only when every process has released every object on it. The node therefore does not
//! wait for incomplete work, which fails although it may have been delivered. While the device is away, sends fail as
//! if the peer were down, with the interval of the search as the pause. The CM machine passes in the events and
//! executes the results.
#![forbid(unsafe_code)]

use crate::node::incarnation::{self, DeviceShared, Listening, Opened};
use crate::node::options::NodeOptions;
use crate::{PeerKey, PollerIndex, StartError};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_verbs::Time;

/// First pause between two attempts to open the device, and the number of times that it doubles.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_DOUBLINGS: u32 = 6;
/// Number of failed attempts between two log lines about the absence, which is about a minute.
const TELL_EVERY: u32 = 64;

/// Stage of the device's presence or absence.
#[derive(Debug)]
enum Stage {
    Present,
    /// Waits for these pollers to take the arrived frames.
    Emptying(BTreeSet<PollerIndex>),
    /// Waits for these pollers to release the device.
    Releasing(BTreeSet<PollerIndex>),
    Looking {
        next: Time,
        failures: u32,
    },
}

/// Presence of the device, as the CM machine tracks it.
#[derive(Debug)]
pub(super) struct Presence {
    state: Stage,
    /// All pollers of the node.
    pollers: BTreeSet<PollerIndex>,
    /// Options for opening the device again, and the reasons for the first choice of device and kind of
    /// connections.
    options: NodeOptions,
    why: (String, String),
    /// Peers with messages that wait for a session.
    wanted: BTreeSet<PeerKey>,
}

impl Presence {
    /// Creates the state for a present device. Later devices must be of the same family, even if devices of other
    /// families are found.
    pub(super) fn new(options: NodeOptions, device: &DeviceShared, pollers: BTreeSet<PollerIndex>) -> Self {
        Self {
            state: Stage::Present,
            pollers,
            options: incarnation::again(options, device),
            why: (device.why.clone(), device.connections_why.clone()),
            wanted: BTreeSet::new(),
        }
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.state, Stage::Present)
    }

    /// Returns the time from which [`Presence::may_open`] returns true.
    pub(super) fn next_timer(&self) -> Option<Time> {
        match self.state {
            Stage::Looking { next, .. } => Some(next),
            _ => None,
        }
    }

    /// Takes the peers recorded by [`Presence::want`] since the last call.
    pub(super) fn take_wanted(&mut self) -> BTreeSet<PeerKey> {
        std::mem::take(&mut self.wanted)
    }

    /// Records that a message to this peer waits for a device.
    pub(super) fn want(&mut self, peer: PeerKey) {
        self.wanted.insert(peer);
    }

    /// Handles the removal of a present device.
    pub(super) fn removed(&mut self) {
        self.state = Stage::Emptying(self.pollers.clone());
    }

    /// Records that a poller has taken the arrived frames. Returns true for the last poller.
    pub(super) fn emptied(&mut self, poller: PollerIndex) -> bool {
        let Stage::Emptying(left) = &mut self.state else { return false };
        left.remove(&poller);
        let is_last = left.is_empty();
        if is_last {
            self.state = Stage::Releasing(self.pollers.clone());
        }
        is_last
    }

    /// Records that a poller has released the device. Returns true for the last poller.
    pub(super) fn released(&mut self, poller: PollerIndex, now: Time) -> bool {
        let Stage::Releasing(left) = &mut self.state else { return false };
        left.remove(&poller);
        let is_last = left.is_empty();
        if is_last {
            self.state = Stage::Looking { next: now + LOOK_FIRST, failures: 0 };
        }
        is_last
    }

    /// Returns true if it is time to try to open the device again.
    pub(super) fn may_open(&self, now: Time) -> bool {
        self.next_timer().is_some_and(|next| next <= now)
    }

    /// Opens the device again, to listen at the same addresses.
    pub(super) fn open(&self, addresses: &[SocketAddr]) -> Result<(Opened, Listening), StartError> {
        let mut opened = incarnation::open(&self.options, addresses)?;
        (opened.shared.why, opened.shared.connections_why) = self.why.clone();
        let listening = incarnation::listen(&opened.shared, &self.options, &opened.listen)?;
        Ok((opened, listening))
    }

    /// Handles a failed attempt to open the device.
    pub(super) fn still_away(&mut self, now: Time, error: &StartError) {
        let Stage::Looking { failures, .. } = self.state else { return };
        if failures % TELL_EVERY == 0 {
            tracing::info!(%error, "RDMA device not available yet");
        }
        let next = now + LOOK_FIRST * (1 << failures.min(LOOK_DOUBLINGS));
        self.state = Stage::Looking { next, failures: failures.saturating_add(1) };
    }

    pub(super) fn returned(&mut self) {
        self.state = Stage::Present;
    }
}
