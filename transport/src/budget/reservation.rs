//! Units of one account that a poller has reserved, and how many of them are in use.
//!
//! Pollers write to an account only when the number of reserved units changes. Operations that never change that
//! number are separate functions, short enough to be inlined into the message paths.
#![forbid(unsafe_code)]

use super::Leaves;
use super::account::{Account, Budget};
use std::mem;
use std::sync::Arc;

/// Units of one account that a poller has reserved.
#[derive(Debug)]
pub(super) struct Reservation {
    account: Arc<Account>,
    /// Maximum number of units that all pollers together may reserve.
    limit: usize,
    /// Number of units that are reserved in one step and kept.
    portion: usize,
    reserved: usize,
    used: usize,
    /// Number of units in use below which counting is not enough; see [`Reservation::settle`].
    least: usize,
}

impl Reservation {
    /// Creates a reservation without units. The portion is computed from `whole`.
    pub(super) fn new(budget: &Budget, account: Arc<Account>, limit: usize, whole: usize) -> Self {
        Self { account, limit, portion: budget.portion(whole), reserved: 0, used: 0, least: 0 }
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// Releases all units, including those in use.
    pub(super) fn release_all(&mut self) {
        self.account.units.release(mem::take(&mut self.reserved));
    }

    /// Releases all units. Returns the account.
    pub(super) fn close(mut self) -> Arc<Account> {
        self.release_all();
        self.account
    }

    #[inline]
    pub(super) fn used(&self) -> usize {
        self.used
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

    /// Updates the limits of the fast path after any other change. Then [`Reservation::keeps`] returns true
    /// only while at most two portions are unused, and never if `is_watched`.
    pub(super) fn settle(&mut self, is_watched: bool) {
        self.least = if is_watched { usize::MAX } else { self.reserved.saturating_sub(2 * self.portion) };
    }

    /// Releases the units that are not in use.
    pub(super) fn release_unused(&mut self) {
        self.account.units.release(self.reserved - self.used);
        self.reserved = self.used;
    }

    /// Uses units, and first reserves the missing ones. Returns false if this would exceed the limit for a use with
    /// these `leaves`.
    pub(super) fn take(&mut self, units: usize, leaves: Leaves) -> bool {
        if leaves != Leaves::Nothing && self.has(units) && !self.is_below(units, leaves) {
            return false;
        }
        let used = self.used.saturating_add(units);
        let missing = used.saturating_sub(self.reserved);
        if missing > 0 {
            let (want, limit) = (missing.max(self.portion), leaves.limit(self.limit, units));
            let Some(more) = self.account.units.reserve(missing, want, limit) else { return false };
            self.reserved += more;
        }
        self.used = used;
        true
    }

    /// Returns true if the reserved units of all pollers are within the limit for a use with these `leaves`, not
    /// counting units that this poller leaves unused after taking `units`. A reservation alone is not sufficient,
    /// because it may have been made for a use with a higher limit.
    #[inline]
    pub(super) fn is_below(&self, units: usize, leaves: Leaves) -> bool {
        let reserved = self.account.units.reserved();
        // Every use except `Leaves::All` may take half of a limit.
        if self.limit >= 8 && reserved <= self.limit / 2 && leaves != Leaves::All {
            return true;
        }
        reserved - (self.reserved - self.used - units) <= leaves.limit(self.limit, units)
    }

    /// Returns true if `units` more, reserved or not, are certainly within the limit.
    #[inline]
    pub(super) fn reaches(&self, units: usize) -> bool {
        self.account.units.reserved() - self.reserved + self.used <= self.limit.saturating_sub(units)
    }

    /// Returns true if [`Reservation::take`] could use `units` more now.
    pub(super) fn could_take(&self, units: usize) -> bool {
        self.has(units) || {
            let missing = self.used.saturating_add(units) - self.reserved;
            self.account.units.could_reserve(missing, self.limit)
        }
    }

    /// Puts back units. Keeps a portion reserved for the next uses.
    pub(super) fn put_back(&mut self, units: usize) {
        self.used -= units;
        if self.reserved - self.used > 2 * self.portion {
            self.account.units.release(self.reserved - self.used - self.portion);
            self.reserved = self.used + self.portion;
        }
    }
}
