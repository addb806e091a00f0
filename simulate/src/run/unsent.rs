//! Calls whose requests cannot leave: at most as many may have run as their server has receives.

use super::{QUIET, Run};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use trunkline::Status;

/// Time for which a server is stopped.
const STOPPED: Duration = Duration::from_millis(300);
/// Time limit of the calls to it.
const LIMIT: Duration = Duration::from_millis(50);
/// Calls beyond the receives of a server.
const BEYOND: usize = 16;
/// Maximum number of calls. A run that would need more skips this phase.
const MOST: usize = 256;

impl Run {
    /// Stops a server, which gets more calls than its credit allows. The excess requests never leave, and the
    /// caller must be told so.
    pub(super) fn some_never_leave(&mut self) -> bool {
        let receives = |node: &crate::plan::NodePlan| {
            usize::try_from(node.srq_depth).unwrap_or(usize::MAX).saturating_mul(node.pollers.into())
        };
        let plans = self.plan.nodes.iter().map(receives).enumerate();
        let Some((server, receives)) = plans.min_by_key(|(_, receives)| *receives) else { return true };
        let caller = (server + 1) % self.nodes.len();
        if receives > MOST || caller == server {
            return true;
        }
        let address = self.nodes[server].address;
        let Some(client) = self.client(caller) else { return self.fail("a node is not running") };
        let Some(process) = self.nodes[server].process() else { return self.fail("a node is not running") };
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.scheduler.stop(process, false, STOPPED);
        let may_have_run = Rc::new(Cell::new(0));
        for _ in 0..receives + BEYOND {
            let (client, may_have_run) = (client.clone(), Rc::clone(&may_have_run));
            self.scheduler.tasks.add(client.process, async move {
                // Too large to share a frame, and therefore a receive, with another.
                let failed = client.echo_of(address, LIMIT, 2048, 8).await;
                if failed.as_ref().is_some_and(Status::may_have_run) {
                    may_have_run.set(may_have_run.get() + 1);
                }
            });
        }
        let limit = self.scheduler.now() + STOPPED + QUIET;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("calls to a node that is stopped do not end");
        }
        let may_have_run = may_have_run.get();
        if may_have_run > receives {
            return self.fail(&format!(
                "{may_have_run} calls may have run at a node that has {receives} receives and was stopped"
            ));
        }
        self.is_unbroken()
    }
}
