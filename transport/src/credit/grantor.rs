//! The receiving half of a pair, which shares the depth of one SRQ among the INIs that may send into it.
//!
//! Each pair always holds its base credit, which is granted again when a message uses it. Pairs with a backlog are
//! served in turn. A pair is granted at most [`QUANTUM`] credits per turn, so a greedy pair waits for the others
//! (deficit round robin with messages of equal cost). Outstanding credit never exceeds the depth less the control
//! reserve. An eighth of the depth is reserved for base credits, so that a new pair gets its base credit even if
//! other pairs hold much. All pairs of one peer together may hold at most half of the rest.
//!
//! A spender cannot be forced to release credit. A spender that holds more unused credit than it may keep for
//! [`HOARDING_MS`], while others lack credit, is reported, and its session is closed. Honest spenders release unused
//! credit within 100 ms, unless they are stopped.
#![forbid(unsafe_code)]

use super::{AHEAD, BASE, CreditViolation, START, steps};
use crate::PeerKey;
use crate::report::ledger::{Granting, SrqLedger};
use slab::Slab;
use std::collections::VecDeque;
use trunkline_machine::mutant;
use trunkline_verbs::QpNumber;

/// Maximum number of credits that a pair is granted in one turn.
const QUANTUM: u32 = 16;
/// Number of credits at which a pair without a backlog is not granted more. Granting several credits at once costs
/// less than granting one with each message.
const ENOUGH: u32 = AHEAD / 2;
/// Time for which a pair counts as active after its last message.
const ACTIVE_MS: u64 = 100;
/// Interval at which all pairs are checked.
const SWEEP_MS: u64 = ACTIVE_MS / 2;
/// Time after which a hoarding pair is reported, long enough that a peer stopped for some seconds keeps its session.
const HOARDING_MS: u64 = 15_000;

/// Identifies a pair of its [`Grantor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PairId(usize);

/// A peer and the credit of all its pairs.
#[derive(Debug)]
struct Holder {
    peer: PeerKey,
    pairs: u32,
    active: u32,
    /// Outstanding credits of all pairs of the peer.
    outstanding: u32,
}

#[derive(Debug)]
struct PairCredit {
    /// TGT that receives the spender's messages.
    target: QpNumber,
    /// Index of the spender's peer.
    holder: usize,
    granted: u32,
    released: u32,
    consumed: u32,
    /// Granted position that was last sent to the spender.
    told: u32,
    /// Number of messages that wait at the spender.
    want: u32,
    /// Number of received messages whose headers have not been applied yet.
    waiting: u32,
    heard_ms: u64,
    active: bool,
    needy: bool,
    /// Minimum number of unused credits of the spender since the last sweep.
    least: u32,
    /// Time for which the spender has held unused credit while others lacked credit.
    hoarding_ms: u64,
}

impl PairCredit {
    fn outstanding(&self) -> u32 {
        self.granted.wrapping_sub(self.released).wrapping_sub(self.consumed)
    }

    /// Returns the outstanding credits announced to the spender, which are the maximum that it can use or release.
    fn known(&self) -> u32 {
        self.told.wrapping_sub(self.released).wrapping_sub(self.consumed)
    }

    /// Returns the announced credits that received messages have not used.
    fn unused(&self) -> u32 {
        self.known().saturating_sub(self.waiting)
    }
}

/// Grants credit for one SRQ.
#[derive(Debug)]
pub(crate) struct Grantor {
    depth: u32,
    /// Depth less the control reserve.
    capacity: u32,
    /// Capacity less the reserve for new pairs.
    bulk: u32,
    outstanding: u32,
    active: u32,
    pairs: Slab<PairCredit>,
    /// The peers, with constant indices.
    holders: Slab<Holder>,
    needy: VecDeque<PairId>,
    /// Targets of pairs that were granted credit since the last [`Grantor::take_granted`].
    granted: Vec<QpNumber>,
    /// True if a pair lacked credit since the last sweep.
    is_short: bool,
    /// Pairs that hoard, with their targets.
    hoarding: Vec<(PairId, QpNumber)>,
    swept_ms: u64,
}

impl Grantor {
    /// Creates a grantor for an SRQ that always holds `depth` receives. A sixteenth is reserved for control
    /// messages, which use no credit.
    pub(crate) fn new(depth: u32) -> Self {
        let (capacity, bulk) = parts(depth);
        Self {
            depth,
            capacity,
            bulk,
            outstanding: 0,
            active: 0,
            pairs: Slab::new(),
            holders: Slab::new(),
            needy: VecDeque::new(),
            granted: Vec::new(),
            is_short: false,
            hoarding: Vec::new(),
            swept_ms: 0,
        }
    }

    /// Adds receives to the depth of the SRQ.
    pub(crate) fn deepen(&mut self, more: u32) {
        self.depth += more;
        (self.capacity, self.bulk) = parts(self.depth);
    }

    /// Returns true if the SRQ should be deepened before another pair is added. This is the case if base credits would
    /// take more than half of the capacity, or if the outstanding credits leave no room for another base credit.
    pub(crate) fn is_crowded(&self) -> bool {
        let pairs = u32::try_from(self.pairs.len()).unwrap_or(u32::MAX);
        let is_half_taken = pairs.saturating_add(1).saturating_mul(2 * BASE) > self.capacity;
        is_half_taken || self.outstanding + BASE > self.capacity
    }

    /// Adds a pair of a peer, with its base credit. Returns `None` if the SRQ is not deep enough for another
    /// pair.
    pub(crate) fn open(&mut self, now_ms: u64, target: QpNumber, peer: PeerKey) -> Option<PairId> {
        if self.outstanding + BASE > self.capacity {
            return None;
        }
        self.outstanding += BASE;
        let known = self.holders.iter().find(|(_, holder)| holder.peer == peer).map(|(place, _)| place);
        let fresh = Holder { peer, pairs: 0, active: 0, outstanding: 0 };
        let place = known.unwrap_or_else(|| self.holders.insert(fresh));
        let holder = &mut self.holders[place];
        holder.pairs += 1;
        holder.outstanding += BASE;
        let pair = PairCredit {
            target,
            holder: place,
            granted: START.wrapping_add(BASE),
            released: 0,
            consumed: START,
            told: START.wrapping_add(BASE),
            want: 0,
            waiting: 0,
            heard_ms: now_ms,
            active: false,
            needy: false,
            least: BASE,
            hoarding_ms: 0,
        };
        Some(PairId(self.pairs.insert(pair)))
    }

    /// Removes the pair of a trunk that has ended, and frees its credits.
    pub(crate) fn close(&mut self, id: PairId) {
        let Some(pair) = self.pairs.try_remove(id.0) else { return };
        let holder = &mut self.holders[pair.holder];
        self.outstanding -= pair.outstanding();
        holder.outstanding -= pair.outstanding();
        self.active -= u32::from(pair.active);
        holder.active -= u32::from(pair.active);
        holder.pairs -= 1;
        if holder.pairs == 0 {
            self.holders.remove(pair.holder);
        }
        self.needy.retain(|&other| other != id);
        self.hoarding.retain(|(other, _)| *other != id);
    }

    /// Applies the credit fields of a frame's header. A frame that reports released credit uses no credit.
    pub(crate) fn apply_header(
        &mut self,
        id: PairId,
        now_ms: u64,
        want: u8,
        released: Option<u16>,
    ) -> Result<(), CreditViolation> {
        let Some(pair) = self.pairs.get_mut(id.0) else { return Ok(()) };
        let newly_released = released.map_or(0, |released| steps(pair.released, released));
        let used_credit = released.is_none();
        let used = u32::from(used_credit);
        if newly_released > pair.known() {
            return Err(CreditViolation("released credit that it did not have"));
        }
        if newly_released + used > pair.known() {
            return Err(CreditViolation("sent beyond its credit"));
        }
        pair.released = pair.released.wrapping_add(newly_released);
        pair.consumed = pair.consumed.wrapping_add(used);
        pair.least = pair.least.min(pair.unused());
        // A spender that releases credit does not need more, despite its backlog. Withdraw credit that is not
        // announced yet.
        let is_idle = newly_released > 0;
        let withdrawn = if is_idle { pair.granted.wrapping_sub(pair.told) } else { 0 };
        pair.granted = pair.granted.wrapping_sub(withdrawn);
        let is_base_used = pair.outstanding() < BASE && !mutant!(base_credit_is_not_returned);
        let back = if is_base_used { BASE - pair.outstanding() } else { 0 };
        if back > 0 {
            pair.granted = pair.granted.wrapping_add(back);
            self.granted.push(pair.target);
        }
        let holder = &mut self.holders[pair.holder];
        let gone = newly_released + used + withdrawn;
        holder.outstanding = holder.outstanding + back - gone;
        self.outstanding = self.outstanding + back - gone;
        if used_credit {
            pair.heard_ms = now_ms;
        }
        let is_active = used_credit || (pair.active && !is_idle);
        if is_active != pair.active {
            pair.active = is_active;
            for active in [&mut self.active, &mut holder.active] {
                *active = if is_active { *active + 1 } else { *active - 1 };
            }
        }
        pair.want = if is_idle { 0 } else { u32::from(want) };
        self.mark(id);
        Ok(())
    }

    /// Counts a received message that waits before its header is applied.
    pub(crate) fn wait(&mut self, id: PairId) -> Result<(), CreditViolation> {
        let Some(pair) = self.pairs.get_mut(id.0) else { return Ok(()) };
        if pair.unused() == 0 {
            return Err(CreditViolation("sent beyond its credit"));
        }
        pair.waiting += 1;
        pair.least = pair.least.min(pair.unused());
        Ok(())
    }

    /// Stops counting a waiting message, whose header is applied next.
    pub(crate) fn waited(&mut self, id: PairId) {
        if let Some(pair) = self.pairs.get_mut(id.0) {
            pair.waiting = pair.waiting.saturating_sub(1);
        }
    }

    /// Grants free credit. Called after the receives of a batch are reposted.
    pub(crate) fn grant(&mut self, now_ms: u64) {
        self.sweep(now_ms);
        while self.outstanding < self.bulk {
            let Some(id) = self.needy.pop_front() else { return };
            let need = self.need(id);
            let Some(pair) = self.pairs.get_mut(id.0) else { continue };
            let gift = need.min(QUANTUM).min(self.bulk - self.outstanding);
            if gift > 0 {
                pair.granted = pair.granted.wrapping_add(gift);
                self.outstanding += gift;
                self.holders[pair.holder].outstanding += gift;
                self.granted.push(pair.target);
            }
            if gift < need {
                self.needy.push_back(id);
            } else {
                pair.needy = false;
            }
        }
        self.is_short |= !self.needy.is_empty();
    }

    /// Takes the targets of the pairs that have held unused credit for [`HOARDING_MS`] while others lacked
    /// it.
    pub(crate) fn take_hoarding(&mut self) -> impl Iterator<Item = QpNumber> + use<'_> {
        self.hoarding.drain(..).map(|(_, target)| target)
    }

    /// Appends the targets of the pairs that were granted credit. A pair may appear twice.
    pub(crate) fn take_granted(&mut self, into: &mut Vec<QpNumber>) {
        into.append(&mut self.granted);
    }

    /// Returns the grant position for a frame to the pair's spender, and records it as sent.
    pub(crate) fn tell(&mut self, id: PairId) -> u32 {
        let Some(pair) = self.pairs.get_mut(id.0) else { return START.wrapping_add(BASE) };
        pair.told = pair.granted;
        pair.granted
    }

    /// Returns true if the position needs a separate frame, because the spender has run out of credit, or the new
    /// credit is at least as much as its remaining credit.
    pub(crate) fn must_tell(&self, id: PairId) -> bool {
        let Some(pair) = self.pairs.get(id.0) else { return false };
        let news = pair.granted.wrapping_sub(pair.told);
        news > 0 && news >= pair.known()
    }

    /// Returns the positions of a pair, for the ledger.
    pub(crate) fn positions(&self, id: PairId, target: QpNumber, home: u16) -> Option<Granting> {
        let PairCredit { holder, granted, told, released, consumed, .. } = *self.pairs.get(id.0)?;
        let peer = self.holders[holder].peer;
        Some(Granting { target, peer, is_up: true, home, granted, told, released, consumed })
    }

    /// Returns the outstanding credits of all spenders together, and their maximum.
    pub(crate) fn ledger(&self) -> SrqLedger {
        SrqLedger { outstanding: self.outstanding, capacity: self.capacity, per_peer: self.bulk / 2 }
    }

    /// Puts a pair into the round if it needs more credit.
    fn mark(&mut self, id: PairId) {
        let Some(pair) = self.pairs.get(id.0) else { return };
        let has_enough = pair.want == 0 && pair.outstanding() >= ENOUGH;
        if pair.needy || has_enough || self.need(id) == 0 {
            return;
        }
        if let Some(pair) = self.pairs.get_mut(id.0) {
            pair.needy = true;
            self.needy.push_back(id);
        }
    }

    /// Returns the number of credits that a pair lacks. The goal is its backlog, plus some credit ahead while it is
    /// active, within its share of the capacity and its peer's maximum. The base credit is granted immediately.
    fn need(&self, id: PairId) -> u32 {
        let Some(pair) = self.pairs.get(id.0) else { return 0 };
        let ahead = if pair.active { AHEAD } else { BASE };
        let lacks = (pair.want + ahead).saturating_sub(pair.outstanding());
        if lacks == 0 {
            return 0;
        }
        let holder = &self.holders[pair.holder];
        let most = if mutant!(one_peer_takes_all_credit) { self.bulk } else { self.bulk / 2 };
        let share = (self.bulk / self.active.max(1)).min(most / holder.active.max(1));
        lacks.min(share.saturating_sub(pair.outstanding())).min(most.saturating_sub(holder.outstanding))
    }

    /// Checks all pairs every [`SWEEP_MS`]. Silent pairs stop counting as active, and the time for which
    /// pairs hoard is updated.
    fn sweep(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.swept_ms);
        if passed_ms < SWEEP_MS {
            return;
        }
        self.swept_ms = now_ms;
        // While all pairs pause, the time without a sweep is not a shortage.
        let passed_ms = if self.is_short { passed_ms.min(2 * SWEEP_MS) } else { 0 };
        self.is_short = false;
        for (place, pair) in &mut self.pairs {
            let of_use = if pair.active { BASE + AHEAD } else { BASE };
            // A short time without a shortage does not reset the pair's hoarding time.
            pair.hoarding_ms = if pair.least > of_use { pair.hoarding_ms + passed_ms } else { 0 };
            if pair.hoarding_ms >= HOARDING_MS {
                pair.hoarding_ms = 0;
                self.hoarding.push((PairId(place), pair.target));
            }
            pair.least = pair.unused();
            if pair.active && now_ms.saturating_sub(pair.heard_ms) >= ACTIVE_MS {
                pair.active = false;
                self.active -= 1;
                self.holders[pair.holder].active -= 1;
            }
        }
    }
}

/// Returns the maximum outstanding credit for a depth, which is also the maximum number of pairs.
pub(crate) fn capacity(depth: u32) -> u32 {
    depth - (depth / 16).max(1).min(depth)
}

/// Splits a depth into the maximum outstanding credit, and the part of it that may be granted beyond base credits.
fn parts(depth: u32) -> (u32, u32) {
    let capacity = capacity(depth);
    (capacity, capacity - (depth / 8).max(1).min(capacity))
}
