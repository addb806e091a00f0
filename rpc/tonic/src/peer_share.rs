//! Shares of peers in what the tasks of one poller hold in addition to the node's budgets.
//!
//! A peer may hold as much as is still free. One peer therefore holds at most half of the total, and N peers leave a part of
//! 1/(N + 1) to further ones.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Number of entries up to which entries of peers that hold nothing are kept.
const MIN_ENTRIES: usize = 64;

/// An amount that is shared by peers. `None` stands for callers without an address.
pub(crate) struct Shares {
    total: Arc<Total>,
    peers: Mutex<Peers>,
}

struct Total {
    most: usize,
    used: AtomicUsize,
}

#[derive(Default)]
struct Peers {
    shares: BTreeMap<Option<IpAddr>, Weak<Share>>,
    /// Number of entries at which entries without a share are removed next.
    limit: usize,
}

impl Shares {
    pub(crate) fn new(most: usize) -> Self {
        Self { total: Arc::new(Total { most, used: AtomicUsize::new(0) }), peers: Mutex::default() }
    }

    /// Returns the share of a peer.
    pub(crate) fn of(&self, peer: Option<IpAddr>) -> Arc<Share> {
        let Peers { shares, limit } = &mut *self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&peer).and_then(Weak::upgrade) {
            return share;
        }
        if shares.len() >= *limit {
            shares.retain(|_, share| share.strong_count() > 0);
            *limit = MIN_ENTRIES.max(2 * shares.len());
        }
        let share = Arc::new(Share { total: Arc::clone(&self.total), used: AtomicUsize::new(0) });
        shares.insert(peer, Arc::downgrade(&share));
        share
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.total.used.load(Relaxed)
    }
}

/// Amount that one peer holds.
pub(crate) struct Share {
    total: Arc<Total>,
    used: AtomicUsize,
}

impl Share {
    /// Returns true if the peer would hold at most as much as is then free. Threads that take at the same time may together
    /// exceed this.
    pub(crate) fn has_room(&self, amount: usize) -> bool {
        let free = self.total.most.saturating_sub(self.total.used.load(Relaxed));
        amount.saturating_mul(2).saturating_add(self.used.load(Relaxed)) <= free
    }

    /// Takes an amount, even if there is no room.
    pub(crate) fn take(self: &Arc<Self>, amount: usize) -> Taken {
        self.used.fetch_add(amount, Relaxed);
        self.total.used.fetch_add(amount, Relaxed);
        Taken { share: Arc::clone(self), amount }
    }
}

/// Returns an amount to its share when it is dropped.
pub(crate) struct Taken {
    share: Arc<Share>,
    amount: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.share.used.fetch_sub(self.amount, Relaxed);
        self.share.total.used.fetch_sub(self.amount, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_holds_at_most_what_is_free() {
        let shares = Shares::new(80);
        let peer = |number| shares.of(Some(IpAddr::from([10, 0, 0, number])));
        let fill = |share: Arc<Share>| {
            std::iter::from_fn(|| share.has_room(1).then(|| share.take(1))).collect::<Vec<_>>()
        };
        let held = [1, 2, 1, 3].map(|number| fill(peer(number)));
        assert_eq!(held.each_ref().map(Vec::len), [40, 20, 0, 10]);
        drop(held);
        assert_eq!((shares.used(), fill(peer(4)).len()), (0, 40));
    }

    #[test]
    fn peers_without_share_are_forgotten() {
        let shares = Shares::new(1);
        let kept = shares.of(None);
        for number in 0..10_000_u32 {
            let _unused = shares.of(Some(IpAddr::from(number.to_be_bytes())));
        }
        assert!(Arc::ptr_eq(&kept, &shares.of(None)));
        assert!(shares.peers.lock().unwrap().shares.len() <= MIN_ENTRIES);
    }
}
