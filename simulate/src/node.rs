//! A simulated node: an address, a device, and a succession of processes.

use crate::coverage::EventKind;
use crate::identity::{Authority, PemFiles};
use crate::oracle::Certified;
use crate::plan::NodePlan;
use crate::scheduler::Scheduler;
use crate::workload::service::{
    ChainServer, FEW, Few, IdleServer, Idler, Link, PooledServer, QUEUED_JOBS, SharedClients, Thinker,
    WORKERS, WorkClient, WorkServer, Worker,
};
use crate::workload::streams::{FeedServer, Feeder};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Connections, Limit, Node, PathReport, ProviderChoice};
use trunkline_softrdma::device::{LinkChoice, PathChoice, Slot, SoftOptions};
use trunkline_softrdma::simulation::SimulatedProcess;
use trunkline_transport::NodeOptions;
use trunkline_verbs::Memory;

/// Number of concurrent large calls made by a hostile peer.
pub(crate) const LARGE_CALLS: u32 = 16;
/// Number of concurrent large calls made to a hostile peer.
pub(crate) const LENT_CALLS: u32 = 4;
/// Maximum number of memory regions of a node's device, in addition to `REGIONS_OF_POLLER` per poller. Each argument and
/// each reply of a large call uses a region until it has been READ.
const REGIONS: u32 = 2 * LARGE_CALLS + LENT_CALLS;
const REGIONS_OF_POLLER: u32 = 12;

/// Port of the first node. Each further node listens on the next port.
const FIRST_PORT: u16 = 7471;
/// Grace period of a shutdown.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

/// Memory limit for decoded arguments. Two calls that keep `client::TEXTS` fit per peer, and three per host. The part
/// left for growing windows has room for the large items of all streams in the phases without faults.
const DECODED_BYTES: Limit = Limit { per_peer: 800 << 10, in_all: 2560 << 10 };

/// Maximum number of queued messages. It exceeds the number of messages that clients send, but not the number of replies
/// that a hostile peer does not accept.
pub(crate) const QUEUED: Limit = Limit { per_peer: 256, in_all: 1024 };

/// A node in the run, which may be stopped.
pub(crate) struct SimNode {
    pub(crate) plan: NodePlan,
    rc: bool,
    /// Clients shared by the handlers and the program of the process.
    shared: SharedClients,
    pub(crate) address: SocketAddr,
    pub(crate) slot: Slot,
    /// Certificate of the node, if nodes in the run have identities.
    files: Option<PemFiles>,
    running: Option<Running>,
    /// Process that is shutting down.
    ending: Option<Running>,
}

struct Running {
    process: u64,
    /// Registration of the process with the simulated host.
    member: Arc<SimulatedProcess>,
    node: Rc<Node>,
}

impl SimNode {
    /// Creates a node that is not running.
    pub(crate) fn new(index: usize, plan: NodePlan, rc: bool, authority: Option<&mut Authority>) -> Self {
        let [upper, last] = u16::try_from(plan.host + 1).unwrap_or(u16::MAX).to_be_bytes();
        let port = FIRST_PORT + u16::try_from(index).unwrap_or(0);
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 7, 7 + upper, last)), port);
        Self {
            plan,
            rc,
            shared: SharedClients::default(),
            address,
            slot: Slot::new(),
            files: authority.map(|authority| authority.node(address)),
            running: None,
            ending: None,
        }
    }

    /// Replaces the certificate for later processes of the node.
    pub(crate) fn present(&mut self, files: PemFiles) {
        self.files = Some(files);
    }

    /// Creates clients for these servers, which the node's handlers share.
    pub(crate) fn share_clients(&self, servers: &[SocketAddr]) {
        let Some((_, node)) = self.running() else { return };
        for server in servers {
            if let Ok(client) = WorkClient::connect(node, *server) {
                self.shared.add(*server, client);
            }
        }
    }

    pub(crate) fn running(&self) -> Option<(u64, &Rc<Node>)> {
        self.running.as_ref().map(|running| (running.process, &running.node))
    }

    /// Returns the process that is running or shutting down.
    pub(crate) fn process(&self) -> Option<u64> {
        self.running.as_ref().or(self.ending.as_ref()).map(|running| running.process)
    }

    /// Starts the node unless it is running. If `stores` is given, the process dies after this number of stores to shared
    /// memory on its host.
    pub(crate) fn start(&mut self, scheduler: &mut Scheduler, stores: Option<u64>) {
        if self.running.is_some() {
            return;
        }
        if let Some(ending) = self.ending.take() {
            // A new start kills a process that is still shutting down.
            self.end(scheduler, ending);
        }
        self.slot.restore();
        let (process, runtime) = scheduler.process();
        scheduler.introduce(process, self.address);
        let member = scheduler.host(self.address.ip()).process();
        if let Some(stores) = stores {
            member.kill_after_stores(stores);
            scheduler.doom(process, Arc::clone(&member));
        }
        let device = SoftOptions {
            addresses: vec![self.address.ip()],
            link: LinkChoice::Simulated(Arc::clone(&member)),
            slot: Some(self.slot.clone()),
            runtime: runtime.clone(),
            path: if self.plan.shares_memory { PathChoice::Auto } else { PathChoice::Udp },
            max_shards: self.plan.shards,
            // The limit is low, so that a key that outlives its registration is detected.
            max_regions: Some(REGIONS + REGIONS_OF_POLLER * u32::from(self.plan.pollers)),
            ..SoftOptions::default()
        };
        let credentials = self.files.as_ref().map(|files| {
            let identity = Certified {
                address: self.address,
                names: files.names.clone(),
                exempts_local_user: self.plan.exempts_local_user,
            };
            scheduler.oracle.presents(process, identity);
            files.credentials(&runtime, self.plan.handshake)
        });
        let options = NodeOptions::new()
            .runtime(runtime)
            .device(device)
            .provider(ProviderChoice::Soft)
            .connections(if self.rc { Connections::Rc } else { Connections::Xrc })
            .srq_depth(self.plan.srq_depth)
            .max_message_bytes(512 << 10)
            .queued_messages(QUEUED)
            .rendezvous_bytes(self.plan.rendezvous_bytes)
            .session_loss_time(self.plan.session_loss_time);
        let options = match credentials {
            // In half of the runs, processes on one host are exempt from the handshake.
            Some(credentials) => options
                .credentials(credentials)
                .exempt_local_user(self.plan.exempts_local_user)
                .renew_after(self.plan.renew_after),
            None => options,
        };
        let options = match self.plan.srq_depth_limit {
            Some(depth) => options.srq_depth_limit(depth),
            None => options,
        };
        let run = scheduler.handling(process);
        let (thinker, feeder, timers) = (Thinker(run.clone()), Feeder(run.clone()), run.timers.clone());
        let (shared, few) = (self.shared.clone(), Few::default());
        let make = move |context: &trunkline::PollerContext| {
            let (run, poller) = (run.clone(), context.clone());
            Ok::<_, trunkline::Status>(Worker { run, poller, shared: shared.clone(), few: few.clone() })
        };
        let port = if self.plan.is_client { 0 } else { self.address.port() };
        let node = Node::builder()
            .transport(options)
            .listen(SocketAddr::new(self.address.ip(), port))
            .pollers(self.plan.pollers)
            .handler_limit(self.plan.handlers)
            .decoded_bytes(DECODED_BYTES);
        let node = match self.plan.calls {
            Some(calls) => node.call_limit(calls),
            None => node,
        };
        let node = match self.plan.queued_bytes {
            Some(bytes) => node.queued_bytes(bytes),
            None => node,
        };
        let link = move |context: &trunkline::PollerContext| {
            Ok::<_, trunkline::Status>(Link { poller: context.clone(), timers: timers.clone() })
        };
        let node = node.serve(ChainServer::per_poller(link)).serve(PooledServer::new(thinker));
        let node = node.serve(FeedServer::new(feeder)).workers(WORKERS).queued_jobs(QUEUED_JOBS);
        // Method numbers differ in every second process.
        let node = if process.is_multiple_of(2) { node } else { node.serve(IdleServer::new(Idler)) };
        let node = node.serve(WorkServer::per_poller(make).limit_few(FEW)).start();
        match node {
            Ok(node) => {
                self.address = node.local_address();
                scheduler.oracle.serves(self.address, process);
                self.running = Some(Running { process, member, node: Rc::new(node) });
            }
            Err(_) if !member.is_alive() => {
                scheduler.coverage.count(EventKind::StoresTorn);
                scheduler.kill(process);
            }
            Err(error) => {
                scheduler.oracle.fail(format!("a node does not start at {}: {error}", self.address))
            }
        }
    }

    pub(crate) fn kill(&mut self, scheduler: &mut Scheduler) {
        for running in [self.running.take(), self.ending.take()].into_iter().flatten() {
            scheduler.trace.line(scheduler.now(), "fault", format_args!("kill {}", self.address));
            scheduler.coverage.count(EventKind::NodeKilled);
            self.end(scheduler, running);
        }
    }

    /// Counts the events in a process, and removes it.
    fn end(&self, scheduler: &mut Scheduler, running: Running) {
        count_events(scheduler, &running);
        scheduler.oracle.disturbed(self.address);
        running.member.kill();
        scheduler.kill(running.process);
        drop(running);
    }

    /// Makes the process die after this number of further stores to shared memory. Returns false if the node is not
    /// running.
    pub(crate) fn tear(&self, scheduler: &mut Scheduler, stores: u64) -> bool {
        let Some(Running { process, member, .. }) = &self.running else { return false };
        member.kill_after_stores(stores);
        if !scheduler.is_doomed(*process) {
            scheduler.doom(*process, Arc::clone(member));
        }
        scheduler.coverage.count(EventKind::StoresTornUnderLoad);
        true
    }

    /// Makes the process overwrite one word in each shared area. Returns the number of areas.
    pub(crate) fn scribble(&self, choose: impl FnMut(usize) -> (usize, u64)) -> usize {
        self.running.as_ref().map_or(0, |running| running.member.scribble(choose))
    }

    /// Returns the areas that the process shares with other processes.
    pub(crate) fn areas(&self) -> Vec<Arc<Memory>> {
        self.running.as_ref().map_or_else(Vec::new, |running| running.member.areas())
    }

    /// Returns the maximum number of shards of the node's device.
    pub(crate) fn shards(&self) -> usize {
        self.plan.shards.unwrap_or(self.plan.pollers.into())
    }

    /// Returns a counter of the node or of its device.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let Some((_, node)) = self.running() else { return 0 };
        node.report().counter(name).unwrap_or(0)
    }

    pub(crate) fn paths_to(&self, address: IpAddr) -> Vec<PathReport> {
        let Some((_, node)) = self.running() else { return Vec::new() };
        node.report().paths.into_iter().filter(|path| path.address.host() == address).collect()
    }

    /// Begins to drain. The node keeps running.
    pub(crate) fn begin_drain(&self, scheduler: &Scheduler) {
        let Some((process, node)) = self.running() else { return };
        scheduler.trace.line(scheduler.now(), "fault", format_args!("drain {}", self.address));
        scheduler.oracle.disturbed(self.address);
        scheduler.oracle.drains(process);
        node.begin_drain();
    }

    pub(crate) fn begin_shutdown(&mut self, scheduler: &Scheduler) {
        self.begin_shutdown_within(scheduler, GRACE);
    }

    /// Begins to shut down the node with a different grace period.
    pub(crate) fn begin_shutdown_within(&mut self, scheduler: &Scheduler, grace: Duration) {
        let Some(running) = self.running.take() else { return };
        scheduler.trace.line(scheduler.now(), "fault", format_args!("shut down {}", self.address));
        scheduler.oracle.disturbed(self.address);
        scheduler.oracle.drains(running.process);
        running.node.begin_shutdown(grace);
        self.ending = Some(running);
    }

    /// Handles the end of a process, by shutdown or by death between two stores.
    pub(crate) fn settle(&mut self, scheduler: &mut Scheduler) {
        let is_dead = |running: &Running| !running.member.is_alive();
        if self.running.as_ref().or(self.ending.as_ref()).is_some_and(is_dead) {
            scheduler.coverage.count(EventKind::StoresTorn);
            self.kill(scheduler);
        }
        let has_ended = |running: &mut Running| scheduler.machines_of(running.process).is_empty();
        if let Some(ended) = self.ending.take_if(has_ended) {
            scheduler.oracle.disturbed(self.address);
            count_events(scheduler, &ended);
        }
    }

    /// Releases a process that has ended. Returns a description of leaked QPs, if there are any.
    pub(crate) fn forget(&mut self, scheduler: &Scheduler) -> Option<String> {
        let ending = self.ending.take()?;
        count_events(scheduler, &ending);
        let report = ending.node.report();
        scheduler.trace.line(scheduler.now(), "phase", format_args!("{} has ended", self.address));
        let left = report.ini + report.tgt;
        (left > 0).then(|| format!("{left} QPs are left at {} after its end", self.address))
    }

    /// Returns the number of calls refused because a budget for handlers or queued messages was exhausted.
    pub(crate) fn refused_calls(&self) -> u64 {
        let Some((_, node)) = self.running() else { return 0 };
        let report = node.report();
        let names = ["running handlers", "queued messages", "queued bytes"];
        let of_calls = report.budgets.iter().filter(|budget| names.contains(&budget.name));
        of_calls.map(|budget| budget.refused_to_peer + budget.refused_to_host + budget.refused_to_all).sum()
    }

    /// Returns the number of calls that count towards the limits of the node's services.
    pub(crate) fn limited_calls(&self) -> u32 {
        let Some((_, node)) = self.running() else { return 0 };
        node.report().limits.iter().map(|limit| limit.running).sum()
    }

    /// Returns the number of queued or running jobs in the node's worker pool.
    pub(crate) fn jobs(&self) -> usize {
        self.running().map_or(0, |(_, node)| node.jobs())
    }
}

/// Adds the counters of a process and its device to the coverage when the process ends.
fn count_events(scheduler: &Scheduler, running: &Running) {
    let report = running.node.report();
    for (name, kind) in [
        ("relayed_to_members", EventKind::PacketRelayed),
        ("port_taken_over", EventKind::PortTakenOver),
        ("shm_packets_received", EventKind::PacketInMemory),
        ("shm_peers_ended", EventKind::PathEnded),
        ("sessions_proven", EventKind::NameProved),
        ("handshakes_renewed", EventKind::NameRenewed),
        ("sessions_local", EventKind::LocalUserExempt),
    ] {
        scheduler.coverage.add(kind, report.counter(name).unwrap_or(0));
    }
}
