//! Units of one account that a poller has reserved, and how many of them are in use.
//!
//! Pollers write to an account only when the number of reserved units changes. Operations that never do so
//! are separate functions, short enough to be inlined into the message paths.
#![forbid(unsafe_code)]

use super::account::Account;

/// Units of one account that a poller has reserved.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    reserved: usize,
    used: usize,
    /// Number of units in use below which counting is not enough; see [`Reservation::settle`].
    least: usize,
}

impl Reservation {
    /// Returns the number of units in use.
    #[inline]
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn reserved(&self) -> usize {
        self.reserved
    }

    /// Returns true if `units` are reserved and not in use.
    #[inline]
    pub(super) fn has(&self, units: usize) -> bool {
        units <= self.reserved - self.used
    }

    /// Uses units that are already reserved.
    #[inline]
    pub(super) fn take_reserved(&mut self, units: usize) {
        self.used += units;
    }

    /// Returns true if putting back `units` only has to be counted.
    #[inline]
    pub(super) fn keeps(&self, units: usize) -> bool {
        self.used - units >= self.least
    }

    /// Puts back units, and keeps them reserved.
    #[inline]
    pub(super) fn keep(&mut self, units: usize) {
        self.used -= units;
    }

    /// Completes any other change. From now on [`Reservation::keeps`] allows counting only while at most two
    /// portions are unused. If `is_watched`, it never does.
    pub(super) fn settle(&mut self, portion: usize, is_watched: bool) {
        self.least = if is_watched { usize::MAX } else { self.reserved.saturating_sub(2 * portion) };
    }

    /// Releases the units that are not in use.
    pub(super) fn release_unused(&mut self, account: &Account) {
        account.release(self.reserved - self.used);
        self.reserved = self.used;
    }

    /// Uses units, after reserving the missing ones. Returns false if the limit does not allow it.
    pub(super) fn take(&mut self, units: usize, portion: usize, account: &Account, limit: usize) -> bool {
        let used = self.used.saturating_add(units);
        let missing = used.saturating_sub(self.reserved);
        if missing > 0 {
            let Some(more) = account.reserve(missing, missing.max(portion), limit) else { return false };
            self.reserved += more;
        }
        self.used = used;
        true
    }

    /// Uses units under a limit that is lower than for other uses. Units that this poller holds may have been
    /// reserved up to the higher limit, so holding them is not enough.
    pub(super) fn take_below(
        &mut self,
        units: usize,
        portion: usize,
        account: &Account,
        limit: usize,
    ) -> bool {
        if self.has(units) && !self.is_below(units, account, limit) {
            return false;
        }
        self.take(units, portion, account, limit)
    }

    /// Returns true if the reserved units of all pollers are within a limit, not counting those that this
    /// poller leaves unused after taking `units`.
    #[inline]
    pub(super) fn is_below(&self, units: usize, account: &Account, limit: usize) -> bool {
        let unused = self.reserved - self.used - units;
        account.reserved() - unused <= limit
    }

    /// Returns true if `units` more, reserved or not, are certainly within a limit.
    #[inline]
    pub(super) fn reaches(&self, units: usize, account: &Account, limit: usize) -> bool {
        account.reserved() - self.reserved + self.used <= limit.saturating_sub(units)
    }

    /// Returns true if [`Reservation::take`] could use `units` more now.
    pub(super) fn could_take(&self, units: usize, account: &Account, limit: usize) -> bool {
        self.has(units) || {
            let missing = self.used.saturating_add(units) - self.reserved;
            account.could_reserve(missing, limit)
        }
    }

    /// Puts back units. Keeps a portion reserved for the next uses.
    pub(super) fn put_back(&mut self, units: usize, portion: usize, account: &Account) {
        self.used -= units;
        if self.reserved - self.used > 2 * portion {
            account.release(self.reserved - self.used - portion);
            self.reserved = self.used + portion;
        }
    }
}
