//! A node is killed while others have sessions with it: they are told soon, and its successor is reached at
//! once.

use super::away::RETURNS;
use super::{QUIET, Run};
use crate::client::Client;
use crate::coverage::Kind;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline_transport::ledger::SessionLedger;

/// Maximum time until the death of a node is reported to its callers.
const DEATH_IS_REPORTED: Duration = Duration::from_secs(3);
/// Maximum time until a successor reaches the others, which have not noticed the death.
const SUCCESSOR_REACHES: Duration = Duration::from_millis(600);
/// Maximum time from the first call that fails with a session until all pollers of its node know that the
/// session has ended.
const ALL_ARE_TOLD: Duration = Duration::from_millis(1);
/// Maximum time until a node has freed what it holds for a client that vanished while idle.
const CLIENT_IS_FORGOTTEN: Duration = Duration::from_secs(30);
/// Time without a message or an acknowledgement after which a call waits for a sign of its server.
const SILENCE: Duration = Duration::from_millis(1_100);
/// Maximum time until a node learns that a process with which it shares memory has ended.
const DEATH_IN_MEMORY: Duration = Duration::from_millis(50);
/// Maximum time of a call to a node that vanished while idle.
const VANISHED_IS_REPORTED: Duration = Duration::from_millis(1_300);

impl Run {
    /// Kills a node while another waits for it and nothing else happens: the caller is told soon. The node's
    /// successor reaches the others at once.
    pub(super) fn one_dies(&mut self) -> bool {
        let (victim, witness) = (0, 1);
        let address = self.nodes[victim].address;
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        let told = Rc::new(Cell::new(false));
        let noted = Rc::clone(&told);
        self.scheduler.tasks.add(client.process, async move {
            client.hang_at(address, Duration::from_secs(60)).await;
            noted.set(true);
        });
        if let Some(client) = self.client(victim) {
            let address = self.nodes[witness].address;
            let hangs = async move { client.hang_at(address, Duration::from_secs(60)).await };
            self.scheduler.tasks.add(self.nodes[victim].process().unwrap_or(0), hangs);
        }
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.kill(victim);
        let limit = self.scheduler.now() + DEATH_IS_REPORTED;
        if !self.scheduler.run_until(limit, |_| told.get()) {
            return self.fail("the caller of a node that was killed is not told");
        }
        if !self.has_handlers_by(witness, 0, limit) {
            return self.fail("a handler runs on for a caller that was killed");
        }
        // A second successor, for which nobody waits: the others still know the node before it.
        self.nodes[victim].start(&mut self.scheduler, None);
        if !self.reach_from(victim) {
            return self.fail("a node that was started again does not reach another at once");
        }
        self.kill(victim);
        self.nodes[victim].start(&mut self.scheduler, None);
        if !self.reach_from(victim) {
            return self.fail("a node that was restarted at once does not reach another at once");
        }
        self.stale_session(victim, witness) && self.one_vanishes(victim, witness)
    }

    /// Restarts a node while another has a session with it: at most the next call meets the old session.
    fn stale_session(&mut self, victim: usize, witness: usize) -> bool {
        let address = self.nodes[victim].address;
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.kill(victim);
        self.nodes[victim].start(&mut self.scheduler, None);
        let ended = Rc::new(Cell::new(false));
        let noted = Rc::clone(&ended);
        self.scheduler.tasks.add(client.process, async move {
            let _may_fail = client.number_of(address, DEATH_IS_REPORTED).await;
            // The second call goes to another poller.
            client.timers.sleep(ALL_ARE_TOLD).await;
            if let Some(status) = client.number_of(address, SUCCESSOR_REACHES).await {
                client.oracle.fail(format!("the second call to a node's successor failed: {status}"));
            }
            noted.set(true);
        });
        let limit = self.scheduler.now() + DEATH_IS_REPORTED + SUCCESSOR_REACHES;
        if !self.scheduler.run_until(limit, |_| ended.get()) {
            return self.fail("calls to a node's successor do not end");
        }
        self.is_unbroken()
    }

    /// Kills a node with which others have idle sessions: those that it dialled end by themselves, and a call to
    /// it ends soon and has certainly not run.
    fn one_vanishes(&mut self, victim: usize, witness: usize) -> bool {
        let address = self.nodes[victim].address;
        // A successor dials all others.
        self.kill(victim);
        self.nodes[victim].start(&mut self.scheduler, None);
        if !self.reach_from(victim) {
            return self.fail("a node that was restarted does not reach another at once");
        }
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.kill(victim);
        self.scheduler.run_until(self.scheduler.now() + CLIENT_IS_FORGOTTEN, |_| false);
        let holder = self.scheduler.sessions().into_iter().find(|ledger| has_session(ledger, address));
        if let Some(holder) = holder {
            let node = holder.node;
            return self.fail(&format!("{node} keeps a session with a client that vanished while idle"));
        }
        self.nodes[victim].start(&mut self.scheduler, None);
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        if !self.reaches(&client, address) {
            return self.fail("a node that was started again is not reached");
        }
        self.scheduler.run_until(self.scheduler.now() + SILENCE, |_| false);
        self.kill(victim);
        // Nodes that share memory learn of the death at once, and the call dials.
        self.scheduler.run_until(self.scheduler.now() + DEATH_IN_MEMORY, |_| false);
        let own = self.nodes[witness].address;
        let knows = |ledger: &SessionLedger| ledger.node == own && has_session(ledger, address);
        if !self.scheduler.sessions().iter().any(knows) {
            return self.is_unbroken();
        }
        self.scheduler.coverage.count(Kind::VanishedPeerCalled);
        let ended = Rc::new(Cell::new(false));
        let noted = Rc::clone(&ended);
        self.scheduler.tasks.add(client.process, async move {
            let status = client.number_of(address, DEATH_IS_REPORTED).await;
            if status.as_ref().is_none_or(trunkline::Status::may_have_run) {
                client.oracle.fail(format!("a call to a node that had vanished ended with {status:?}"));
            }
            noted.set(true);
        });
        if !self.scheduler.run_until(self.scheduler.now() + VANISHED_IS_REPORTED, |_| ended.get()) {
            return self.fail("a call to a node that had vanished does not end in time");
        }
        self.is_unbroken()
    }

    /// Returns true if a call of a client succeeds before long.
    fn reaches(&mut self, client: &Client, server: SocketAddr) -> bool {
        let reached = Rc::new(Cell::new(false));
        let (client, noted) = (client.clone(), Rc::clone(&reached));
        self.scheduler.tasks.add(client.process, async move {
            noted.set(client.number_waiting(server, RETURNS).await.is_none());
        });
        self.scheduler.run_until(self.scheduler.now() + RETURNS, |_| reached.get())
    }

    /// Returns true if a node reaches all others soon, each by its first call.
    fn reach_from(&mut self, index: usize) -> bool {
        let Some(client) = self.client(index) else { return false };
        let reached = Rc::new(Cell::new(0));
        let servers = client.servers.clone();
        for server in servers.clone() {
            let (client, reached) = (client.clone(), Rc::clone(&reached));
            self.scheduler.tasks.add(client.process, async move {
                let failure = client.number_of(server, SUCCESSOR_REACHES).await;
                if let Some(status) = failure {
                    client.oracle.fail(format!("the first call of a node's successor failed: {status}"));
                }
                reached.set(reached.get() + 1);
            });
        }
        self.scheduler.run_until(self.scheduler.now() + SUCCESSOR_REACHES, |_| reached.get() == servers.len())
    }
}

/// Returns true if a node has a session with the node at this address.
fn has_session(ledger: &SessionLedger, peer: SocketAddr) -> bool {
    ledger.node != peer && ledger.sessions.iter().any(|session| session.peer == peer)
}
