//! A poller's queue of commands from other machines, which are executed in order.
#![forbid(unsafe_code)]

use super::Transport;
use super::targets::Target;
use crate::PeerKey;
use crate::command::{Command, PollerHandle};
use trunkline_machine::mutant;
use trunkline_verbs::QpNumber;

/// The poller's end of its queue of commands.
#[derive(Debug)]
pub(super) struct CommandQueue {
    handle: PollerHandle,
    /// Command that was taken from the queue and must wait. Later commands do not overtake it.
    deferred: Option<Command>,
    /// True while the end of a session is being processed. Queued commands may concern the frames taken in the
    /// meantime.
    is_closing: bool,
}

impl CommandQueue {
    pub(super) fn new(handle: PollerHandle) -> Self {
        Self { handle, deferred: None, is_closing: false }
    }

    /// Returns true if the queue is not empty.
    pub(super) fn has_any(&self) -> bool {
        self.handle.has_commands()
    }

    fn next(&mut self) -> Option<Command> {
        if self.is_closing {
            return None;
        }
        self.deferred.take().or_else(|| self.handle.next_command())
    }

    /// Returns true if a command is deferred or still being processed, so that later commands have not been read.
    pub(super) fn is_held_back(&self) -> bool {
        self.is_closing || self.deferred.is_some()
    }
}

impl Transport {
    /// Executes the commands of other machines. Returns true if there were any.
    pub(super) fn commands(&mut self) -> bool {
        let mut worked = false;
        while let Some(command) = self.inbox.next() {
            worked = true;
            self.perform(command);
        }
        // The TGTs of these frames are destroyed, or were never announced.
        self.targets.forget_unannounced();
        worked
    }

    /// Executes commands while completions are being taken. A command that itself takes completions or forwarded
    /// frames is deferred to [`Transport::commands`], with all commands after it.
    pub(super) fn commands_amid_completions(&mut self) {
        while let Some(command) = self.inbox.next() {
            if matches!(command, Command::DeviceLost | Command::HandedOn(_) | Command::SessionClosed { .. }) {
                self.inbox.deferred = Some(command);
                break;
            }
            self.perform(command);
        }
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::TargetAdded { peer, number, poller, target } => {
                self.target_added(peer, number, poller, target);
            }
            #[cfg(feature = "identity")]
            Command::BeginHandshake { peer, number, qp, srq } => {
                self.handshakes.begin((peer, number), qp, srq);
            }
            #[cfg(feature = "identity")]
            Command::SendHandshake { peer, number, frame } => self.send_handshake(peer, number, frame),
            Command::SessionUp(session) => self.session_up(session),
            Command::SessionClosed { peer, number, cause } => {
                self.inbox.is_closing = true;
                self.take_arrived(peer);
                self.inbox.is_closing = false;
                self.session_closed(peer, number, cause);
            }
            Command::Probe { peer, number } => {
                if let Some(trunk) = self.find_trunk(peer, number).and_then(|slot| self.trunks.get_mut(slot))
                {
                    trunk.probe_at_once(&mut self.res);
                }
            }
            #[cfg(feature = "identity")]
            Command::Renewed { peer, number, identity, exchange } => {
                if let Some(trunk) = self.find_trunk(peer, number).and_then(|slot| self.trunks.get_mut(slot))
                {
                    trunk.renewed(&mut self.res, identity, exchange);
                } else {
                    self.peers.pending_renewed(peer, number, identity, exchange);
                }
            }
            Command::TargetDropped { target } => {
                if let Some(pair) = self.targets.remove(target) {
                    self.res.grants.close(pair);
                }
            }
            Command::PeerDown { peer, number, cause, next } => self.peer_down(peer, number, cause, next),
            Command::Forget { peer } => self.peers.forget(peer),
            Command::DeviceLost => self.device_lost(),
            Command::HandedOn(crossings) => {
                self.take_handed_on();
                crossings.into_iter().for_each(|crossing| self.take_last(crossing));
            }
            Command::TakeHandedOn => self.take_handed_on(),
            Command::ReleaseDevice => self.release_device(),
            Command::TakeDevice(device) => self.take_device(*device),
            Command::Shutdown { deadline } => {
                self.res.is_draining = true;
                self.shutdown.begin(deadline);
            }
            Command::End => self.shutdown.end(self.res.time.now()),
        }
    }

    fn target_added(&mut self, peer: PeerKey, number: u32, poller: u16, target: QpNumber) {
        let peer = self.peers.add(peer);
        self.peers.returned(peer);
        let home = self.crossings.home_of(poller);
        if let Some((before, _)) = self.targets.get(target).map(Target::session) {
            // Handle queued frames of the old QP before its number identifies the new QP.
            self.take_line(before);
        }
        let old = self.targets.add(target, Target::new(peer, number, poller, home));
        // The number was reused, so the old QP is already destroyed, but its target has not been closed here yet.
        if let Some(pair) = old {
            self.res.grants.close(pair);
        }
        if mutant!(credit_is_charged_at_the_request) {
            let _charged = self.targets.get_mut(target).and_then(|known| known.charge(target, &mut self.res));
        }
        match self.targets.take_unannounced(target) {
            Ok(frames) => frames.into_iter().for_each(|frame| self.take_early_frame(target, frame)),
            Err(error) => {
                self.targets.ignore(target);
                self.misbehaved(peer, number, error);
            }
        }
    }
}
