//! Ends of calls with nothing else happening: by a deadline while the caller is stopped, and by a shutdown
//! that keeps its grace period and that peers notice.

use super::{QUIET, Run, TRY};
use crate::node::GRACE;
use crate::scheduler::Scheduler;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use trunkline_verbs::Time;

/// Maximum time from the end of the grace period until a node has ended and its peers have noticed: the CM
/// exchanges two messages for each session, and every machine looks at its timers within 20 ms.
const LEAVING: Duration = Duration::from_millis(100);
/// Time limit of the call whose handler must end by itself.
const DEADLINE: Duration = Duration::from_millis(300);
/// Time for which the caller is stopped, longer than that deadline.
const STOPPED: Duration = Duration::from_millis(700);
/// Maximum time from a deadline to the end of its handler. Pollers check deadlines every few milliseconds.
const HANDLER_ENDS: Duration = Duration::from_millis(50);
/// Running time of a handler whose caller must get the reply in spite of a shutdown.
const WORK_US: u64 = 50_000;
/// Interval at which handlers are counted.
const LOOK: Duration = Duration::from_millis(2);

impl Run {
    /// Stops a caller, so that it cannot cancel its call: the handler ends by its deadline.
    pub(super) fn handlers_end(&mut self) -> bool {
        let (server, caller) = (0, 1);
        let address = self.nodes[server].address;
        let Some(client) = self.client(caller) else { return self.fail("a node is not running") };
        let (process, began) = (client.process, self.scheduler.now());
        self.scheduler.tasks.add(process, async move { client.hang_at(address, DEADLINE).await });
        if !self.has_handlers_by(server, 1, began + DEADLINE) {
            return self.fail("a call does not reach its handler although nothing is wrong");
        }
        self.scheduler.stop(process, false, STOPPED);
        // The server's clock for the call started when the request arrived.
        let entered = self.scheduler.now();
        if !self.has_handlers_by(server, 0, entered + DEADLINE + HANDLER_ENDS) {
            return self.fail("a handler runs on although its deadline has passed");
        }
        let limit = self.scheduler.now() + STOPPED + QUIET;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("a call does not end although its deadline has passed");
        }
        self.is_unbroken()
    }

    /// Shuts a node down while another waits for it. A call that ends within the grace period succeeds, and
    /// the others are told soon after.
    pub(super) fn one_leaves(&mut self) -> bool {
        let (leaver, witness) = (0, 1);
        let address = self.nodes[leaver].address;
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        let (told, replied) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (hangs, noted) = (client.clone(), Rc::clone(&told));
        self.scheduler.tasks.add(client.process, async move {
            hangs.hang_at(address, Duration::from_secs(60)).await;
            noted.set(true);
        });
        let limit = self.scheduler.now() + DEADLINE;
        let hangs = self.has_handlers_by(leaver, 1, limit);
        let noted = Rc::clone(&replied);
        self.scheduler.tasks.add(client.process, async move {
            let sizes = (100, 150 << 10);
            if let Some(status) = client.late_echo_of(address, TRY, sizes, WORK_US).await {
                client.oracle.fail(format!("a call failed within the grace of a shutdown: {status}"));
            }
            noted.set(true);
        });
        if !hangs || !self.has_handlers_by(leaver, 2, limit) {
            return self.fail("a call does not reach its handler although nothing is wrong");
        }
        let Some(process) = self.nodes[leaver].process() else { return self.fail("a node is not running") };
        self.nodes[leaver].begin_shutdown(&self.scheduler);
        let limit = self.scheduler.now() + GRACE + LEAVING;
        if !self.scheduler.run_until(limit, |_| told.get() && replied.get()) {
            return self.fail("the callers of a node that was shut down are not told soon");
        }
        // The card's machine ends with the last handle of the node.
        let is_over = |name: &&str| name.ends_with("card");
        let ended = |scheduler: &Scheduler| scheduler.machines_of(process).iter().all(is_over);
        if !self.scheduler.run_until(limit, ended) {
            let left = self.scheduler.machines_of(process).join(", ");
            return self.fail(&format!("a node has not ended soon after it was shut down: {left}"));
        }
        self.is_unbroken()
    }

    /// Runs until that number of handlers run at a node, or until the time limit. Returns true if they do.
    pub(super) fn has_handlers_by(&mut self, node: usize, handlers: usize, limit: Time) -> bool {
        let address = self.nodes[node].address;
        loop {
            let ledgers = self.scheduler.ledgers();
            let own = ledgers.iter().filter(|ledger| ledger.node == address);
            if own.map(|ledger| ledger.upper.handlers).sum::<usize>() == handlers {
                return true;
            }
            if self.scheduler.now() >= limit || !self.is_unbroken() {
                return false;
            }
            self.scheduler.run_until((self.scheduler.now() + LOOK).min(limit), |_| false);
        }
    }
}
