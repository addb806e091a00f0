//! Checks a node's options before they are used to create threads, files, sockets or large allocations.
//!
//! [`NodeOptions::check`] checks the range of each option, [`NodeOptions::check_memory`] their total memory.
//! The layer above checks its own settings in the same place and adds its memory.
#![forbid(unsafe_code)]

use super::affinity;
use crate::node::footprint::{self, Footprint, MESSAGE_BYTES};
use crate::node::incarnation::{SEND_SLOTS, receive_slots};
use crate::node::options::NodeOptions;
use crate::session::private_data::MAX_POLLERS;
use crate::wire::{HEAD_ROOM, SLOT_BYTES};
use crate::{Pinning, StartError};
use std::ops::RangeInclusive;
use std::time::Duration;
use trunkline_softrdma::device::MAX_SHARED_BYTES;
use trunkline_verbs::{VerbsError, headroom, host_memory};

/// Range of the depth of an SRQ, in receives.
const SRQ_DEPTHS: RangeInclusive<u32> = 16..=16_384;
/// Range of the time after which the session of a silent peer ends. The minimum covers three ACK timeouts of a
/// software device.
const SESSION_LOSS_TIMES: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(60);
/// Range of the interval at which an idle peer is probed.
const IDLE_KEEPALIVES: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(20);
/// Maximum number of addresses that a node listens on.
const MAX_ADDRESSES: usize = 1024;
/// Maximum of a limit on messages, calls, handlers or jobs, which are counted in 32 bits.
pub const MAX_COUNT: usize = u32::MAX as usize;
/// Maximum of a limit in bytes, which is the size of a process's address space.
pub const MAX_BYTES: usize = match 1_usize.checked_shl(47) {
    Some(bytes) => bytes,
    None => usize::MAX,
};

/// Memory for the head of one announced message.
const ANNOUNCED_BYTES: usize = 4096;
/// Memory for messages of sessions that are not up, per poller.
const PENDING_BYTES: usize = 16 << 20;
/// Memory for the heads of sent messages that each poller keeps for reuse.
const HEADS_BYTES: usize = 1 << 20;

impl NodeOptions {
    /// Refuses options that are out of range.
    ///
    /// # Errors
    /// Returns [`StartError::BadOption`] with the option, its value and its range, or [`StartError::NotLoopback`].
    pub fn check(&self) -> Result<(), StartError> {
        let bad = |option, value: u64, remedy| Err(StartError::BadOption { option, value, remedy });
        if self.pollers == 0 || self.pollers > MAX_POLLERS {
            return bad("pollers", u64::from(self.pollers), "choose 1 to 32");
        }
        if !SRQ_DEPTHS.contains(&self.srq_depth) {
            return bad("srq_depth", u64::from(self.srq_depth), "choose 16 to 16384");
        }
        if !(self.srq_depth..=*SRQ_DEPTHS.end()).contains(&self.deepest_srq()) {
            let remedy = "choose at least srq_depth and at most 16384";
            return bad("srq_depth_limit", u64::from(self.deepest_srq()), remedy);
        }
        self.check_messages()?;
        if self.stall_limit < Duration::from_secs(1) {
            return bad("stall_limit (ms)", millis(self.stall_limit), "choose 1000 ms or more");
        }
        if !SESSION_LOSS_TIMES.contains(&self.session_loss_time) {
            return bad("session_loss_time (ms)", millis(self.session_loss_time), "choose 500 to 60000 ms");
        }
        if self.poll_for > Duration::from_secs(1) {
            return bad("poll_for (ms)", millis(self.poll_for), "choose 1000 ms or less");
        }
        if !IDLE_KEEPALIVES.contains(&self.idle_keepalive) {
            return bad("idle_keepalive (ms)", millis(self.idle_keepalive), "choose 500 to 20000 ms");
        }
        if let Pinning::List(list) = &self.pinning {
            let usable = affinity::usable_cpus();
            if let Some(cpu) = list.iter().find(|cpu| !usable.contains(cpu)) {
                let remedy = "choose CPUs that the process may use; `taskset -cp PID` lists them";
                return bad("pinning", *cpu as u64, remedy);
            }
        }
        if self.listen.len() > MAX_ADDRESSES {
            return bad("listen (addresses)", self.listen.len() as u64, "choose at most 1024");
        }
        for address in self.listens_on() {
            VerbsError::check_scope(address.ip()).map_err(|cause| StartError::Listen { address, cause })?;
        }
        let open = self.listens_on().into_iter().find(|address| !address.ip().to_canonical().is_loopback());
        match open {
            Some(address) if !self.may_leave_host() => Err(StartError::NotLoopback(address)),
            _ => Ok(()),
        }
    }

    /// Refuses sizes and limits of messages that are out of range.
    fn check_messages(&self) -> Result<(), StartError> {
        let bad =
            |option, value: usize, remedy| Err(StartError::BadOption { option, value: value as u64, remedy });
        if !(HEAD_ROOM..=MAX_BYTES).contains(&self.max_message_bytes) {
            let remedy = "the largest message must have 65536 bytes to 128 TiB";
            return bad("max_message_bytes", self.max_message_bytes, remedy);
        }
        let least = self.least_rendezvous();
        if self.rendezvous_bytes < least {
            let remedy = "it must hold the largest message (max_message_bytes), 65536 bytes, and with an identity a 4096th of the message";
            return bad("rendezvous_bytes", self.rendezvous_bytes, remedy);
        }
        if self.rendezvous_bytes > MAX_BYTES {
            return bad("rendezvous_bytes", self.rendezvous_bytes, "choose at most 128 TiB");
        }
        let per_peer = self.rendezvous().per_peer;
        if !(least..=self.rendezvous_bytes).contains(&per_peer) {
            let remedy = "one peer's part must hold the largest message (max_message_bytes) and 65536 bytes, and is at \
                          most rendezvous_bytes";
            return bad("rendezvous_bytes_per_peer", per_peer, remedy);
        }
        let remedy = "the largest message (max_message_bytes) must fit, and 128 TiB is the most";
        self.budgets.queued_bytes.check("queued_bytes", self.max_message_bytes..=MAX_BYTES, remedy)?;
        for (option, limit) in [
            ("queued_messages", self.budgets.queued_messages),
            ("large_messages", self.budgets.large_messages),
        ] {
            limit.check(option, 1..=MAX_COUNT, "choose 1 to 4294967295")?;
        }
        Ok(())
    }

    /// Returns the maximum memory that the options let the node and its peers use. This is the transport's part of the
    /// table in `docs/book/src/reference/budgets.md`.
    #[must_use]
    pub fn memory_at_most(&self) -> Footprint {
        memory_at_most(self)
    }

    /// Warns if the memory limit of one of the process's control groups is below `ceiling`. The kernel kills the
    /// process at that limit.
    pub fn warn_of_small_group(&self, ceiling: &Footprint) {
        if self.runtime.is_simulated() {
            return;
        }
        let exceeded = host_memory::read().exceeded_by(ceiling.bytes());
        if let Some(bound) = exceeded.filter(|bound| bound.of == host_memory::CONTROL_GROUP) {
            tracing::warn!(
                limit_mib = bound.bytes >> 20,
                ceiling_mib = ceiling.bytes().div_ceil(1 << 20),
                remedy = host_memory::REMEDY,
                "peers can make the node use more memory than its control group has"
            );
        }
    }

    /// Refuses options that need more memory than the machine, the control group or the limits of the process allow.
    ///
    /// `at_start` is the memory that the layer above takes at the start, and `raised` the maximum that its raised
    /// limits allow. Default limits are not counted, because peers rarely use them up.
    ///
    /// # Errors
    /// Returns [`StartError::TooMuchMemory`] with the sum and its largest parts, or [`StartError::NoRoom`].
    pub fn check_memory(&self, mut at_start: Footprint, mut raised: Footprint) -> Result<(), StartError> {
        // The same seed must give the same run on every machine.
        if self.runtime.is_simulated() {
            return Ok(());
        }
        at_start.append(memory_at_start(self));
        let defaults = Self::new().pollers(self.pollers);
        raised.append(memory_at_most(self).raised_from(&memory_at_most(&defaults)));
        footprint::check(&at_start, &raised).map_err(StartError::TooMuchMemory)?;
        let bytes = usize::try_from(at_start.address_space()).unwrap_or(usize::MAX);
        headroom::check(bytes).map_err(|cause| StartError::NoRoom { doing: "start a node", cause })
    }
}

/// Returns the memory that a node takes when it starts.
fn memory_at_start(options: &NodeOptions) -> Footprint {
    let pollers = usize::from(options.pollers);
    let slots = |slots: u32| usize::try_from(slots).unwrap_or(usize::MAX);
    let mut sum = Footprint::default();
    let receives = slots(receive_slots(options.srq_depth));
    sum.add("receive buffers", "pollers, srq_depth", &[pollers, receives, SLOT_BYTES]);
    sum.add("send buffers", "pollers", &[pollers, slots(SEND_SLOTS), SLOT_BYTES]);
    sum.add_threads("pollers", pollers);
    sum
}

/// Returns the maximum memory that a node's limits allow, including the memory that it takes at the start.
fn memory_at_most(options: &NodeOptions) -> Footprint {
    let pollers = usize::from(options.pollers);
    let slots = |slots: u32| usize::try_from(slots).unwrap_or(usize::MAX);
    let mut sum = Footprint::default();
    let receives = slots(receive_slots(options.srq_depth.midpoint(options.deepest_srq())));
    sum.add("receive buffers", "pollers, srq_depth, srq_depth_limit", &[pollers, receives, SLOT_BYTES]);
    sum.add("send buffers", "pollers", &[pollers, slots(SEND_SLOTS), SLOT_BYTES]);
    sum.add("messages of sessions that are not up", "pollers", &[pollers, PENDING_BYTES]);
    sum.add("heads of messages", "pollers", &[pollers, HEADS_BYTES]);
    sum.add("queued bytes", "queued_bytes", &[options.budgets.queued_bytes.in_all]);
    sum.add("queued messages", "queued_messages", &[options.budgets.queued_messages.in_all, MESSAGE_BYTES]);
    // A pool rounds the sizes of blocks above its smallest size up by at most a quarter, and keeps free blocks for
    // reuse.
    let memory = options.rendezvous_bytes;
    let pool = memory.saturating_add(memory / 4).saturating_add((memory / 2).min(128 << 20));
    sum.add("large messages, in and out", "rendezvous_bytes", &[2, pool]);
    let announced = options.budgets.large_messages.in_all;
    sum.add("announced messages", "large_messages", &[announced, ANNOUNCED_BYTES]);
    sum.add("memory shared with processes of the host", "TRUNKLINE_LINK", &[MAX_SHARED_BYTES]);
    sum
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limit;
    use std::net::{Ipv4Addr, SocketAddr};

    fn limit(per_peer: usize, in_all: usize) -> Limit {
        Limit { per_peer, in_all }
    }

    #[test]
    fn options_out_of_range_are_refused_by_name_and_value() {
        assert!(NodeOptions::new().check().is_ok());
        let new = NodeOptions::new;
        let many = (0..=1024).fold(new(), |options, _| options.listen((Ipv4Addr::LOCALHOST, 0).into()));
        for (options, named) in [
            (new().pollers(0), "pollers = 0"),
            (new().pollers(33), "pollers = 33"),
            (new().pollers(u16::MAX), "pollers = 65535"),
            (new().srq_depth(0), "srq_depth = 0"),
            (new().srq_depth(u32::MAX), "srq_depth = 4294967295"),
            (new().srq_depth_limit(511), "srq_depth_limit = 511"),
            (new().srq_depth_limit(u32::MAX), "srq_depth_limit = 4294967295"),
            (new().max_message_bytes(0), "max_message_bytes = 0"),
            (new().max_message_bytes(usize::MAX), "max_message_bytes ="),
            (new().rendezvous_bytes(0), "rendezvous_bytes = 0"),
            (new().rendezvous_bytes(usize::MAX), "rendezvous_bytes ="),
            (new().rendezvous_bytes_per_peer(0), "rendezvous_bytes_per_peer = 0"),
            (new().rendezvous_bytes_per_peer(1 << 20), "rendezvous_bytes_per_peer = 1048576"),
            (new().rendezvous_bytes_per_peer(usize::MAX), "rendezvous_bytes_per_peer ="),
            (new().queued_bytes(limit(0, 0)), "queued_bytes = 0"),
            (new().queued_bytes(limit(1000, 1 << 30)), "queued_bytes = 1000"),
            (new().queued_bytes(limit(512 << 20, 256 << 20)), "queued_bytes = 268435456"),
            (new().queued_bytes(limit(512 << 20, usize::MAX)), "queued_bytes = 18446744073709551615"),
            (new().queued_bytes(limit(usize::MAX, 512 << 20)), "queued_bytes = 536870912"),
            (new().queued_messages(limit(0, 9)), "queued_messages = 0"),
            (new().queued_messages(limit(9, 8)), "queued_messages = 8"),
            (new().queued_messages(limit(1, usize::MAX)), "queued_messages = 18446744073709551615"),
            (new().large_messages(limit(0, 9)), "large_messages = 0"),
            (new().large_messages(limit(9, 8)), "large_messages = 8"),
            (new().large_messages(limit(1, usize::MAX)), "large_messages = 18446744073709551615"),
            (new().stall_limit(Duration::ZERO), "stall_limit (ms) = 0"),
            (new().stall_limit(Duration::from_millis(5)), "stall_limit (ms) = 5"),
            (new().session_loss_time(Duration::from_millis(499)), "session_loss_time (ms) = 499"),
            (new().session_loss_time(Duration::from_millis(60_001)), "session_loss_time (ms) = 60001"),
            (new().poll_for(Duration::from_secs(2)), "poll_for (ms) = 2000"),
            (new().idle_keepalive(Duration::from_millis(499)), "idle_keepalive (ms) = 499"),
            (new().idle_keepalive(Duration::from_millis(20_001)), "idle_keepalive (ms) = 20001"),
            (new().pinning(Pinning::List(vec![usize::MAX])), "pinning ="),
            (many, "listen (addresses) = 1025"),
        ] {
            let text = options.check().expect_err(named).to_string();
            assert!(text.starts_with(named) && text.contains("is out of range: "), "{named}: {text}");
        }
    }

    #[test]
    fn memory_footprint_follows_settings() {
        let mib = |sum: &Footprint| sum.bytes().div_ceil(1 << 20);
        assert_eq!(mib(&memory_at_start(&NodeOptions::new())), 23);
        assert_eq!(mib(&memory_at_start(&NodeOptions::new().pollers(32).srq_depth(16_384))), 16_643);
        let raised = |options: NodeOptions| {
            let defaults = NodeOptions::new().pollers(options.pollers);
            mib(&memory_at_most(&options).raised_from(&memory_at_most(&defaults)))
        };
        assert_eq!(raised(NodeOptions::new().pollers(32)), 0, "defaults are not counted");
        assert_eq!(raised(NodeOptions::new().queued_bytes(limit(1 << 30, 1 << 40))), 1 << 20);
        assert_eq!(raised(NodeOptions::new().rendezvous_bytes(1 << 30)), 2 * (1280 + 128));
        assert_eq!(raised(NodeOptions::new().queued_messages(limit(1, 1 << 20))), 256);
        assert_eq!(raised(NodeOptions::new().large_messages(limit(1, 1 << 15))), 128);
        assert_eq!(raised(NodeOptions::new().pollers(2).srq_depth_limit(16_384)), 535);
    }

    #[test]
    fn mapped_loopback_addresses_are_loopback() {
        let mapped = |text: &str| NodeOptions::new().listen(text.parse::<SocketAddr>().unwrap()).check();
        assert!(mapped("[::ffff:127.0.0.1]:0").is_ok());
        assert!(mapped("[::ffff:10.0.0.1]:0").is_err());
    }
}
