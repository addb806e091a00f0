//! Requests from the coordinator to nodes, as a generated service.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use trunkline::{NodeReport, Status};

/// Protocol version, which must be equal on the coordinator and the nodes. Increment it when the messages change.
pub(super) const PROTOCOL: u32 = 2;
/// Time without a request from the coordinator after which a run ends.
pub(super) const LEASE: Duration = Duration::from_secs(5);
/// Payload of a small call, in bytes.
pub(super) const SMALL: usize = 64;

/// Maximum number of targets. This limit and the following ones bound the work that a node does for any peer that can
/// reach it.
pub(super) const MOST_TARGETS: usize = 1024;
const MOST_BYTES: u64 = 64 << 20;
const MOST_OUTSTANDING: u32 = 4096;
/// Maximum number of calls in flight to all targets together.
const MOST_CALLS: u64 = 65_536;
const MOST_UNDER_WAY: u64 = 1 << 30;
const MOST_SECONDS: f64 = 3600.0;

/// Service of a benchmark node.
#[trunkline::service(name = "trunkline.bench.Node", version = 1)]
pub(super) trait Control {
    /// Returns the program and the version of the node.
    async fn hello(&self) -> Result<Hello, Status>;

    /// Accepts a run unless another run is in progress, and connects to its targets. The run waits for
    /// [`Control::begin`].
    async fn prepare(&self, run: u64, load: Load) -> Result<(), Status>;

    /// Starts the calls of a run.
    async fn begin(&self, run: u64) -> Result<(), Status>;

    /// Returns true if the run is over and its results are ready. A run ends if the coordinator sends no request for 5 s.
    async fn is_over(&self, run: u64) -> Result<bool, Status>;

    /// Abandons a run.
    async fn release(&self, run: u64) -> Result<(), Status>;

    /// Returns the losses that the node has detected since it started.
    async fn losses(&self) -> Result<Losses, Status>;

    /// Returns the results of a finished run, and drops the run.
    async fn results(&self, run: u64) -> Result<Vec<Measured>, Status>;
}

/// Program and version of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    pub(super) version: String,
}

/// Calls that one node makes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Load {
    /// Addresses of other nodes.
    pub(super) targets: Vec<String>,
    pub(super) bytes: u64,
    /// Number of calls in flight to each target.
    pub(super) outstanding: u32,
    pub(super) seconds: f64,
    pub(super) one_way: bool,
    /// True if each target also receives calls of [`SMALL`] bytes, one at a time.
    pub(super) small_beside_bulk: bool,
    /// True if payloads are sent over TCP, in one stream per target, instead of in calls.
    pub(super) tcp: bool,
}

/// Results for the calls from a node to one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) target: String,
    /// Call times in nanoseconds, each with the number of calls that took this time.
    pub(super) times: Vec<(u64, u64)>,
    /// Calls per second, as the median over slices of the measured time.
    pub(super) per_s: f64,
    /// Payloads per second, as a mean over the measured time.
    pub(super) goodput_per_s: f64,
    /// Times of the small calls, in the format of `times`.
    pub(super) small: Vec<(u64, u64)>,
    /// Reason why the calls ended early.
    pub(super) failed: Option<String>,
}

/// Indications of lost packets, reported by a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Losses {
    pub(super) retransmits: u64,
    pub(super) timeouts: u64,
    /// RNR NAKs, both sent and received.
    pub(super) rnr: u64,
    /// Number of packets dropped by the device.
    pub(super) drops: u64,
}

impl Losses {
    /// Applies `of` to each pair of corresponding counters.
    pub(super) fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            retransmits: of(self.retransmits, other.retransmits),
            timeouts: of(self.timeouts, other.timeouts),
            rnr: of(self.rnr, other.rnr),
            drops: of(self.drops, other.drops),
        }
    }
}

impl From<&NodeReport> for Losses {
    fn from(report: &NodeReport) -> Self {
        // A dropped stale acknowledgement is not a loss.
        let is_drop = |name: &str| name.starts_with("drop_") && name != "drop_stale_psn";
        let drops = report.device_counters.iter().filter(|counter| is_drop(counter.name));
        Self {
            retransmits: report.retransmits,
            timeouts: report.counter("ack_timeouts").unwrap_or(0),
            rnr: report.rnr,
            drops: drops.map(|counter| counter.value).sum(),
        }
    }
}

impl Hello {
    /// Returns the description of this program.
    pub(super) fn own() -> Self {
        Self { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Rejects other versions, because their figures are not comparable.
    ///
    /// # Errors
    /// Returns an error with both versions if they differ.
    pub(super) fn check(&self) -> Result<(), String> {
        let own = Self::own();
        if *self == own {
            return Ok(());
        }
        let named = |hello: &Self| format!("version {} (protocol {})", hello.version, hello.protocol);
        Err(format!("it is trunkline-bench {}, this is {}; use the same on all", named(self), named(&own)))
    }
}

impl Load {
    /// Rejects a load that exceeds the limits of a node.
    ///
    /// # Errors
    /// Returns an error with the exceeded limit.
    pub(super) fn check(&self) -> Result<(), Status> {
        let calls = self.targets.len() as u64 * u64::from(self.outstanding);
        let is_in = self.targets.len() <= MOST_TARGETS
            && self.bytes <= MOST_BYTES
            && (1..=MOST_OUTSTANDING).contains(&self.outstanding)
            && calls <= MOST_CALLS
            && calls * self.bytes.max(1) <= MOST_UNDER_WAY
            && self.seconds > 0.0
            && self.seconds <= MOST_SECONDS;
        if is_in {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "a node calls at most {MOST_TARGETS} others, with {MOST_OUTSTANDING} calls of {MOST_BYTES} bytes under way to each, \
             {MOST_CALLS} calls and {MOST_UNDER_WAY} bytes to all, for {MOST_SECONDS} s"
        )))
    }

    /// Returns the duration of the calls before and of the calls after the measurement.
    pub(super) fn margin(&self) -> Duration {
        Duration::from_secs_f64((self.seconds / 4.0).clamp(0.2, 5.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline::report::EventCounter;

    fn load() -> Load {
        Load {
            targets: vec![String::new(); 4],
            bytes: 64,
            outstanding: 32,
            seconds: 1.0,
            one_way: false,
            small_beside_bulk: false,
            tcp: false,
        }
    }

    #[test]
    fn loads_beyond_limits_are_refused() {
        assert!(load().check().is_ok());
        for wrong in [
            Load { targets: vec![String::new(); MOST_TARGETS + 1], ..load() },
            Load { bytes: MOST_BYTES + 1, ..load() },
            Load { outstanding: 0, ..load() },
            Load { outstanding: MOST_OUTSTANDING + 1, ..load() },
            Load { targets: vec![String::new(); 17], outstanding: MOST_OUTSTANDING, ..load() },
            Load { bytes: MOST_BYTES, outstanding: 5, ..load() },
            Load { bytes: u64::MAX, ..load() },
            Load { seconds: 0.0, ..load() },
            Load { seconds: f64::NAN, ..load() },
            Load { seconds: f64::INFINITY, ..load() },
        ] {
            assert!(wrong.check().unwrap_err().message().contains("at most"), "{wrong:?}");
        }
    }

    #[test]
    fn different_version_or_protocol_is_refused() {
        assert_eq!(Hello::own().check(), Ok(()));
        for other in [
            Hello { protocol: PROTOCOL + 1, ..Hello::own() },
            Hello { version: "0.0.7".to_owned(), ..Hello::own() },
        ] {
            assert!(other.check().unwrap_err().contains(&other.version));
        }
    }

    #[test]
    fn losses_are_read_from_counters_of_device_and_node() {
        let mut report = NodeReport::forked("127.0.0.1:1".parse().unwrap());
        let counter = |name, value| EventCounter { name, value };
        report.device_counters =
            vec![counter("ack_timeouts", 3), counter("drop_bad_icrc", 2), counter("drop_stale_psn", 9)];
        (report.retransmits, report.rnr) = (7, 1);
        assert_eq!(Losses::from(&report), Losses { retransmits: 7, timeouts: 3, rnr: 1, drops: 2 });
    }
}
