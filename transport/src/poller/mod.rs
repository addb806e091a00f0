//! A poller: a machine that owns a CQ, an SRQ, the INIs of its trunks, their buffers and timers, and an upper
//! half. It runs everything to completion and blocks only to sleep.
//!
//! | file | role |
//! |---|---|
//! | `run.rs`, `idle.rs` | its turns; when to yield, when to sleep |
//! | `sends.rs` | posting for all trunks, send completions, announcing credit |
//! | `receives.rs`, `turns.rs` | from completions to frames, and reposting; turns of peers |
//! | `commands.rs` | commands of other machines |
//! | `sessions.rs` | sessions coming up and going down |
//! | `depth.rs` | making the SRQ deeper for many peers |
//! | `crossing.rs` | frames received by one poller for another, over RC |
//! | `timers.rs` | deadlines, shutting down |
//! | `attach.rs` | taking a device, and releasing one that was removed |
//! | `audit.rs` | counts for a simulation |
//! | `carrier.rs` | services for the upper half |
//! | `queues.rs`, `trunks.rs`, `peers.rs`, `peer_table.rs`, `targets.rs`, `early.rs`, `closings.rs`, `shutdown.rs` | its parts, each with its own state |
//!
//! The state and work of one trunk are in [`crate::trunk`]. Only [`crate::shared::NodeShared`] and the rings
//! of [`crate::crossings`] are shared with other threads. A poll takes the lock of the CQ.

mod attach;
mod audit;
mod carrier;
mod closings;
mod commands;
mod crossing;
mod depth;
mod early;
mod idle;
mod peer_table;
mod peers;
mod queues;
mod receives;
mod run;
mod sends;
mod sessions;
mod shutdown;
mod targets;
mod timers;
mod trunks;
mod turns;

pub(crate) use run::{OfNode, Parts, Poller};

use crate::crossings::Crossings;
use crate::log_limit::LogLimit;
use crate::trunk::Resources;
use closings::Closings;
use commands::Inbox;
use peers::Peers;
use queues::Queues;
use receives::Batch;
use shutdown::Shutdown;
use targets::Targets;
use trunks::Trunks;
use turns::Turns;

/// A poller without its upper half, which borrows it as a [`crate::Carrier`]. It moves things between its
/// parts, each of which guards its own state.
#[derive(Debug)]
pub(crate) struct Core {
    res: Resources,
    queues: Queues,
    /// Rings to and from the other pollers.
    crossings: Crossings,
    trunks: Trunks,
    peers: Peers,
    targets: Targets,
    /// Sessions that are ending and wait for frames from other pollers.
    closings: Closings,
    turns: Turns,
    inbox: Inbox,
    batch: Batch,
    shutdown: Shutdown,
    /// Limit on log lines about peers that misbehave.
    log: LogLimit,
    /// Time of the last check of the timers.
    scanned_ms: u64,
}
