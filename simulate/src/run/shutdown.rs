//! All nodes shut down, and nothing of them is left.

use super::Run;
use crate::node::SimNode;
use crate::scheduler::Scheduler;
use std::time::Duration;
use trunkline_testkit::Hostility;

/// Maximum time in which nodes end when no calls are under way.
const ENDING: Duration = Duration::from_secs(10);

impl Run {
    /// Shuts all nodes down, and checks that nothing of them is left.
    pub(super) fn end(&mut self) {
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("shut down"));
        for node in &self.nodes {
            let Some((_, running)) = node.running() else { continue };
            let report = running.report();
            // A peer that sends beyond its credit may empty an SRQ, and then another peer's message finds no
            // receive either.
            if report.rnr > 0 && self.plan.hostility != Some(Hostility::Beyond) {
                self.fail(&format!("{} RNR NAKs at {}", report.rnr, node.address));
                return;
            }
        }
        for node in &mut self.nodes {
            node.begin_shutdown(&self.scheduler);
        }
        let processes = self.nodes.iter().filter_map(SimNode::process).collect::<Vec<_>>();
        let limit = self.scheduler.now() + ENDING;
        let ended = self.scheduler.run_until(limit, |scheduler| {
            processes
                .iter()
                .all(|process| scheduler.machines_of(*process).iter().all(|name| name.ends_with("card")))
        });
        if !ended {
            let left = processes.iter().flat_map(|process| self.scheduler.machines_of(*process));
            let left = left.collect::<Vec<_>>().join(", ");
            self.fail(&format!("nodes have not ended long after they were shut down: {left}"));
            return;
        }
        for node in &mut self.nodes {
            if let Some(left) = node.forget(&self.scheduler) {
                self.scheduler.oracle.fail(left);
            }
        }
        let limit = self.scheduler.now() + ENDING;
        let gone = |scheduler: &Scheduler| {
            processes.iter().all(|process| scheduler.machines_of(*process).is_empty())
        };
        if !self.scheduler.run_until(limit, gone) {
            self.fail("the device of a node that has ended goes on");
            return;
        }
        for node in &self.nodes {
            if node.devices() > 0 {
                self.fail(&format!("an object of the device at {} is left", node.address));
            }
        }
        if self.scheduler.oracle.open() > 0 {
            self.fail("a call is open although all nodes have ended");
        }
    }
}
