//! A node: pollers, the CM thread and what they share, as one handle.
//!
//! Starting makes everything that can fail on the caller's thread, so that errors have somebody
//! to go to. The order matters: receives are posted before anybody can connect.
#![forbid(unsafe_code)]

use crate::buffer::{BlockPool, RegisteredBuffer, Registry};
use crate::incarnation::{self, Opened, PollerDevice};
use crate::options::NodeOptions;
use crate::poller::command::Command;
use crate::poller::handle::PollerHandle;
use crate::poller::{Guard, Parts, Poller, WAKER};
use crate::provider;
use crate::report::{NodeReport, Traffic};
use crate::session::cm_thread::{self, CmCommand, CmThread};
use crate::session::private_data::MAX_POLLERS;
use crate::shared::{CurrentDevice, Directory, Gauges, Limits, NodeShared};
use crate::{PollerIndex, StartError, Upper, affinity};
use mio::{Poll, Waker};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trunkline_verbs::Access;

/// A head of a message that must fit beside its body within `rendezvous_bytes`.
const HEAD_ROOM: usize = 64 << 10;
/// How long dropping a node waits for what is under way.
const DROP_GRACE: Duration = Duration::from_millis(200);

/// A running node. Dropping it shuts it down.
pub struct Node {
    shared: Arc<NodeShared>,
    threads: Vec<JoinHandle<()>>,
    cpus: usize,
}

impl Node {
    /// Starts a node. `factory` runs once on each poller's thread and makes its upper half, which
    /// need not be `Send`.
    ///
    /// # Errors
    /// The cause and what to do about it.
    pub fn start<U, F>(options: NodeOptions, factory: F) -> Result<Self, StartError>
    where
        U: Upper,
        F: Fn(PollerIndex) -> U + Send + Sync + 'static,
    {
        check(&options)?;
        let Opened { shared: device, pollers, listen } = incarnation::open(&options, &options.listen)?;
        let device = Arc::new(device);
        let cpus = affinity::usable_cpus();
        let mut parts = Vec::new();
        for (index, own) in (0..options.pollers).zip(pollers) {
            let cpu = affinity::cpu_for(&options.pinning, index, options.pollers, &cpus);
            parts.push((make_parts(PollerIndex(index), own, cpu.is_some())?, cpu));
        }
        let (cm_poll, cm) = cm_thread::prepare().map_err(os("make an event queue"))?;
        let shared = Arc::new(NodeShared {
            epoch: random().max(1),
            limits: Limits {
                max_message_bytes: options.max_message_bytes,
                keepalive_ms: u64::try_from(options.keepalive.as_millis()).unwrap_or(u64::MAX),
                ack_timeout: options.ack_timeout,
            },
            device: CurrentDevice::default(),
            pollers: parts.iter().map(|(part, _)| part.handle.clone()).collect(),
            cm: cm.clone(),
            sources: BlockPool::new(Access::REMOTE_READ, options.rendezvous_bytes),
            sinks: BlockPool::new(Access::LOCAL_WRITE, options.rendezvous_bytes),
            buffers: BlockPool::new(Access::REMOTE_READ, usize::MAX),
            registry: Arc::new(Registry::default()),
            peers: Mutex::new(Directory::default()),
            traffic: Traffic::default(),
            gauges: Gauges::default(),
            local_address: OnceLock::new(),
        });
        shared.open(&device);
        let mut node = Self { shared, threads: Vec::new(), cpus: cpus.len() };
        node.start_pollers(parts, factory)?;
        let listening = incarnation::listen(&device, &listen)?;
        if let Some(first) = listening.listeners.first() {
            let _ = node.shared.local_address.set(first.local_address());
        }
        let thread = CmThread::new(Arc::clone(&node.shared), (cm_poll, cm), options, device, listening)
            .map_err(os("wait for connection events"))?;
        node.spawn("trunkline-cm".to_owned(), move || thread.run())?;
        Ok(node)
    }

    fn start_pollers<U, F>(
        &mut self,
        parts: Vec<(Parts, Option<usize>)>,
        factory: F,
    ) -> Result<(), StartError>
    where
        U: Upper,
        F: Fn(PollerIndex) -> U + Send + Sync + 'static,
    {
        let factory = Arc::new(factory);
        let (ready, started) = mpsc::channel();
        let count = parts.len();
        for (part, cpu) in parts {
            let (shared, factory, ready) = (Arc::clone(&self.shared), Arc::clone(&factory), ready.clone());
            self.spawn(format!("trunkline-poll-{}", part.index.0), move || {
                let _guard = Guard(Arc::clone(&shared));
                if let Some(cpu) = cpu {
                    affinity::pin(cpu);
                }
                let upper = factory(part.index);
                match Poller::new(part, shared, upper) {
                    Ok(poller) => {
                        let _ = ready.send(Ok(()));
                        drop(ready);
                        poller.run();
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })?;
        }
        drop(ready);
        for _ in 0..count {
            let died = || io::Error::other("its upper half panicked while it was made");
            started.recv().unwrap_or_else(|_| Err(died())).map_err(os("start a poller"))?;
        }
        Ok(())
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(name).spawn(run).map_err(os("start a thread"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens: the first of the addresses, with the port that it got.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        let unknown = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        self.shared.local_address.get().copied().unwrap_or(unknown)
    }

    /// Handles of its pollers, by index.
    #[must_use]
    pub fn poller_handles(&self) -> Vec<PollerHandle> {
        self.shared.pollers.clone()
    }

    /// Registered memory of `bytes` zero or left-over bytes, to fill and send without a copy.
    /// `None` when the machine has no memory left, or it cannot be registered, as while the device
    /// is away. When the device is removed, buffers stay as they are; they are then sent by a copy.
    #[must_use]
    pub fn buffer(&self, bytes: usize) -> Option<RegisteredBuffer> {
        let block = self.shared.buffers.take(bytes, None)?;
        Some(RegisteredBuffer::new(block, Arc::clone(&self.shared.registry)))
    }

    /// How it is and what it has done.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        let device = self.shared.device.get();
        let facts = self.shared.device.facts();
        let counters = self.shared.device.counters();
        let sum = |names: &[&str]| {
            counters.iter().filter(|counter| names.contains(&counter.name)).map(|counter| counter.value).sum()
        };
        let pollers = u16::try_from(self.shared.pollers.len()).unwrap_or(u16::MAX);
        NodeReport {
            provider: facts.provider,
            link: facts.link,
            device: facts.name,
            address: self.local_address(),
            gid_index: device
                .as_ref()
                .and_then(|device| provider::gid_index(device.device.as_ref(), self.local_address().ip())),
            why: facts.why,
            connections: facts.connections,
            connections_why: facts.connections_why,
            incarnations: facts.incarnations,
            removed_since: facts.removed_since,
            pollers,
            cpus: self.cpus,
            oversubscribed: affinity::is_oversubscribed(pollers, self.cpus),
            ini: self.shared.gauges.ini.load(Ordering::Relaxed),
            tgt: self.shared.gauges.tgt.load(Ordering::Relaxed),
            srqs: device.map_or(0, |device| u32::try_from(device.srqs.len()).unwrap_or(u32::MAX)),
            rnr: sum(&["rnr_nak_sent", "rnr_nak_received"]),
            retransmits: sum(&["retransmits"]),
            other_kind: sum(&["cm_refused_other_kind"]),
            traffic: self.shared.traffic.report(),
            counters,
        }
    }

    /// Ends it: upper halves are told, what is under way gets up to `grace` to finish, peers are
    /// told, threads are joined.
    pub fn shutdown(mut self, grace: Duration) {
        self.stop(grace);
    }

    fn stop(&mut self, grace: Duration) {
        if self.threads.is_empty() {
            return;
        }
        let deadline = Instant::now() + grace;
        for poller in &self.shared.pollers {
            poller.command(Command::Shutdown { deadline });
        }
        // Without a CM thread, because starting failed half way, nobody else says that it is over.
        if self.threads.len() <= self.shared.pollers.len() {
            for poller in &self.shared.pollers {
                poller.command(Command::End);
            }
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the node has panicked");
                self.shared.cm.command(CmCommand::Shutdown);
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop(DROP_GRACE);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("local_address", &self.local_address()).finish_non_exhaustive()
    }
}

fn os(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |cause| StartError::Os { doing, cause }
}

/// A random number from the standard library's own source.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Refuses options out of range.
fn check(options: &NodeOptions) -> Result<(), StartError> {
    let bad = |option, value: u64, remedy| Err(StartError::BadOption { option, value, remedy });
    if options.pollers == 0 || options.pollers > MAX_POLLERS {
        return bad("pollers", u64::from(options.pollers), "choose 1 to 32");
    }
    if !(16..=16_384).contains(&options.srq_depth) {
        return bad("srq_depth", u64::from(options.srq_depth), "choose 16 to 16384");
    }
    if options.max_message_bytes < HEAD_ROOM {
        let remedy = "the largest message must have at least 65536 bytes";
        return bad("max_message_bytes", options.max_message_bytes as u64, remedy);
    }
    if options.rendezvous_bytes < options.max_message_bytes.saturating_add(HEAD_ROOM) {
        let remedy = "it must hold the largest message (max_message_bytes) and 65536 bytes";
        return bad("rendezvous_bytes", options.rendezvous_bytes as u64, remedy);
    }
    if !(1..=31).contains(&options.ack_timeout) {
        return bad("ack_timeout", u64::from(options.ack_timeout), "choose 1 to 31; 15 is 134 ms");
    }
    if options.keepalive < Duration::from_millis(50) {
        let millis = u64::try_from(options.keepalive.as_millis()).unwrap_or(0);
        return bad("keepalive (ms)", millis, "choose 50 ms or more");
    }
    let open = options.listen.iter().find(|address| !address.ip().to_canonical().is_loopback());
    match open {
        Some(&address) if !options.allow_unauthenticated => Err(StartError::NotLoopback(address)),
        _ => Ok(()),
    }
}

/// What one poller needs, all but its thread.
fn make_parts(index: PollerIndex, device: PollerDevice, alone: bool) -> Result<Parts, StartError> {
    let poll = Poll::new().map_err(os("make an event queue"))?;
    let waker = Waker::new(poll.registry(), WAKER).map_err(os("make an event descriptor"))?;
    Ok(Parts { index, handle: PollerHandle::new(index, waker), poll, device, alone })
}
