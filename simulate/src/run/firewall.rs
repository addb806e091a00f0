//! A client behind a stateful firewall. Its first calls succeed, and its session outlives a pause.
//!
//! One or two additional nodes on one host are behind a firewall, and in some runs behind an address translator. They
//! call the first node, are idle, and call again. One of their processes is killed. When its successor calls from another
//! port, the first node checks for dead peers and keeps the other session. Finally, the translator loses its mappings.
//! The nodes get new sessions, and the first node ends only the sessions with nodes that it cannot reach.

use super::{Checked, QUIET, Run, TRY, Tally};
use crate::coverage::EventKind;
use crate::oracle::CALM_LIMIT;
use crate::plan::NodePlan;
use crate::workload::client::{Ask, all};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;
use trunkline::Status;
use trunkline_transport::ledger::SessionEntry;
use trunkline_verbs::QpNumber;

/// Maximum duration of a first call, whose connection request is sent in two forms.
const FIRST: Duration = Duration::from_secs(2);
/// Maximum duration of all further calls.
const CALLS: Duration = Duration::from_secs(5);
/// Length of the pause, in seconds. During longer pauses, the firewall closes unused flows.
const PAUSE_S: RangeInclusive<u64> = 25..=60;
/// Address of the translator, which is not the address of any host.
const TRANSLATOR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 9, 9));
/// Maximum time from the first call of a successor to the end of its predecessor's session.
const DEAD_IS_NOTICED: Duration = Duration::from_secs(3);

/// Maximum time from the loss of a mapping until a client's calls succeed again.
const BACK: Duration = Duration::from_secs(5);
/// Maximum time from the loss of a mapping until the server has ended the session, which it probes every 10 s.
const LOST_IS_NOTICED: Duration = Duration::from_secs(15);

impl Run {
    /// Calls a node from behind a firewall before and after a pause, and then from the successor of a killed process.
    pub(super) fn a_client_is_behind_a_firewall(&mut self) -> Checked {
        let pollers = self.random.u16(1..=3);
        let client = self.start_extra(|node| NodePlan { pollers, is_client: true, ..node })?;
        let host = self.extra[client].plan.host;
        let mut clients = vec![client];
        if self.random.bool() {
            clients.push(self.start_extra(|node| NodePlan { host, is_client: true, ..node })?);
        }
        let (server, own) = (self.nodes[0].address, self.extra[client].address);
        self.scheduler.network.wall(own.ip());
        let is_translated = self.random.bool();
        if is_translated {
            self.scheduler.network.translate(own.ip(), TRANSLATOR);
        }
        let outside = if is_translated { TRANSLATOR } else { own.ip() };
        for at in &clients {
            self.calls_through(*at, server, FIRST, "a first call")?;
        }
        let before = self.targets_of(&clients, server, outside)?;
        let pause = Duration::from_secs(self.random.u64(PAUSE_S));
        self.pass(pause);
        self.count_credits()?;
        for at in &clients {
            self.calls_through(*at, server, TRY, "a call after a pause")?;
        }
        let after = self.targets_of(&clients, server, outside)?;
        if before != after {
            return Err(format!("a session through a firewall was lost: {before:?}, {after:?}"));
        }

        self.pass(QUIET);
        self.extra[client].kill(&mut self.scheduler);
        self.extra[client].start(&mut self.scheduler, None);
        let limit = self.scheduler.now() + DEAD_IS_NOTICED;
        self.calls_through(client, server, FIRST, "a call of a successor")?;
        self.scheduler.run_until(limit, |_| false);
        if self.session(server, SocketAddr::new(outside, own.port())).is_some() {
            return Err(format!("{server} keeps a session with a client that was killed"));
        }
        for at in &clients {
            self.calls_through(*at, server, TRY, "a call after a death")?;
        }
        if self.targets_of(&clients[1..], server, outside)? != before[1..] {
            return Err("a death at its address ended a session".to_owned());
        }
        if is_translated {
            self.mappings_are_lost(&clients, server)?;
        }
        self.scheduler.network.unwall(own.ip());
        self.scheduler.coverage.count(EventKind::FirewallCrossed);
        if is_translated {
            self.scheduler.coverage.count(EventKind::TranslatorCrossed);
        }
        Ok(())
    }

    /// Removes the mappings of the translator. Clients that make calls get new sessions, and the server ends only their
    /// old sessions.
    fn mappings_are_lost(&mut self, clients: &[usize], server: SocketAddr) -> Checked {
        let sessions = |run: &Self| {
            let ledger = run.scheduler.sessions().into_iter().find(|ledger| ledger.node == server);
            let up = ledger.into_iter().flat_map(|ledger| ledger.sessions).filter(|session| session.is_up);
            let (lost, kept): (Vec<_>, _) = up.partition(|session| session.peer.host() == TRANSLATOR);
            let targets = |sessions: Vec<SessionEntry>| -> BTreeSet<_> {
                sessions.into_iter().flat_map(|session| session.targets).collect()
            };
            (targets(lost), targets(kept))
        };
        let (lost, kept) = sessions(self);
        self.scheduler.network.forget_mappings();
        let limit = self.scheduler.now() + LOST_IS_NOTICED;
        let ended = Tally::default();
        for at in clients {
            let client = self.client_of(&self.extra[*at], vec![server])?;
            self.add(&ended, client.process, async move {
                while client.number_waiting(server, TRY).await.is_some() {
                    client.timers.sleep(QUIET).await;
                }
            });
        }
        self.within(BACK, "a client whose mapping was lost is not served again", |_| {
            ended.get() == clients.len()
        })?;
        self.scheduler.run_until(limit, |_| false);
        let (now, others) = sessions(self);
        if !lost.is_disjoint(&now) {
            return Err(format!("{server} keeps a session that no packet of it reaches: {lost:?}, {now:?}"));
        }
        if !kept.is_subset(&others) {
            return Err(format!("a lost mapping ended another session: {kept:?}, {others:?}"));
        }
        for at in clients {
            self.calls_through(*at, server, TRY, "a call after a lost mapping")?;
        }
        self.scheduler.coverage.count(EventKind::MappingsLost);
        Ok(())
    }

    /// Returns the TGTs of a server's sessions with additional nodes that the server sees at the address `outside`.
    fn targets_of(
        &self,
        clients: &[usize],
        server: SocketAddr,
        outside: IpAddr,
    ) -> Checked<Vec<Vec<QpNumber>>> {
        let seen = |at: &usize| SocketAddr::new(outside, self.extra[*at].address.port());
        clients.iter().map(|at| self.targets(server, seen(at))).collect()
    }

    /// Sends calls of several kinds to a node, each of which must succeed. The first calls may take up to `first`.
    fn calls_through(&mut self, from: usize, server: SocketAddr, first: Duration, what: &str) -> Checked {
        let client = self.client_of(&self.extra[from], vec![server])?;
        let mut random = self.random.fork();
        let (oracle, text) = (client.oracle.clone(), what.to_owned());
        let ended = self.program(client.process, async move {
            let judge = |failure: Option<Status>| {
                if let Some(status) = failure {
                    oracle.fail(format!("{text} through a firewall failed: {status}"));
                }
            };
            // Calls are assigned to the pollers in turn.
            all((0..client.pollers).map(|_| async { judge(client.call(server, first, Ask::Number).await) }))
                .await;
            for ask in [Ask::Number, Ask::echo(100 << 10, 100 << 10), Ask::Tell(64)] {
                judge(client.call(server, TRY, ask).await);
            }
            judge(client.calm_stream(server, &mut random, TRY, CALM_LIMIT).await);
        });
        self.within(first + CALLS, &format!("{what} through a firewall does not end"), |_| ended.get() == 1)
    }
}
