//! A peer that violates the session protocol. Honest nodes must not be affected.
//!
//! The hostile peer is a node in the run, on a separate host, whose frames are modified by the network
//! (`trunkline_testkit`). During faults, it makes calls like other nodes. Without faults, these rules are checked:
//!
//! | rule | violated when |
//! |---|---|
//! | honest calls continue | a call between honest nodes fails, or takes longer than in the calm phase |
//! | the session ends, unless the peer only hoards credit that other peers do not need | it does not end in time, or the end is logged with another cause |
//! | the peer READs only bytes announced to it | a READ of other bytes is answered (`sent_frames.rs`) |
//! | the peer gets no more than other peers | a budget is exceeded, or credits of honest pairs are lost, also in its next session |
//! | all resources are returned | state of the peer remains at the attacked node after the peer's end |

use super::{Checked, QUIET, Run};
use crate::coverage::EventKind;
use crate::node::{LARGE_CALLS, LENT_CALLS};
use crate::plan::NodePlan;
use crate::workload::client::{Ask, Client};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_testkit::Hostility;
use trunkline_verbs::Time;

/// Number of concurrent small calls from the peer.
const SMALL: usize = 280;
const LARGE: Ask = Ask::Echo { there: 40 << 10, back: 100 << 10, wait_us: 0 };
/// Time limit of the hostile peer's calls. A node waits for less time for a peer that accepts nothing.
const PATIENCE: Duration = Duration::from_secs(90);
/// Number of calls that the hostile peer makes during faults.
const CALLS: usize = 30;
/// Longest pause between two of these calls, in microseconds.
const THINK_US: u64 = 60_000;
/// Time after which the session of a peer that accepts nothing ends.
const STALL_LIMIT: Duration = Duration::from_secs(60);
/// Addition to a limit. A poller checks its timers every few milliseconds, and READs the permitted large messages first.
const NOTICED: Duration = Duration::from_secs(1);
/// Number of rounds of calls between honest nodes before a peer loses its session.
const ROUNDS: u32 = 2;
/// Maximum time until the death of the hostile peer is detected and its resources are released.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// Returns the plan of the hostile peer's node, which is on a separate host.
pub(super) fn plan(nodes: &[NodePlan]) -> NodePlan {
    let host = nodes.iter().map(|node| node.host + 1).max().unwrap_or(0);
    NodePlan { clients: 2, ..NodePlan::extra(host, 2) }
}

/// Returns true if honest nodes detect this peer only by a timeout, because it accepts no messages.
fn takes_long(hostility: Hostility) -> bool {
    [Hostility::Stingy, Hostility::Unfinished].contains(&hostility)
}

/// Returns the possible causes in the log for the end of the session.
fn causes(hostility: Hostility) -> &'static [&'static str] {
    match hostility {
        Hostility::Hoarding | Hostility::Advanced => &[],
        Hostility::Stingy | Hostility::Unfinished => &["it takes no replies"],
        Hostility::Beyond => &["the peer broke the protocol"],
        // A random frame kind may be a kind of a later version.
        Hostility::Garbage => &["the peer broke the protocol", "which this node does not know"],
        // A peer whose keys were dropped at the end of its session causes the same text.
        Hostility::Unserved => &["the peer has ended the session, or has named memory that it does not hold"],
        // The READ breaks the INI of the hostile peer, whose node then ends the session.
        Hostility::Prying => &["the peer closed the session, or its process has ended"],
    }
}

const fn kind(hostility: Hostility) -> EventKind {
    match hostility {
        Hostility::Advanced | Hostility::Stingy => EventKind::PeerTookNothing,
        Hostility::Hoarding => EventKind::PeerHoardedCredit,
        Hostility::Beyond => EventKind::PeerSentBeyond,
        Hostility::Unfinished => EventKind::PeerFinishedNothing,
        Hostility::Unserved => EventKind::PeerNamedWrongKeys,
        Hostility::Garbage => EventKind::PeerSentGarbage,
        Hostility::Prying => EventKind::PeerReadBeside,
    }
}

impl Run {
    /// Starts the hostile peer, if the run includes one, with clients that make calls during faults.
    pub(super) fn start_hostile(&mut self) {
        let Some(hostility) = self.plan.hostility else { return };
        let Ok(client) = self.hostile_client(hostility) else { return };
        for _ in 0..2 {
            let client = Client { random: self.random.fork(), ..client.clone() };
            self.scheduler.tasks.add(client.process, pester(client));
        }
    }

    /// Returns a client of the hostile peer, which is started if necessary.
    fn hostile_client(&mut self, hostility: Hostility) -> Checked<Client> {
        let mut node = self.hostile.take().ok_or("the run has no hostile peer")?;
        let seed = self.random.u64(..);
        self.scheduler.network.corrupt(node.address.ip(), hostility, seed);
        self.scheduler.oracle.is_hostile(node.address);
        node.start(&mut self.scheduler, None);
        let servers = self.nodes.iter().map(|node| node.address).collect();
        let client = self.client_of(&node, servers);
        self.hostile = Some(node);
        client
    }

    /// Kills the hostile peer, and waits until all nodes have detected it.
    pub(super) fn lose_hostile(&mut self) -> Checked {
        let Some(node) = &mut self.hostile else { return Ok(()) };
        node.kill(&mut self.scheduler);
        let address = node.address;
        let limit = self.scheduler.now() + FORGOTTEN;
        while self.knows(address) {
            self.unbroken()?;
            if self.scheduler.now() >= limit {
                return Err("a session with a hostile peer is left long after that was killed".to_owned());
            }
            self.pass(QUIET);
        }
        self.unbroken()
    }

    /// Returns true if a node has a session with the hostile peer, or state from an earlier session with it.
    fn knows(&self, hostile: SocketAddr) -> bool {
        let sessions = self.scheduler.sessions();
        let mut peers =
            sessions.iter().flat_map(|ledger| &ledger.sessions).map(|session| session.peer.address());
        let ledgers = self.ledgers();
        let mut spent =
            ledgers.iter().flat_map(|ledger| &ledger.spending).map(|spending| spending.peer.address());
        peers.any(|peer| peer == hostile) || spent.any(|peer| peer == hostile)
    }

    /// Checks the rules while a peer misbehaves and other nodes call each other.
    pub(super) fn one_is_hostile(&mut self) -> Checked {
        let Some(hostility) = self.plan.hostility else { return Ok(()) };
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("a peer is {hostility}"));
        let victim = self.random.usize(..self.nodes.len());
        let (address, before) = (self.nodes[victim].address, self.qps(victim));
        self.pass(QUIET);
        let client = self.hostile_client(hostility)?;
        let _earlier = self.scheduler.trace.ended_sessions();
        self.flood(&client, address);
        self.lend(victim)?;
        let began = self.scheduler.now();
        self.honest_calls()?;
        // A hoarder loses its session only if other peers lack credit for a long time.
        if hostility != Hostility::Hoarding {
            self.loses_its_session(hostility, address, began)?;
        }
        self.scheduler.coverage.count(kind(hostility));
        // The hostile peer's next session gets no more connections than its first.
        self.flood(&client, address);
        self.honest_calls()?;
        drop(client);
        self.lose_hostile()?;
        let limit = self.scheduler.now() + FORGOTTEN;
        loop {
            let (now, rest) = (self.qps(victim), self.rest());
            // The earlier count may include connections that were ending, so the count may be lower now.
            if now.ini <= before.ini && now.tgt <= before.tgt && rest.is_ok() {
                return Ok(());
            }
            self.unbroken()?;
            if self.scheduler.now() >= limit {
                return Err(format!(
                    "a hostile peer is gone, and has left {now:?}, {before:?} before it came, and {rest:?}"
                ));
            }
            self.pass(QUIET);
        }
    }

    /// Sends calls to a node from the hostile peer.
    fn flood(&self, client: &Client, server: SocketAddr) {
        let small = std::iter::repeat_n(Ask::Number, SMALL);
        for ask in small.chain(std::iter::repeat_n(LARGE, LARGE_CALLS as usize)) {
            let client = client.clone();
            self.scheduler.tasks.add(client.process, async move {
                let _whatever = client.call(server, PATIENCE, ask).await;
            });
        }
    }

    /// Sends calls to the hostile peer from a node. Some arguments are slices of buffers.
    fn lend(&mut self, victim: usize) -> Checked {
        let hostile = self.hostile.as_ref().map(|node| node.address).ok_or("the run has no hostile peer")?;
        let client = self.client(victim)?;
        // At least one of four consecutive arguments is a slice.
        for _ in 0..LENT_CALLS {
            let client = client.clone();
            self.scheduler.tasks.add(client.process, async move {
                let _whatever = client.call(hostile, PATIENCE, LARGE).await;
            });
        }
        Ok(())
    }

    /// Sends calls between honest nodes, as in the calm phase.
    fn honest_calls(&mut self) -> Checked {
        self.calm_calls(PATIENCE, "honest calls do not end next to a hostile peer")
    }

    /// Checks that the session ends in time and with the expected cause, while honest calls continue.
    fn loses_its_session(&mut self, hostility: Hostility, victim: SocketAddr, began: Time) -> Checked {
        let hostile = self.hostile.as_ref().map(|node| node.address);
        let bound = if takes_long(hostility) { STALL_LIMIT + NOTICED } else { NOTICED };
        let mut ended = Vec::new();
        for round in 1..=ROUNDS {
            let next = began + bound * round / ROUNDS;
            self.scheduler.run_until(next.max(self.scheduler.now()), |_| false);
            ended.extend(self.scheduler.trace.ended_sessions());
            if ended.iter().any(|(peer, _)| Some(*peer) == hostile) {
                break;
            }
            if round < ROUNDS {
                self.honest_calls()?;
            }
        }
        // The hostile peer's node may detect a stall first, because the network has removed some of its frames.
        let of_it = |peer: SocketAddr| Some(peer) == hostile || (peer == victim && takes_long(hostility));
        let ends = ended.iter().filter(|(peer, _)| of_it(*peer)).map(|(_, cause)| cause.as_str());
        let (ends, expected) = (ends.collect::<Vec<_>>(), causes(hostility));
        if !ends.iter().any(|end| expected.iter().any(|cause| end.contains(cause))) {
            return Err(format!(
                "the session of a peer that is {hostility} has not ended after {bound:?} by any of {expected:?}; \
                 it was down by {ends:?}"
            ));
        }
        self.unbroken()
    }

    /// Returns the number of connections of a node, by direction.
    fn qps(&self, node: usize) -> Qps {
        let report = self.nodes[node].running().map(|(_, node)| node.report());
        report.map_or_else(Qps::default, |report| Qps { ini: report.ini, tgt: report.tgt })
    }
}

/// Number of connections of a node, by direction.
#[derive(Debug, Clone, Copy, Default)]
struct Qps {
    ini: u32,
    tgt: u32,
}

/// Makes the hostile peer's calls during faults.
async fn pester(mut client: Client) {
    for _ in 0..CALLS {
        let random = &mut client.random;
        let pause = Duration::from_micros(random.u64(..THINK_US));
        let server = client.servers[random.usize(..client.servers.len())];
        let timeout = Duration::from_millis(random.u64(30..2000));
        let large = Ask::echo(random.usize(..60 << 10), random.usize(..100 << 10));
        let ask = if random.u8(..3) > 0 { Ask::Number } else { large };
        client.timers.sleep(pause).await;
        let _whatever = client.call(server, timeout, ask).await;
    }
}
