//! The receiving half: one SRQ's depth, shared among the INIs that may send into it.
//!
//! Pairs that want credit are served in turn; a turn grants a pair at most [`QUANTUM`] credits, so a greedy
//! one waits for the others (deficit round robin with messages of equal cost).
//! What is outstanding never exceeds the depth less the control reserve, and of that an eighth is
//! granted to nobody, so that new pairs find their base credit while others are greedy.
#![forbid(unsafe_code)]

use super::{BASE, CreditViolation, START};
use crate::ledger::Granting;
use slab::Slab;
use std::collections::VecDeque;
use trunkline_verbs::QpNumber;

/// Credits that a pair gets in one turn.
const QUANTUM: u32 = 16;
/// Credits that an active pair holds beyond what waits at its sender, so that the next messages
/// need no round trip.
const AHEAD: u32 = 16;
/// A pair counts as active this long after its last message.
const ACTIVE_MS: u64 = 100;

/// Names a pair of its [`Grantor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PairId(usize);

#[derive(Debug)]
struct Pair {
    /// The TGT through which the spender's messages come.
    target: QpNumber,
    granted: u32,
    released: u32,
    consumed: u32,
    /// The granted position that was last sent to the spender.
    told: u32,
    /// Messages that wait at the spender.
    want: u32,
    heard_ms: u64,
    active: bool,
    needy: bool,
}

impl Pair {
    fn outstanding(&self) -> u32 {
        self.granted.wrapping_sub(self.released).wrapping_sub(self.consumed)
    }

    /// The part of that which the spender knows of: it can neither use nor release more, even if it
    /// guesses.
    fn known(&self) -> u32 {
        self.told.wrapping_sub(self.released).wrapping_sub(self.consumed)
    }
}

/// Grants the depth of one SRQ.
#[derive(Debug)]
pub(crate) struct Grantor {
    depth: u32,
    /// Depth less the control reserve.
    capacity: u32,
    /// Capacity less the room for new pairs.
    bulk: u32,
    outstanding: u32,
    active: u32,
    pairs: Slab<Pair>,
    needy: VecDeque<PairId>,
    /// Targets of pairs that were granted something since the last [`Grantor::take_granted`].
    granted: Vec<QpNumber>,
    swept_ms: u64,
}

impl Grantor {
    /// For an SRQ that holds `depth` receives at all times; a sixteenth is kept for control
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
            needy: VecDeque::new(),
            granted: Vec::new(),
            swept_ms: 0,
        }
    }

    /// The SRQ holds so many receives more.
    pub(crate) fn deepen(&mut self, more: u32) {
        self.depth += more;
        (self.capacity, self.bulk) = parts(self.depth);
    }

    /// Whether the SRQ should be deeper before one more pair is added: base credits take more than half of what
    /// there is, so that little is left for those that are busy, or busy ones have left no room.
    pub(crate) fn is_crowded(&self) -> bool {
        let pairs = u32::try_from(self.pairs.len()).unwrap_or(u32::MAX);
        let is_half_taken = pairs.saturating_add(1).saturating_mul(2 * BASE) > self.capacity;
        is_half_taken || self.outstanding + BASE > self.capacity
    }

    /// Adds a pair with its base credit; `None` when the SRQ is too shallow for one more.
    pub(crate) fn open(&mut self, now_ms: u64, target: QpNumber) -> Option<PairId> {
        if self.outstanding + BASE > self.capacity {
            return None;
        }
        self.outstanding += BASE;
        let pair = Pair {
            target,
            granted: START.wrapping_add(BASE),
            released: 0,
            consumed: START,
            told: START.wrapping_add(BASE),
            want: 0,
            heard_ms: now_ms,
            active: false,
            needy: false,
        };
        Some(PairId(self.pairs.insert(pair)))
    }

    /// Removes a pair whose trunk has ended; its credits are free again.
    pub(crate) fn close(&mut self, id: PairId) {
        let Some(pair) = self.pairs.try_remove(id.0) else { return };
        self.outstanding -= pair.outstanding();
        self.active -= u32::from(pair.active);
        self.needy.retain(|&other| other != id);
    }

    /// Records a frame: what it reports about its sender, and that it used a credit unless it
    /// is a control frame.
    pub(crate) fn hear(
        &mut self,
        id: PairId,
        now_ms: u64,
        want: u16,
        released: u32,
        used_credit: bool,
    ) -> Result<(), CreditViolation> {
        let Some(pair) = self.pairs.get_mut(id.0) else { return Ok(()) };
        let newly_released = released.wrapping_sub(pair.released);
        if newly_released > pair.known() {
            return Err(CreditViolation("released credit that it did not have"));
        }
        pair.released = released;
        self.outstanding -= newly_released;
        if newly_released > 0 && pair.active {
            // It reports that it is idle; more credit granted now would only be released again.
            pair.active = false;
            self.active -= 1;
        }
        if used_credit {
            if pair.known() == 0 {
                return Err(CreditViolation("sent beyond its credit"));
            }
            pair.consumed = pair.consumed.wrapping_add(1);
            self.outstanding -= 1;
            pair.heard_ms = now_ms;
            if !pair.active {
                pair.active = true;
                self.active += 1;
            }
        }
        pair.want = u32::from(want);
        self.mark(id);
        Ok(())
    }

    /// Hands out what is free. Call after the receives of a batch were reposted.
    pub(crate) fn grant(&mut self, now_ms: u64) {
        self.sweep(now_ms);
        while self.outstanding < self.bulk {
            let Some(id) = self.needy.pop_front() else { return };
            let need = self.need(id);
            let Some(pair) = self.pairs.get_mut(id.0) else { continue };
            let gift = need.min(QUANTUM).min(self.bulk - self.outstanding);
            pair.granted = pair.granted.wrapping_add(gift);
            self.outstanding += gift;
            self.granted.push(pair.target);
            if gift < need {
                self.needy.push_back(id);
            } else {
                pair.needy = false;
            }
        }
    }

    /// Appends the targets of the pairs that were granted something; a pair may appear twice.
    pub(crate) fn take_granted(&mut self, into: &mut Vec<QpNumber>) {
        into.append(&mut self.granted);
    }

    /// The position to put into a frame to the pair's spender; it counts as sent.
    pub(crate) fn tell(&mut self, id: PairId) -> u32 {
        let Some(pair) = self.pairs.get_mut(id.0) else { return START.wrapping_add(BASE) };
        pair.told = pair.granted;
        pair.granted
    }

    /// Whether a frame of its own is due for the position: the spender ran dry, or at least as
    /// much is new as it still knows to have.
    pub(crate) fn must_tell(&self, id: PairId) -> bool {
        let Some(pair) = self.pairs.get(id.0) else { return false };
        let news = pair.granted.wrapping_sub(pair.told);
        news > 0 && news >= pair.known()
    }

    /// The positions of a pair, for whoever counts credits.
    pub(crate) fn positions(&self, id: PairId, target: QpNumber, home: u16) -> Option<Granting> {
        let Pair { granted, told, released, consumed, .. } = *self.pairs.get(id.0)?;
        Some(Granting { target, home, granted, told, released, consumed })
    }

    /// Credits that may still be used by all spenders together.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// The most that may be outstanding.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Puts a pair into the round if it should have more.
    fn mark(&mut self, id: PairId) {
        let need = self.need(id);
        let Some(pair) = self.pairs.get_mut(id.0) else { return };
        if need > 0 && !pair.needy {
            pair.needy = true;
            self.needy.push_back(id);
        }
    }

    /// How many credits a pair lacks of what it should have: its backlog and a little ahead while
    /// it is active, never beyond its share; the base at least.
    fn need(&self, id: PairId) -> u32 {
        let Some(pair) = self.pairs.get(id.0) else { return 0 };
        let ahead = if pair.active { AHEAD } else { BASE };
        let share = (self.bulk / self.active.max(1)).max(BASE);
        (pair.want + ahead).min(share).saturating_sub(pair.outstanding())
    }

    /// Pairs that fell silent stop counting as active, now and then.
    fn sweep(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) < ACTIVE_MS / 2 {
            return;
        }
        self.swept_ms = now_ms;
        for (_, pair) in &mut self.pairs {
            if pair.active && now_ms.saturating_sub(pair.heard_ms) >= ACTIVE_MS {
                pair.active = false;
                self.active -= 1;
            }
        }
    }
}

/// Of a depth: what may be outstanding, and what of that may be granted to pairs beyond their base.
fn parts(depth: u32) -> (u32, u32) {
    let capacity = depth - (depth / 16).max(1).min(depth);
    (capacity, capacity - (depth / 8).max(1).min(capacity))
}
