//! Clients call while the plan's faults happen.

use super::Run;
use crate::coverage::Kind;
use crate::heading::Described;
use crate::plan::{Fault, Forgery};
use crate::scheduler::Scheduler;
use crate::strangers::{Request, Sender};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::Time;

/// Sessions that a crowd begins, and connections of each: twice what one host may have half-open.
const CROWD: u16 = 16;
const CROWD_POLLERS: u16 = 32;

/// A step of the plan at its time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    Begin(Fault),
    Forge(Forgery),
    Leave { node: usize, restart_after: Duration },
    Restart(usize),
    Join(usize, usize),
    Restore(usize),
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(fault) => Described(*fault).fmt(f),
            Self::Forge(forgery) => write!(f, "the attacker forges a {forgery:?}"),
            Self::Leave { node, .. } => write!(f, "node {node}, which drains, is to shut down"),
            Self::Restart(node) => write!(f, "node {node} is to start again"),
            Self::Join(a, b) => write!(f, "nodes {a} and {b} can reach each other again"),
            Self::Restore(node) => write!(f, "the device of node {node} is back"),
        }
    }
}

impl Run {
    /// Runs the clients and the faults of the plan.
    pub(super) fn chaos(&mut self) {
        let coverage = Arc::clone(&self.scheduler.coverage);
        coverage.count(if self.plan.rc { Kind::OverRc } else { Kind::OverXrc });
        if self.plan.nodes.iter().any(|node| node.pollers > 1) {
            coverage.count(Kind::SeveralPollers);
        }
        if self.plan.shares_hosts() {
            coverage.count(Kind::SharedHost);
        }
        for index in 0..self.nodes.len() {
            self.start(index);
        }
        self.start_hostile();
        self.scheduler.network.set(self.plan.conditions);
        for (after, fault) in self.plan.faults.clone() {
            self.at(self.began + after, Due::Begin(fault));
        }
        for (after, forgery) in self.plan.forgeries.clone() {
            self.at(self.began + after, Due::Forge(forgery));
        }
        let end = self.began + self.plan.lasts;
        while self.is_unbroken() {
            let next = self.due.keys().next().map_or(end, |(at, _)| (*at).min(end));
            let interrupted = self.scheduler.run_until(next, Scheduler::has_death);
            self.settle();
            if interrupted {
                continue;
            }
            if self.scheduler.now() >= end || !self.is_unbroken() {
                return;
            }
            self.count_credits();
            if let Some((_, due)) = self.due.pop_first() {
                self.happen(due);
            }
        }
    }

    fn at(&mut self, when: Time, due: Due) {
        self.dues += 1;
        self.due.insert((when, self.dues), due);
    }

    /// Sends connection requests of strangers to a node. See [`Fault::Forge`].
    fn forge(&mut self, node: usize, other: usize, requests: u8) {
        let (victim, named) = (self.nodes[node].address, self.nodes[other].address);
        let pollers = self.plan.nodes[other].pollers;
        let nowhere = std::iter::repeat_n(Sender::Nowhere, requests.into());
        for sender in nowhere.chain([Sender::InTheNameOf(named), Sender::Present]) {
            let request = Request { sender, victim, pollers, is_rc: self.plan.rc };
            self.scheduler.network.forge_request(self.scheduler.now(), request);
        }
    }

    /// Begins many sessions of one stranger. See [`Fault::Crowd`].
    fn crowd(&mut self, node: usize) {
        self.scheduler.coverage.count(Kind::StrangersCrowded);
        let (victim, is_rc) = (self.nodes[node].address, self.plan.rc);
        for number in 0..CROWD {
            let request = Request { sender: Sender::Crowd(number), victim, pollers: CROWD_POLLERS, is_rc };
            self.scheduler.network.forge_request(self.scheduler.now(), request);
        }
    }

    /// Forges a packet, request or message, and sends it at that time.
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
                };
                self.scheduler.network.forge_request(at, request);
            }
        }
    }

    pub(super) fn happen(&mut self, due: Due) {
        let now = self.scheduler.now();
        let coverage = Arc::clone(&self.scheduler.coverage);
        self.scheduler.trace.line(now, "fault", format_args!("{due}"));
        match due {
            Due::Forge(forgery) => self.forge_one(now, forgery),
            Due::Begin(Fault::StopMachine { node, pause }) => self.stop(node, true, pause),
            Due::Begin(Fault::StopProcess { node, pause }) => self.stop(node, false, pause),
            Due::Begin(Fault::Kill { node, restart_after }) => {
                self.kill(node);
                self.at(now + restart_after, Due::Restart(node));
            }
            Due::Begin(Fault::KillTwice { node, stores, restart_after }) => {
                self.kill(node);
                self.start_with(node, Some(stores));
                self.at(now + restart_after, Due::Restart(node));
            }
            Due::Begin(Fault::ShutDown { node, restart_after }) => {
                if self.nodes[node].running().is_some() {
                    coverage.count(Kind::NodeShutDown);
                    self.nodes[node].begin_shutdown(&self.scheduler);
                    self.at(now + restart_after, Due::Restart(node));
                }
            }
            Due::Begin(Fault::Drain { node, shut_down_after, restart_after }) => {
                if self.nodes[node].running().is_some() {
                    coverage.count(Kind::NodeDrained);
                    self.nodes[node].begin_drain(&self.scheduler);
                    self.at(now + shut_down_after, Due::Leave { node, restart_after });
                }
            }
            Due::Leave { node, restart_after } => {
                self.nodes[node].begin_shutdown(&self.scheduler);
                self.at(now + restart_after, Due::Restart(node));
            }
            Due::Begin(Fault::Partition { a, b, lasts }) => {
                coverage.count(Kind::Partition);
                self.scheduler.network.cut(self.nodes[a].address.ip(), self.nodes[b].address.ip());
                self.at(now + lasts, Due::Join(a, b));
            }
            Due::Begin(Fault::Forge { node, other, requests }) => self.forge(node, other, requests),
            Due::Begin(Fault::Crowd { node }) => self.crowd(node),
            Due::Begin(Fault::RemoveDevice { node, lasts }) => {
                coverage.count(Kind::DeviceRemoved);
                self.nodes[node].remove_device();
                self.scheduler.oracle.disturbed(self.nodes[node].address);
                self.at(now + lasts, Due::Restore(node));
            }
            Due::Begin(Fault::Scribble { node }) => self.scribble(node),
            Due::Begin(Fault::Tear { node, stores, restart_after }) => {
                if self.nodes[node].tear(&mut self.scheduler, stores) {
                    self.at(now + restart_after, Due::Restart(node));
                }
            }
            Due::Restart(node) => {
                self.kill_doomed(node);
                if self.nodes[node].running().is_none() {
                    coverage.count(Kind::NodeRestarted);
                    self.start(node);
                }
            }
            Due::Join(a, b) => {
                self.scheduler.network.join(self.nodes[a].address.ip(), self.nodes[b].address.ip());
            }
            Due::Restore(node) => {
                coverage.count(Kind::DeviceRestored);
                self.nodes[node].restore_device();
                self.scheduler.oracle.disturbed(self.nodes[node].address);
            }
        }
    }

    fn stop(&mut self, node: usize, one: bool, pause: Duration) {
        if let Some(process) = self.nodes[node].process() {
            self.scheduler.stop(process, one, pause);
        }
    }
}
