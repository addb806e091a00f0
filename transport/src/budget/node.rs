//! The budgets of the transport, and one poller's shares of them.
#![forbid(unsafe_code)]

use super::share::Room;
use super::{Budget, BudgetLedger, BudgetReport, Exhausted, Leaves, Limit, Share};
use crate::{PeerHosts, PeerKey};
use std::collections::BTreeMap;
use std::sync::Arc;
use trunkline_machine::mutant;

/// Divisors of the limits on queued messages and on their bytes. The quotients are reserved for refusals, so further
/// calls from a peer are refused while less is free. Refusals are short. The part of the bytes is small so that a few
/// replies of the largest size do not block small calls.
const REFUSALS_OF_MESSAGES: usize = 8;
const REFUSALS_OF_BYTES: usize = 64;

/// Limits on the memory and state that peers can occupy on a node, as set by its options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeLimits {
    pub(crate) queued_messages: Limit,
    pub(crate) queued_bytes: Limit,
    pub(crate) large_messages: Limit,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            queued_messages: Limit { per_peer: 65_536, in_all: 262_144 },
            queued_bytes: Limit { per_peer: 128 << 20, in_all: 512 << 20 },
            large_messages: Limit { per_peer: 4096, in_all: 16_384 },
        }
    }
}

/// Budgets for the resources of a node that peers can use up.
#[derive(Debug)]
pub(crate) struct NodeBudgets {
    messages: Arc<Budget>,
    bytes: Arc<Budget>,
    pinned: Arc<Budget>,
    announced: Arc<Budget>,
}

impl NodeBudgets {
    /// Creates the budgets of a node with the given number of pollers.
    pub(crate) fn new(limits: NodeLimits, pollers: u16, hosts: &Arc<PeerHosts>) -> Self {
        let budget = |name, limit| Budget::new(name, limit, pollers, hosts);
        Self {
            messages: budget("queued messages", limits.queued_messages),
            bytes: budget("queued bytes", limits.queued_bytes),
            pinned: budget("large messages to READ", limits.large_messages),
            announced: budget("large messages announced", limits.large_messages),
        }
    }

    pub(crate) fn report(&self) -> impl Iterator<Item = BudgetReport> {
        [&self.messages, &self.bytes, &self.pinned, &self.announced].into_iter().map(|budget| budget.report())
    }
}

/// One poller's shares. A small message is charged until it is in a send slot, a large message until the peer has
/// READ it.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Queued messages.
    messages: Share,
    /// Bytes of the queued messages, and of large messages that the peer has not READ yet.
    bytes: Share,
    /// Large messages that the peer has not READ yet. Each pins registered memory.
    pinned: Share,
    /// Large messages from peers that this node has not READ yet.
    announced: Share,
    /// Room reserved for refusals, in messages and in bytes.
    refusals: [Room; 2],
}

/// Returns the part of a limit that is reserved for refusals.
fn refusals(limit: Limit, part: usize) -> Room {
    let of_peer = (limit.per_peer / part).max(1);
    // Reserve at most half of a host's set-aside units for refusals. Its calls can use the other half once
    // all other units are in use.
    let set_aside = if limit.set_aside() > 0 { limit.set_aside_per_host() / 2 } else { of_peer };
    Room { of_peer, of_all: of_peer.min(set_aside.max(1)) }
}

impl Shares {
    pub(crate) fn new(of: &NodeBudgets, poller: u16) -> Self {
        let share = |budget| Share::new(budget, poller);
        Self {
            messages: share(&of.messages),
            bytes: share(&of.bytes),
            pinned: share(&of.pinned),
            announced: share(&of.announced),
            refusals: [
                refusals(of.messages.limit, REFUSALS_OF_MESSAGES),
                refusals(of.bytes.limit, REFUSALS_OF_BYTES),
            ],
        }
    }

    /// Charges a peer for a message that has to wait. `leaves` is the part of the queue that must remain free.
    pub(crate) fn queue(&mut self, peer: PeerKey, bytes: usize, leaves: Leaves) -> Result<(), Exhausted> {
        self.messages.take_leaving(peer, 1, leaves)?;
        self.bytes.take_leaving(peer, bytes, leaves).inspect_err(|_| self.messages.put_back(peer, 1))
    }

    /// Discharges a message that no longer waits.
    pub(crate) fn unqueue(&mut self, peer: PeerKey, bytes: usize) {
        if !mutant!(queued_messages_stay_charged) {
            self.messages.put_back(peer, 1);
            self.bytes.put_back(peer, bytes);
        }
    }

    /// Charges the peer for a large message that is about to be announced. Returns false if this would exceed the
    /// limit.
    pub(crate) fn pin(&mut self, peer: PeerKey) -> bool {
        self.pinned.take(peer, 1).is_ok()
    }

    /// Discharges a message that could not be announced after all.
    pub(crate) fn unpin(&mut self, peer: PeerKey) {
        self.pinned.put_back(peer, 1);
    }

    /// Records that a message was announced. It no longer waits, but its bytes stay charged.
    pub(crate) fn pinned(&mut self, peer: PeerKey) {
        self.messages.put_back(peer, 1);
    }

    /// Discharges a message that the peer has READ or will never READ.
    pub(crate) fn finish(&mut self, peer: PeerKey, bytes: usize) {
        self.pinned.put_back(peer, 1);
        self.bytes.put_back(peer, bytes);
    }

    /// Charges the peer for a message that it announces.
    pub(crate) fn announce(&mut self, peer: PeerKey) -> Result<(), Exhausted> {
        self.announced.take(peer, 1)
    }

    /// Discharges messages of the peer that this node has READ or will never READ.
    pub(crate) fn unannounce(&mut self, peer: PeerKey, messages: usize) {
        self.announced.put_back(peer, messages);
    }

    /// Returns an error if there is no room for the reply to a call from the peer. A call from a peer without waiting
    /// messages is always allowed. Otherwise, a part of the budget is reserved for refusals.
    pub(crate) fn has_reply_room(&mut self, peer: PeerKey) -> Result<(), Exhausted> {
        let [of_messages, of_bytes] = self.refusals;
        self.messages.check(peer, of_messages)?;
        self.bytes.check(peer, of_bytes)
    }

    /// Marks the peer as down.
    pub(crate) fn leave(&mut self, peer: PeerKey) {
        for share in [&mut self.messages, &mut self.bytes, &mut self.pinned, &mut self.announced] {
            share.leave(peer);
        }
    }

    /// Returns the charged units, along with the units that were counted one by one.
    pub(crate) fn ledger(&self, counted: Counted) -> Vec<BudgetLedger> {
        vec![
            self.messages.ledger(counted.messages),
            self.bytes.ledger(counted.bytes),
            self.pinned.ledger(counted.pinned),
            self.announced.ledger(counted.announced),
        ]
    }
}

/// Units that a poller holds, counted one by one, by peer.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    messages: BTreeMap<PeerKey, usize>,
    bytes: BTreeMap<PeerKey, usize>,
    pinned: BTreeMap<PeerKey, usize>,
    announced: BTreeMap<PeerKey, usize>,
}

impl Counted {
    /// Counts messages that wait, and their bytes.
    pub(crate) fn queued(&mut self, peer: PeerKey, (messages, bytes): (usize, usize)) {
        add(&mut self.messages, peer, messages);
        add(&mut self.bytes, peer, bytes);
    }

    /// Counts messages that the peer has not READ yet, and their bytes.
    pub(crate) fn pinned(&mut self, peer: PeerKey, (messages, bytes): (usize, usize)) {
        add(&mut self.pinned, peer, messages);
        add(&mut self.bytes, peer, bytes);
    }

    /// Counts messages from the peer that this node has not READ yet.
    pub(crate) fn announced(&mut self, peer: PeerKey, messages: usize) {
        add(&mut self.announced, peer, messages);
    }
}

fn add(to: &mut BTreeMap<PeerKey, usize>, peer: PeerKey, units: usize) {
    if units > 0 {
        *to.entry(peer).or_default() += units;
    }
}
