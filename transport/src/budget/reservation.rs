//! Units of one account that one poller has reserved, and the part of them that is in use.
//!
//! Pollers write to an account only when the number of reserved units changes. The ways that may not do so are
//! separate functions, short enough to be compiled into the paths of messages.
#![forbid(unsafe_code)]

use super::account::Account;

/// Units of one account that a poller has reserved.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    reserved: usize,
    used: usize,
    /// Number in use below which counting is not enough: see [`Reservation::settle`].
    least: usize,
}

impl Reservation {
    /// Units in use.
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

    /// Uses units that it has.
    #[inline]
    pub(super) fn take_reserved(&mut self, units: usize) {
        self.used += units;
    }

    /// Returns true if the end of the use of `units` only has to be counted.
    #[inline]
    pub(super) fn keeps(&self, units: usize) -> bool {
        self.used - units >= self.least
    }

    /// Ends the use of units, and keeps them.
    #[inline]
    pub(super) fn keep(&mut self, units: usize) {
        self.used -= units;
    }

    /// Completes any other change. From now on it keeps enough units that at most two portions are not in use; none
    /// without a look at each, if `is_watched`.
    pub(super) fn settle(&mut self, portion: usize, is_watched: bool) {
        self.least = if is_watched { usize::MAX } else { self.reserved.saturating_sub(2 * portion) };
    }

    /// Releases what is not in use.
    pub(super) fn release_unused(&mut self, account: &Account) {
        account.release(self.reserved - self.used);
        self.reserved = self.used;
    }

    /// Uses units, after reserving those that are missing. Returns whether it could.
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

    /// The same for a use with a lower limit than others have. Units that this poller has reserved may have been reserved
    /// up to the others' limit, so having them is not enough.
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

    /// Returns true if all reserved units are within a limit, except those that this poller would not use after it has taken
    /// `units` from its reserve.
    #[inline]
    pub(super) fn is_below(&self, units: usize, account: &Account, limit: usize) -> bool {
        let unused = self.reserved - self.used - units;
        account.reserved() - unused <= limit
    }

    /// Returns true if `units` more, of which some may not be reserved yet, are certainly within a limit.
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

    /// Ends the use of units; keeps a portion for the next ones.
    pub(super) fn put_back(&mut self, units: usize, portion: usize, account: &Account) {
        self.used -= units;
        if self.reserved - self.used > 2 * portion {
            account.release(self.reserved - self.used - portion);
            self.reserved = self.used + portion;
        }
    }
}
