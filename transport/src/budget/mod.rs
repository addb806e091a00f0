//! Budgets: limits on the use of a node's resource by one peer, by all peers of one host, and by all peers
//! together.
//!
//! A [`Budget`] belongs to a node and holds the limits. Each poller owns a [`Share`] of the budget, takes units for a
//! peer before it uses the resource, and puts them back afterwards. On [`Exhausted`], the caller refuses the work or
//! waits.
//!
//! Pollers reserve units in portions, so that they do not write to the same cache line for each message:
//!
//! ```text
//! limit >= reserved by all pollers >= used by all pollers      of the node, of each host, and of each peer
//! ```
//!
//! A limit is never exceeded. Pollers may hold at most an eighth of it reserved but unused.
//!
//! A peer is an address with a port, and the owner of an address can use all its ports. Limits therefore also apply per
//! host; see [`PeerHosts`](crate::PeerHosts). An eighth of the total limit is set aside, and each host may use only an
//! eighth of that part. If a few hosts have used up all other units, up to eight hosts can therefore still take units:
//!
//! ```text
//! in_all   |   general: 7/8, of which a host may use 1/2 of in_all   | set aside: 1/8, a host 1/64 of in_all |
//! ```
#![forbid(unsafe_code)]

mod account;
mod node;
mod reservation;
mod share;

pub use account::Budget;
pub(crate) use node::{Counted, NodeBudgets, NodeLimits, Shares};
pub use share::Share;

use crate::{PeerKey, StartError};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use trunkline_machine::mutant;

/// Divisor of a limit. The quotient is set aside for hosts that use little.
const SET_ASIDE_PART: usize = 8;
/// Divisor of a limit. The quotient is the number of set-aside units that one host may use.
const SET_ASIDE_PART_OF_HOST: usize = 64;

/// The limit on a resource. The peers of one host together may use [`Limit::per_host`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Maximum for one peer; at least 1.
    pub per_peer: usize,
    /// Maximum for all peers together; at least `per_peer`.
    pub in_all: usize,
}

impl Limit {
    /// Returns the maximum for all peers of one host: half of `in_all`, or `per_peer` if that is more. A host is
    /// an IPv4 address or an IPv6 /64. All addresses of this machine that are not used by processes of this
    /// user are one host.
    #[must_use]
    pub fn per_host(self) -> usize {
        self.per_peer.max(self.in_all / 2)
    }

    /// Returns the part of `in_all` that is reserved for hosts that use little. It is zero if one host may use the
    /// whole limit, or if the limit is too small to divide.
    pub(crate) fn set_aside(self) -> usize {
        let most = if self.set_aside_per_host() == 0 { 0 } else { self.in_all / SET_ASIDE_PART };
        most.min(self.in_all.saturating_sub(self.per_host()))
    }

    /// Returns the maximum number of set-aside units for one host.
    pub(crate) fn set_aside_per_host(self) -> usize {
        self.in_all / SET_ASIDE_PART_OF_HOST
    }

    /// Checks the limit. The error names the option.
    ///
    /// # Errors
    /// Returns [`StartError::BadOption`] if the limit is invalid.
    #[doc(hidden)]
    pub fn check(
        self,
        option: &'static str,
        range: RangeInclusive<usize>,
        remedy: &'static str,
    ) -> Result<(), StartError> {
        let bad = |value: usize, remedy| Err(StartError::BadOption { option, value: value as u64, remedy });
        if self.per_peer < *range.start() {
            return bad(self.per_peer, remedy);
        }
        if self.in_all < self.per_peer {
            return bad(self.in_all, "what all peers may use together must be at least what one may use");
        }
        if self.in_all > *range.end() {
            return bad(self.in_all, remedy);
        }
        Ok(())
    }
}

/// Denominator of [`part_of`].
pub const PARTS: usize = 1 << 16;

/// Returns the limit with both numbers multiplied by `part` / [`PARTS`], but at least `least`.
#[must_use]
pub fn part_of(limit: Limit, part: usize, least: usize) -> Limit {
    let scaled = |of: usize| (of / PARTS * part + of % PARTS * part / PARTS).max(least);
    Limit { per_peer: scaled(limit.per_peer), in_all: scaled(limit.in_all) }
}

/// Part of a limit that a use must leave free for more urgent uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leaves {
    /// The use may take the whole limit.
    #[default]
    Nothing,
    /// An eighth is reserved.
    Eighth,
    /// Two eighths are reserved, one more than for uses with [`Self::Eighth`].
    Quarter,
    /// Three eighths are reserved, one more than for uses with [`Self::Quarter`].
    ThreeEighths,
    /// The whole budget is reserved, so a message is never queued.
    All,
}

impl Leaves {
    /// Returns the number of units that may be in use once a use with this reserve has taken `units` of a limit. An
    /// eighth is at least 1, and 1 is always allowed, so a limit of 1 is not divided. A use that alone exceeds its part
    /// may take the whole limit while nothing else is in use; otherwise it could never begin. With
    /// [`Self::ThreeEighths`], up to an eighth may be in use at that time. Otherwise the uses that take the reserved
    /// three eighths could delay it forever.
    #[inline]
    fn limit(self, limit: usize, units: usize) -> usize {
        match self {
            Self::Nothing => return limit,
            Self::All => return 0,
            _ if mutant!(reserved_share_is_used_by_all) => return limit,
            Self::Eighth | Self::Quarter | Self::ThreeEighths => {}
        }
        let part = limit.saturating_sub(self as usize * (limit / 8).max(1));
        let others = if self == Self::ThreeEighths && units > part { limit / 8 } else { 0 };
        part.max(units.max(1).saturating_add(others).min(limit))
    }
}

/// State of a budget at one moment, as a node reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetReport {
    /// Name of the resource, as shown in refusals.
    pub name: &'static str,
    /// Units in use by all peers.
    pub used: u64,
    /// Maximum number of units.
    pub limit: Limit,
    /// Refusals and waits since the start because the peer was at its limit.
    pub refused_to_peer: u64,
    /// Refusals and waits since the start because all peers of the host were at their limit.
    pub refused_to_host: u64,
    /// Refusals and waits since the start because all peers together were at their limit.
    pub refused_to_all: u64,
}

/// State of one poller's share of a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetLedger {
    /// Resource of the budget.
    pub name: &'static str,
    /// Maximum number of units that all pollers of the node may use.
    pub limit: Limit,
    /// Charged units, by peer.
    pub used: BTreeMap<PeerKey, usize>,
    /// Units in use, counted one by one, by peer.
    pub counted: BTreeMap<PeerKey, usize>,
}

/// The limit of a budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// Used up by this peer.
    #[error("one peer's budget of {name} ({limit}) is used up")]
    Peer {
        /// Resource of the budget.
        name: &'static str,
        /// Maximum number of units for the peer.
        limit: usize,
    },
    /// Used up by all peers of the peer's host.
    #[error("one host's budget of {name} ({limit}) is used up")]
    Host {
        /// Resource of the budget.
        name: &'static str,
        /// Maximum number of units for the peers of a host.
        limit: usize,
    },
    /// Used up by all peers together.
    #[error("all peers' budget of {name} ({limit}) is used up")]
    All {
        /// Resource of the budget.
        name: &'static str,
        /// Maximum number of units for all peers.
        limit: usize,
    },
}

impl Exhausted {
    /// Returns the resource of the budget.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let (Self::Peer { name, .. } | Self::Host { name, .. } | Self::All { name, .. }) = self;
        name
    }
}

#[cfg(test)]
mod tests;
