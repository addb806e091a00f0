//! Budgets of a node for handlers, decoded arguments and outgoing calls, each with a limit per peer and in total.
//!
//! The builder holds the limits. The node creates the budgets from them, and each poller gets a share of each budget.

use crate::node::fork_lock::Lock;
use crate::node::start_error::StartError;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::sync::Arc;
use trunkline_transport::budget::{Budget, PARTS, Share, part_of};
use trunkline_transport::check::{MAX_BYTES, MAX_COUNT};
use trunkline_transport::footprint::{Footprint, MESSAGE_BYTES};
use trunkline_transport::{BudgetReport, EAGER_BYTES, Limit, NodeOptions, PeerHosts, PollerIndex};

/// Name of the setting that limits decoded values, used in refusals.
pub(crate) const DECODED_BYTES: &str = "decoded_bytes";
/// Name of the setting that limits metadata, used in refusals.
const METADATA_BYTES: &str = "metadata_bytes";
/// Maximum value of the metadata limit, in bytes.
const MOST_METADATA: usize = 1 << 20;
/// Name of the budget for decoded arguments.
pub(crate) const ARGUMENTS: &str = "bytes of decoded arguments";
/// Minimum value of the limit on decoded values, in bytes.
const LEAST_DECODED: usize = 64 << 10;
/// Bytes of decoded arguments per handler that are not charged.
const UNCHARGED_BYTES: usize = 1024;
/// Maximum number of bytes that a collection reserves before its first element is charged.
const UNCOUNTED_BYTES: usize = 2_400_000;
/// Smallest fraction to which a memory limit lowers the default limits, in units of 1/[`PARTS`].
const LEAST_PART: usize = PARTS / 64;

/// A share of the budget for decoded arguments that any thread may charge.
pub(crate) type SharedMemory = Arc<Lock<Share>>;

/// The limits of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) handlers: Limit,
    pub(crate) calls: Limit,
    /// Limit on decoded arguments, in bytes.
    pub(crate) decoded: Limit,
    /// Limit on waiting replies, in bytes; equal to the limit on queued bytes.
    pub(crate) waiting_replies: Limit,
    /// Maximum size of one call's metadata in each direction, in bytes.
    pub(crate) metadata: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handlers: Limit { per_peer: 16_384, in_all: 65_536 },
            calls: Limit { per_peer: 65_536, in_all: 262_144 },
            decoded: Limit { per_peer: 256 << 20, in_all: 1 << 30 },
            waiting_replies: Limit { per_peer: 128 << 20, in_all: 512 << 20 },
            metadata: 8 << 10,
        }
    }
}

impl Limits {
    /// Checks that all limits are in range, and that no total limit is below the limit per peer.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let counts = (1..=MAX_COUNT, "choose 1 to 4294967295");
        let bytes = (LEAST_DECODED..=MAX_BYTES, "choose 64 KiB to 128 TiB");
        for (option, limit, (range, remedy)) in [
            ("handler_limit", self.handlers, counts.clone()),
            ("call_limit", self.calls, counts),
            (DECODED_BYTES, self.decoded, bytes.clone()),
            // The transport also requires room for the largest message.
            ("queued_bytes", self.waiting_replies, bytes),
        ] {
            limit.check(option, range, remedy).map_err(StartError::from_transport)?;
        }
        if self.metadata > MOST_METADATA {
            return Err(StartError::bad_option(METADATA_BYTES, self.metadata, "choose 0 to 1 MiB"));
        }
        Ok(())
    }

    /// Returns the maximum memory of this layer's budgets.
    pub(crate) fn at_most(&self) -> Footprint {
        let mut sum = Footprint::default();
        sum.add("replies that wait", "queued_bytes", &[self.waiting_replies.in_all]);
        sum.add("decoded arguments", DECODED_BYTES, &[self.decoded.in_all]);
        sum.add("running handlers", "handler_limit", &[self.handlers.in_all, UNCHARGED_BYTES]);
        sum.add("calls under way", "call_limit", &[self.calls.in_all, MESSAGE_BYTES]);
        sum
    }
}

/// Returns the maximum memory of a node and its peers, as listed in `docs/book/src/reference/budgets.md`.
pub(crate) fn ceiling(options: &NodeOptions, limits: &Limits, pollers: u16) -> Footprint {
    let mut sum = options.memory_at_most();
    sum.append(limits.at_most());
    sum.add("arguments of running handlers", "handler_limit", &[limits.handlers.in_all, EAGER_BYTES]);
    sum.add("collections that are decoded", "pollers", &[usize::from(pollers), UNCOUNTED_BYTES]);
    sum
}

/// Lowers the limits that the program has not set, all by the same factor, so that the ceiling is at most `memory` bytes.
/// Each limit stays at or above 1/64 of its default. A limit that must hold the largest message also stays above the size of
/// that message.
///
/// # Errors
/// Returns [`StartError::BadSetting`], which names the minimum, if `memory` is too small.
pub(crate) fn divide(
    memory: usize,
    options: NodeOptions,
    limits: Limits,
    kept: &[&'static str],
    pollers: u16,
) -> Result<(NodeOptions, Limits), StartError> {
    let with = |part| {
        let options = options.clone().with_part_of_memory(part);
        let is_kept = |name| kept.contains(&name);
        let of = |name, limit: Limit, least| if is_kept(name) { limit } else { part_of(limit, part, least) };
        let lower = Limits {
            handlers: of("handler_limit", limits.handlers, 1),
            calls: of("call_limit", limits.calls, 1),
            decoded: of(DECODED_BYTES, limits.decoded, LEAST_DECODED),
            waiting_replies: options.queued_bytes_limit(),
            ..limits
        };
        (ceiling(&options, &lower, pollers).bytes(), options, lower)
    };
    let memory = memory as u64;
    let (least, ..) = with(LEAST_PART);
    if least > memory {
        let mut kept: Vec<_> = kept.iter().chain(options.kept()).copied().collect();
        kept.sort_unstable();
        kept.dedup();
        return Err(StartError::from_transport(trunkline_transport::StartError::MemoryLimit {
            limit: memory,
            least,
            kept,
        }));
    }
    // The ceiling at `fits` parts never exceeds `memory`.
    let (mut fits, mut exceeds) = (LEAST_PART, PARTS + 1);
    while exceeds - fits > 1 {
        let part = fits.midpoint(exceeds);
        if with(part).0 <= memory { fits = part } else { exceeds = part }
    }
    let (_, options, limits) = with(fits);
    Ok((options, limits))
}

/// Returns an error if a call's metadata exceeds the limit.
pub(crate) fn check_metadata(bytes: usize, most: usize) -> Result<(), Status> {
    if bytes <= most {
        return Ok(());
    }
    let text = format!("metadata of {bytes} bytes exceeds the limit of {most} (setting {METADATA_BYTES})");
    Err(Status::not_run(Code::ResourceExhausted, text).because(Reason::TooLarge))
}

/// The budgets of a node.
#[derive(Debug, Clone)]
pub(crate) struct Budgets {
    handlers: Arc<Budget>,
    calls: Arc<Budget>,
    decoded: Arc<Budget>,
    waiting_replies: Arc<Budget>,
    /// Share of the decoded arguments, for threads other than pollers.
    pub(crate) memory: SharedMemory,
    /// Maximum size of one decoded reply, in bytes.
    pub(crate) most_decoded: usize,
    /// Maximum size of one call's metadata in each direction, in bytes.
    pub(crate) most_metadata: usize,
}

impl Budgets {
    /// Creates the budgets of a node with this number of pollers.
    pub(crate) fn new(limits: Limits, pollers: u16, hosts: &Arc<PeerHosts>) -> Self {
        let budget = |name, limit| Budget::new(name, limit, pollers, hosts);
        let decoded = Budget::new(ARGUMENTS, limits.decoded, pollers.saturating_add(1), hosts);
        Self {
            handlers: budget("running handlers", limits.handlers),
            calls: budget("calls under way", limits.calls),
            waiting_replies: budget("bytes of replies that wait", limits.waiting_replies),
            memory: Arc::new(Lock::new(Share::new(&decoded, pollers))),
            decoded,
            most_decoded: limits.decoded.per_peer,
            most_metadata: limits.metadata,
        }
    }

    /// Returns a poller's share of the budget for running handlers.
    pub(crate) fn handlers(&self, poller: PollerIndex) -> Share {
        Share::new(&self.handlers, poller.0)
    }

    /// Returns a poller's share of the budget for calls in flight.
    pub(crate) fn calls(&self, poller: PollerIndex) -> Share {
        Share::new(&self.calls, poller.0)
    }

    /// Returns a poller's share of the budget for decoded arguments.
    pub(crate) fn arguments(&self, poller: PollerIndex) -> Share {
        Share::new(&self.decoded, poller.0)
    }

    /// Returns a poller's share of the budget for replies that wait for room in the message queue.
    pub(crate) fn waiting_replies(&self, poller: PollerIndex) -> Share {
        Share::new(&self.waiting_replies, poller.0)
    }

    pub(crate) fn report(&self) -> [BudgetReport; 4] {
        [&self.handlers, &self.decoded, &self.waiting_replies, &self.calls].map(|budget| budget.report())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(
        memory: usize,
        options: NodeOptions,
        pollers: u16,
    ) -> Result<(NodeOptions, Limits), StartError> {
        divide(memory, options.pollers(pollers), Limits::default(), &[], pollers)
    }

    #[test]
    fn ceiling_matches_documents() {
        let sum = ceiling(&NodeOptions::new(), &Limits::default(), 1).bytes();
        let budgets = include_str!("../../../docs/book/src/reference/budgets.md");
        assert_eq!(sum.div_ceil(1_000_000), 4_666);
        assert!(budgets.contains("| sum | | 4,666 MB |"));
    }

    #[test]
    fn memory_limit_bounds_ceiling_in_proportions_of_defaults() {
        let defaults = Limits::default();
        for pollers in [1, 2, 4, 32] {
            for mib in (512..6_000).step_by(173) {
                let memory = mib << 20;
                let Ok((options, limits)) = divided(memory, NodeOptions::new(), pollers) else {
                    // Memory per poller is 19 MB of buffers plus 25 MB.
                    assert!(
                        memory < 480_000_000 + usize::from(pollers) * 50_000_000,
                        "{mib} MiB, {pollers} pollers"
                    );
                    continue;
                };
                let sum = ceiling(&options, &limits, pollers).bytes();
                assert!(sum <= memory as u64, "{mib} MiB, {pollers} pollers: {sum}");
                assert!(options.check().is_ok() && limits.check().is_ok(), "{mib} MiB, {pollers} pollers");
                assert_eq!(limits.waiting_replies, options.queued_bytes_limit());
                let part = |limit: Limit, whole: Limit| limit.in_all * 1_000 / whole.in_all;
                let of_handlers = part(limits.handlers, defaults.handlers);
                assert!(of_handlers.abs_diff(part(limits.calls, defaults.calls)) <= 1);
                assert!(of_handlers.abs_diff(part(limits.decoded, defaults.decoded)) <= 1);
                // The sum uses at least 99 % of the memory, or all limits are at their defaults.
                assert!(
                    sum > memory as u64 * 99 / 100 || of_handlers == 1_000,
                    "{mib} MiB, {pollers} pollers: {sum}"
                );
            }
        }
    }

    #[test]
    fn memory_limit_keeps_explicit_settings() {
        let own = Limit { per_peer: 70 << 20, in_all: 300 << 20 };
        let options = NodeOptions::new().queued_bytes(own).srq_depth_limit(4_096).rendezvous_bytes(200 << 20);
        let limits =
            Limits { calls: Limit { per_peer: 7, in_all: 70 }, waiting_replies: own, ..Limits::default() };
        let memory = 2_000 << 20;
        let (options, limits) = divide(memory, options, limits, &["call_limit"], 1).unwrap();
        assert_eq!((limits.calls.per_peer, limits.calls.in_all), (7, 70));
        assert_eq!((options.queued_bytes_limit(), limits.waiting_replies), (own, own));
        let other = divided(memory, NodeOptions::new(), 1).unwrap().1;
        assert_ne!(limits.handlers, other.handlers, "the rest is divided");
        let sum = ceiling(&options, &limits, 1).bytes();
        assert!(sum <= memory as u64 && sum > memory as u64 * 99 / 100, "{sum}");
    }

    #[test]
    fn too_small_memory_limit_is_refused_with_minimum() {
        let refused = |memory, options| divided(memory, options, 1).expect_err("it is too small").to_string();
        let text = refused(1_000, NodeOptions::new());
        let (_, least) = text.split_once("memory_limit = 1000 is too small: choose ").expect(&text);
        let least: usize = least.split(' ').next().unwrap().parse().expect(&text);
        assert!(text.ends_with("lower max_message_bytes, pollers or srq_depth"), "{text}");
        assert!(divided(least, NodeOptions::new(), 1).is_ok());
        assert!(refused(least - 1, NodeOptions::new()).contains(&format!("choose {least} or more")));
        let small = NodeOptions::new().max_message_bytes(1 << 20);
        assert!(divided(256 << 20, small.clone(), 1).is_ok(), "room for messages takes most");
        let kept = small.large_messages(Limit { per_peer: 1, in_all: 1 << 20 });
        assert!(refused(256 << 20, kept).ends_with("what the program sets itself: large_messages"));
    }

    #[test]
    fn limits_out_of_range_are_refused_with_name_and_value() {
        type Set = fn(&mut Limits, Limit);
        let with = |set: Set, per_peer, in_all| {
            let mut limits = Limits::default();
            set(&mut limits, Limit { per_peer, in_all });
            limits.check()
        };
        assert!(Limits::default().check().is_ok());
        let metadata = |metadata| Limits { metadata, ..Limits::default() }.check();
        assert!(metadata(0).is_ok() && metadata(MOST_METADATA).is_ok());
        let text = metadata(MOST_METADATA + 1).expect_err("it is too large").to_string();
        assert!(text.starts_with("metadata_bytes = 1048577 is out of range: "), "{text}");
        let settings: [(Set, &str, usize); 4] = [
            (|limits, limit| limits.handlers = limit, "handler_limit", 1),
            (|limits, limit| limits.calls = limit, "call_limit", 1),
            (|limits, limit| limits.decoded = limit, "decoded_bytes", 64 << 10),
            (|limits, limit| limits.waiting_replies = limit, "queued_bytes", 64 << 10),
        ];
        for (set, name, least) in settings {
            assert!(with(set, least, least).is_ok(), "{name}");
            let max = usize::MAX;
            for (per_peer, in_all, value) in [
                (0, 0, 0),
                (0, max, 0),
                (least, least - 1, least - 1),
                (max, least, least),
                (least, max, max),
            ] {
                let text = with(set, per_peer, in_all).expect_err(name).to_string();
                assert!(text.starts_with(&format!("{name} = {value} is out of range: ")), "{text}");
            }
        }
    }
}
