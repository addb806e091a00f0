//! The phase in which clients make calls while the plan's faults occur.

use super::Run;
use crate::coverage::EventKind;
use crate::network::strangers::{Request, Sender};
use crate::plan::{Fault, Forgery};
use crate::scheduler::{Scheduler, Stopped};
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::Time;

/// Number of sessions begun by a crowd.
const CROWD: u16 = 16;
/// Number of connections per session of a crowd. In total, a crowd has twice the limit on half-open connections of one
/// host.
const CROWD_POLLERS: u16 = 32;
/// Number of sessions begun by a crowd if nodes have identities. It exceeds the limit on unproven sessions of one host.
const UNPROVEN_CROWD: u16 = 80;

impl Run {
    /// Runs the clients and the faults of the plan.
    pub(super) fn chaos(&mut self) {
        let coverage = Arc::clone(&self.scheduler.coverage);
        coverage.count(if self.plan.rc { EventKind::OverRc } else { EventKind::OverXrc });
        if self.plan.nodes.iter().any(|node| node.pollers > 1) {
            coverage.count(EventKind::SeveralPollers);
        }
        if self.plan.shares_hosts() {
            coverage.count(EventKind::SharedHost);
        }
        for index in 0..self.nodes.len() {
            self.start(index, None);
        }
        self.start_hostile();
        self.scheduler.network.set(self.plan.conditions);
        for (after, fault) in self.plan.faults.clone() {
            self.at(self.began + after, fault);
        }
        for (after, forgery) in self.plan.forgeries.clone() {
            self.at(self.began + after, Fault::ForgeOne(forgery));
        }
        let end = self.began + self.plan.lasts;
        while self.unbroken().is_ok() {
            let next = self.due.keys().next().map_or(end, |(at, _)| (*at).min(end));
            let interrupted = self.scheduler.run_until(next, Scheduler::has_death);
            self.settle();
            if interrupted {
                continue;
            }
            if self.scheduler.now() >= end || self.unbroken().is_err() {
                return;
            }
            if let Err(why) = self.count_credits() {
                return self.scheduler.oracle.fail(why);
            }
            if let Some((_, fault)) = self.due.pop_first() {
                self.happen(fault);
            }
        }
    }

    /// Handles processes that have ended since the last step.
    pub(super) fn settle(&mut self) {
        for node in &mut self.nodes {
            node.settle(&mut self.scheduler);
        }
    }

    /// Kills a process that should have died between two stores, but made too few stores.
    pub(super) fn kill_doomed(&mut self, node: usize) {
        if self.nodes[node].process().is_some_and(|process| self.scheduler.is_doomed(process)) {
            self.kill(node);
        }
    }

    fn at(&mut self, when: Time, fault: Fault) {
        self.dues += 1;
        self.due.insert((when, self.dues), fault);
    }

    /// Sends connection requests from strangers to a node. See [`Fault::Forge`].
    fn forge(&mut self, node: usize, other: usize, requests: u8) {
        let (victim, named) = (self.nodes[node].address, self.nodes[other].address);
        let pollers = self.plan.nodes[other].pollers;
        let nowhere = std::iter::repeat_n(Sender::Nowhere, requests.into());
        for sender in nowhere.chain([Sender::InTheNameOf(named), Sender::Present]) {
            let (is_rc, has_handshake) = (self.plan.rc, self.plan.has_identities);
            let request = Request { sender, victim, pollers, is_rc, has_handshake };
            self.scheduler.network.forge_request(self.scheduler.now(), request);
        }
    }

    /// Begins many sessions from one stranger. See [`Fault::Crowd`].
    fn crowd(&mut self, node: usize) {
        self.scheduler.coverage.count(EventKind::StrangersCrowded);
        let (victim, is_rc) = (self.nodes[node].address, self.plan.rc);
        let has_handshake = self.plan.has_identities;
        let crowd = if has_handshake { UNPROVEN_CROWD } else { CROWD };
        for number in 0..crowd {
            let (sender, pollers) = (Sender::Crowd(number), CROWD_POLLERS);
            let request = Request { sender, victim, pollers, is_rc, has_handshake };
            self.scheduler.network.forge_request(self.scheduler.now(), request);
        }
    }

    /// Forges a packet, request or message, and sends it at time `at`.
    pub(super) fn forge_one(&mut self, at: Time, forgery: Forgery) {
        match forgery {
            Forgery::Packet => self.scheduler.network.forge_packet(at),
            Forgery::Message => self.scheduler.network.forge_message(at),
            Forgery::Request => {
                let nodes = self.nodes.len();
                let victim = self.random.usize(..nodes);
                let named = (victim + self.random.usize(1..nodes)) % nodes;
                let request = Request {
                    sender: Sender::InTheNameOf(self.nodes[named].address),
                    victim: self.nodes[victim].address,
                    pollers: self.plan.nodes[named].pollers,
                    is_rc: self.plan.rc,
                    has_handshake: self.plan.has_identities,
                };
                self.scheduler.network.forge_request(at, request);
            }
        }
    }

    pub(super) fn happen(&mut self, fault: Fault) {
        let now = self.scheduler.now();
        let coverage = Arc::clone(&self.scheduler.coverage);
        self.scheduler.trace.line(now, "fault", format_args!("{fault:?}"));
        match fault {
            Fault::ForgeOne(forgery) => self.forge_one(now, forgery),
            Fault::StopMachine { node, pause } => self.stop(node, Stopped::OneMachine, pause),
            Fault::StopProcess { node, pause } => self.stop(node, Stopped::Process, pause),
            Fault::Kill { node, restart_after } => {
                self.kill(node);
                self.at(now + restart_after, Fault::Restart { node });
            }
            Fault::KillTwice { node, stores, restart_after } => {
                self.kill(node);
                self.start(node, Some(stores));
                self.at(now + restart_after, Fault::Restart { node });
            }
            Fault::ShutDown { node, restart_after } => {
                if self.nodes[node].running().is_some() {
                    coverage.count(EventKind::NodeShutDown);
                    self.nodes[node].begin_shutdown(&self.scheduler);
                    self.at(now + restart_after, Fault::Restart { node });
                }
            }
            Fault::Drain { node, shut_down_after, restart_after } => {
                if self.nodes[node].running().is_some() {
                    coverage.count(EventKind::NodeDrained);
                    self.nodes[node].begin_drain(&self.scheduler);
                    self.at(now + shut_down_after, Fault::Leave { node, restart_after });
                }
            }
            Fault::Leave { node, restart_after } => {
                self.nodes[node].begin_shutdown(&self.scheduler);
                self.at(now + restart_after, Fault::Restart { node });
            }
            Fault::Partition { a, b, lasts } => {
                coverage.count(EventKind::Partition);
                self.scheduler.network.cut(self.nodes[a].address.ip(), self.nodes[b].address.ip());
                self.at(now + lasts, Fault::Join { a, b });
            }
            Fault::Forge { node, other, requests } => self.forge(node, other, requests),
            Fault::Crowd { node } => self.crowd(node),
            Fault::RemoveDevice { node, lasts } => {
                coverage.count(EventKind::DeviceRemoved);
                self.nodes[node].slot.remove();
                self.scheduler.oracle.disturbed(self.nodes[node].address);
                self.at(now + lasts, Fault::Restore { node });
            }
            Fault::Scribble { node } => {
                if let Err(why) = self.scribble(node) {
                    self.scheduler.oracle.fail(why);
                }
            }
            Fault::Tear { node, stores, restart_after } => {
                if self.nodes[node].tear(&mut self.scheduler, stores) {
                    self.at(now + restart_after, Fault::Restart { node });
                }
            }
            Fault::Restart { node } => {
                self.kill_doomed(node);
                if self.nodes[node].running().is_none() {
                    coverage.count(EventKind::NodeRestarted);
                    self.start(node, None);
                }
            }
            Fault::Join { a, b } => {
                self.scheduler.network.join(self.nodes[a].address.ip(), self.nodes[b].address.ip());
            }
            Fault::Restore { node } => {
                coverage.count(EventKind::DeviceRestored);
                self.nodes[node].slot.restore();
                self.scheduler.oracle.disturbed(self.nodes[node].address);
            }
        }
    }

    fn stop(&mut self, node: usize, stopped: Stopped, pause: Duration) {
        if let Some(process) = self.nodes[node].process() {
            self.scheduler.stop(process, stopped, pause);
        }
    }
}
