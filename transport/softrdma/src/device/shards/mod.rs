//! The shards of a device.
//!
//! Owns the list of shards, and the shard of each group of CQs. A group gets a separate shard when its first
//! CQ is created. The first shard belongs to group 0 and exists from the start. If the link of the device
//! cannot be divided, or the maximum number of shards is reached, further groups use the existing shards.
#![forbid(unsafe_code)]

pub(super) mod lock;
pub(super) mod maker;
pub(super) mod reach;

use self::lock::ShardLock;
use super::shard::Neighbours;
use super::tables::Tables;
use super::tables::directory::{MAX_SHARDS, QpDirectory, ShardIndex};
use super::threads::signal::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use trunkline_verbs::VerbsError;

/// The shards of a device, and their groups.
#[derive(Debug)]
pub(super) struct Shards {
    list: [OnceLock<Arc<ShardLock>>; MAX_SHARDS],
    count: AtomicUsize,
    /// Shards by group. The lock is held while a shard is created.
    groups: Mutex<Vec<(u32, ShardIndex)>>,
    neighbours: Arc<Neighbours>,
    tables: Arc<Tables>,
    /// Maximum number of shards of this device.
    most: usize,
}

impl Shards {
    /// Creates the list with the first shard only.
    pub(super) fn new(
        first: ShardLock,
        neighbours: Arc<Neighbours>,
        tables: Arc<Tables>,
        most: usize,
    ) -> Self {
        let list = [const { OnceLock::new() }; MAX_SHARDS];
        let shards = Self {
            list,
            count: AtomicUsize::new(0),
            groups: Mutex::new(vec![(0, ShardIndex::FIRST)]),
            neighbours,
            tables,
            most: most.min(MAX_SHARDS),
        };
        shards.add(Arc::new(first));
        shards
    }

    fn add(&self, lock: Arc<ShardLock>) {
        let _first = self.list[lock.index.place()].set(lock);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Returns a shard; `None` if the index, which may come from another process, is invalid.
    pub(super) fn get(&self, index: ShardIndex) -> Option<&Arc<ShardLock>> {
        self.list.get(index.place())?.get()
    }

    pub(super) fn first(&self) -> &Arc<ShardLock> {
        self.list[0].get().unwrap_or_else(|| unreachable!("it is made with the list"))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ShardLock>> {
        self.list.iter().map_while(OnceLock::get)
    }

    /// Returns all shards but the first.
    pub(super) fn others(&self) -> impl Iterator<Item = &Arc<ShardLock>> {
        self.all().skip(1)
    }

    /// Returns the directory of QPs by shard.
    pub(super) fn directory(&self) -> &QpDirectory {
        self.neighbours.directory()
    }

    /// Returns the inboxes for packets that arrive at a shard other than their QP's.
    pub(super) fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Returns the tables that all shards read.
    pub(super) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// Returns the shard of a group of CQs. If the group is new, `make` creates and starts its shard, or
    /// returns `None` if the link cannot be divided.
    pub(super) fn of_group(
        &self,
        group: u32,
        make: impl FnOnce(ShardIndex) -> Result<Option<Arc<ShardLock>>, VerbsError>,
    ) -> Result<ShardIndex, VerbsError> {
        let mut groups = lock(&self.groups);
        if let Some((_, index)) = groups.iter().find(|(known, _)| *known == group) {
            return Ok(*index);
        }
        let count = self.count.load(Ordering::Acquire);
        let next = u8::try_from(count).ok().map(ShardIndex).filter(|next| next.place() < self.most);
        let made = next.map(make).transpose()?.flatten();
        let index = match made {
            Some(made) => {
                let index = made.index;
                self.add(made);
                index
            }
            None => ShardIndex(u8::try_from(groups.len() % count.max(1)).unwrap_or(0)),
        };
        groups.push((group, index));
        Ok(index)
    }

    /// Returns the shard of a group that has a CQ; the first shard for other groups.
    pub(super) fn known_group(&self, group: u32) -> ShardIndex {
        let groups = lock(&self.groups);
        groups.iter().find(|(known, _)| *known == group).map_or(ShardIndex::FIRST, |(_, index)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::super::threads::signal::lock;
    use super::super::{SoftDevice, SoftOptions};
    use super::*;
    use std::mem::{align_of, size_of};
    use std::net::IpAddr;
    use std::time::Duration;
    use trunkline_testkit::HandMadeConnection;
    use trunkline_verbs::{
        Clock, Completion, CompletionQueue, CqInit, Device, ProtectionDomain, QpInit, QpType,
        QueueCapacities, QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest,
        SrqNumber,
    };

    /// Number of bytes that processors fetch together, which is two cache lines of 64 bytes.
    const LINES: usize = 128;
    /// Time limit for waits, long enough for a loaded machine.
    const BOUND: Duration = Duration::from_secs(60);

    /// Shards are separate allocations, so they do not share a cache line if the type fills whole lines.
    #[test]
    fn two_shards_do_not_share_cache_line() {
        assert!(align_of::<ShardLock>().is_multiple_of(LINES), "{}", align_of::<ShardLock>());
        assert!(size_of::<ShardLock>().is_multiple_of(LINES));
    }

    /// An RC QP that is connected to itself, and its CQ, in a group.
    struct Loop {
        cq: Arc<dyn CompletionQueue>,
        qp: Arc<dyn QueuePair>,
        _pd: Arc<dyn ProtectionDomain>,
    }

    impl Loop {
        fn new(device: &SoftDevice, address: IpAddr, group: u32) -> Self {
            let pd = device.alloc_pd().unwrap();
            let cq = device.create_cq(CqInit { capacity_cqe: 16, group, ..CqInit::default() }).unwrap();
            let qp = device
                .create_qp(QpInit {
                    pd: Some(Arc::clone(&pd)),
                    send_cq: Some(Arc::clone(&cq)),
                    receive_cq: Some(Arc::clone(&cq)),
                    capacities: QueueCapacities {
                        max_send_wr: 4,
                        max_receive_wr: 4,
                        max_inline_data: 4,
                        ..QueueCapacities::default()
                    },
                    ..QpInit::new(QpType::Rc)
                })
                .unwrap();
            for step in HandMadeConnection::new(address, qp.number()).steps() {
                qp.modify(&step).unwrap();
            }
            Self { cq, qp, _pd: pd }
        }

        /// Sends a message from the QP to itself, and polls until both completions arrive. `also` is polled as well.
        fn exchange(&self, clock: &Clock, also: Option<&dyn CompletionQueue>) {
            self.qp.post_receive(&[ReceiveRequest { wr_id: 1, scatter: &[] }]).unwrap();
            let (operation, data) = (SendOperation::Send, SendData::Inline(&[]));
            let (flags, remote_srq) = (SendFlags::SIGNALED, SrqNumber::new(0));
            self.qp.post_send(&[SendRequest { wr_id: 2, operation, data, flags, remote_srq }]).unwrap();
            let (mut left, until) = (2, clock.now() + BOUND);
            while left > 0 {
                assert!(clock.now() < until, "it waits for a lock of another shard");
                let mut some = [Completion::default(); 2];
                let count = self.cq.poll(&mut some);
                assert!(some[..count].iter().all(|completion| completion.status.is_success()), "{some:?}");
                left -= count;
                if let Some(other) = also {
                    other.poll(&mut some);
                }
            }
        }
    }

    /// An index in a message from another process may be wrong.
    #[test]
    fn unknown_shard_index_is_refused() {
        let address = IpAddr::from(trunkline_testkit::fresh_ip());
        let device =
            SoftDevice::open(SoftOptions { addresses: vec![address], ..SoftOptions::default() }).unwrap();
        device.core().with_shards(|shards| {
            let known = (0..=u8::MAX).filter(|index| shards.get(ShardIndex(*index)).is_some());
            assert_eq!(known.collect::<Vec<_>>(), [0]);
        });
    }

    /// A shard works while another thread holds the locks of all shared state.
    #[test]
    fn shard_does_not_lock_device_tables_or_other_shards() {
        let address = IpAddr::from(trunkline_testkit::fresh_ip());
        let device =
            SoftDevice::open(SoftOptions { addresses: vec![address], ..SoftOptions::default() }).unwrap();
        let [first, second] = [0, 1].map(|group| Loop::new(&device, address, group));
        let clock = device.clock();
        // The first packet arrives at the device's port, which belongs to the first shard.
        second.exchange(&clock, Some(&*first.cq));
        second.exchange(&clock, Some(&*first.cq));
        let core = device.core();
        let control = core.control();
        let shards: Vec<_> = core.shards().collect();
        assert_eq!(shards.len(), 2);
        let others = shards[0].shard.enter();
        core.tables().with_writers_locked(|| {
            core.with_shards(|shards| {
                let groups = lock(&shards.groups);
                shards.directory().with_locked(|| {
                    for _ in 0..100 {
                        second.exchange(&clock, None);
                    }
                });
                drop(groups);
            });
        });
        drop((others, control));
    }
}
