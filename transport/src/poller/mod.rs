//! A poller: a machine that owns a CQ, an SRQ, the INIs of its trunks, their buffers and
//! timers, and an upper half. It runs everything to completion and never blocks but to sleep.
//!
//! | file | role |
//! |---|---|
//! | `run.rs`, `idle.rs` | its turns; when to yield, when to sleep |
//! | `sends.rs` | which trunks post, their completions, announcing credit |
//! | `receives.rs` | from completions to frames, and reposting |
//! | `commands.rs` | what other machines ask of it |
//! | `sessions.rs` | sessions coming up and going down |
//! | `depth.rs` | making the SRQ deeper for many peers |
//! | `crossing.rs` | what came to one poller and is for another, over RC |
//! | `timers.rs` | deadlines, shutting down |
//! | `attach.rs` | taking a device, and releasing one that was removed |
//! | `audit.rs` | what a simulation counts |
//! | `carrier.rs` | what the upper half can ask for |
//! | `queues.rs`, `trunks.rs`, `peers.rs`, `peer_table.rs`, `targets.rs`, `early.rs`, `closings.rs`, `shutdown.rs` | its parts, each with its state |
//!
//! The state and work of one trunk are in [`crate::trunk`]. Nothing here is shared but what
//! [`crate::shared::NodeShared`] holds and the rings of [`crate::crossings`]. A poll takes the lock of the CQ.

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

/// All of a poller but its upper half, which borrows it as a [`crate::Carrier`]: it moves things between its
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
    /// Sessions that end, and wait for what other pollers hand on.
    closings: Closings,
    inbox: Inbox,
    batch: Batch,
    shutdown: Shutdown,
    /// Limit on log lines about peers that misbehave.
    log: LogLimit,
    /// Time of the last look at timers.
    scanned_ms: u64,
}
