//! The transport of one poller, with a CQ, an SRQ, the INIs of its trunks, their buffers and timers. It is a state
//! machine without callbacks, owned by its driver. The RPC layer polls it on the poller's thread, runs each turn to
//! completion and blocks only to sleep.
//!
//! | file | role |
//! |---|---|
//! | `run.rs`, `idle.rs` | turns and events; when to yield and when to sleep |
//! | `device.rs` | the queues on a device; how they are taken, deepened and released |
//! | `sends.rs` | posting for all trunks, send completions, credit frames |
//! | `receives.rs`, `turns.rs` | from completions to frames, and reposting; turns of peers |
//! | `commands.rs` | commands from other machines |
//! | `sessions.rs` | sessions coming up and going down |
//! | `crossings.rs` | frames received by one poller for another, over RC |
//! | `handshakes.rs` | handshake frames of sessions that are not up |
//! | `timers.rs`, `shutdown.rs` | deadlines; progress of a shutdown |
//! | `services.rs` | services for the driver: sending, cancelling, reaching a peer |
//! | `trunks.rs`, `peers.rs`, `targets.rs` | tables of trunks, peers and TGTs |
//!
//! The state and work of one trunk are in [`crate::trunk`]. Only [`crate::node::shared::NodeShared`] and the rings of
//! [`crate::poller::crossings`] are shared with other threads. A poll of the CQ takes the CQ's lock.

mod commands;
pub(crate) mod crossings;
mod device;
#[cfg(feature = "identity")]
mod handshakes;
mod idle;
mod peers;
mod receives;
mod run;
mod sends;
mod services;
mod sessions;
mod shutdown;
mod targets;
mod timers;
mod trunks;
mod turns;

pub use run::Begun;
pub(crate) use run::{OfNode, Parts};

use crate::LogLimit;
use crate::budget::Counted;
use crate::node::shared::Alive;
use crate::report::ledger::{DriverLedger, Granting, PollerLedger};
use crate::trunk::{Resources, Trunk};
use commands::CommandQueue;
use crossings::Crossings;
use device::Queues;
use idle::Idle;
use peers::Peers;
use receives::Receiving;
use run::Stage;
use services::LastSent;
use sessions::Closings;
use shutdown::Shutdown;
use std::net::{Ipv4Addr, SocketAddr};
use targets::{Target, Targets};
use trunkline_verbs::Time;
use trunks::Trunks;
use turns::Turns;

/// The transport of one poller. The protocol above drives it through [`Transport::begin_turn`],
/// [`Transport::poll_event`], [`Transport::send`], [`Transport::flush_round`] and [`Transport::end_turn`].
#[derive(Debug)]
pub struct Transport {
    res: Resources,
    queues: Queues,
    /// Rings to and from the other pollers.
    crossings: Crossings,
    trunks: Trunks,
    peers: Peers,
    targets: Targets,
    /// Sessions that are ending and wait for frames from other pollers.
    closings: Closings,
    #[cfg(feature = "identity")]
    handshakes: handshakes::Handshakes,
    turns: Turns,
    inbox: CommandQueue,
    receiving: Receiving,
    shutdown: Shutdown,
    /// Limit on log lines about peers that break the protocol.
    log: LogLimit,
    /// Time of the last check of the timers.
    scanned_ms: u64,
    idle: Idle,
    stage: Stage,
    /// Time until which the poller sleeps.
    asleep_until: Option<Time>,
    /// True if this round has done any work.
    worked: bool,
    /// Number of events returned to the driver since sent messages were last posted.
    delivered: usize,
    last_sent: LastSent,
    _alive: Alive,
}

impl Transport {
    /// Returns the current credits, slots and memory, with the driver's open work.
    pub(super) fn ledger(&self, driver: DriverLedger) -> PollerLedger {
        let res = &self.res;
        let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let granted = |(qp, target): (_, &Target)| {
            let (peer, number) = target.session();
            let is_up = self.find_trunk(peer, number).is_some();
            Some(Granting { is_up, ..res.grants.positions(qp, target.pair()?)? })
        };
        let mut counted = Counted::default();
        self.trunks.all().for_each(|trunk| trunk.count(&mut counted));
        self.peers.count(&mut counted);
        PollerLedger {
            node: res.shared.local_address.get().copied().unwrap_or(unknown),
            poller: res.index.0,
            spending: self.trunks.live().flat_map(Trunk::spending).collect(),
            granting: self.targets.all().filter_map(granted).collect(),
            outstanding: res.grants.outstanding(),
            early: self.targets.count_early(),
            receives: self.queues.is_attached().then(|| res.receives.count()),
            sends: self.queues.is_attached().then(|| res.sends.count()),
            outstanding_wr: res.sends.outstanding(),
            memory: [&res.shared.sources, &res.shared.sinks, &res.shared.buffers].map(|pool| pool.ledger()),
            budgets: res.shares.ledger(counted),
            longest_wait: self.turns.longest_wait(),
            driver,
        }
    }
}
