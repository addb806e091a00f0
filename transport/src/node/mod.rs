//! A node, which is the handle for the pollers, the CM machine and the state that they share.
//!
//! Starting a node waits for all steps that can fail, so that their errors are returned. Receives are posted before a
//! peer can connect.
#![forbid(unsafe_code)]

mod affinity;
pub mod check;
mod error;
pub mod footprint;
mod in_process;
pub(crate) mod incarnation;
pub(crate) mod options;
pub(crate) mod shared;
pub(crate) mod stops;

pub use error::{ClientAddressCause, DeviceError, DriverFailure, StartError, TakenPort};
pub use in_process::InProcessNetwork;
pub use options::{NicOptions, NodeOptions, Pinning, ProviderChoice, Watch};

use crate::budget::{Budget, NodeBudgets};
use crate::buffer::{BlockPool, RegisteredBuffer, Registry};
use crate::command::{CmCommand, CmHandle, Command, PollerHandle};
#[cfg(feature = "identity")]
use crate::identity::Credentials;
use crate::peer::epochs::Epochs;
use crate::poller::{OfNode, Parts, Transport};
use crate::provider;
use crate::report::record::calendar;
use crate::report::{EventCounter, NodeEvents, NodeReport, SessionQps, Traffic, link_of};
use crate::session::cm_machine::CmMachine;
use crate::{Limit, PollerIndex};
use footprint::Footprint;
use incarnation::Opened;
#[cfg(feature = "identity")]
use shared::OwnIdentity;
use shared::{CurrentDevice, Gauges, Limits, NodeShared};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use stops::Stops;
use trunkline_machine::mutant;
use trunkline_machine::{Machine, MakeMachine, NotJoined, Running};
use trunkline_verbs::fork::Process;
use trunkline_verbs::internal_thread::ThreadNumber;
use trunkline_verbs::{Access, Time, headroom};

/// No limit on the memory of the application's own buffers.
const UNLIMITED: Limit = Limit { per_peer: usize::MAX, in_all: usize::MAX };
/// Time for which dropping a node waits for work in progress.
const DROP_GRACE: Duration = Duration::from_millis(200);
/// Time after the grace period at which threads that still run are abandoned. Closing the sessions, the device and the
/// pollers takes up to 1.5 s if peers do not answer or a poller cannot forward its frames.
const ABANDON_AFTER: Duration = Duration::from_secs(3);

/// A running node. Dropping it shuts it down.
pub struct Node {
    /// Process that runs the threads.
    process: Process,
    shared: Arc<NodeShared>,
    /// Threads that have not been joined, with the indices of their pollers. The joining thread holds the lock.
    machines: Mutex<Vec<(Option<PollerIndex>, Running)>>,
    /// Time at which running threads are abandoned, in ns. Of several shutdowns, the earliest time applies.
    abandon_at: AtomicU64,
    /// Threads that drive the machines.
    threads: Vec<ThreadNumber>,
    /// True if the CM machine is among the threads.
    is_whole: bool,
    cpus: usize,
}

impl Node {
    /// Starts a node. `factory` runs once on each poller's thread and creates its driver, which need not be `Send`. The
    /// driver owns the poller's transport and runs its turns.
    ///
    /// # Errors
    /// Returns the cause and its remedy; [`StartError::Driver`] with the error of the factory.
    pub fn start<D, F>(options: NodeOptions, factory: F) -> Result<Self, StartError>
    where
        D: Machine + 'static,
        F: Fn(Transport) -> Result<D, DriverFailure> + Send + Sync + 'static,
    {
        options.check()?;
        options.check_memory(Footprint::default(), Footprint::default())?;
        has_headroom()?;
        headroom::tune_heap();
        let Opened { shared: device, pollers, listen } = incarnation::open(&options, &options.listens_on())?;
        let device = Arc::new(device);
        let runtime = options.runtime.clone();
        let cpus = if runtime.is_simulated() { vec![0] } else { affinity::usable_cpus() };
        let mut parts = Vec::new();
        for (index, device) in (0..options.pollers).zip(pollers) {
            let cpu = affinity::cpu_for(&options.pinning, index, options.pollers, &cpus);
            let (sleeper, waker) = runtime.sleeper().map_err(os("make an event queue"))?;
            let index = PollerIndex(index);
            parts.push((Parts { index, handle: PollerHandle::new(index, waker), sleeper, device }, cpu));
        }
        let (cm_sleeper, waker) = runtime.sleeper().map_err(os("make an event queue"))?;
        let cm = CmHandle::new(waker);
        let handles = parts.iter().map(|(part, _)| part.handle.clone()).collect();
        let shared = share(&options, handles, cm.clone());
        shared.open(&device);
        let mut node = Self {
            process: Process::current(),
            shared,
            machines: Mutex::default(),
            abandon_at: AtomicU64::new(u64::MAX),
            threads: Vec::new(),
            is_whole: false,
            cpus: cpus.len(),
        };
        node.start_pollers(parts, factory)?;
        let listening = incarnation::listen(&device, &options, &listen)?;
        if let Some(first) = incarnation::reachable_at(&device, &listening) {
            let _ = node.shared.local_address.set(first);
        }
        let machine = CmMachine::new(Arc::clone(&node.shared), cm_sleeper, cm, options, device, listening)
            .map_err(os("wait for connection events"))?;
        node.spawn("trunkline-cm", None, Box::new(move || Ok(Box::new(machine))))?;
        node.is_whole = true;
        has_headroom()?;
        Ok(node)
    }

    fn start_pollers<D, F>(
        &mut self,
        parts: Vec<(Parts, Option<usize>)>,
        factory: F,
    ) -> Result<(), StartError>
    where
        D: Machine + 'static,
        F: Fn(Transport) -> Result<D, DriverFailure> + Send + Sync + 'static,
    {
        let factory = Arc::new(factory);
        let failure = Arc::new(Mutex::new(None));
        for (part, cpu) in parts {
            let (factory, failed) = (Arc::clone(&factory), Arc::clone(&failure));
            let node = OfNode { shared: Arc::clone(&self.shared), alive: self.shared.gauges.machine() };
            let index = part.index;
            let name = format!("trunkline-poll-{}", index.0);
            let make = move || {
                if let Some(cpu) = cpu {
                    affinity::pin(cpu);
                }
                let driver = factory(Transport::new(part, node)?).map_err(|cause| {
                    // A simulation creates machines later, and fails with this text.
                    let text = format!("the driver of a poller cannot be made: {cause}");
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
                    io::Error::other(text)
                })?;
                Ok(Box::new(driver) as Box<dyn Machine>)
            };
            self.spawn(&name, Some(index), Box::new(make)).map_err(|error| {
                let cause = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                cause.map_or(error, StartError::Driver)
            })?;
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: &str,
        poller: Option<PollerIndex>,
        make: MakeMachine,
    ) -> Result<(), StartError> {
        let running = self.shared.runtime.spawn(name, make).map_err(os("start a thread"))?;
        self.threads.extend(running.thread_number());
        self.machines.get_mut().unwrap_or_else(PoisonError::into_inner).push((poller, running));
        Ok(())
    }

    /// Returns the address at which the node is reached, which is its first listening address with the actual port.
    /// An unspecified address is replaced by the first address of the device at which the node is reached.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        let unknown = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        self.shared.local_address.get().copied().unwrap_or(unknown)
    }

    /// Returns the handles of the node's pollers, by index.
    #[must_use]
    pub fn poller_handles(&self) -> Vec<PollerHandle> {
        self.shared.pollers.clone()
    }

    /// Returns registered memory of `bytes` bytes, to fill and send without a copy. It initially contains zeros or
    /// bytes from an earlier use. Returns `None` if memory is exhausted or cannot be registered, for example while
    /// the device is away. When the device is removed, buffers keep their contents, which are then copied when sent.
    #[must_use]
    pub fn buffer(&self, bytes: usize) -> Option<RegisteredBuffer> {
        if self.process.is_forked() {
            return None;
        }
        let block = self.shared.buffers.take(bytes, None, None).ok()?;
        Some(RegisteredBuffer::new(block, Arc::clone(&self.shared.registry)))
    }

    /// Replaces the credentials of a node that has an identity. New handshakes use them; sessions and handshakes in
    /// progress continue.
    #[cfg(feature = "identity")]
    pub fn set_credentials(&self, credentials: Arc<Credentials>) {
        self.shared.cm.command(CmCommand::Credentials(credentials));
    }

    /// Returns a report of the node's state and work.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        if self.process.is_forked() {
            return NodeReport::forked(self.local_address());
        }
        let device = self.shared.device.get();
        let facts = self.shared.device.facts();
        let of_device = self.shared.device.counters();
        let sum = |names: &[&str]| {
            of_device
                .iter()
                .filter(|counter| names.contains(&counter.name))
                .map(|counter| counter.value)
                .sum()
        };
        let pollers = u16::try_from(self.shared.pollers.len()).unwrap_or(u16::MAX);
        let paths = self.shared.session_qps.report();
        NodeReport {
            provider: facts.provider,
            link: link_of(paths.iter().map(|path| path.path), facts.link),
            device: facts.name,
            address: self.local_address(),
            gid_index: device
                .as_ref()
                .and_then(|device| provider::gid_index(device.device.as_ref(), self.local_address().ip())),
            why: facts.why,
            connections: facts.connections,
            connections_why: facts.connections_why,
            incarnations: facts.incarnations,
            #[cfg(feature = "identity")]
            certificate_expires_in: self.shared.identity.as_ref().map(OwnIdentity::expires_in),
            #[cfg(not(feature = "identity"))]
            certificate_expires_in: None,
            removed_since: facts.removed_since.map(|at| calendar(self.shared.runtime.clock(), at)),
            pollers,
            cpus: self.cpus,
            oversubscribed: affinity::is_oversubscribed(pollers, self.cpus),
            ini: self.shared.gauges.ini.load(Ordering::Relaxed),
            tgt: self.shared.gauges.tgt.load(Ordering::Relaxed),
            srqs: device.map_or(0, |device| u32::try_from(device.srqs.len()).unwrap_or(u32::MAX)),
            rnr: sum(&["rnr_nak_sent", "rnr_nak_received"]),
            retransmits: sum(&["retransmits"]),
            other_kind: sum(&["cm_refused_other_kind"]),
            budgets: self.shared.budgets(),
            limits: Vec::new(),
            served: Vec::new(),
            called: Vec::new(),
            paths,
            servers: Vec::new(),
            traffic: self.shared.traffic.report(),
            counters: self.counters(),
            device_counters: of_device.into_iter().map(EventCounter::from).collect(),
        }
    }

    /// Returns the node's counters, without the counters of its device.
    fn counters(&self) -> Vec<EventCounter> {
        let shared = &self.shared;
        let counters = [
            ("session_refused_unproven", &shared.unproven),
            ("session_cookies_unanswered", &shared.cookies_unanswered),
            ("session_dial_backs_unanswered", &shared.dial_backs_unanswered),
            ("frames_of_unknown_kind", &shared.unknown_frames),
        ];
        let counters =
            counters.map(|(name, value)| EventCounter { name, value: value.load(Ordering::Relaxed) });
        #[cfg(feature = "identity")]
        let counters =
            shared.identity.iter().flat_map(OwnIdentity::counters).map(EventCounter::from).chain(counters);
        Vec::from_iter(counters)
    }

    /// Shuts the node down. Drivers are notified, work in progress gets up to `grace` to finish, and peers are
    /// notified. Returns when the shutdown is complete. In a simulation, or on a thread of this node, returns
    /// immediately, like [`Node::begin_shutdown`].
    ///
    /// Returns the pollers whose driver did not return within 3 s after the grace period. Their threads and
    /// resources remain until the driver returns.
    ///
    /// Has no effect in a forked child, since the threads and their resources belong to the parent.
    pub fn shutdown(&self, grace: Duration) -> Vec<PollerIndex> {
        if self.process.is_forked() {
            return Vec::new();
        }
        self.begin_shutdown(grace);
        // The start failed halfway, so there is no CM machine to end the threads.
        if !self.is_whole {
            for poller in &self.shared.pollers {
                poller.command(Command::End);
            }
        }
        // The thread would wait for itself.
        if self.threads.iter().any(|thread| thread.is_current()) {
            return Vec::new();
        }
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = self.shared.runtime.clock();
        let left = || Time(self.abandon_at.load(Ordering::Relaxed)).saturating_duration_since(clock.now());
        let mut abandoned = Vec::new();
        for (poller, machine) in machines.drain(..) {
            match machine.join_within(left) {
                Ok(()) => {}
                Err(NotJoined::Panicked) => {
                    tracing::error!("thread of the node panicked");
                    self.shared.cm.command(CmCommand::Shutdown);
                }
                Err(NotJoined::Abandoned) => match poller {
                    Some(poller) => abandoned.push(poller),
                    None => tracing::error!("CM thread not ended after the grace period; it is abandoned"),
                },
            }
        }
        abandoned
    }

    /// Begins a shutdown like [`Node::shutdown`], without waiting for it. The sessions are closed 50 ms after the grace
    /// period, even if a busy poller has not reported that it is ready. After several calls, the grace period that ends
    /// first applies.
    pub fn begin_shutdown(&self, grace: Duration) {
        if self.process.is_forked() {
            return;
        }
        let deadline = self.shared.runtime.clock().now() + grace;
        self.abandon_at.fetch_min((deadline + ABANDON_AFTER).0, Ordering::Relaxed);
        for poller in &self.shared.pollers {
            poller.command(Command::Shutdown { deadline });
        }
        self.shared.cm.command(CmCommand::ShutDownBy { deadline });
    }

    /// Returns true if the node's machines have ended, after a shutdown or because one of them panicked.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.gauges.is_ended()
    }
}

/// Creates the state that the machines of a node share.
pub(crate) fn share(options: &NodeOptions, pollers: Vec<PollerHandle>, cm: CmHandle) -> Arc<NodeShared> {
    let runtime = options.runtime.clone();
    let hosts = options.peer_hosts.clone().unwrap_or_default();
    let events = options.events.clone().unwrap_or_else(|| Arc::new(NodeEvents::new(runtime.clock().clone())));
    let copied = Budget::new("bytes of large messages copied to be READ", options.rendezvous(), 1, &hosts);
    let sources = BlockPool::new(Access::REMOTE_READ, copied, runtime.clone());
    let seals = options.has_handshakes();
    Arc::new(NodeShared {
        epochs: if mutant!(epoch_is_always_the_same) { Epochs::constant() } else { Epochs::new(&runtime) },
        unproven: AtomicU64::new(0),
        cookies_unanswered: AtomicU64::new(0),
        dial_backs_unanswered: AtomicU64::new(0),
        #[cfg(feature = "identity")]
        identity: options.credentials.clone().map(OwnIdentity::new),
        unknown_frames: AtomicU64::new(0),
        runtime: runtime.clone(),
        limits: Limits {
            max_message_bytes: options.max_message_bytes,
            keepalive_ms: u64::try_from(options.keepalive().as_millis()).unwrap_or(u64::MAX),
            poll_for: options.poll_for,
            idle_keepalive_ms: u64::try_from(options.idle_keepalive.as_millis()).unwrap_or(u64::MAX),
            session_loss_time: options.session_loss_time,
            handshakes: options.has_handshakes(),
            stall_ms: u64::try_from(options.stall_limit.as_millis()).unwrap_or(u64::MAX),
        },
        device: CurrentDevice::default(),
        pollers,
        cm,
        sinks: sources.sibling(Access::LOCAL_WRITE, "bytes of large messages received", options.rendezvous()),
        buffers: sources.sibling(
            if seals { Access::LOCAL_WRITE } else { Access::REMOTE_READ },
            "bytes of the program's buffers",
            UNLIMITED,
        ),
        registry: Arc::new(if seals {
            Registry::per_message(Arc::clone(&sources))
        } else {
            Registry::default()
        }),
        sources,
        budgets: NodeBudgets::new(options.budgets, options.pollers, &hosts),
        hosts,
        traffic: Traffic::default(),
        session_qps: SessionQps::default(),
        gauges: Gauges::default(),
        stops: Stops::new(options.session_loss_time),
        events,
        local_address: OnceLock::new(),
    })
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.process.is_forked() {
            std::mem::forget(Arc::clone(&self.shared));
            return std::mem::forget(std::mem::take(&mut self.machines));
        }
        for poller in self.shutdown(DROP_GRACE) {
            tracing::error!(
                poller = poller.0,
                cause = "its driver does not return",
                "poller of a dropped node not ended; its thread is abandoned"
            );
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("local_address", &self.local_address()).finish_non_exhaustive()
    }
}

/// Returns an error if the next small allocation might end the process.
fn has_headroom() -> Result<(), StartError> {
    headroom::check(0).map_err(|cause| StartError::NoRoom { doing: "start a node", cause })
}

fn os(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |cause| StartError::Os { doing, cause }
}
