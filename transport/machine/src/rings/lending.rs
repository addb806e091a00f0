//! A stock that is lent in small batches to its borrowers.
//!
//! The stock at home has one lock. Each borrower's share has a lock on a separate cache line, for which only recalls
//! contend. A borrower takes from its share, and borrows more when the share is used up. If home is empty, the unused shares
//! of other borrowers are recalled.
//!
//! Lent items count as part of the stock. While the count must be exact ([`Kept::keep_home`]), nothing is
//! lent, and all borrowers take from home.
//!
//! Home's lock is taken before the borrowers' locks. Only home lends, so if a thread that holds home's lock
//! finds home and all shares empty, the whole stock is empty.

use core::fmt;
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::rings::sync::{Mutex, MutexGuard, lock};

/// A queue whose oldest items can be moved to another queue.
pub trait Stock {
    /// Returns the number of items.
    fn len(&self) -> usize;

    /// Returns true if there are no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves up to `most` of the oldest items to the end of another queue, as far as they fit there.
    fn shift(&mut self, into: &mut Self, most: usize);

    /// Creates an empty queue of the same kind with room for `room` items.
    fn small(&self, room: usize) -> Self;
}

/// Maximum number of borrowers.
pub const MAX_BORROWERS: usize = 32;
/// Inverse of the maximum part of the stock at home that is lent at a time.
const PART: usize = 8;

/// The stock at home.
#[derive(Debug)]
pub struct Home<S> {
    stock: S,
    /// True if nothing may be lent.
    is_exact: bool,
}

/// A stock with its borrowers' shares.
pub struct Lending<S> {
    home: CachePadded<Mutex<Home<S>>>,
    /// Lent items by borrower. A share is created when its borrower first borrows.
    lent: [OnceLock<Box<CachePadded<Mutex<S>>>>; MAX_BORROWERS],
    batch: usize,
}

impl<S: Stock> Lending<S> {
    /// Creates a stock of which at most `batch` items are lent to a borrower at a time.
    pub fn new(stock: S, batch: usize) -> Self {
        Self {
            home: CachePadded::new(Mutex::new(Home { stock, is_exact: false })),
            lent: [const { OnceLock::new() }; MAX_BORROWERS],
            batch,
        }
    }

    /// Takes an item with `take`, which is passed a stock and returns `None` if that stock is empty. Returns `None` if the
    /// whole stock is empty. Borrowers are numbered from 0 to `MAX_BORROWERS - 1`; the borrower `None` takes from home
    /// without borrowing. If the item came from home, `from_home` is then called with the remaining stock at home.
    #[inline]
    pub fn take<R>(
        &self,
        borrower: Option<usize>,
        mut take: impl FnMut(&mut S) -> Option<R>,
        from_home: impl FnOnce(&mut Kept<'_, S>),
    ) -> Option<R> {
        if let Some(own) = borrower.and_then(|borrower| self.lent[borrower].get())
            && let Some(taken) = take(&mut lock(own))
        {
            return Some(taken);
        }
        let mut home = lock(&self.home);
        if home.stock.is_empty() {
            self.recall(&mut home, 1);
        }
        let taken = take(&mut home.stock)?;
        if let Some(borrower) = borrower.filter(|_| !home.is_exact) {
            let own = || Box::new(CachePadded::new(Mutex::new(home.stock.small(self.batch))));
            let mut own = lock(self.lent[borrower].get_or_init(own));
            let part = home.stock.len() / PART;
            home.stock.shift(&mut own, part.min(self.batch));
        }
        from_home(&mut Kept { home, lending: self });
        Some(taken)
    }

    /// Locks home, and recalls all lent items.
    pub fn home(&self) -> Kept<'_, S> {
        let mut home = lock(&self.home);
        self.recall(&mut home, usize::MAX);
        Kept { home, lending: self }
    }

    /// Changes the stock at home; lent items stay lent.
    pub fn with_home<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        change(&mut lock(&self.home).stock)
    }

    /// Returns true if the whole stock is empty, including lent items.
    pub fn is_empty(&self) -> bool {
        let mut home = lock(&self.home);
        if home.stock.is_empty() {
            self.recall(&mut home, 1);
        }
        home.stock.is_empty()
    }

    /// Returns the number of items, including lent ones.
    pub fn count(&self) -> usize {
        let home = lock(&self.home);
        let lent = self.lent.iter().filter_map(OnceLock::get).map(|lent| lock(lent).len());
        home.stock.len() + lent.sum::<usize>()
    }

    fn recall(&self, home: &mut Home<S>, most: usize) {
        for lent in self.lent.iter().filter_map(OnceLock::get) {
            let missing = most.saturating_sub(home.stock.len());
            if missing == 0 {
                return;
            }
            lock(lent).shift(&mut home.stock, missing);
        }
    }
}

/// The stock, with its lock held.
pub struct Kept<'a, S> {
    home: MutexGuard<'a, Home<S>>,
    lending: &'a Lending<S>,
}

impl<S: Stock> Kept<'_, S> {
    /// Returns the stock at home. It is the whole stock while the count is exact, and right after
    /// [`Lending::home`].
    pub fn stock(&mut self) -> &mut S {
        &mut self.home.stock
    }

    /// Returns true if lending is suspended.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.home.is_exact
    }

    /// Sets whether all items stay at home.
    pub fn keep_home(&mut self, keeps: bool) {
        if keeps && !self.home.is_exact {
            self.lending.recall(&mut self.home, usize::MAX);
        }
        self.home.is_exact = keeps;
    }
}

impl<S> fmt::Debug for Lending<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let borrowers = self.lent.iter().filter(|lent| lent.get().is_some()).count();
        f.debug_struct("Lending").field("borrowers", &borrowers).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for Kept<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("is_exact", &self.home.is_exact).finish_non_exhaustive()
    }
}
