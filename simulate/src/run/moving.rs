//! A server is known by a name whose addresses change, die and come back: a channel finds it at every one.

use super::{QUIET, Run};
use crate::client::Client;
use crate::coverage::Kind;
use crate::oracle::Open;
use crate::service::WorkClient;
use crate::timers::Timers;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trunkline::{CallOptions, Channel, Code, Connect, Resolve, Resolving, Status, Target};

/// Offset of a port without a listener from the port of a node.
const NOWHERE: u16 = 500;
/// Duration of a lookup.
const LOOKUP: Duration = Duration::from_millis(3);
/// Time for which the name has no address, and time for which a server is away.
const AWAY: Duration = Duration::from_secs(2);
/// Longest pause between two rounds, plus the longest between two attempts at an address, plus the attempt.
const FOUND: Duration = Duration::from_secs(13);
/// Maximum time of a round: a lookup, and each of two addresses with a handshake that is given up after 5 s.
const ROUND: Duration = Duration::from_secs(11);
/// Time limit of calls that need no more than that.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of calls that wait in vain.
const SHORT: Duration = Duration::from_millis(700);

/// Addresses of a name, in virtual time.
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
            self.timers.sleep(LOOKUP).await;
            if found.is_empty() { Err("there is no such name".into()) } else { Ok(found) }
        })
    }
}

impl Run {
    /// Calls a node by a name while its addresses change.
    pub(super) fn one_moves(&mut self) -> bool {
        let (mover, witness) = (0, 1);
        let home = self.nodes[mover].address;
        let nobody = SocketAddr::new(home.ip(), home.port() + NOWHERE);
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        self.scheduler.trace.line(
            self.scheduler.now(),
            "phase",
            format_args!("one node is called by a name"),
        );
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        let directory = Directory { timers: client.timers.clone(), addresses: Arc::default() };
        let caller = Caller {
            channel: client.node.channel(Target::resolver(directory.clone())),
            client,
            server: home,
        };
        // The name is unknown, then wrong, then right.
        if !self.fails(&caller) {
            return false;
        }
        directory.set(&[nobody]);
        let found = self.begin(&caller);
        if !self.fails(&caller) {
            return false;
        }
        self.scheduler.run_until(self.scheduler.now() + AWAY, |_| found.get());
        directory.set(&[nobody, home]);
        if !self.is_found(&found, "a name that has been corrected") {
            return false;
        }
        // Its server dies, and comes back.
        self.kill(mover);
        if !self.fails(&caller) {
            return false;
        }
        let found = self.begin(&caller);
        self.scheduler.run_until(self.scheduler.now() + AWAY, |_| found.get());
        self.nodes[mover].start(&mut self.scheduler, None);
        if !self.is_found(&found, "a server that is back") {
            return false;
        }
        self.moves_on(mover, &caller, &directory) && self.is_unbroken()
    }

    /// Kills the server and gives its name to another, which is found without waiting for the first.
    fn moves_on(&mut self, mover: usize, caller: &Caller, directory: &Directory) -> bool {
        let Some(successor) = self.nodes.get(2).map(|node| node.address) else { return true };
        let home = self.nodes[mover].address;
        directory.set(&[home, successor]);
        self.kill(mover);
        let caller = Caller { server: successor, ..caller.clone() };
        let found = self.begin(&caller);
        let is_found = self.is_found(&found, "another address of a server");
        self.nodes[mover].start(&mut self.scheduler, None);
        is_found
    }

    /// Makes a call that waits and must succeed. The returned flag is set once it has.
    fn begin(&self, caller: &Caller) -> Rc<Cell<bool>> {
        let (is_over, caller) = (Rc::new(Cell::new(false)), caller.clone());
        let noted = Rc::clone(&is_over);
        self.scheduler.tasks.add(caller.client.process, async move {
            let mut outcome = caller.number(PATIENCE, true).await;
            // The call was made in a session that was about to end.
            while outcome.as_ref().is_some_and(broke_with_its_session) {
                outcome = caller.number(PATIENCE, true).await;
            }
            match outcome {
                None => noted.set(true),
                Some(status) => {
                    caller.client.oracle.fail(format!("a call that waits for its server failed: {status}"));
                }
            }
        });
        is_over
    }

    fn is_found(&mut self, found: &Cell<bool>, what: &str) -> bool {
        let limit = self.scheduler.now() + FOUND;
        if !self.scheduler.run_until(limit, |_| found.get()) {
            return self.fail(&format!("{what} is not found in {FOUND:?}"));
        }
        self.scheduler.coverage.count(Kind::ServerFound);
        self.is_unbroken()
    }

    /// Checks that calls, and tasks that wait for a connection, fail in time while nothing is reached by the
    /// name.
    fn fails(&mut self, caller: &Caller) -> bool {
        let is_over = Rc::new(Cell::new(false));
        let (caller, noted) = (caller.clone(), Rc::clone(&is_over));
        self.scheduler.tasks.add(caller.client.process, async move {
            caller.fails().await;
            noted.set(true);
        });
        // A session that has just broken is noticed first, which takes up to 2 s.
        let limit = self.scheduler.now() + ROUND * 3;
        if !self.scheduler.run_until(limit, |_| is_over.get()) {
            return self.fail("calls by a name that leads nowhere do not end");
        }
        self.is_unbroken()
    }
}

/// Returns true if a call has failed because its session ended.
fn broke_with_its_session(status: &Status) -> bool {
    let causes = [
        "the peer stopped answering in an open session",
        "the peer has ended the session, or has named memory that it does not hold",
        "the peer gave up the session and began another",
        "the peer closed the session, or its process has ended",
        "the peer was restarted",
    ];
    status.code() == Code::Unavailable && causes.iter().any(|cause| status.message().ends_with(cause))
}

/// A caller that uses a name.
#[derive(Clone)]
struct Caller {
    client: Client,
    channel: Channel,
    /// Address of the server.
    server: SocketAddr,
}

impl Caller {
    /// Makes a small call. Returns the error, if it failed.
    async fn number(&self, timeout: Duration, waits: bool) -> Option<Status> {
        let oracle = &self.client.oracle;
        let connect = if waits { Connect::Wait } else { Connect::FailFast };
        let options = CallOptions::new().timeout(timeout).connect(connect);
        let id = oracle.made(self.client.process, self.server, "number, by a name", timeout);
        let open = Open::new(oracle, id);
        let outcome = WorkClient::new(self.channel.clone()).with(&options).number(id).await;
        open.ended();
        match outcome {
            Ok(replied) => oracle.succeeded(id, replied, false),
            Err(status) => {
                oracle.failed(id, &status);
                return Some(status);
            }
        }
        None
    }

    async fn fails(&self) {
        let (oracle, timers) = (&self.client.oracle, &self.client.timers);
        // The first calls may still be in the session that is over.
        let mut status = self.number(PATIENCE, false).await;
        while status.as_ref().is_some_and(broke_with_its_session) {
            status = self.number(PATIENCE, false).await;
        }
        let began = timers.now();
        let status = self.number(PATIENCE, false).await;
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
        let late = self.number(SHORT, true).await;
        if !late.as_ref().is_some_and(|status| status.code() == Code::DeadlineExceeded) {
            oracle.fail(format!("a call that waits for {SHORT:?} in vain ended with {late:?}"));
        }
    }
}
