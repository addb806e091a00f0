//! The wait of a poller that sleeps for its shard.
//!
//! Owns the poller's part of the handover of work ([`super::progress`]). While the poller sleeps on the shard's
//! descriptors, packets and deadlines wake it, and the background machine leaves the work to the poller. Each shard can
//! have one such poller.
#![forbid(unsafe_code)]

use super::wake_up::{WakePoller, Watcher};
use crate::device::core::Core;
use crate::device::objects::cq_ring::CqRing;
use crate::device::shard::Shard;
use crate::device::tables::directory::ShardIndex;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_machine::rings::shared::Wanted;
use trunkline_verbs::{DeviceWait, Notify, Prepared, Time};

/// The wait of one poller.
#[derive(Debug)]
pub(in crate::device) struct ShardWait {
    core: Arc<Core>,
    home: ShardIndex,
    ring: Arc<CqRing>,
    /// Time at which the sleep ends, for simulations.
    until_ns: AtomicU64,
}

impl ShardWait {
    /// Creates the wait of a poller that is woken by `wake`. Returns `None` if the shard has another such poller.
    pub(in crate::device) fn new(
        core: Arc<Core>,
        home: ShardIndex,
        ring: Arc<CqRing>,
        wake: WakePoller,
    ) -> Option<Self> {
        let is_first = core.shard(home).progress.set_poller(wake);
        is_first.then(|| Self { core, home, ring, until_ns: AtomicU64::new(0) })
    }

    fn try_prepare(&self, wanted: Wanted) -> Option<(Option<Time>, u64)> {
        self.ring.arm(Notify::Any).ok()?;
        let (parts, lock) = (self.core.parts(), self.core.shard(self.home));
        let (more, mut shard) = parts.work_and_stay(lock, Shard::work_before_sleep);
        // The CQ is disarmed if a completion arrived after the program armed it.
        if more || !self.ring.is_armed() || self.ring.has_any() {
            return None;
        }
        let until = parts.fall_asleep(lock, &mut shard, Watcher::Poller, wanted)?;
        self.until_ns.store(until.unwrap_or(Time::MAX).0, Ordering::Relaxed);
        Some((until, shard.link().descriptors_version()))
    }
}

impl DeviceWait for ShardWait {
    fn prepare(&self, awaits_acknowledgement: bool) -> Prepared {
        let wanted = if awaits_acknowledgement { Wanted::All } else { Wanted::Urgent };
        if let Some((until, version)) = self.try_prepare(wanted) {
            return Prepared::Sleep { until, version };
        }
        self.awake(true);
        Prepared::Ready
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.core.shard(self.home).shard.enter().link().descriptors()
    }

    fn bell(&self) -> Option<RawFd> {
        self.core.shard(self.home).shard.enter().bell()
    }

    fn awake(&self, by_device: bool) {
        self.ring.disarm();
        let lock = self.core.shard(self.home);
        lock.progress.poller_awake();
        self.core.parts().woken(lock, by_device);
    }

    fn has_arrivals(&self) -> bool {
        self.core.shard(self.home).shard.try_enter().is_none_or(|shard| shard.link().has_arrivals())
    }

    fn is_due(&self) -> bool {
        let until = Some(Time(self.until_ns.load(Ordering::Relaxed)));
        self.core.parts().is_due(self.core.shard(self.home), until)
    }
}

impl Drop for ShardWait {
    fn drop(&mut self) {
        self.core.shard(self.home).progress.forget_poller();
    }
}

#[cfg(test)]
mod tests {
    use crate::device::{SoftDevice, SoftOptions};
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;
    use trunkline_verbs::{CqInit, Device, Prepared};

    /// epoll reports an edge only once. If the edge is lost, packets wait for the next one.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "another real thread has the turn")]
    fn wake_up_by_packets_is_recorded_while_another_thread_owns_shard() {
        let address = IpAddr::from(trunkline_testkit::fresh_ip());
        let options = SoftOptions { addresses: vec![address], ..SoftOptions::default() };
        let device = SoftDevice::open(options).unwrap();
        let channel = device.create_completion_channel().unwrap();
        let cq = CqInit { capacity_cqe: 16, channel: Some(channel), ..CqInit::default() };
        let cq = device.create_cq(cq).unwrap();
        let wait = cq.device_wait(Arc::new(|| ())).unwrap();
        assert!(cq.device_wait(Arc::new(|| ())).is_none(), "one poller sleeps for a shard");
        while wait.prepare(true) == Prepared::Ready {}
        let lock = Arc::clone(device.core().shards().next().unwrap());
        let must_poll = || lock.shard.enter().link().must_poll();
        assert!(!must_poll(), "nothing has arrived");
        let turn = lock.shard.enter();
        thread::scope(|scope| {
            let woken = scope.spawn(|| wait.awake(true));
            // Leave time for the thread to end if it does not wait for the turn.
            (0..20)
                .take_while(|_| !woken.is_finished())
                .for_each(|_| thread::sleep(Duration::from_millis(1)));
            drop(turn);
        });
        assert!(must_poll());
    }
}
