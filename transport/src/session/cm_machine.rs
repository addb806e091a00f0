//! The CM machine, one per node. It owns the endpoints, creates INIs and TGTs, passes events to the connection
//! machines and executes their actions. `dialling.rs` is its active half, `requests.rs` and `accepting.rs` are its
//! passive half, and `events.rs` handles connection manager events.
//!
//! Pollers and the CM machine communicate through commands, without waiting for each other. The machine
//! sleeps while idle, and calls only functions that do not block.
#![forbid(unsafe_code)]

use super::absence::Presence;
use super::backoff::Pace;
use super::endpoints::{Endpoints, Role};
use super::machine::{Action, CANDIDATES, Levels, Machine, Numbers};
use super::peers::{HALF_OPEN, HALF_OPEN_OF_HOST, PeerSession, Peers, UNPROVEN_OF_HOST};
use super::private_data::Refusal;
use super::proof::Cookies;
#[cfg(feature = "identity")]
use super::proving::Proving;
use crate::LogLimit;
use crate::command::{CmCommand, CmHandle, Command};
use crate::node::incarnation::{DeviceShared, Listening, Opened};
use crate::node::options::NodeOptions;
#[cfg(feature = "identity")]
use crate::node::shared::OwnIdentity;
use crate::node::shared::{Alive, NodeShared};
use crate::provider::SOFTWARE;
use crate::report::ledger::{SessionEntry, SessionLedger};
use crate::report::link_of;
use crate::{
    Connect, EventKind, NodeRecord, NodeStatus, PeerDown, PeerKey, PeerStatus, PollerIndex, StartError, Watch,
};
use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_machine::{Sleeper, Turn};
use trunkline_softrdma::device::{LinkChoice, NodeRequest, NodeSocket};
use trunkline_softrdma::link::{PortOwner, ROCE_PORT};
use trunkline_verbs::{AsyncEventKind, AsyncSubject, CmId, Time};

/// Time after the grace period of a shutdown at which sessions are closed even without the reports of all pollers.
/// Pollers check their timers every 20 ms, so a poller that is late is busy in its driver.
const REPORTS_TAKE: Duration = Duration::from_millis(50);

/// Minimum time between two probes of a live session for a newcomer.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of a host's sessions that are probed for a newcomer at another port of the host.
const PROBED: usize = 64;

/// Minimum time between two searches for a stopped process, which read the descriptors of all processes of this
/// user.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// Remedy if packets do not reach a peer.
const OPEN_PORT: &str = "have firewalls let packets pass in both directions between this node and the peer's UDP port: 4791, or the one after the slash in `peer`";

/// Maximum number of peers in the node's status, since more do not fit in it.
const MAX_PEERS: usize = 2048;

/// Step that the next turn executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Take events and commands.
    Work,
    /// Announce the sleep.
    Announce,
    /// Take events and commands that arrived before the announcement.
    LookAgain,
    /// Resume after sleep.
    Asleep,
    /// End the machine, because it cannot sleep.
    Broken,
}

/// The CM machine of a node.
pub(crate) struct CmMachine {
    pub(super) shared: Arc<NodeShared>,
    pub(super) sleeper: Sleeper,
    pub(super) handle: CmHandle,
    pub(super) endpoints: Endpoints,
    /// Addresses that the node listens on.
    pub(super) listening: Vec<SocketAddr>,
    pub(super) presence: Presence,
    pub(super) peers: Peers,
    drained: BTreeSet<PollerIndex>,
    /// Time at which sessions close even if pollers have not reported, once the node shuts down.
    close_at: Option<Time>,
    /// Limits on log lines about unknown peers, failed attempts, ended sessions and refused requests.
    pub(super) log: LogLimit,
    failed: LogLimit,
    downs: LogLimit,
    /// Limits the warnings about refused requests before the proof of the address, and after it.
    pub(super) refused: [LogLimit; 2],
    /// Limits the lines about harmless refused requests, so that they do not suppress the lines of `refused`.
    pub(super) dismissed: LogLimit,
    /// Limits the lines about peers that do not answer, which strangers can cause with forged addresses.
    unanswered: LogLimit,
    pub(super) cookies: Cookies,
    numbers: Numbers,
    pub(super) levels: Levels,
    /// True if processes of this user on this host are exempt from the handshake.
    exempts_local_user: bool,
    /// True if the program did not choose a listening port.
    is_client: bool,
    /// UDP port of this node's device.
    pub(super) udp_port: u16,
    #[cfg(feature = "identity")]
    pub(super) proving: Proving,
    /// Time after which the names of a session are proved again.
    #[cfg(feature = "identity")]
    pub(super) renew_after: Duration,
    /// Rate of attempts that begin early because callers wait.
    pace: Pace,
    /// Watch of the node, and the time of its next call.
    watch: Option<(Arc<dyn Watch>, Time)>,
    /// Socket through which the node sends its status. `None` on hardware, in process, in a simulation, and if the
    /// socket cannot be created.
    socket: Option<NodeSocket>,
    /// Time of the last search for a stopped process.
    searched: Option<Time>,
    /// True if all sessions were closed.
    pub(super) closed: bool,
    stage: Stage,
    /// Time until which the machine sleeps.
    asleep_until: Option<Time>,
    _alive: Alive,
}

impl CmMachine {
    /// Creates the machine of a node that has an open device.
    ///
    /// # Errors
    /// Returns an error if the machine cannot wait for a descriptor.
    pub(crate) fn new(
        shared: Arc<NodeShared>,
        sleeper: Sleeper,
        handle: CmHandle,
        options: NodeOptions,
        device: Arc<DeviceShared>,
        listening: Listening,
    ) -> io::Result<Self> {
        let cookies = Cookies::new(&shared.runtime);
        let watch = options.watch.clone().map(|watch| (watch, Time(0)));
        let socket = open_socket(&options, &device, &sleeper);
        let pollers = shared.pollers.iter().map(|poller| poller.index()).collect();
        let mut this = Self {
            endpoints: Endpoints::new(Arc::clone(&shared)),
            _alive: shared.gauges.machine(),
            shared,
            sleeper,
            handle,
            listening: Vec::new(),
            peers: Peers::default(),
            log: LogLimit::default(),
            failed: LogLimit::default(),
            downs: LogLimit::default(),
            refused: Default::default(),
            dismissed: LogLimit::default(),
            unanswered: LogLimit::default(),
            cookies,
            numbers: Numbers::default(),
            levels: options.levels(),
            exempts_local_user: options.exempts_local_user,
            is_client: options.listens_on().iter().all(|address| address.port() == 0),
            // NICs support only the RoCE port.
            udp_port: if device.provider == SOFTWARE { options.udp_port() } else { ROCE_PORT },
            #[cfg(feature = "identity")]
            proving: Proving::new(options.credentials.clone()),
            #[cfg(feature = "identity")]
            renew_after: options.renew_after,
            pace: Pace::default(),
            watch,
            socket,
            searched: None,
            drained: BTreeSet::new(),
            close_at: None,
            closed: false,
            stage: Stage::Work,
            asleep_until: None,
            presence: Presence::new(options, &device, pollers),
        };
        this.attach(device, listening)?;
        Ok(this)
    }

    /// Takes all events and commands, and runs the timers. Returns true if there was an event or command.
    fn work(&mut self) -> bool {
        let mut worked = false;
        while let Some(event) = self.endpoints.next_async_event() {
            worked = true;
            tracing::debug!(?event, "asynchronous event of the device");
            match (event.kind, event.subject) {
                (AsyncEventKind::DeviceFatal, _) => self.device_removed(),
                (AsyncEventKind::CommunicationEstablished, AsyncSubject::Qp(qp)) => {
                    self.endpoints.packet_came(qp);
                }
                _ => {}
            }
        }
        while let Some(event) = self.endpoints.next_event() {
            worked = true;
            self.event(event);
        }
        while let Some(command) = self.handle.next_command() {
            worked = true;
            self.command(command);
        }
        if let Some(socket) = &self.socket {
            worked |= socket.answer(|request| match request {
                NodeRequest::Status => self.status().to_text(),
                NodeRequest::Record => self.record().to_text(self.shared.runtime.clock()),
            });
        }
        self.tick();
        #[cfg(feature = "identity")]
        {
            worked |= self.prove_next();
        }
        worked
    }

    fn status(&self) -> NodeStatus {
        let facts = self.shared.device.facts();
        let peers = self.peers.all().map(|(key, peer)| {
            let (sent, received) = self.shared.traffic.of_peer(key);
            let number = peer.machine.current();
            let paths = number.map(|number| self.endpoints.paths_of(key, number)).unwrap_or_default();
            #[cfg(feature = "identity")]
            let proof = number.and_then(|number| self.proving.proof((key, number)));
            #[cfg(feature = "identity")]
            let name = proof.map(|proof| proof.identity.to_string());
            #[cfg(not(feature = "identity"))]
            let name = None::<String>;
            let is_up = peer.machine.is_up();
            let level = match name {
                Some(_) => "encrypted",
                None if peer.machine.is_with_local_user() => "local",
                None => "none",
            };
            let level = is_up.then(|| level.to_owned());
            PeerStatus { address: key, is_up, name, level, sent, received, paths }
        });
        let all = self.shared.session_qps.report();
        let counters = self.shared.device.counters();
        let retransmits = counters.iter().find(|counter| counter.name == "retransmits");
        NodeStatus {
            address: self.address(),
            udp_port: self.udp_port,
            pollers: u16::try_from(self.shared.pollers.len()).unwrap_or(u16::MAX),
            link: link_of(all.iter().map(|path| path.path), facts.link),
            connections: facts.connections.to_owned(),
            is_away: facts.removed_since.is_some(),
            is_draining: self.watch.as_ref().is_some_and(|(watch, _)| watch.is_draining()),
            at_ns: self.now().0,
            retransmits: retransmits.map_or(0, |counter| counter.value),
            methods: self.watch.as_ref().map(|(watch, _)| watch.methods()).unwrap_or_default(),
            methods_omitted: 0,
            peers: peers.take(MAX_PEERS).collect(),
            omitted: self.peers.len().saturating_sub(MAX_PEERS),
        }
    }

    /// Returns the last events of the node.
    fn record(&self) -> NodeRecord {
        NodeRecord {
            address: self.address(),
            events: self.watch.as_ref().map(|(watch, _)| watch.record()).unwrap_or_default(),
            omitted: 0,
        }
    }

    /// Returns the node's first listening address, or an unspecified one before it is bound.
    fn address(&self) -> SocketAddr {
        let unknown = || SocketAddr::from(([0; 4], 0));
        self.shared.local_address.get().copied().unwrap_or_else(unknown)
    }

    /// Returns the current sessions; `None` before the node listens.
    fn ledger(&self) -> Option<SessionLedger> {
        let entry = |(key, peer): (PeerKey, &PeerSession)| {
            let number = peer.machine.current().or_else(|| peer.machine.oldest_unproven())?;
            Some(SessionEntry {
                unproven: (peer.machine.unproven_sessions(), peer.machine.candidates()),
                peer: key,
                is_up: peer.machine.is_up(),
                is_named: peer.named,
                announced: peer.machine.connections(),
                targets: self.endpoints.targets_of(key, number),
            })
        };
        Some(SessionLedger {
            node: *self.shared.local_address.get()?,
            sessions: self.peers.all().filter_map(entry).collect(),
            half_open_limit: (HALF_OPEN_OF_HOST, HALF_OPEN),
            unproven_limit: (UNPROVEN_OF_HOST, CANDIDATES),
            host_limit: self.host_limit(),
        })
    }

    fn is_finished(&self) -> bool {
        self.closed && self.endpoints.is_quiet()
    }

    pub(super) fn now(&self) -> Time {
        self.shared.runtime.clock().now()
    }

    fn command(&mut self, command: CmCommand) {
        let now = self.now();
        match command {
            CmCommand::Want { peer, connect } => {
                let session = self.peer(peer);
                session.named = true;
                if !self.closed && !self.presence.is_present() {
                    self.presence.want(peer);
                    return;
                }
                if self.closed {
                    // A new peer's machine is not shut down yet.
                    self.drive(peer, |machine, actions| machine.close(now, actions));
                }
                self.note_owner(peer);
                self.drive(peer, |machine, actions| machine.want(now, connect, actions));
            }
            CmCommand::Resolved { peer, number, poller, hello, outcome } => {
                self.resolved(peer, number, poller, hello, outcome);
            }
            CmCommand::Broken { peer, number, cause } => {
                let is_too_large = self.remember_mtu(peer, number, cause);
                if is_too_large {
                    // The cause is sent to the peer even if the session is not up.
                    self.endpoints.close(peer, number, Refusal::for_ended_session(cause));
                }
                self.drive(peer, |machine, actions| machine.fail(now, number, cause, is_too_large, actions));
            }
            #[cfg(feature = "identity")]
            CmCommand::Handshake { peer, number, frame } => self.handshake_frame(peer, number, frame),
            #[cfg(feature = "identity")]
            CmCommand::Switched { peer, number } => self.switched((peer, number)),
            #[cfg(feature = "identity")]
            CmCommand::HandshakeSent { peer, number, acknowledged } => {
                self.handshake_sent(peer, number, acknowledged);
            }
            #[cfg(feature = "identity")]
            CmCommand::Credentials(credentials) => {
                // The levels of a node without an identity do not change.
                if let Some(own) = &self.shared.identity {
                    own.replace(Arc::clone(&credentials));
                    self.take_credentials(&credentials);
                }
            }
            CmCommand::Emptied { poller } => self.emptied(poller),
            CmCommand::Released { poller } => self.released(poller),
            CmCommand::Drained { poller } => {
                self.drained.insert(poller);
                if self.drained.len() == self.shared.pollers.len() {
                    self.close();
                }
            }
            CmCommand::ShutDownBy { deadline } => {
                let at = deadline + REPORTS_TAKE;
                self.close_at = Some(self.close_at.map_or(at, |earlier| earlier.min(at)));
            }
            CmCommand::Shutdown => self.close(),
        }
    }

    /// Closes everything if the grace period is over and not all pollers have reported.
    fn close_if_late(&mut self, now: Time) {
        let is_late = !self.closed && self.close_at.is_some_and(|at| at <= now);
        if is_late && !mutant!(busy_pollers_delay_a_shutdown) {
            let reported = self.drained.len();
            let pollers = self.shared.pollers.len();
            tracing::warn!(
                reported,
                pollers,
                cause = "a handler, a task or another value of the program keeps a poller",
                "pollers not idle after the grace period; sessions are closed"
            );
            self.close();
        }
    }

    fn close(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.endpoints.stop_listening();
        let now = self.now();
        for peer in self.peers.keys() {
            self.drive(peer, |machine, actions| machine.close(now, actions));
        }
        for peer in self.presence.take_wanted() {
            self.drive(peer, |machine, actions| machine.want(now, Connect::FailFast, actions));
        }
    }

    pub(super) fn peer(&mut self, key: PeerKey) -> &mut PeerSession {
        let shared = &self.shared;
        let pollers = u16::try_from(shared.pollers.len()).unwrap_or(u16::MAX);
        let (levels, numbers) = (self.levels, &self.numbers);
        // There is no firewall between processes on one host.
        let tries_one_flow =
            self.is_client && self.peers.get(key).is_none() && self.endpoints.is_of_other_host(key.host());
        self.peers.add(key, || {
            let mut machine = Machine::new(shared.epochs.of(key), pollers, levels, numbers.clone());
            if tries_one_flow {
                machine.try_one_flow();
            }
            (machine, shared.hosts.learn(key))
        })
    }

    /// Probes the peer of the live session, because another node claims its address.
    pub(super) fn probe_live(&mut self, key: PeerKey) {
        let now = self.now();
        let Some(peer) = self.peers.get_mut(key) else { return };
        let is_recent = peer.probed_at.is_some_and(|at| now - at < PROBE_INTERVAL);
        if let (Some(number), false) = (peer.machine.current(), is_recent) {
            peer.probed_at = Some(now);
            self.shared.pollers[0].command(Command::Probe { peer: key, number });
        }
    }

    /// Probes the one-flow sessions with other peers at a newcomer's address. The newcomer may be one of these peers,
    /// restarted with another port.
    pub(super) fn probe_others(&mut self, newcomer: PeerKey) {
        if mutant!(newcomers_probe_nobody) {
            return;
        }
        let is_one_flow =
            |key, number| self.endpoints.asked(key, number).is_some_and(|(ports, _)| ports.own.is_some());
        let others = self.peers.at(newcomer.host()).filter(|(key, peer)| {
            let number = peer.machine.current().filter(|_| *key != newcomer && peer.machine.is_up());
            number.is_some_and(|number| is_one_flow(*key, number))
        });
        for key in others.map(|(key, _)| key).take(PROBED).collect::<Vec<_>>() {
            self.probe_live(key);
        }
    }

    /// Handles the removal of the device. All sessions end, and the pollers release the device.
    pub(super) fn device_removed(&mut self) {
        if self.closed || !self.presence.is_present() || mutant!(removal_is_ignored) {
            return;
        }
        tracing::warn!(device = self.endpoints.device_name(), "RDMA device removed; sessions end");
        self.shared.events.note(EventKind::DeviceRemoved);
        self.shared.device.lost(self.now());
        self.presence.removed();
        self.tell(|| Command::DeviceLost);
    }

    /// Records that a poller has taken the arrived frames. After the last poller, the sessions end.
    fn emptied(&mut self, poller: PollerIndex) {
        if !self.presence.emptied(poller) {
            return;
        }
        self.tell(|| Command::TakeHandedOn);
        for peer in self.peers.keys() {
            self.drive(peer, |machine, actions| machine.device_removed(actions));
        }
        self.endpoints.abandon();
        self.tell(|| Command::ReleaseDevice);
    }

    /// Records that a poller has released the device. After the last poller, this machine releases it too.
    fn released(&mut self, poller: PollerIndex) {
        if self.presence.released(poller, self.now()) {
            self.detach();
            self.shared.release();
            tracing::info!("RDMA device released, waiting for its return");
        }
    }

    /// Tries to open the device again, if the time for the next attempt has come.
    fn look(&mut self, now: Time) {
        if self.closed || !self.presence.may_open(now) {
            return;
        }
        let outcome = self.open_again();
        let now = self.now();
        match outcome {
            Ok(()) => {
                self.presence.returned();
                for peer in self.presence.take_wanted() {
                    self.drive(peer, |machine, actions| machine.want(now, Connect::FailFast, actions));
                }
            }
            Err(error) => {
                self.presence.still_away(now, &error);
                let cause = PeerDown::DeviceRemoved;
                for peer in self.presence.take_wanted() {
                    self.tell(|| Command::PeerDown { peer, number: 0, cause, next: None });
                }
            }
        }
    }

    fn open_again(&mut self) -> Result<(), StartError> {
        let (Opened { shared: device, pollers, .. }, listening) = self.presence.open(&self.listening)?;
        let device = Arc::new(device);
        self.attach(Arc::clone(&device), listening)
            .map_err(|cause| StartError::Os { doing: "wait for connection events", cause })?;
        tracing::info!(device = device.device.attributes().name, "RDMA device available again");
        self.shared.events.note(EventKind::DeviceBack);
        self.shared.open(&device);
        for (poller, own) in self.shared.pollers.iter().zip(pollers) {
            poller.command(Command::TakeDevice(Box::new(own)));
        }
        Ok(())
    }

    /// Takes a device with its event channel and listeners.
    fn attach(&mut self, device: Arc<DeviceShared>, listening: Listening) -> io::Result<()> {
        let Listening { channel, listeners } = listening;
        self.sleeper.watch(|| channel.as_fd())?;
        if let Err(error) = self.sleeper.watch(|| device.device.async_event_fd()) {
            let _unwatched = self.sleeper.unwatch(|| channel.as_fd());
            return Err(error);
        }
        // Ports chosen at first are kept, so that peers find this node again.
        self.listening = listeners.iter().map(|listener| listener.local_address()).collect();
        self.endpoints.attach(device, channel, listeners);
        Ok(())
    }

    /// Releases the device, and discards its remaining events.
    fn detach(&mut self) {
        let Some((device, channel)) = self.endpoints.detach() else { return };
        let unwatched = self.sleeper.unwatch(|| channel.as_fd());
        if let Err(error) = unwatched.and(self.sleeper.unwatch(|| device.device.async_event_fd())) {
            tracing::debug!(%error, "device descriptor not removed from epoll");
        }
        while channel.next_event().is_some() {}
    }

    /// Records in a peer's machine whether the peer's address belongs to a process of this user on this host.
    fn note_owner(&mut self, key: PeerKey) {
        if self.levels == Levels::None || !self.exempts_local_user {
            return;
        }
        if self.peers.get(key).is_none_or(|peer| peer.machine.current().is_some()) {
            return;
        }
        let may_be_local = self.endpoints.is_of_this_user(key.host());
        if let Some(peer) = self.peers.get_mut(key) {
            peer.machine.set_local(may_be_local);
        }
    }

    /// Returns true if the host confirms that the other end of a connection is a process of this user, and
    /// such processes are exempt from the handshake.
    pub(super) fn is_local(&self, id: &dyn CmId) -> bool {
        self.levels != Levels::None && self.exempts_local_user && id.local_user().is_some()
    }

    /// Passes an event to a peer's machine, and executes the resulting actions.
    pub(super) fn drive<R: Default>(
        &mut self,
        key: PeerKey,
        input: impl FnOnce(&mut Machine, &mut Vec<Action>) -> R,
    ) -> R {
        let Some(peer) = self.peers.get_mut(key) else { return R::default() };
        let mut actions = Vec::new();
        let result = input(&mut peer.machine, &mut actions);
        // A failed action may append further ones.
        let mut next = 0;
        while next < actions.len() {
            if let Action::Down { number, cause } | Action::Away { number, cause, .. } = &mut actions[next] {
                *cause = self.explain_stop(key, *number, *cause);
            }
            let action = actions[next].clone();
            next += 1;
            self.perform(key, action, &mut actions);
        }
        self.peers.settle(key, self.now());
        result
    }

    fn perform(&mut self, key: PeerKey, action: Action, actions: &mut Vec<Action>) {
        match action {
            Action::Dial { number, poller, echo } => {
                let now = self.now();
                if let Err(cause) = self.dial(key, number, poller, echo)
                    && let Some(peer) = self.peers.get_mut(key)
                {
                    peer.machine.fail(now, number, cause, false, actions);
                }
            }
            #[cfg(feature = "identity")]
            Action::Prove { number, deadline } => self.begin_handshake(key, number, deadline, actions),
            #[cfg(not(feature = "identity"))]
            Action::Prove { .. } => {}
            Action::DropTarget { number, poller } => {
                if let Some(target) = self.endpoints.discard(key, number, Role::Tgt(poller)) {
                    self.tell(|| Command::TargetDropped { target });
                }
            }
            Action::Up { number, welcome } => self.up(key, number, &welcome, actions),
            Action::Close { number } => {
                let reported = actions.iter().find_map(|action| action.reports(number));
                self.endpoints.close(key, number, reported.and_then(Refusal::for_ended_session));
                #[cfg(feature = "identity")]
                self.proving.forget((key, number));
                let cause = self.explain_stop(key, number, reported.unwrap_or(PeerDown::Died));
                self.tell(|| Command::SessionClosed { peer: key, number, cause });
            }
            Action::Unanswered => {
                self.shared.dial_backs_unanswered.fetch_add(1, Ordering::Relaxed);
                if let Some(suppressed) = self.unanswered.line(self.now()) {
                    let cause = "packets to this peer may be blocked: it connects to this node and does not answer the connection back";
                    tracing::warn!(peer = %key, cause, remedy = OPEN_PORT, suppressed, "dial-back not answered");
                }
            }
            Action::Down { number, cause } => {
                self.shared.events.down(EventKind::SessionDown, key, cause);
                if let Some(suppressed) = self.downs.line(self.now()) {
                    if matches!(cause, PeerDown::Closed | PeerDown::Leaving | PeerDown::ShuttingDown) {
                        tracing::info!(peer = %key, %cause, suppressed, "session down");
                    } else {
                        tracing::warn!(peer = %key, %cause, suppressed, "session down");
                    }
                }
                self.tell(|| Command::PeerDown { peer: key, number, cause, next: None });
            }
            Action::Away { number, mut cause, until, is_new } => {
                if is_new {
                    cause = self.explain(key, cause);
                    self.shared.events.down(EventKind::SessionNotMade, key, cause);
                    let now = self.now();
                    if let Some(suppressed) = self.failed.line(now) {
                        let pause_ms = (until - now).as_millis();
                        tracing::warn!(peer = %key, %cause, pause_ms, suppressed, "session not established");
                    }
                }
                self.tell(|| Command::PeerDown { peer: key, number, cause, next: Some(until) });
            }
        }
    }

    /// Returns the cause of a session's end, which is a stop of this process if that explains it.
    fn explain_stop(&self, key: PeerKey, number: u32, cause: PeerDown) -> PeerDown {
        let began = self.peers.get(key).and_then(|peer| peer.machine.began(number));
        began.map_or(cause, |began| self.shared.stops.explain(cause, began, self.now()))
    }

    /// Returns the reason why a peer is away. If a stopped process explains the peer's silence, the reason names it.
    /// Later callers get the same reason.
    fn explain(&mut self, key: PeerKey, cause: PeerDown) -> PeerDown {
        // Without this socket, a node does not share its addresses with other processes.
        let (now, device) = (self.now(), self.device_of(key));
        let Some(peer) = self.peers.get_mut(key).filter(|_| self.socket.is_some()) else { return cause };
        let is_early = self.searched.is_some_and(|searched| now - searched < SEARCH_INTERVAL);
        if !matches!(cause, PeerDown::Unreachable | PeerDown::NoFurtherAnswer) || is_early {
            return cause;
        }
        self.searched = Some(now);
        let own = peer.source.or_else(|| self.shared.local_address.get().map(SocketAddr::ip));
        let own = own.map(|ip| SocketAddr::new(ip, self.udp_port));
        let stopped = [Some(device), own].into_iter().flatten().find_map(|address| {
            let pid = PortOwner::stopped_at(address)?;
            Some(PeerDown::HolderStopped { pid, address })
        });
        if let Some(cause) = stopped {
            peer.machine.explain(cause);
        }
        stopped.unwrap_or(cause)
    }

    /// Records the path MTU for the next sessions with a peer if large packets were lost in this session. Returns
    /// true in this case.
    pub(super) fn remember_mtu(&mut self, key: PeerKey, number: u32, cause: PeerDown) -> bool {
        let asked = self.endpoints.asked(key, number).map(|(_, mtu)| mtu);
        let Some(next) = cause.next_mtu(asked) else { return false };
        let now = self.now();
        self.peers.too_large(self.device_of(key), next, now);
        true
    }

    /// Returns the address and UDP port of a peer's device.
    pub(super) fn device_of(&self, key: PeerKey) -> SocketAddr {
        SocketAddr::new(key.host(), key.udp_port().unwrap_or(self.udp_port))
    }

    pub(super) fn tell(&self, command: impl Fn() -> Command) {
        for poller in &self.shared.pollers {
            poller.command(command());
        }
    }

    /// Reports the peers that have not returned their cookies.
    fn tick_cookies(&mut self, now: Time) {
        while let Some(peer) = self.cookies.unanswered(now) {
            self.shared.cookies_unanswered.fetch_add(1, Ordering::Relaxed);
            if let Some(suppressed) = self.unanswered.line(now) {
                let cause = "packets to this peer may be blocked or have no route, or its address is forged: it requests a \
                             session and does not return the cookie";
                tracing::warn!(%peer, cause, remedy = OPEN_PORT, suppressed, "address validation cookie not returned");
            }
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        self.tick_cookies(now);
        self.close_if_late(now);
        self.have_watched(now);
        self.look(now);
        self.endpoints.tick(now);
        #[cfg(feature = "identity")]
        self.tick_handshakes(now);
        let (due, gone) = self.peers.due(now);
        for key in due {
            let is_early = self.peers.get(key).is_some_and(|peer| peer.machine.is_early(now));
            let at = if is_early { self.pace.reserve(now) } else { now };
            self.note_owner(key);
            self.drive(key, |machine, actions| {
                if at > now {
                    machine.delay(now, at);
                } else {
                    machine.tick(now, actions);
                }
            });
        }
        for key in gone {
            self.forget(key);
        }
    }

    /// Calls the node's watch and checks the node's certificate when it is time.
    fn have_watched(&mut self, now: Time) {
        if let Some((watch, next)) = self.watch.as_mut().filter(|(_, next)| *next <= now) {
            *next = watch.look(now);
            #[cfg(feature = "identity")]
            self.shared.identity.iter().for_each(OwnIdentity::warn_of_end);
        }
    }

    /// Removes an idle peer.
    pub(super) fn forget(&mut self, key: PeerKey) {
        if self.peers.remove(key).is_none() {
            return;
        }
        if !self.peers.has_any_at(key.host()) {
            self.shared.hosts.forget(key.host());
        }
        self.shared.traffic.forget(key);
        self.tell(|| Command::Forget { peer: key });
    }

    fn next_timer(&self) -> Option<Time> {
        let closing = self.close_at.filter(|_| !self.closed && !mutant!(busy_pollers_delay_a_shutdown));
        let watching = self.watch.as_ref().map(|(_, next)| *next);
        #[cfg(feature = "identity")]
        let proving = self.proving.next_timer();
        #[cfg(not(feature = "identity"))]
        let proving = None;
        let cookies = self.cookies.next_timer();
        let others =
            [self.endpoints.next_timer(), self.presence.next_timer(), closing, watching, proving, cookies];
        self.peers.next_timer().into_iter().chain(others.into_iter().flatten()).min()
    }
}

impl trunkline_machine::Machine for CmMachine {
    fn turn(&mut self) -> Turn {
        match self.stage {
            Stage::Work => {
                self.work();
                self.stage = Stage::Announce;
            }
            Stage::Announce => {
                self.sleeper.announce();
                self.stage = Stage::LookAgain;
            }
            Stage::LookAgain => {
                let worked = self.work();
                self.stage = Stage::Asleep;
                if !worked && !self.is_finished() {
                    self.asleep_until = self.next_timer();
                    return Turn::Sleep(self.asleep_until);
                }
            }
            Stage::Asleep => {
                self.sleeper.awake();
                if let Some(until) = self.asleep_until.take() {
                    self.shared.stops.woke(until, self.now());
                }
                self.work();
                self.stage = Stage::Announce;
            }
            Stage::Broken => return Turn::Done,
        }
        if self.is_finished() { Turn::Done } else { Turn::Again }
    }

    fn sleep(&mut self, until: Option<Time>) {
        if let Err(error) = self.sleeper.sleep(until) {
            tracing::error!(%error, "CM thread could not wait for events; the node ends");
            self.stage = Stage::Broken;
        }
    }

    fn is_woken(&self) -> bool {
        self.sleeper.is_woken() || self.endpoints.has_event()
    }

    fn is_due(&self) -> bool {
        self.handle.has_commands()
    }

    fn inspect(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.ledger()?))
    }
}

/// Creates the socket through which the node sends its status, if other programs on its host can find it. Returns
/// `None` if that fails.
fn open_socket(options: &NodeOptions, device: &DeviceShared, sleeper: &Sleeper) -> Option<NodeSocket> {
    let software = options.software();
    let is_of_host = device.provider == SOFTWARE && matches!(software.link, LinkChoice::Udp);
    if !is_of_host || options.machines().is_simulated() {
        return None;
    }
    let number = options.machines().random();
    let opened = NodeSocket::open(software.runtime_directory.as_deref(), number);
    let watched = opened.map_err(|error| error.to_string()).and_then(|socket| {
        sleeper.watch(|| socket.as_fd()).map(|()| socket).map_err(|error| error.to_string())
    });
    watched.inspect_err(|error| tracing::warn!(error, "node not shown by `trunkctl nodes`")).ok()
}

impl Drop for CmMachine {
    /// Ends the pollers, which are not notified of this machine's end in another way.
    fn drop(&mut self) {
        // Endpoints that were resolved too late keep the device open.
        while self.handle.next_command().is_some() {}
        for poller in &self.shared.pollers {
            poller.command(Command::End);
        }
    }
}
