//! A process that shares a node's address, as behind an address translator, and claims that the node was restarted.
//!
//! The process proves the address with a cookie, but has no certificate. The live session continues, and its calls
//! succeed.

use super::{Checked, Run, TRY};
use crate::coverage::EventKind;
use crate::network::strangers::{Request, Sender};
use crate::workload::client::Ask;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline_transport::ledger::SessionEntry;
use trunkline_verbs::QpNumber;

/// Number of claims, which exceeds the limit on candidates per peer.
const CLAIMS: usize = 6;
/// Time to wait after the claims, which exceeds the lifetime of a candidate.
const AFTER: Duration = Duration::from_secs(7);

impl Run {
    /// Sends claims that a node was restarted while the node runs and has a session with another node.
    pub(super) fn a_neighbour_claims_a_restart(&mut self) -> Checked {
        let (victim, named) = (self.nodes[0].address, self.nodes[1].address);
        let call = |run: &mut Self| {
            let client = run.client_of(&run.nodes[1], vec![victim])?;
            let outcome = Rc::new(RefCell::new(None));
            let ended = Rc::clone(&outcome);
            run.scheduler.tasks.add(client.process, async move {
                let status = client.call(victim, TRY, Ask::Number).await;
                *ended.borrow_mut() = Some(status);
            });
            let why = "a call beside a claimed restart does not end";
            run.within(2 * TRY, why, |_| outcome.borrow().is_some())?;
            match outcome.take().flatten() {
                None => Ok(()),
                Some(status) => Err(format!("a call beside a claimed restart: {status}")),
            }
        };
        call(self)?;
        let before = self.targets(victim, named)?;
        for _ in 0..CLAIMS {
            let (pollers, is_rc) = (self.plan.nodes[1].pollers, self.plan.rc);
            let sender = Sender::Neighbour(named);
            let request = Request { sender, victim, pollers, is_rc, has_handshake: true };
            self.scheduler.network.forge_request(self.scheduler.now(), request);
            self.pass(Duration::from_millis(5));
            self.count_credits()?;
            call(self)?;
        }
        self.scheduler.coverage.count(EventKind::RestartClaimed);
        self.pass(AFTER);
        call(self)?;
        let after = self.targets(victim, named)?;
        if before == after {
            Ok(())
        } else {
            Err(format!("a claimed restart ended a session: {before:?}, {after:?}"))
        }
    }

    /// Returns the TGTs of a node's session with another node.
    pub(super) fn targets(&self, node: SocketAddr, peer: SocketAddr) -> Checked<Vec<QpNumber>> {
        let session = self.session(node, peer).filter(|session| session.is_up);
        Ok(session.ok_or("a session is not up")?.targets)
    }

    pub(super) fn session(&self, node: SocketAddr, peer: SocketAddr) -> Option<SessionEntry> {
        let ledger = self.scheduler.sessions().into_iter().find(|ledger| ledger.node == node)?;
        ledger.sessions.into_iter().find(|session| session.peer.address() == peer)
    }
}
