//! Nodes of one host that have more pollers together than a host may have at a node with a shallow SRQ.
//!
//! Four more nodes are the server, two callers of one host and one of another. The second caller of the host is
//! refused while the first has a session. The caller of the other host is served meanwhile, and the refused one
//! once the first has gone.

use super::away::RETURNS;
use super::{QUIET, Run, TRY};
use crate::coverage::Kind;
use crate::node::{GRACE, SimNode};
use crate::plan::NodePlan;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline::Status;

/// The shallowest SRQ, and pollers of each caller. It has room for 15 remote pollers, of which a host has 7.
const DEPTH: u32 = 16;
const POLLERS: u16 = 4;
/// Time limit of a call that waits for a session, which it never reaches.
const PATIENCE: Duration = Duration::from_secs(60);

impl Run {
    /// Connects callers of one host until one is refused, and another's caller.
    pub(super) fn a_host_has_its_share(&mut self) -> bool {
        if !self.plan.has_crowded_host {
            return true;
        }
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("a host has its share"));
        // The next number may be the hostile peer's.
        let first = self.nodes.len() + 1;
        let node = |index, host, pollers| SimNode::new(index, NodePlan::extra(host, pollers), self.plan.rc);
        let mut nodes = [
            node(first, first, 1).with_fixed_srq_depth(DEPTH),
            node(first + 1, first + 1, POLLERS),
            node(first + 2, first + 1, POLLERS),
            node(first + 3, first + 2, POLLERS),
        ];
        for node in &mut nodes {
            node.start(&mut self.scheduler, None);
        }
        let shared = self.share(&mut nodes);
        for node in &mut nodes {
            node.kill(&mut self.scheduler);
        }
        shared && self.is_unbroken()
    }

    fn share(&mut self, [server, near, refused, elsewhere]: &mut [SimNode; 4]) -> bool {
        let to = server.address;
        if !self.is_served(near, to, false, TRY) {
            return self.fail("the first session of a host is not made");
        }
        let outcome = self.call(refused, to, false, RETURNS);
        self.count_credits();
        match outcome {
            Some(Some(status)) if is_refusal(&status) => self.scheduler.coverage.count(Kind::HostCrowded),
            other => {
                return self.fail(&format!("a session beyond the share of its host ended with {other:?}"));
            }
        }
        if !self.is_served(elsewhere, to, false, TRY) {
            return self.fail("a node finds no room beside a host that has its share");
        }
        self.count_credits();
        near.begin_shutdown(&self.scheduler);
        if !self.is_served(refused, to, true, GRACE + RETURNS) {
            return self.fail("a node of a host that has its share finds no room after another has gone");
        }
        self.count_credits();
        self.is_unbroken()
    }

    fn is_served(&mut self, from: &SimNode, to: SocketAddr, waits: bool, within: Duration) -> bool {
        matches!(self.call(from, to, waits, within), Some(None))
    }

    /// Makes a call. Returns its error, if it failed; `None` if it has not ended within this time and a bit.
    fn call(
        &mut self,
        from: &SimNode,
        to: SocketAddr,
        waits: bool,
        within: Duration,
    ) -> Option<Option<Status>> {
        let client = self.client_of(from, vec![to])?;
        let outcome = Rc::new(RefCell::new(None));
        let ended = Rc::clone(&outcome);
        self.scheduler.tasks.add(client.process, async move {
            let status = if waits {
                client.number_waiting(to, PATIENCE).await
            } else {
                client.number_of(to, within).await
            };
            *ended.borrow_mut() = Some(status);
        });
        let limit = self.scheduler.now() + within + QUIET;
        self.scheduler.run_until(limit, |_| outcome.borrow().is_some());
        outcome.take()
    }
}

fn is_refusal(status: &Status) -> bool {
    let is_named = |text: &str| text.contains("this host has too many sessions with it");
    !status.may_have_run()
        && (is_named(status.message()) || status.causes().iter().any(|cause| is_named(cause)))
}
