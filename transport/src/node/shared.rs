//! State that the threads of a node share: the pools, the budgets, the handle of the CM machine, and the current
//! device.
#![forbid(unsafe_code)]

#[cfg(feature = "identity")]
use crate::PeerIdentity;
use crate::budget::NodeBudgets;
use crate::buffer::{BlockPool, Registry};
use crate::command::{CmHandle, PollerHandle};
#[cfg(feature = "identity")]
use crate::identity::Credentials;
use crate::node::incarnation::DeviceShared;
use crate::node::stops::Stops;
use crate::peer::epochs::Epochs;
use crate::report::{NodeEvents, SessionQps, Traffic};
use crate::{BudgetReport, PeerHosts};
use std::net::SocketAddr;
#[cfg(feature = "identity")]
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "identity")]
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_verbs::{Counter, Time};

/// Numbers of existing objects of each kind.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) ini: AtomicU32,
    pub(crate) tgt: AtomicU32,
    /// Token that the pollers and the CM machine clone and hold until they are dropped.
    machines: Alive,
}

/// Token that a machine holds from before its creation until it is dropped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Alive(Arc<()>);

impl Gauges {
    /// Returns the token for a machine that is about to be started.
    pub(crate) fn machine(&self) -> Alive {
        self.machines.clone()
    }

    /// Returns true if all started machines have ended.
    pub(crate) fn is_ended(&self) -> bool {
        Arc::strong_count(&self.machines.0) == 1
    }
}

/// Limits that a node was started with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_message_bytes: usize,
    /// Silence after which a peer is probed, in milliseconds, while work waits for it.
    pub(crate) keepalive_ms: u64,
    /// Longest time that a poller polls after an event.
    pub(crate) poll_for: Duration,
    /// Silence after which an idle peer is probed, in milliseconds.
    pub(crate) idle_keepalive_ms: u64,
    /// Time without an acknowledgement after which a peer's session ends.
    pub(crate) session_loss_time: Duration,
    /// Time after which a stalled peer's session ends.
    pub(crate) stall_ms: u64,
    /// True if sessions may begin with a handshake.
    pub(crate) handshakes: bool,
}

/// The current device, for observers. The CM machine and the pollers hold their parts separately.
#[derive(Debug, Default)]
pub(crate) struct CurrentDevice(RwLock<Known>);

/// Facts about the device that reports contain, also while it is away.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) provider: &'static str,
    pub(crate) why: String,
    pub(crate) connections: &'static str,
    pub(crate) connections_why: String,
    pub(crate) name: String,
    pub(crate) link: String,
    /// Number of devices that the node has had, including the current one.
    pub(crate) incarnations: u64,
    /// Time at which the device was removed, while it is away.
    pub(crate) removed_since: Option<Time>,
}

#[derive(Debug, Default)]
struct Known {
    device: Option<Arc<DeviceShared>>,
    facts: Facts,
    /// Counters of earlier devices.
    earlier: Vec<Counter>,
}

impl CurrentDevice {
    pub(crate) fn get(&self) -> Option<Arc<DeviceShared>> {
        self.read().device.clone()
    }

    pub(crate) fn facts(&self) -> Facts {
        self.read().facts.clone()
    }

    /// Returns the counters of all devices that the node has had.
    pub(crate) fn counters(&self) -> Vec<Counter> {
        let known = self.read();
        let mut all = known.device.as_ref().map(|device| device.device.counters()).unwrap_or_default();
        add(&mut all, &known.earlier);
        all
    }

    fn set(&self, device: Arc<DeviceShared>) {
        let mut known = self.write();
        let attributes = device.device.attributes();
        known.facts = Facts {
            provider: device.provider,
            why: device.why.clone(),
            connections: device.connections.name(),
            connections_why: device.connections_why.clone(),
            name: attributes.name.clone(),
            link: attributes.link.clone(),
            incarnations: known.facts.incarnations + 1,
            removed_since: None,
        };
        known.device = Some(device);
    }

    /// Records that the device was removed.
    pub(crate) fn lost(&self, now: Time) {
        self.write().facts.removed_since = Some(now);
    }

    fn release(&self) {
        let mut known = self.write();
        let Some(device) = known.device.take() else { return };
        add(&mut known.earlier, &device.device.counters());
        drop(known);
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(to: &mut Vec<Counter>, more: &[Counter]) {
    for counter in more {
        match to.iter_mut().find(|known| known.name == counter.name) {
            Some(known) => known.value += counter.value,
            None => to.push(counter.clone()),
        }
    }
}

/// Identity of the node, with the counters for its report.
#[cfg(feature = "identity")]
#[derive(Debug)]
pub(crate) struct OwnIdentity {
    credentials: Mutex<OwnCredentials>,
    pub(crate) handshakes_begun: AtomicU64,
    pub(crate) handshakes_failed: AtomicU64,
    /// Sessions that came up with a proven name.
    pub(crate) sessions_proven: AtomicU64,
    /// Repeated proofs in sessions that are up.
    pub(crate) renewals: AtomicU64,
    /// Sessions that came up with a local user.
    pub(crate) sessions_local: AtomicU64,
    /// Sessions that came up with a peer that is neither proven nor a local user.
    pub(crate) sessions_unproven: AtomicU64,
}

/// Current credentials, with the state of the expiry warnings.
#[cfg(feature = "identity")]
#[derive(Debug)]
struct OwnCredentials {
    credentials: Arc<Credentials>,
    /// Tenths of the certificate's lifetime that were left at the last warning; `WARNED_TENTHS` plus 1 before the first
    /// warning.
    warned: u64,
}

/// Remaining tenths of a certificate's lifetime at which the log first warns.
#[cfg(feature = "identity")]
const WARNED_TENTHS: u64 = 2;

#[cfg(feature = "identity")]
impl OwnCredentials {
    fn new(credentials: Arc<Credentials>) -> Self {
        Self { credentials, warned: WARNED_TENTHS + 1 }
    }

    /// Returns the remaining part of the certificate's lifetime in percent, rounded down, if another warning is needed.
    fn warning(&mut self, left: Duration) -> Option<u64> {
        let [start, end] =
            [self.credentials.not_before, self.credentials.not_after].map(|time| time.as_secs());
        let (left, life) = (left.as_secs(), end.saturating_sub(start).max(1));
        let tenths = left.saturating_mul(10).div_ceil(life);
        (tenths < self.warned).then(|| {
            self.warned = tenths;
            left.saturating_mul(100) / life
        })
    }
}

#[cfg(feature = "identity")]
impl OwnIdentity {
    pub(crate) fn new(credentials: Arc<Credentials>) -> Self {
        let zero = AtomicU64::default;
        Self {
            credentials: Mutex::new(OwnCredentials::new(credentials)),
            handshakes_begun: zero(),
            handshakes_failed: zero(),
            sessions_proven: zero(),
            sessions_local: zero(),
            renewals: zero(),
            sessions_unproven: zero(),
        }
    }

    pub(crate) fn replace(&self, credentials: Arc<Credentials>) {
        *self.own() = OwnCredentials::new(credentials);
    }

    /// Returns the time until the first certificate of the node's chain expires; zero afterwards.
    pub(crate) fn expires_in(&self) -> Duration {
        self.own().credentials.expires_in()
    }

    /// Warns once when a fifth of the certificate's lifetime is left, once when a tenth is left, and once when it has
    /// expired.
    pub(crate) fn warn_of_end(&self) {
        let mut own = self.own();
        let left = own.credentials.expires_in();
        let percent_left = own.warning(left);
        // Unlock first: a subscriber may request a report.
        drop(own);
        match percent_left {
            None => {}
            Some(_) if left.is_zero() => {
                tracing::warn!(
                    remedy = "renew the certificate",
                    "certificate of this node has expired; peers refuse new sessions"
                );
            }
            Some(percent_left) => {
                let hours_left = left.as_secs() / 3600;
                tracing::warn!(
                    hours_left,
                    percent_left,
                    remedy = "renew the certificate",
                    "certificate of this node expires soon"
                );
            }
        }
    }

    fn own(&self) -> MutexGuard<'_, OwnCredentials> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a session that came up.
    pub(crate) fn count_session(&self, identity: &PeerIdentity) {
        let counter = match identity {
            PeerIdentity::Unproven => &self.sessions_unproven,
            PeerIdentity::LocalUser(_) => &self.sessions_local,
            PeerIdentity::Proven(_) => &self.sessions_proven,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> [Counter; 6] {
        [
            ("handshakes_begun", &self.handshakes_begun),
            ("handshakes_failed", &self.handshakes_failed),
            ("handshakes_renewed", &self.renewals),
            ("sessions_proven", &self.sessions_proven),
            ("sessions_local", &self.sessions_local),
            ("sessions_unproven", &self.sessions_unproven),
        ]
        .map(|(name, value)| Counter { name, value: value.load(Ordering::Relaxed) })
    }
}

/// State shared by the pollers, the CM machine and the handle of the node.
#[derive(Debug)]
pub(crate) struct NodeShared {
    /// Runtime of the node's machines, with their clock and their source of randomness.
    pub(crate) runtime: Runtime,
    /// Epochs of this node, one random number per peer. They stay the same when the device is replaced.
    pub(crate) epochs: Epochs,
    /// Number of requests without proof of the address, which were refused with a cookie.
    pub(crate) unproven: AtomicU64,
    /// Number of cookies that were not returned, counted at most once per host in 5 s, and number of unanswered
    /// dial-backs.
    pub(crate) cookies_unanswered: AtomicU64,
    pub(crate) dial_backs_unanswered: AtomicU64,
    /// `None` if the node has no identity.
    #[cfg(feature = "identity")]
    pub(crate) identity: Option<OwnIdentity>,
    /// Number of ignored frames of unknown kinds.
    pub(crate) unknown_frames: AtomicU64,
    pub(crate) limits: Limits,
    pub(crate) device: CurrentDevice,
    pub(crate) pollers: Vec<PollerHandle>,
    pub(crate) cm: CmHandle,
    /// Memory for messages that peers READ.
    pub(crate) sources: Arc<BlockPool>,
    /// Memory for messages that this node READs.
    pub(crate) sinks: Arc<BlockPool>,
    /// Memory of the application's registered buffers.
    pub(crate) buffers: Arc<BlockPool>,
    /// Budgets for the other resources that peers can occupy.
    pub(crate) budgets: NodeBudgets,
    pub(crate) hosts: Arc<PeerHosts>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) traffic: Traffic,
    pub(crate) session_qps: SessionQps,
    pub(crate) gauges: Gauges,
    pub(crate) stops: Stops,
    pub(crate) events: Arc<NodeEvents>,
    /// First listening address, once bound.
    pub(crate) local_address: OnceLock<SocketAddr>,
}

impl NodeShared {
    /// Opens the pools, which register their memory with `device`.
    pub(crate) fn open(&self, device: &Arc<DeviceShared>) {
        for pool in [&self.sources, &self.sinks, &self.buffers] {
            pool.open(Arc::clone(&device.pd));
        }
        self.hosts.open(&device.device);
        self.device.set(Arc::clone(device));
    }

    /// Releases the device, which was removed and is no longer used. Keys become invalid, and buffers of the
    /// application become plain memory.
    pub(crate) fn release(&self) {
        for pool in [&self.sources, &self.sinks, &self.buffers] {
            pool.close();
        }
        self.registry.clear();
        self.device.release();
    }

    /// Returns the reports of all budgets.
    pub(crate) fn budgets(&self) -> Vec<BudgetReport> {
        let pools = [self.sinks.report(), self.sources.report()];
        self.budgets.report().chain(pools).collect()
    }
}

impl Drop for NodeShared {
    fn drop(&mut self) {
        // Close the pools, so that blocks held by the application do not keep the device open.
        for pool in [&self.sources, &self.sinks, &self.buffers] {
            pool.close();
        }
    }
}

#[cfg(test)]
#[cfg(feature = "identity")]
mod tests {
    use super::*;
    use crate::identity::tests::node_credentials;

    #[test]
    fn certificate_expiry_is_warned_of_once_per_stage() {
        let mut own = OwnCredentials::new(Arc::new(node_credentials("a.example")));
        let life = own.credentials.not_after.as_secs() - own.credentials.not_before.as_secs();
        assert_eq!(life, 4 * 365 * 86_400 + 86_400, "it is valid from 2026 to 2030");
        let mut at = |percent: u64| own.warning(Duration::from_secs(life * percent / 100));
        let warnings = [100, 21, 20, 15, 11, 10, 10, 1, 0, 0].map(&mut at);
        own.warned = 3;
        assert_eq!(own.warning(Duration::from_secs(life * 2 / 100)), Some(2), "the rest, not the stage");
        assert_eq!(warnings, [None, None, Some(20), None, None, Some(10), None, None, Some(0), None]);
    }
}
