//! Parts from which a device's shards create their shared memory.
//!
//! Contains the state common to the shards: the allocator of areas, and the count of pairs. Each shard gets a
//! clone.

use super::pair::AREA_BYTES;
use super::{PathPolicy, Refusal};
use crate::host::{Areas, Host, Targets};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of pairs of a device. The two areas of a pair take 128 KiB each.
const MAX_PAIRS: usize = 512;
/// Maximum memory that a device shares with other processes, in bytes.
pub const MAX_SHARED_BYTES: usize = MAX_PAIRS * AREA_BYTES;
/// Number of pairs reserved for members without a pair, so that members with pairs cannot take all of them.
const FOR_OTHERS: usize = 128;

/// Parts that a shard's [`LocalPaths`](super::LocalPaths) is created from.
#[derive(Debug, Clone)]
pub(in crate::device) struct LocalInit {
    /// `None` on an in-process network.
    pub(super) host: Option<Arc<Host>>,
    /// TGTs that the members of the host share.
    pub(super) targets: Option<Arc<Targets>>,
    /// Paths that QPs may use.
    pub(super) policy: PathPolicy,
    /// The allocator of areas, or the reason why this process cannot share memory.
    pub(super) areas: Result<Areas, &'static str>,
    pub(super) room: Arc<Room>,
    /// Number of the first area, chosen at random.
    pub(super) first_number: u64,
}

impl LocalInit {
    /// Creates the parts for a device with this path policy.
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

/// Number of pairs of a device, across all shards.
#[derive(Debug, Default)]
pub(super) struct Room(AtomicUsize);

impl Room {
    /// Checks that the limit allows one more pair. `has_pairs` is true if the shard already has pairs with
    /// the member. Shards that call this at the same time may exceed the limit by a few pairs.
    pub(super) fn check(&self, has_pairs: bool) -> Result<(), &'static str> {
        let limit = if has_pairs { MAX_PAIRS - FOR_OTHERS } else { MAX_PAIRS };
        match self.0.load(Ordering::Relaxed) < limit {
            true => Ok(()),
            false => Err(Refusal::NoRoom.ours()),
        }
    }

    /// Counts one more pair.
    pub(super) fn take(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts pairs that ended.
    pub(super) fn give_back(&self, pairs: usize) {
        self.0.fetch_sub(pairs, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_with_pairs_leaves_room_for_members_without_pairs() {
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
