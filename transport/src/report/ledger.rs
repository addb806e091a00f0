//! Counts that a simulation checks between two turns. They cover a poller's credits, slots, memory and open work, and
//! the CM machine's sessions.
//!
//! A poller returns a [`PollerLedger`] on request, through
//! [`Machine::inspect`](trunkline_machine::Machine::inspect), and the CM machine a [`SessionLedger`]. Only
//! tests and the simulation read them.
#![forbid(unsafe_code)]

use crate::PeerKey;
pub use crate::budget::BudgetLedger;
pub use crate::wire::{ROUND_MESSAGES, TURN_MESSAGES};
use std::net::SocketAddr;
use trunkline_verbs::QpNumber;

/// State of one poller at one moment.
#[derive(Debug, Clone)]
pub struct PollerLedger {
    /// Address that the poller's node listens on.
    pub node: SocketAddr,
    /// Index of the poller in its node.
    pub poller: u16,
    /// Credits that the poller may use, by lane of each live trunk.
    pub spending: Vec<Spending>,
    /// Credits that the poller has granted, by TGT.
    pub granting: Vec<Granting>,
    /// Credit granted, by SRQ.
    pub outstanding: Vec<SrqLedger>,
    /// Size of the frames kept for sessions that are not up, in bytes, and the number of these frames that were not
    /// copied. A frame that was not copied occupies a whole receive slot or block, which is more than the counted
    /// bytes.
    pub early: (usize, usize),
    /// Number of posted receives, and the depth of the SRQ; `None` while there is no device.
    pub receives: Option<(u32, u32)>,
    /// Number of free send slots and of all send slots; `None` while there is no device.
    pub sends: Option<(u32, u32)>,
    /// Number of work requests for sending that the device has not completed.
    pub outstanding_wr: usize,
    /// Memory for large outgoing messages, for large incoming messages, and for the application's registered buffers.
    pub memory: [MemoryLedger; 3],
    /// The poller's share of budgets. The driver's budgets are in `driver`.
    pub budgets: Vec<BudgetLedger>,
    /// Largest number of messages handled between two turns of a waiting peer, and the number of peers that waited
    /// then.
    pub longest_wait: (u64, usize),
    /// Open work of the driver.
    pub driver: DriverLedger,
}

/// State of the sessions of one node at one moment.
#[derive(Debug, Clone)]
pub struct SessionLedger {
    /// Address that the node listens on.
    pub node: SocketAddr,
    /// Sessions that are up or coming up, at most one per peer.
    pub sessions: Vec<SessionEntry>,
    /// Maximum number of half-open connections, per host and for all hosts. Beyond it, requests are refused.
    pub half_open_limit: (u32, u32),
    /// Maximum number of unproven sessions per host, and of candidates per peer.
    pub unproven_limit: (usize, usize),
    /// Maximum number of connections in all sessions of a host that has several sessions; 0 without a device.
    pub host_limit: u32,
}

/// A session in the CM machine's table.
#[derive(Debug, Clone)]
pub struct SessionEntry {
    /// The peer.
    pub peer: PeerKey,
    /// True if the session is complete from this node's point of view.
    pub is_up: bool,
    /// True if this node's program has named the peer.
    pub is_named: bool,
    /// Number of connections that the peer has announced.
    pub announced: u32,
    /// TGTs of the session.
    pub targets: Vec<QpNumber>,
    /// Number of sessions whose peer has yet to prove a name, and the number of candidates among these sessions.
    pub unproven: (usize, usize),
}

/// Credit that one poller has granted from one SRQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqLedger {
    /// Outstanding credits of all pairs.
    pub outstanding: u32,
    /// Maximum number of outstanding credits.
    pub capacity: u32,
    /// Maximum for all pairs of one peer together, unless their base credits exceed it.
    pub per_peer: u32,
}

/// Memory of a node that a device can access, for one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLedger {
    /// Bytes in use.
    pub bytes: usize,
    /// Number of registered regions, and of regions kept for later messages.
    pub regions: (usize, usize),
}

/// Open work of a poller's driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverLedger {
    /// Number of calls in flight.
    pub calls: usize,
    /// Number of running handlers.
    pub handlers: usize,
    /// Number of slots taken by the futures of handlers.
    pub slots: usize,
    /// True if the driver waits for a timer.
    pub has_timer: bool,
    /// Number of calls in flight that were sent to a peer after it announced that it runs no further calls.
    pub sent_to_drained: usize,
    /// The driver's share of budgets.
    pub budgets: Vec<BudgetLedger>,
}

/// The spender's half of a pair. Positions wrap around.
#[derive(Debug, Clone, Copy)]
pub struct Spending {
    /// The peer.
    pub peer: PeerKey,
    /// TGT at the peer.
    pub target: QpNumber,
    /// Poller at the peer.
    pub poller: u16,
    /// Position up to which credit was granted.
    pub granted: u32,
    /// Number of credits released unused.
    pub released: u32,
    /// Position of the messages sent.
    pub sent: u32,
}

/// The grantor's half of a pair. Positions wrap around.
#[derive(Debug, Clone, Copy)]
pub struct Granting {
    /// TGT that receives the spender's messages.
    pub target: QpNumber,
    /// Peer that spends the credits.
    pub peer: PeerKey,
    /// True if the peer's session is up.
    pub is_up: bool,
    /// Poller whose SRQ supplies the receives.
    pub home: u16,
    /// Position up to which credit was granted.
    pub granted: u32,
    /// Granted position last sent to the spender.
    pub told: u32,
    /// Number of credits that the spender reported as released.
    pub released: u32,
    /// Position of the messages received.
    pub consumed: u32,
}

impl Granting {
    /// Returns the number of credits that may still be used.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.granted.wrapping_sub(self.released).wrapping_sub(self.consumed)
    }
}
