//! Nodes on one host that together have more pollers than a node with a shallow SRQ allows per host.
//!
//! Four additional nodes are the server, two callers on one host, and a caller on another host. The second caller on the
//! shared host is refused while the first has a session. Meanwhile, the caller on the other host is served. The refused
//! caller is served after the first has ended.

use super::absence::RETURNS;
use super::{Checked, QUIET, Run, TRY};
use crate::coverage::EventKind;
use crate::node::GRACE;
use crate::plan::NodePlan;
use crate::workload::client::Ask;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use trunkline::Status;

/// SRQ depth of the server, which is the minimum. It is sufficient for 15 remote pollers, of which at most 7 may be on
/// one host.
const DEPTH: u32 = 16;
const POLLERS: u16 = 4;
/// Time limit of a call that waits for a session.
const PATIENCE: Duration = Duration::from_secs(60);

impl Run {
    /// Connects callers on one host until one is refused. A caller on another host is still accepted.
    pub(super) fn a_host_has_its_share(&mut self) -> Checked {
        let shallow = |node| NodePlan { pollers: 1, srq_depth: DEPTH, srq_depth_limit: Some(DEPTH), ..node };
        let server = self.start_extra(shallow)?;
        let near = self.start_extra(|node| NodePlan { pollers: POLLERS, ..node })?;
        let host = self.nodes.len() + 1 + near;
        let refused = self.start_extra(|node| NodePlan { host, pollers: POLLERS, ..node })?;
        let elsewhere = self.start_extra(|node| NodePlan { pollers: POLLERS, ..node })?;

        self.is_served(near, server, TRY).map_err(|why| format!("the first session of a host: {why}"))?;
        match self.ask(refused, server, RETURNS, None)? {
            Some(status) if is_refusal(&status) => self.scheduler.coverage.count(EventKind::HostCrowded),
            other => return Err(format!("a session beyond the share of its host ended with {other:?}")),
        }
        self.is_served(elsewhere, server, TRY)
            .map_err(|why| format!("beside a host with its share: {why}"))?;
        self.count_credits()?;
        self.extra[near].begin_shutdown(&self.scheduler);
        match self.ask(refused, server, GRACE + RETURNS, Some(PATIENCE))? {
            None => Ok(()),
            Some(status) => Err(format!("a refused node finds no room after another has gone: {status}")),
        }
    }

    fn is_served(&mut self, from: usize, to: usize, within: Duration) -> Checked {
        self.ask(from, to, within, None)?.map_or(Ok(()), |status| Err(status.to_string()))
    }

    /// Sends a call between additional nodes. If `patience` is given, the call waits for a session. Returns the error if
    /// the call failed.
    fn ask(
        &mut self,
        from: usize,
        to: usize,
        within: Duration,
        patience: Option<Duration>,
    ) -> Checked<Option<Status>> {
        let to = self.extra[to].address;
        let client = self.client_of(&self.extra[from], vec![to])?;
        let outcome = Rc::new(RefCell::new(None));
        let ended = Rc::clone(&outcome);
        self.scheduler.tasks.add(client.process, async move {
            let status = match patience {
                Some(patience) => client.number_waiting(to, patience).await,
                None => client.call(to, within, Ask::Number).await,
            };
            *ended.borrow_mut() = Some(status);
        });
        let why = "a call to a node with a shallow SRQ does not end";
        self.within(within + QUIET, why, |_| outcome.borrow().is_some())?;
        Ok(outcome.take().flatten())
    }
}

fn is_refusal(status: &Status) -> bool {
    let is_named = |text: &str| text.contains("this host has too many sessions with it");
    !status.may_have_run()
        && (is_named(status.message()) || status.causes().iter().any(|cause| is_named(cause)))
}
