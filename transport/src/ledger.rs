//! What a simulation counts in a poller between two turns: credits, slots, memory, and what is open.
//!
//! A poller makes a [`PollerLedger`] when it is asked to, by [`Machine::inspect`](trunkline_machine::Machine::inspect).
//! Nothing in a node reads it.
#![forbid(unsafe_code)]

pub use crate::budget::BudgetLedger;
use std::net::SocketAddr;
use trunkline_verbs::QpNumber;

/// One poller at one moment.
#[derive(Debug, Clone)]
pub struct PollerLedger {
    /// Where its node listens.
    pub node: SocketAddr,
    /// Its index in its node.
    pub poller: u16,
    /// Credits that it may use, a pair for each lane of each trunk that works.
    pub spending: Vec<Spending>,
    /// Credits that it has granted, a pair for each TGT that it knows.
    pub granting: Vec<Granting>,
    /// By the SRQ that is granted from: credits outstanding of all pairs, and the most that may be.
    pub outstanding: Vec<(u32, u32)>,
    /// Receives that are posted, and the depth of the SRQ; `None` while there is no device.
    pub receives: Option<(u32, u32)>,
    /// Send slots that are free, and all; `None` while there is no device.
    pub sends: Option<(u32, u32)>,
    /// Work requests for sending that the device has not completed.
    pub outstanding_wr: usize,
    /// Its node's memory for large messages, out and in.
    pub memory: [MemoryLedger; 2],
    /// Its share of budgets; its upper half has others.
    pub budgets: Vec<BudgetLedger>,
    /// What its upper half has open.
    pub upper: UpperLedger,
}

/// Memory for large messages of a node, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLedger {
    /// Bytes in use.
    pub bytes: usize,
    /// Regions that are registered, and those of them that are kept for later messages.
    pub regions: (usize, usize),
}

/// What the upper half of a poller has open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpperLedger {
    /// Calls in flight.
    pub calls: usize,
    /// Handlers that run.
    pub handlers: usize,
    /// Slots that are taken by the futures of handlers.
    pub slots: usize,
    /// Whether it waits for a time.
    pub has_timer: bool,
    /// Its share of budgets.
    pub budgets: Vec<BudgetLedger>,
}

/// The spender's half of a pair. Positions wrap.
#[derive(Debug, Clone, Copy)]
pub struct Spending {
    /// Where the peer listens.
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
