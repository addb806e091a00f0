//! A node is away for a while: callers wait for an attempt to connect that is under way, but not for the next
//! one.

use super::{QUIET, Run};
use crate::client::Client;
use crate::coverage::Kind;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{Code, Status};

/// Time for which the node is away.
const AWAY: Duration = Duration::from_secs(10);
/// Pause of its caller between two calls: shorter than any pause between two failed attempts.
const BETWEEN: Duration = Duration::from_millis(50);
/// Maximum time of a call that need not wait: the caller and its poller take turns.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Maximum time of a call that waits for one attempt: a handshake is given up after 5 s.
const ATTEMPT: Duration = Duration::from_millis(5_100);
/// Longest pause between two attempts, plus the attempt that follows.
pub(super) const RETURNS: Duration = Duration::from_secs(11);
/// Time limit of a call that waits for the node in vain. It is longer than an unanswered attempt.
const SHORT: Duration = Duration::from_secs(3);
/// Time limit of its calls, which no call reaches.
const PATIENCE: Duration = Duration::from_secs(60);

impl Run {
    /// Kills a node that another calls all the time, until it is back and reached again.
    pub(super) fn one_is_away(&mut self) -> bool {
        let (victim, witness) = (0, 1);
        let address = self.nodes[victim].address;
        let clients = self.client(witness).zip(self.client(witness));
        let Some((client, waiting)) = clients else { return self.fail("a node is not running") };
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("one node is away"));
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.kill(victim);
        let is_reached = Rc::new(Cell::new(false));
        let noted = Rc::clone(&is_reached);
        self.scheduler.tasks.add(client.process, async move {
            calls_until_reached(&client, address).await;
            noted.set(true);
        });
        let has_waited = Rc::new(Cell::new(false));
        let noted = Rc::clone(&has_waited);
        self.scheduler.tasks.add(waiting.process, async move {
            waits_until_reached(&waiting, address).await;
            noted.set(true);
        });
        self.scheduler.run_until(self.scheduler.now() + AWAY, |_| is_reached.get());
        if is_reached.get() {
            return self.fail("a node that was killed is reached");
        }
        self.nodes[victim].start(&mut self.scheduler, None);
        let limit = self.scheduler.now() + RETURNS;
        if !self.scheduler.run_until(limit, |_| is_reached.get() && has_waited.get()) {
            return self.fail("a node is not reached again long after it is back");
        }
        self.is_unbroken()
    }
}

/// Calls until a call succeeds. Once an attempt has failed, a call that waits for another attempt is followed
/// by a call that does not wait. By chance two calls in a row may each meet an attempt that the caller's wait
/// has started.
async fn calls_until_reached(client: &Client, server: SocketAddr) {
    let (mut is_known, mut waited) = (false, 0);
    loop {
        let began = client.timers.now();
        let Some(status) = client.number_of(server, PATIENCE).await else { return };
        let took = client.timers.now() - began;
        let is_refused = took <= AT_ONCE && is_refusal(&status);
        if is_refused {
            client.coverage.count(Kind::CallRefusedWhileAway);
        }
        if is_known && took > ATTEMPT {
            return client.oracle.fail(format!("a call to a node that is away took {took:?}: {status}"));
        }
        if is_known && waited >= 2 && !is_refused {
            return client.oracle.fail(format!(
                "calls wait although the last attempt to connect has just failed, the third {took:?} long: {status}"
            ));
        }
        waited = if took > AT_ONCE && is_attempt(&status) { waited + 1 } else { 0 };
        is_known |= is_attempt(&status);
        client.timers.sleep(BETWEEN).await;
    }
}

/// Waits for the node, at first not long enough.
async fn waits_until_reached(client: &Client, server: SocketAddr) {
    while !client.number_of(server, PATIENCE).await.is_some_and(|status| is_attempt(&status)) {
        client.timers.sleep(BETWEEN).await;
    }
    match client.number_waiting(server, SHORT).await {
        Some(status) if is_late(&status) => {}
        other => {
            return client
                .oracle
                .fail(format!("a call that waits for a node for {SHORT:?} ended with {other:?}"));
        }
    }
    if let Some(status) = client.number_waiting(server, PATIENCE).await {
        client.oracle.fail(format!("a call that waits for a node to be back failed: {status}"));
    }
}

/// Returns true if a call ended by its deadline, with a reason why it did not leave.
fn is_late(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded && is_attempt(status)
}

/// Returns true if a call did not leave because an attempt to connect has failed. Requests of a broken
/// session fail, too.
fn is_attempt(status: &Status) -> bool {
    let causes = ["the peer does not answer", "does not connect back", "nobody listens"];
    !status.may_have_run() && causes.iter().any(|cause| status.message().contains(cause))
}

fn is_refusal(status: &Status) -> bool {
    status.code() == Code::Unavailable
        && !status.may_have_run()
        && status.causes().iter().any(|cause| cause.starts_with("the next attempt to connect is due in"))
}
