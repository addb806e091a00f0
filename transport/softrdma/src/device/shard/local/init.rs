//! Parts that a device's shards share memory with.
//!
//! Owns what is common to them: the maker of areas, and how many more they may make. Each shard gets a clone.

use super::{PathPolicy, Refusal};
use crate::host::{Areas, Host, Targets};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum pairs of a device. Their areas take 128 KiB each.
const MAX_PAIRS: usize = 512;
/// Pairs of those reserved for members that have none with the shard yet: no member takes all.
const FOR_OTHERS: usize = 128;

/// See the module.
#[derive(Debug, Clone)]
pub(in crate::device) struct LocalInit {
    /// `None` on a network in process.
    pub(super) host: Option<Arc<Host>>,
    /// TGTs that the members of the host share.
    pub(super) targets: Option<Arc<Targets>>,
    /// Paths that QPs may use.
    pub(super) policy: PathPolicy,
    /// Or why this process can share no memory.
    pub(super) areas: Result<Areas, &'static str>,
    pub(super) room: Arc<Room>,
    /// An unpredictable number; areas are numbered from there.
    pub(super) first_number: u64,
}

impl LocalInit {
    /// Creates the parts for a device with these paths.
    pub(in crate::device) fn new(
        host: Option<Arc<Host>>,
        targets: Option<Arc<Targets>>,
        policy: PathPolicy,
        first_number: u64,
    ) -> Self {
        let areas = match &host {
            Some(host) => Areas::new(host),
            None => Err("the device's network is not the host's"),
        };
        Self { host, targets, policy, areas, room: Arc::default(), first_number }
    }
}

/// Number of pairs that the shards of a device have, all together.
#[derive(Debug, Default)]
pub(super) struct Room(AtomicUsize);

impl Room {
    /// Refuses one pair more beyond the limit; `has_pairs` is true if its member has some with the shard. Shards that ask at once may
    /// come to a few more than the limit.
    pub(super) fn check(&self, has_pairs: bool) -> Result<(), &'static str> {
        let limit = if has_pairs { MAX_PAIRS - FOR_OTHERS } else { MAX_PAIRS };
        match self.0.load(Ordering::Relaxed) < limit {
            true => Ok(()),
            false => Err(Refusal::NoRoom.ours()),
        }
    }

    /// There is one more.
    pub(super) fn take(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives pairs back.
    pub(super) fn give_back(&self, pairs: usize) {
        self.0.fetch_sub(pairs, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_has_pairs_leaves_room_to_those_that_have_none() {
        let room = Room::default();
        let mut taken = 0;
        while room.check(true).is_ok() {
            room.take();
            taken += 1;
        }
        assert_eq!(taken, MAX_PAIRS - FOR_OTHERS);
        while room.check(false).is_ok() {
            room.take();
            taken += 1;
        }
        assert_eq!(taken, MAX_PAIRS);
        room.give_back(1);
        assert!(room.check(true).is_err() && room.check(false).is_ok());
    }
}
