//! Budgets: how much of a resource of this node one peer may use, and all peers together.
//!
//! A [`Budget`] belongs to a node and knows the limits; each poller owns a [`Share`] of it, takes units for a
//! peer before it uses the resource, and puts them back afterwards. Whoever meets [`Exhausted`] refuses or
//! waits; nothing here does either.
//!
//! Pollers reserve units in portions, so that they do not write to the same cache line for each message:
//!
//! ```text
//! limit >= reserved by all pollers >= used by all pollers      of the node, and of each peer
//! ```
//!
//! A limit is never exceeded. At most an eighth of it may be reserved by pollers that do not use it.
#![forbid(unsafe_code)]

mod account;
mod node;
mod share;

pub use account::Budget;
pub(crate) use node::{Counted, NodeBudgets, NodeLimits, Shares};
pub use share::Share;

use crate::{PeerKey, StartError};
use std::collections::BTreeMap;

/// How much of a resource may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// By one peer; at least 1.
    pub per_peer: usize,
    /// By all peers together; at least `per_peer`.
    pub in_all: usize,
}

impl Limit {
    /// Refuses a limit that is no limit, naming the option that holds it.
    ///
    /// # Errors
    /// [`StartError::BadOption`].
    #[doc(hidden)]
    pub fn check(self, option: &'static str, least: usize, remedy: &'static str) -> Result<(), StartError> {
        let bad = |value: usize, remedy| Err(StartError::BadOption { option, value: value as u64, remedy });
        if self.per_peer < least {
            return bad(self.per_peer, remedy);
        }
        if self.in_all < self.per_peer {
            return bad(self.in_all, "what all peers may use together must be at least what one may use");
        }
        Ok(())
    }
}

/// A budget at one moment, as a node reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetReport {
    /// What it is for, as refusals name it.
    pub name: &'static str,
    /// Units in use by all peers.
    pub used: u64,
    /// Most units that may be.
    pub limit: Limit,
    /// Since the start: refusals, or waits, because the peer was at its limit.
    pub refused_to_peer: u64,
    /// Since the start: refusals, or waits, because all peers together were at theirs.
    pub refused_to_all: u64,
}

/// One poller's share of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetLedger {
    /// What it is for.
    pub name: &'static str,
    /// Most units that all pollers of the node may use.
    pub limit: Limit,
    /// Units that are charged, by peer.
    pub used: BTreeMap<PeerKey, usize>,
    /// Units that there are when they are counted one by one, by the peer that they are for.
    pub counted: BTreeMap<PeerKey, usize>,
}

/// A budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// By this peer.
    #[error("one peer's budget of {name} ({limit}) is used up")]
    Peer {
        /// What it is for.
        name: &'static str,
        /// Most units that the peer may use.
        limit: usize,
    },
    /// By all peers together.
    #[error("all peers' budget of {name} ({limit}) is used up")]
    All {
        /// What it is for.
        name: &'static str,
        /// Most units that all may use.
        limit: usize,
    },
}

#[cfg(test)]
mod tests;
