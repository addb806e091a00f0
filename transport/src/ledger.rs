//! Counts of a simulation between two turns: credits, slots, memory, and what is open in a poller; sessions in
//! the CM machine.
//!
//! A poller makes a [`PollerLedger`] when it is asked to, by [`Machine::inspect`](trunkline_machine::Machine::inspect),
//! and the CM machine a [`SessionLedger`].
//! Nothing in a node reads it.
#![forbid(unsafe_code)]

use crate::PeerKey;
pub use crate::budget::BudgetLedger;
use std::net::SocketAddr;
use trunkline_verbs::QpNumber;

/// One poller at one moment.
#[derive(Debug, Clone)]
pub struct PollerLedger {
    /// Address that its node listens on.
    pub node: SocketAddr,
    /// Index of the poller in its node.
    pub poller: u16,
    /// Credits that it may use, a pair for each lane of each trunk that works.
    pub spending: Vec<Spending>,
    /// Credits that it has granted, a pair for each TGT that it knows.
    pub granting: Vec<Granting>,
    /// Credit granted, by the SRQ that it is granted from.
    pub outstanding: Vec<SrqLedger>,
    /// Bytes of frames that are kept for sessions that are not up, and how many of them are not in memory of their own: they
    /// keep a receive slot, or a block of other frames, and so more than is counted.
    pub early: (usize, usize),
    /// Receives that are posted, and the depth of the SRQ; `None` while there is no device.
    pub receives: Option<(u32, u32)>,
    /// Send slots that are free, and all; `None` while there is no device.
    pub sends: Option<(u32, u32)>,
    /// Work requests for sending that the device has not completed.
    pub outstanding_wr: usize,
    /// Memory of the node for large messages, out and in, and memory of the application's registered buffers.
    pub memory: [MemoryLedger; 3],
    /// The poller's share of budgets; its upper half has others.
    pub budgets: Vec<BudgetLedger>,
    /// Open work of its upper half.
    pub upper: UpperLedger,
}

/// The sessions of one node at one moment.
#[derive(Debug, Clone)]
pub struct SessionLedger {
    /// Address that the node listens on.
    pub node: SocketAddr,
    /// Sessions that are up or being made, at most one for each peer.
    pub sessions: Vec<SessionEntry>,
    /// Connections of half-open sessions from which on a host's requests are refused, and those of all hosts.
    pub half_open_limit: (u32, u32),
}

/// A session as the CM machine knows it.
#[derive(Debug, Clone)]
pub struct SessionEntry {
    /// Address that the peer listens on.
    pub peer: SocketAddr,
    /// It is complete, as seen from here.
    pub is_up: bool,
    /// True if this node's program has named the peer, so it is not a stranger.
    pub is_named: bool,
    /// Connections that the peer has announced, while the session is not up.
    pub announced: u32,
    /// The TGTs that there are for it.
    pub targets: Vec<QpNumber>,
}

/// Credit that one poller has granted of one SRQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqLedger {
    /// Credits outstanding of all pairs.
    pub outstanding: u32,
    /// The most that may be.
    pub capacity: u32,
    /// The most that the pairs of one peer may have together, unless their base credits are more.
    pub per_peer: u32,
}

/// Memory of a node that a device reaches, of one use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLedger {
    /// Bytes in use.
    pub bytes: usize,
    /// Regions that are registered, and those of them that are kept for later messages.
    pub regions: (usize, usize),
}

/// Open work of a poller's upper half.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpperLedger {
    /// Calls in flight.
    pub calls: usize,
    /// Handlers that run.
    pub handlers: usize,
    /// Slots that are taken by the futures of handlers.
    pub slots: usize,
    /// True if it waits for a time.
    pub has_timer: bool,
    /// Calls in flight that were sent to a peer after it had said that it runs no more.
    pub sent_to_drained: usize,
    /// The upper half's share of budgets.
    pub budgets: Vec<BudgetLedger>,
}

/// The spender's half of a pair. Positions wrap.
#[derive(Debug, Clone, Copy)]
pub struct Spending {
    /// Address that the peer listens on.
    pub peer: SocketAddr,
    /// The TGT there.
    pub target: QpNumber,
    /// The poller there.
    pub poller: u16,
    /// Position up to which it was granted credit.
    pub granted: u32,
    /// Credits released unused.
    pub released: u32,
    /// Position of the messages sent.
    pub sent: u32,
}

/// The grantor's half of a pair. Positions wrap.
#[derive(Debug, Clone, Copy)]
pub struct Granting {
    /// The TGT through which the spender's messages come.
    pub target: QpNumber,
    /// The peer that the spender is of.
    pub peer: PeerKey,
    /// True if its session is up.
    pub is_up: bool,
    /// The SRQ that they take receives of, by its poller.
    pub home: u16,
    /// Position up to which credit was granted.
    pub granted: u32,
    /// Position up to which the spender was sent credit.
    pub told: u32,
    /// Credits that the spender reported as released.
    pub released: u32,
    /// Position of the messages received.
    pub consumed: u32,
}

impl Granting {
    /// Credits that may still be used.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.granted.wrapping_sub(self.released).wrapping_sub(self.consumed)
    }
}
