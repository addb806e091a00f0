//! Nodes that die, are absent for some time, or move. Callers are notified in time, wait for a connection attempt that is
//! in progress but not for the next one, and reach a successor immediately.

use super::{Checked, QUIET, Run, Tally};
use crate::coverage::EventKind;
use crate::scheduler::timers::Timers;
use crate::workload::client::{Ask, Client, MINUTE};
use crate::workload::service::WorkClient;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trunkline::report::PeerKey;
use trunkline::{Channel, Code, Connect, Resolve, Resolving, Status, Target};
use trunkline_transport::ledger::SessionLedger;

/// Node that is absent.
const VICTIM: usize = 0;
/// Node that calls the absent node.
const WITNESS: usize = 1;

/// Maximum time until callers are notified of a node's death.
pub(super) const DEATH_IS_REPORTED: Duration = Duration::from_secs(3);
/// Maximum time until a successor reaches the other nodes, which have not detected its predecessor's death.
const SUCCESSOR_REACHES: Duration = Duration::from_millis(600);
/// Maximum time from the first failed call in a session until all pollers of the caller's node have handled the end of
/// the session.
const ALL_ARE_TOLD: Duration = Duration::from_millis(1);
/// Maximum time until a node has freed the resources of a client that vanished while idle.
const CLIENT_IS_FORGOTTEN: Duration = Duration::from_secs(30);
/// Time without a message or an acknowledgement after which a call first probes its server.
const SILENCE: Duration = Duration::from_millis(1_100);
/// Maximum time until a node detects the end of a process with which it shares memory.
const DEATH_IN_MEMORY: Duration = Duration::from_millis(50);
/// Maximum duration of a call to a node that vanished while idle.
const VANISHED_IS_REPORTED: Duration = Duration::from_millis(1_300);

/// Time for which a node is absent.
const AWAY: Duration = Duration::from_secs(10);
/// Pause of the caller between two calls. It is shorter than the pause between two failed attempts.
const BETWEEN: Duration = Duration::from_millis(50);
/// Maximum duration of a call that does not wait. It includes turns of the caller and of its poller.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Maximum duration of a call that waits for one attempt. A handshake is abandoned after 5 s.
const ATTEMPT: Duration = Duration::from_millis(5_100);
/// Longest pause between two attempts, plus the duration of an attempt.
pub(super) const RETURNS: Duration = Duration::from_secs(11);
/// Time limit of a call that waits for an absent node. It exceeds the duration of an unanswered attempt.
const SHORT: Duration = Duration::from_secs(3);

/// Offset from a node's port to a port without a listener.
const NOWHERE: u16 = 500;
const LOOKUP: Duration = Duration::from_millis(3);
/// Time for which a name has no address, and for which the name's server is absent.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Longest pause between two rounds, plus the longest pause between two attempts at an address, plus the duration of an
/// attempt.
const FOUND: Duration = Duration::from_secs(13);
/// Maximum duration of a round, which consists of a lookup and of handshakes with two addresses, each of which times out
/// after 5 s.
const ROUND: Duration = Duration::from_secs(11);
/// Time limit of calls by name that must time out.
const IN_VAIN: Duration = Duration::from_millis(700);

impl Run {
    /// Kills a node while another node waits for its reply and there is no other activity. The caller is notified within
    /// [`DEATH_IS_REPORTED`], and the successor of the killed node reaches the other nodes within [`SUCCESSOR_REACHES`].
    pub(super) fn one_dies(&mut self) -> Checked {
        let addresses = [VICTIM, WITNESS].map(|node| self.nodes[node].address);
        let told = self.hang(WITNESS, addresses[0])?;
        let _killed = self.hang(VICTIM, addresses[1])?;
        self.pass(QUIET);
        self.kill(VICTIM);
        let limit = self.scheduler.now() + DEATH_IS_REPORTED;
        self.by(limit, "the caller of a node that was killed is not told", |_| told.get() == 1)?;
        self.has_handlers_by(limit, WITNESS, 0, "a handler runs on for a caller that was killed")?;
        // Replace the node twice. Calls do not wait for the second replacement, and the other nodes still have sessions
        // with the first successor.
        for _ in 0..2 {
            self.replace(VICTIM);
            self.reach_from(VICTIM)?;
        }
        self.stale_session(addresses[0])?;
        self.one_vanishes(addresses[0])
    }

    /// Restarts a node with which another node has a session. At most the next call uses the old session.
    fn stale_session(&mut self, address: SocketAddr) -> Checked {
        let client = self.client(WITNESS)?;
        self.pass(QUIET);
        self.replace(VICTIM);
        let ended = self.program(client.process, async move {
            let _may_fail = client.call(address, DEATH_IS_REPORTED, Ask::Number).await;
            // Another poller makes the second call.
            client.timers.sleep(ALL_ARE_TOLD).await;
            if let Some(status) = client.call(address, SUCCESSOR_REACHES, Ask::Number).await {
                client.oracle.fail(format!("the second call to a node's successor failed: {status}"));
            }
        });
        let why = "calls to a node's successor do not end";
        self.within(DEATH_IS_REPORTED + SUCCESSOR_REACHES, why, |_| ended.get() == 1)
    }

    /// Kills a node with idle sessions to other nodes. The sessions that the node has dialled end without a call. A call
    /// to the node ends within [`VANISHED_IS_REPORTED`] and has not run.
    fn one_vanishes(&mut self, address: SocketAddr) -> Checked {
        // The successor dials all other nodes.
        self.replace(VICTIM);
        self.reach_from(VICTIM)?;
        self.pass(QUIET);
        self.kill(VICTIM);
        self.pass(CLIENT_IS_FORGOTTEN);
        let holder = self.scheduler.sessions().into_iter().find(|ledger| has_session(ledger, address));
        if let Some(holder) = holder {
            return Err(format!("{} keeps a session with a client that vanished while idle", holder.node));
        }
        self.nodes[VICTIM].start(&mut self.scheduler, None);
        let client = self.client(WITNESS)?;
        let (reached, caller) = (Tally::default(), client.clone());
        let noted = reached.clone();
        self.scheduler.tasks.add(client.process, async move {
            if caller.number_waiting(address, RETURNS).await.is_none() {
                noted.add();
            }
        });
        self.within(RETURNS, "a node that was started again is not reached", |_| reached.get() == 1)?;
        self.pass(SILENCE);
        self.kill(VICTIM);
        // Nodes that share memory detect the death immediately, and the call dials.
        self.pass(DEATH_IN_MEMORY);
        let own = self.nodes[WITNESS].address;
        let knows = |ledger: &SessionLedger| ledger.node == own && has_session(ledger, address);
        if self.scheduler.sessions().iter().any(knows) {
            self.scheduler.coverage.count(EventKind::VanishedPeerCalled);
            let ended = self.program(client.process, async move {
                let status = client.call(address, DEATH_IS_REPORTED, Ask::Number).await;
                if status.as_ref().is_none_or(Status::may_have_run) {
                    let text = format!("a call to a node that had vanished ended with {status:?}");
                    client.oracle.fail(text);
                }
            });
            let why = "a call to a node that had vanished does not end in time";
            self.within(VANISHED_IS_REPORTED, why, |_| ended.get() == 1)?;
        }
        Ok(())
    }

    /// Checks that a node reaches every other node within [`SUCCESSOR_REACHES`] with its first call.
    fn reach_from(&mut self, index: usize) -> Checked {
        let client = self.client(index)?;
        let (reached, servers) = (Tally::default(), client.servers.clone());
        for server in servers.clone() {
            let client = client.clone();
            self.add(&reached, client.process, async move {
                if let Some(status) = client.call(server, SUCCESSOR_REACHES, Ask::Number).await {
                    client.oracle.fail(format!("the first call of a node's successor failed: {status}"));
                }
            });
        }
        let why = "a node that was started again does not reach another at once";
        self.within(SUCCESSOR_REACHES, why, |_| reached.get() == servers.len())
    }

    /// Kills a node while another node calls it continuously. The calls continue until the restarted node is reached.
    pub(super) fn one_is_away(&mut self) -> Checked {
        let address = self.nodes[VICTIM].address;
        let (client, waiting) = (self.client(WITNESS)?, self.client(WITNESS)?);
        self.kill(VICTIM);
        let process = client.process;
        let reached = self.program(process, async move { calls_until_reached(&client, address).await });
        let waited = self.program(process, async move { waits_until_reached(&waiting, address).await });
        self.scheduler.run_until(self.scheduler.now() + AWAY, |_| reached.get() == 1);
        if reached.get() == 1 {
            return Err("a node that was killed is reached".to_owned());
        }
        self.nodes[VICTIM].start(&mut self.scheduler, None);
        let why = "a node is not reached again long after it is back";
        self.within(RETURNS, why, |_| reached.get() + waited.get() == 2)
    }

    /// Calls a node by name while the addresses of the name change.
    pub(super) fn one_moves(&mut self) -> Checked {
        let home = self.nodes[VICTIM].address;
        let nobody = SocketAddr::new(home.ip(), home.port() + NOWHERE);
        let client = self.client(WITNESS)?;
        let directory = Directory { timers: client.timers.clone(), addresses: Arc::default() };
        let channel = client.node.channel(Target::resolver(directory.clone()));
        let caller = Caller { channel, client, server: home };
        // The name is unknown, then wrong, then right.
        self.fails(&caller)?;
        directory.set(&[nobody]);
        let found = self.begin(&caller);
        self.fails(&caller)?;
        self.scheduler.run_until(self.scheduler.now() + UNKNOWN, |_| found.get() == 1);
        directory.set(&[nobody, home]);
        self.is_found(&found, "a name that has been corrected")?;
        // The server of the name dies and returns.
        self.kill(VICTIM);
        self.fails(&caller)?;
        let found = self.begin(&caller);
        self.scheduler.run_until(self.scheduler.now() + UNKNOWN, |_| found.get() == 1);
        self.nodes[VICTIM].start(&mut self.scheduler, None);
        self.is_found(&found, "a server that is back")?;
        // The server dies, and the name moves to another server. Callers find this server without waiting for the old
        // one.
        if let Some(successor) = self.nodes.get(2).map(|node| node.address) {
            directory.set(&[home, successor]);
            self.kill(VICTIM);
            let found = self.begin(&Caller { server: successor, ..caller });
            self.is_found(&found, "another address of a server")?;
            self.nodes[VICTIM].start(&mut self.scheduler, None);
        }
        Ok(())
    }

    /// Starts a waiting call that must succeed. The returned tally counts its success.
    fn begin(&self, caller: &Caller) -> Tally {
        let caller = caller.clone();
        let (found, process) = (Tally::default(), caller.client.process);
        let noted = found.clone();
        self.scheduler.tasks.add(process, async move {
            match caller.number_in_new_session(Connect::Wait).await {
                None => noted.add(),
                Some(status) => {
                    caller.client.oracle.fail(format!("a call that waits for its server failed: {status}"));
                }
            }
        });
        found
    }

    fn is_found(&mut self, found: &Tally, what: &str) -> Checked {
        self.within(FOUND, &format!("{what} is not found in {FOUND:?}"), |_| found.get() == 1)?;
        self.scheduler.coverage.count(EventKind::ServerFound);
        Ok(())
    }

    /// Checks that calls, and tasks that wait for a connection, fail in time while the name leads to no reachable server.
    fn fails(&mut self, caller: &Caller) -> Checked {
        let caller = caller.clone();
        let ended = self.program(caller.client.process, async move { caller.fails().await });
        // The end of a broken session is detected first, which takes up to 2 s.
        let why = "calls by a name that leads nowhere do not end";
        self.within(ROUND * 3, why, |_| ended.get() == 1)
    }
}

fn has_session(ledger: &SessionLedger, peer: SocketAddr) -> bool {
    ledger.node != peer && ledger.sessions.iter().any(|session| session.peer.address() == peer)
}

/// Makes calls until one succeeds. After a failed attempt, a call that waits for another attempt is followed by a call
/// that does not wait. Two consecutive calls may each wait, because the first one's wait may have started another
/// attempt.
async fn calls_until_reached(client: &Client, server: SocketAddr) {
    let (mut is_known, mut waited) = (false, 0);
    loop {
        let began = client.timers.now();
        let Some(status) = client.call(server, MINUTE, Ask::Number).await else { return };
        let took = client.timers.now() - began;
        let is_refused = took <= AT_ONCE && is_refusal(&status);
        if is_refused {
            client.coverage.count(EventKind::CallRefusedWhileAway);
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

/// Waits for the node, first with a time limit that is too short.
async fn waits_until_reached(client: &Client, server: SocketAddr) {
    while !client.call(server, MINUTE, Ask::Number).await.is_some_and(|status| is_attempt(&status)) {
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
    if let Some(status) = client.number_waiting(server, MINUTE).await {
        client.oracle.fail(format!("a call that waits for a node to be back failed: {status}"));
    }
}

/// Returns true if a call ended at its deadline without having been sent, and its status states why.
fn is_late(status: &Status) -> bool {
    status.code() == Code::DeadlineExceeded && is_attempt(status)
}

/// Returns true if a call was not sent because a connection attempt failed. Requests in a broken session fail with the
/// same status.
fn is_attempt(status: &Status) -> bool {
    let causes = ["the peer does not answer", "does not connect back", "no node listens", "nothing listens"];
    !status.may_have_run() && causes.iter().any(|cause| status.message().contains(cause))
}

fn is_refusal(status: &Status) -> bool {
    status.code() == Code::Unavailable
        && !status.may_have_run()
        && status.causes().iter().any(|cause| cause.starts_with("the next attempt to connect is due in"))
}

/// Addresses of a name. They change in virtual time.
#[derive(Debug, Clone)]
struct Directory {
    timers: Timers,
    addresses: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Directory {
    fn set(&self, addresses: &[SocketAddr]) {
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses.to_vec();
    }
}

impl Resolve for Directory {
    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async {
            let found = self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let found = found.into_iter().map(PeerKey::new).collect::<Vec<_>>();
            self.timers.sleep(LOOKUP).await;
            if found.is_empty() { Err("there is no such name".into()) } else { Ok(found) }
        })
    }
}

/// Returns true if a call failed because its session ended.
fn broke_with_its_session(status: &Status) -> bool {
    let causes = [
        "the peer stopped answering in an open session",
        "the peer has ended the session, or has named memory that it does not hold",
        "the peer gave up the session and began another",
        "the peer closed the session, or its process has ended",
        "the peer was restarted",
        "s, as by SIGSTOP or for lack of CPU time",
    ];
    status.code() == Code::Unavailable && causes.iter().any(|cause| status.message().ends_with(cause))
}

/// A caller that addresses the server by name.
#[derive(Clone)]
struct Caller {
    client: Client,
    channel: Channel,
    server: SocketAddr,
}

impl Caller {
    /// Sends a small call. Returns the error if the call failed.
    async fn number(&self, timeout: Duration, connect: Connect) -> Option<Status> {
        let client = WorkClient::new(self.channel.clone());
        self.client.number_by(client, self.server, "number, by a name", timeout, connect).await
    }

    /// Sends small calls until one succeeds, or fails for a reason other than the end of its session. Returns the error
    /// of the last call if it failed.
    async fn number_in_new_session(&self, connect: Connect) -> Option<Status> {
        loop {
            let failure = self.number(MINUTE, connect).await;
            if !failure.as_ref().is_some_and(broke_with_its_session) {
                return failure;
            }
        }
    }

    async fn fails(&self) {
        let (oracle, timers) = (&self.client.oracle, &self.client.timers);
        let _first = self.number_in_new_session(Connect::FailFast).await;
        let began = timers.now();
        let status = self.number(MINUTE, Connect::FailFast).await;
        let took = timers.now() - began;
        if !status.as_ref().is_some_and(|status| status.code() == Code::Unavailable && took <= ROUND) {
            oracle.fail(format!("a call by a name that leads nowhere ended with {status:?} after {took:?}"));
        }
        let began = timers.now();
        let ready = self.channel.ready().await;
        let took = timers.now() - began;
        if !ready.as_ref().is_err_and(|status| status.code() == Code::Unavailable) || took > ROUND {
            oracle.fail(format!("who waits for a server that is away was told {ready:?} after {took:?}"));
        }
        let late = self.number(IN_VAIN, Connect::Wait).await;
        if !late.as_ref().is_some_and(|status| status.code() == Code::DeadlineExceeded) {
            oracle.fail(format!("a call that waits for {IN_VAIN:?} in vain ended with {late:?}"));
        }
    }
}
