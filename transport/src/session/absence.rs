//! Handling of a removed device: ending its sessions, releasing it completely, and looking for it until it is
//! back.
//!
//! ```text
//! Present --- removed ---> Emptying --- every poller has taken what had arrived ---> Releasing
//!    ^                                                                                  |
//!    `------- opened --- Looking <--- every poller has released it ---------------------'
//! ```
//!
//! A kernel removes a device only when every process has released every object on it. So nothing here waits
//! for the device: work that it has not completed fails, and may have arrived. While the device is away, a
//! send fails as it does for a peer that is down, at the pace at which the device is looked for. The CM
//! machine calls this.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use crate::command::Command;
use crate::incarnation::{self, DeviceShared, Listening, Opened};
use crate::options::NodeOptions;
use crate::{Connect, PeerDown, PeerKey, PollerIndex, StartError};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::Time;

/// First and longest pause between two attempts to find the device.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_DOUBLINGS: u32 = 6;
/// Number of failed attempts, about a minute of them, between two log lines about the absence.
const TELL_EVERY: u32 = 64;

/// State of the device: present, or away.
#[derive(Debug)]
enum State {
    Present,
    /// Waits for these pollers to take what had arrived.
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
    state: State,
    /// Options for opening the device again, and why that device and its kind of connections were chosen at
    /// first.
    options: NodeOptions,
    why: (String, String),
    /// Peers with messages that wait for a session.
    wanted: BTreeSet<PeerKey>,
}

impl Presence {
    /// Creates the state for a present device. Later devices must be of the same family, even if others are
    /// found then.
    pub(super) fn new(options: NodeOptions, device: &DeviceShared) -> Self {
        Self {
            state: State::Present,
            options: incarnation::again(options, device),
            why: (device.why.clone(), device.connections_why.clone()),
            wanted: BTreeSet::new(),
        }
    }

    pub(super) fn is_present(&self) -> bool {
        matches!(self.state, State::Present)
    }

    /// Returns the time at which [`CmMachine::look`] has something to do.
    pub(super) fn next_timer(&self) -> Option<Time> {
        match self.state {
            State::Looking { next, .. } => Some(next),
            _ => None,
        }
    }

    /// Takes the peers that were wanted since the last call.
    pub(super) fn take_wanted(&mut self) -> BTreeSet<PeerKey> {
        std::mem::take(&mut self.wanted)
    }

    /// Notes that a message to this peer waits for a device.
    pub(super) fn want(&mut self, peer: PeerKey) {
        self.wanted.insert(peer);
    }
}

impl CmMachine {
    /// Handles the removal of the device: every session ends, and the pollers release the device.
    pub(super) fn device_removed(&mut self) {
        if self.closed || !self.presence.is_present() || mutant!(removal_is_ignored) {
            return;
        }
        tracing::warn!(device = self.endpoints.device_name(), "the RDMA device was removed; sessions end");
        self.shared.device.lost(self.now());
        self.presence.state = State::Emptying(self.all_pollers());
        self.tell(|| Command::DeviceLost);
    }

    /// Notes that a poller has taken what had arrived. After the last poller, the sessions end.
    pub(super) fn emptied(&mut self, poller: PollerIndex) {
        let State::Emptying(left) = &mut self.presence.state else { return };
        left.remove(&poller);
        if !left.is_empty() {
            return;
        }
        self.presence.state = State::Releasing(self.all_pollers());
        self.tell(|| Command::TakeHandedOn);
        for peer in self.peers.keys() {
            self.drive(peer, |machine, actions| machine.device_removed(actions));
        }
        self.endpoints.abandon();
        self.tell(|| Command::ReleaseDevice);
    }

    /// Notes that a poller has released the device. After the last poller, this machine releases it too.
    pub(super) fn released(&mut self, poller: PollerIndex) {
        let State::Releasing(left) = &mut self.presence.state else { return };
        left.remove(&poller);
        if !left.is_empty() {
            return;
        }
        self.detach();
        self.shared.release();
        self.presence.state = State::Looking { next: self.now() + LOOK_FIRST, failures: 0 };
        tracing::info!("nothing of the RDMA device is held any more; looking for it");
    }

    /// Tries to open the device again, if it is time to.
    pub(super) fn look(&mut self, now: Time) {
        let State::Looking { next, failures } = self.presence.state else { return };
        if next > now || self.closed {
            return;
        }
        if let Err(error) = self.open_again() {
            if failures % TELL_EVERY == 0 {
                tracing::info!(%error, "the RDMA device is not back");
            }
            let pause = LOOK_FIRST * (1 << failures.min(LOOK_DOUBLINGS));
            let (next, failures) = (self.now() + pause, failures.saturating_add(1));
            self.presence.state = State::Looking { next, failures };
            let cause = PeerDown::DeviceRemoved;
            for peer in self.presence.take_wanted() {
                self.tell(|| Command::PeerDown { peer, number: 0, cause, next: None });
            }
            return;
        }
        self.presence.state = State::Present;
        let now = self.now();
        for peer in self.presence.take_wanted() {
            self.drive(peer, |machine, actions| machine.want(now, Connect::FailFast, actions));
        }
    }

    /// Takes a device, with its event channel and listeners.
    pub(super) fn attach(&mut self, device: Arc<DeviceShared>, listening: Listening) -> io::Result<()> {
        let Listening { channel, listeners } = listening;
        self.sleeper.watch(|| channel.as_fd())?;
        if let Err(error) = self.sleeper.watch(|| device.device.async_event_fd()) {
            let _unwatched = self.sleeper.unwatch(|| channel.as_fd());
            return Err(error);
        }
        // Ports chosen at first are kept, so that peers find us again.
        self.listening = listeners.iter().map(|listener| listener.local_address()).collect();
        self.endpoints.attach(device, channel, listeners);
        Ok(())
    }

    /// Releases the device, and discards its remaining events.
    pub(super) fn detach(&mut self) {
        let Some((device, channel)) = self.endpoints.detach() else { return };
        let unwatched = self.sleeper.unwatch(|| channel.as_fd());
        if let Err(error) = unwatched.and(self.sleeper.unwatch(|| device.device.async_event_fd())) {
            tracing::debug!(%error, "ceasing to wait for the events of a device");
        }
        while channel.next_event().is_some() {}
    }

    fn all_pollers(&self) -> BTreeSet<PollerIndex> {
        self.shared.pollers.iter().map(|poller| poller.index()).collect()
    }

    fn open_again(&mut self) -> Result<(), StartError> {
        let opened = incarnation::open(&self.presence.options, &self.listening)?;
        let Opened { shared: mut device, pollers, listen } = opened;
        (device.why, device.connections_why) = self.presence.why.clone();
        let listening = incarnation::listen(&device, &self.presence.options, &listen)?;
        let device = Arc::new(device);
        self.attach(Arc::clone(&device), listening)
            .map_err(|cause| StartError::Os { doing: "wait for connection events", cause })?;
        tracing::info!(device = device.device.attributes().name, "the RDMA device is back");
        self.shared.open(&device);
        for (poller, own) in self.shared.pollers.iter().zip(pollers) {
            poller.command(Command::TakeDevice(Box::new(own)));
        }
        Ok(())
    }
}
