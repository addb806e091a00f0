//! The CM thread: one per node. It owns the endpoints, makes INIs and TGTs, feeds the machines
//! and performs what they ask for.
//!
//! Pollers reach it by commands and it reaches them the same way; neither waits for the other.
//! It sleeps in mio whenever there is nothing to do, and nothing that it calls blocks.
#![forbid(unsafe_code)]

use super::absence::Presence;
use super::endpoints::{Endpoints, Role};
use super::machine::{Action, Machine};
use super::peers::{PeerSession, Peers};
use super::private_data::{Hello, Refusal, SessionName, Welcome};
use crate::connections::ConnectionKind;
use crate::frame::HEADER;
use crate::incarnation::{DeviceShared, Listening};
use crate::log_limit::LogLimit;
use crate::options::NodeOptions;
use crate::poller::EAGER_BYTES;
use crate::poller::command::{Command, SessionUp};
use crate::shared::{NodeShared, canonical};
use crate::{PeerDown, PeerKey, PollerIndex};
use crossbeam_queue::SegQueue;
use mio::{Events, Poll, Token, Waker};
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;
use trunkline_verbs::{
    AsyncEventKind, CmEvent, CmEventKind, CmId, ConnectParameters, RejectReason, VerbsError,
};

/// Readiness of the waker; the device's descriptors have others.
const WAKER: Token = Token(0);
/// Peers that are known at once, at most; further ones are refused.
const MAX_PEERS: usize = 16_384;

/// An endpoint that knows the way to a peer, or why there is none.
type DialOutcome = Result<Arc<dyn CmId>, VerbsError>;

/// What others tell the CM thread.
#[derive(Debug)]
pub(crate) enum CmCommand {
    /// A poller has something to send, or wants to.
    Want { peer: PeerKey, address: SocketAddr },
    /// The way to a peer was sought for one of a session's INIs.
    Resolved { peer: PeerKey, number: u32, poller: u16, hello: Vec<u8>, outcome: DialOutcome },
    /// A poller found a session unusable.
    Broken { peer: PeerKey, number: u32, cause: PeerDown },
    /// A poller has taken what the device that was removed had received.
    Emptied { poller: PollerIndex },
    /// A poller has let go of the device that was removed.
    Released { poller: PollerIndex },
    /// A poller has nothing under way any more, after it was told to shut down.
    Drained { poller: PollerIndex },
    /// Close everything now.
    Shutdown,
}

struct HandleShared {
    commands: SegQueue<CmCommand>,
    waker: Waker,
}

/// How to reach the CM thread.
#[derive(Clone)]
pub(crate) struct CmHandle(Arc<HandleShared>);

impl CmHandle {
    pub(crate) fn command(&self, command: CmCommand) {
        self.0.commands.push(command);
        // It fails only when the eventfd is gone, and with it the thread.
        let _ = self.0.waker.wake();
    }
}

impl fmt::Debug for CmHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CmHandle")
    }
}

/// The thread's state.
pub(crate) struct CmThread {
    pub(super) shared: Arc<NodeShared>,
    pub(super) poll: Poll,
    handle: CmHandle,
    pub(super) endpoints: Endpoints,
    /// Addresses that we listen on.
    pub(super) listening: Vec<SocketAddr>,
    pub(super) presence: Presence,
    pub(super) peers: Peers,
    drained: HashSet<PollerIndex>,
    /// For lines about strangers.
    log: LogLimit,
    /// All sessions were closed.
    pub(super) closed: bool,
}

/// The means to wait, made before anything else so that others can be given the handle.
pub(crate) fn prepare() -> io::Result<(Poll, CmHandle)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKER)?;
    Ok((poll, CmHandle(Arc::new(HandleShared { commands: SegQueue::new(), waker }))))
}

impl CmThread {
    /// # Errors
    /// When a descriptor cannot be waited for.
    pub(crate) fn new(
        shared: Arc<NodeShared>,
        (poll, handle): (Poll, CmHandle),
        options: NodeOptions,
        device: Arc<DeviceShared>,
        listening: Listening,
    ) -> io::Result<Self> {
        let mut this = Self {
            endpoints: Endpoints::new(Arc::clone(&shared)),
            shared,
            poll,
            handle,
            listening: Vec::new(),
            presence: Presence::new(options, &device),
            peers: Peers::default(),
            log: LogLimit::default(),
            drained: HashSet::new(),
            closed: false,
        };
        this.attach(device, listening)?;
        Ok(this)
    }

    /// Runs until all sessions are closed and their endpoints gone.
    pub(crate) fn run(mut self) {
        let _end = EndPollers(Arc::clone(&self.shared));
        let mut wakeups = Events::with_capacity(8);
        while !(self.closed && self.endpoints.is_quiet()) {
            let timeout = self.next_timer().map(|at| at.saturating_duration_since(Instant::now()));
            if let Err(error) = self.poll.poll(&mut wakeups, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "waiting for connection events");
                return;
            }
            while let Some(event) = self.endpoints.next_async_event() {
                tracing::debug!(?event, "asynchronous event");
                if event.kind == AsyncEventKind::DeviceFatal {
                    self.device_removed();
                }
            }
            while let Some(event) = self.endpoints.next_event() {
                self.event(event);
            }
            while let Some(command) = self.handle.0.commands.pop() {
                self.command(command);
            }
            self.tick();
        }
        // Ways that were found too late hold endpoints, and those the device.
        while self.handle.0.commands.pop().is_some() {}
    }

    fn command(&mut self, command: CmCommand) {
        let now = Instant::now();
        match command {
            CmCommand::Want { peer, address } => {
                self.shared.restore_key(address, peer);
                let session = self.peer(peer, address);
                session.named = true;
                if !self.closed && !self.presence.is_present() {
                    self.presence.want(peer);
                    return;
                }
                self.drive(peer, |machine, actions| machine.want(now, actions));
            }
            CmCommand::Resolved { peer, number, poller, hello, outcome } => {
                self.resolved(peer, number, poller, hello, outcome);
            }
            CmCommand::Broken { peer, number, cause } => {
                self.drive(peer, |machine, actions| machine.fail(now, number, cause, false, actions));
            }
            CmCommand::Emptied { poller } => self.emptied(poller),
            CmCommand::Released { poller } => self.released(poller),
            CmCommand::Drained { poller } => {
                self.drained.insert(poller);
                if self.drained.len() == self.shared.pollers.len() {
                    self.close();
                }
            }
            CmCommand::Shutdown => self.close(),
        }
    }

    fn close(&mut self) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.endpoints.stop_listening();
        let now = Instant::now();
        for peer in self.peers.keys() {
            self.drive(peer, |machine, actions| machine.close(now, actions));
        }
        for peer in self.presence.take_wanted() {
            self.drive(peer, |machine, actions| machine.want(now, actions));
        }
    }

    fn peer(&mut self, key: PeerKey, address: SocketAddr) -> &mut PeerSession {
        let shared = &self.shared;
        let pollers = u16::try_from(shared.pollers.len()).unwrap_or(u16::MAX);
        self.peers.add(key, address, || Machine::new(shared.epoch, pollers))
    }

    /// Feeds a peer's machine and performs what it asks for.
    pub(super) fn drive<R: Default>(
        &mut self,
        key: PeerKey,
        input: impl FnOnce(&mut Machine, &mut Vec<Action>) -> R,
    ) -> R {
        let Some(peer) = self.peers.get_mut(key) else { return R::default() };
        let mut actions = Vec::new();
        let result = input(&mut peer.machine, &mut actions);
        // Performing may fail and so lead to further actions; those come after these.
        let mut next = 0;
        while next < actions.len() {
            let action = actions[next].clone();
            next += 1;
            self.perform(key, action, &mut actions);
        }
        self.peers.settle(key, Instant::now());
        result
    }

    fn perform(&mut self, key: PeerKey, action: Action, actions: &mut Vec<Action>) {
        match action {
            Action::Dial { number, poller, echo } => {
                if let Err(cause) = self.dial(key, number, poller, echo)
                    && let Some(peer) = self.peers.get_mut(key)
                {
                    peer.machine.fail(Instant::now(), number, cause, false, actions);
                }
            }
            Action::Up { number, welcome } => self.up(key, number, &welcome, actions),
            Action::Close { number } => {
                self.endpoints.close(key, number);
                self.tell(|| Command::SessionClosed { peer: key, number });
            }
            Action::Down { number, cause } => {
                let address = self.peers.get(key).map(|peer| peer.address.to_string()).unwrap_or_default();
                if cause == PeerDown::Closed || cause == PeerDown::ShuttingDown {
                    tracing::info!(peer = key.0, address, %cause, "session down");
                } else {
                    tracing::warn!(peer = key.0, address, %cause, "session down");
                }
                self.tell(|| Command::PeerDown { peer: key, number, cause });
            }
        }
    }

    pub(super) fn tell(&self, command: impl Fn() -> Command) {
        for poller in &self.shared.pollers {
            poller.command(command());
        }
    }

    fn dial(
        &mut self,
        key: PeerKey,
        number: u32,
        poller: u16,
        echo: Option<SessionName>,
    ) -> Result<(), PeerDown> {
        let Some(peer) = self.peers.get(key) else { return Ok(()) };
        if peer.machine.current() != Some(number) {
            return Ok(());
        }
        let (source, port) = self.source_for(peer).ok_or(PeerDown::Unreachable)?;
        let hello = Hello {
            listener_port: port,
            session: SessionName { epoch: self.shared.epoch, number },
            echo,
            poller,
            pollers: u16::try_from(self.shared.pollers.len()).unwrap_or(u16::MAX),
            connections: self.endpoints.connections(),
        };
        // Finding the way may take seconds, above all to a peer that is dead.
        let (hello, handle) = (hello.emit(), self.handle.clone());
        let done = move |outcome| {
            handle.command(CmCommand::Resolved { peer: key, number, poller, hello, outcome });
        };
        self.endpoints.begin_dial(peer.address, source, Box::new(done));
        Ok(())
    }

    /// Goes on with what [`Self::dial`] began, unless its session is over by now.
    fn resolved(&mut self, key: PeerKey, number: u32, poller: u16, hello: Vec<u8>, outcome: DialOutcome) {
        let Some(peer) = self.peers.get(key) else { return };
        if peer.machine.current() != Some(number) {
            return;
        }
        let address = peer.address;
        if let Err(error) = outcome.and_then(|id| self.endpoints.dial(id, key, number, poller, hello)) {
            let now = Instant::now();
            if let Some(left_out) = self.log.line(now) {
                tracing::warn!(%address, %error, left_out, "cannot dial");
            }
            self.drive(key, |machine, into| machine.fail(now, number, PeerDown::Unreachable, false, into));
        }
    }

    /// From which of our addresses to reach a peer, and the port that we listen on there. `None`
    /// as the address lets the device choose.
    fn source_for(&self, peer: &PeerSession) -> Option<(Option<IpAddr>, NonZeroU16)> {
        let fits = |address: &&SocketAddr| match peer.source {
            Some(source) => address.ip() == source || address.ip().is_unspecified(),
            None => address.is_ipv4() == peer.address.is_ipv4() || address.ip().is_unspecified(),
        };
        let listening = self.listening.iter().find(fits)?;
        let source = peer.source.or_else(|| Some(listening.ip()).filter(|ip| !ip.is_unspecified()));
        Some((source, NonZeroU16::new(listening.port())?))
    }

    fn up(&mut self, key: PeerKey, number: u32, welcome: &Welcome, actions: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let address = peer.address;
        let Some(inis) = self.endpoints.take_inis(key, number) else {
            peer.machine.fail(Instant::now(), number, PeerDown::DeviceFailed, false, actions);
            return;
        };
        tracing::info!(peer = key.0, %address, pollers = welcome.srqs.len(), "session up");
        for (poller, (qp, read_depth)) in self.shared.pollers.iter().zip(inis) {
            poller.command(Command::SessionUp(Box::new(SessionUp {
                peer: key,
                address,
                number,
                epoch: welcome.session.epoch,
                qp,
                srqs: welcome.srqs.clone(),
                max_message: welcome.max_message,
                max_frame: welcome.max_frame,
                read_depth,
            })));
        }
    }

    fn event(&mut self, event: CmEvent) {
        let now = Instant::now();
        if matches!(event.kind, CmEventKind::DeviceRemoval) {
            self.device_removed();
        }
        if !self.presence.is_present() {
            // Of endpoints that are gone. A request that comes along is refused by its end.
            return;
        }
        if let CmEventKind::ConnectRequest { id, parameters } = event.kind {
            self.request(&id, &parameters, &event.private_data);
            return;
        }
        let Some((role, peer, number)) = self.endpoints.role(event.id) else {
            self.endpoints.forget_closing(event.id, &event.kind);
            return;
        };
        match event.kind {
            CmEventKind::Established => match role {
                Role::Ini(poller) => match Welcome::parse(&event.private_data) {
                    Ok(welcome) => {
                        self.endpoints.connected(peer, number, role);
                        self.drive(peer, |machine, actions| {
                            machine.answered(now, number, poller, welcome, actions);
                        });
                    }
                    Err(refusal) => {
                        let cause = PeerDown::Refused(refusal.explain());
                        self.drive(peer, |machine, actions| machine.fail(now, number, cause, false, actions));
                    }
                },
                Role::Tgt(poller) => {
                    self.endpoints.connected(peer, number, role);
                    self.drive(peer, |machine, actions| machine.arrived(now, number, poller, actions));
                }
            },
            kind => {
                let Some((cause, transient)) =
                    failure_of(&kind, &event.private_data, self.endpoints.connections())
                else {
                    return;
                };
                // Who dialled us and takes that back, because its session failed, may dial again.
                let is_taken_back = matches!((role, &kind), (Role::Tgt(_), CmEventKind::Rejected(_)));
                let transient = transient || is_taken_back;
                tracing::debug!(peer = peer.0, ?role, ?kind, "connection event");
                // What a poller waits for, or had, is told where the pollers are told.
                let unnoticed = |peer: &&PeerSession| !peer.machine.is_up() && !peer.machine.is_wanted();
                if let Some(half_made) = self.peers.get(peer).filter(unnoticed)
                    && let Some(left_out) = self.log.line(now)
                {
                    let address = half_made.address;
                    tracing::warn!(peer = peer.0, %address, %cause, left_out, "session not made");
                }
                self.drive(peer, |machine, actions| machine.fail(now, number, cause, transient, actions));
            }
        }
    }

    /// A peer dials.
    fn request(&mut self, id: &Arc<dyn CmId>, parameters: &ConnectParameters, private_data: &[u8]) {
        if let Err(refusal) = self.accept(id, parameters, private_data) {
            tracing::debug!(?refusal, from = ?id.peer_address(), "request refused");
            if let Err(error) = id.reject(&refusal.emit()) {
                tracing::debug!(%error, "rejecting");
            }
        }
    }

    fn accept(
        &mut self,
        id: &Arc<dyn CmId>,
        parameters: &ConnectParameters,
        private_data: &[u8],
    ) -> Result<(), Refusal> {
        if self.closed {
            return Err(Refusal::ShuttingDown);
        }
        let hello = Hello::parse(private_data)?;
        match (self.endpoints.connections(), hello.connections) {
            (ours, theirs) if ours == theirs => {}
            (ConnectionKind::Xrc, _) => return Err(Refusal::UsesXrc),
            (ConnectionKind::Rc, _) => return Err(Refusal::UsesRc),
        }
        let from = id.peer_address().ok_or(Refusal::Nonsense)?;
        // The dial-back goes to where the request came from, never to an address that it names.
        let address = canonical(SocketAddr::new(from.ip(), hello.listener_port.get()));
        // Looked for before it is given out: addresses that are refused must leave no key behind,
        // because nobody would ever forget it.
        let known = self.shared.known_key(address).and_then(|key| self.peers.get(key));
        if known.is_none() && self.peers.len() >= MAX_PEERS {
            return Err(Refusal::Resources);
        }
        let is_stranger = known.is_none_or(|peer| !peer.named && peer.machine.current().is_none());
        if is_stranger && self.peers.is_crowded(address.ip(), self.endpoints.share()) {
            return Err(Refusal::Crowded);
        }
        let key = self.shared.peer_key(address);
        let local = id.local_address().ip();
        let peer = self.peer(key, address);
        peer.source = Some(local);
        let now = Instant::now();
        let mut actions = Vec::new();
        let number = peer.machine.request(now, &hello, &mut actions);
        // What ends an earlier session comes before, the dials of the new one after the accept.
        let dials =
            actions.iter().position(|action| matches!(action, Action::Dial { .. })).unwrap_or(actions.len());
        let after = actions.split_off(dials);
        self.drive(key, |_, into| into.extend(actions));
        let number = match number {
            Ok(number) => number,
            Err(refusal) => {
                self.drive(key, |_, into| into.extend(after));
                return Err(refusal);
            }
        };
        let welcome = Welcome {
            session: SessionName { epoch: self.shared.epoch, number },
            max_message: self.shared.limits.max_message_bytes as u64,
            max_frame: u32::try_from(HEADER + EAGER_BYTES).unwrap_or(u32::MAX),
            srqs: self.endpoints.srqs(),
        };
        match self.endpoints.make_target(id, key, number, hello.poller) {
            Ok(target) => {
                self.tell(|| Command::TargetAdded {
                    peer: key,
                    address,
                    number,
                    poller: hello.poller,
                    target,
                });
            }
            Err(error) => {
                if let Some(left_out) = self.log.line(now) {
                    tracing::warn!(%error, left_out, "cannot make a TGT");
                }
                // Who dials may have given up meanwhile, and with that the endpoint its connection.
                let transient = matches!(error, VerbsError::Invalid(_));
                self.drive(key, |machine, into| {
                    machine.fail(now, number, PeerDown::DeviceFailed, transient, into);
                });
                return Err(Refusal::Resources);
            }
        }
        if let Err(error) = self.endpoints.accept(id, parameters, welcome.emit()) {
            if let Some(left_out) = self.log.line(now) {
                tracing::warn!(%error, left_out, "cannot accept");
            }
            let transient = matches!(error, VerbsError::Invalid(_));
            self.drive(key, |machine, into| {
                machine.fail(now, number, PeerDown::DeviceFailed, transient, into);
            });
            return Ok(());
        }
        self.drive(key, |_, into| into.extend(after));
        Ok(())
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.look(now);
        self.endpoints.tick(now);
        let (due, gone) = self.peers.due(now);
        for key in due {
            self.drive(key, |machine, actions| machine.tick(now, actions));
        }
        for (key, peer) in gone {
            self.shared.forget(peer.address, key);
            self.tell(|| Command::Forget { peer: key });
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        let others = [self.endpoints.next_timer(), self.presence.next_timer()];
        self.peers.next_timer().into_iter().chain(others.into_iter().flatten()).min()
    }
}

/// Ends the pollers with the CM thread, however that ends: nobody else would tell them.
struct EndPollers(Arc<NodeShared>);

impl Drop for EndPollers {
    fn drop(&mut self) {
        for poller in &self.0.pollers {
            poller.command(Command::End);
        }
    }
}

/// Why a listener may have refused without a word of ours.
fn wrong_listener(connections: ConnectionKind) -> &'static str {
    match connections {
        ConnectionKind::Xrc => {
            "what listens there takes no XRC connections: a Trunkline node that uses RC (then start this one with \
             --connections rc, NodeOptions::connections), or no Trunkline node"
        }
        ConnectionKind::Rc => {
            "what listens there takes no RC connections: a Trunkline node that uses XRC (then start that one with \
             --connections rc, NodeOptions::connections), or no Trunkline node"
        }
    }
}

/// What an event that ends a connection says, and whether trying again may help.
fn failure_of(
    kind: &CmEventKind,
    private_data: &[u8],
    connections: ConnectionKind,
) -> Option<(PeerDown, bool)> {
    Some(match kind {
        CmEventKind::Rejected(RejectReason::CONSUMER) => match Refusal::parse(private_data) {
            Some(refusal @ (Refusal::Stale | Refusal::Crowded)) => {
                (PeerDown::Refused(refusal.explain()), true)
            }
            Some(Refusal::ShuttingDown) => (PeerDown::Closed, false),
            Some(refusal) => (PeerDown::Refused(refusal.explain()), false),
            // A connection manager answers so itself when the listener is of another type (contract J7);
            // the kernel's also when the peer dropped the endpoint, because its session failed.
            None => (PeerDown::Refused(wrong_listener(connections)), true),
        },
        CmEventKind::Rejected(RejectReason::INVALID_SERVICE_ID) => (PeerDown::NotListening, false),
        CmEventKind::Rejected(RejectReason::STALE_CONNECTION) => {
            (PeerDown::Refused("left-overs of an earlier connection"), true)
        }
        CmEventKind::Rejected(RejectReason::NO_RESOURCES) => {
            (PeerDown::Refused(Refusal::Resources.explain()), false)
        }
        CmEventKind::Rejected(RejectReason::TIMEOUT) | CmEventKind::Unreachable => {
            (PeerDown::Unreachable, false)
        }
        CmEventKind::Rejected(_) => (PeerDown::Refused("its connection manager refused"), false),
        CmEventKind::Disconnected => (PeerDown::Closed, true),
        // As a rule the peer took back its answer while the QP was brought up.
        CmEventKind::ConnectError => (PeerDown::DeviceFailed, true),
        CmEventKind::DeviceRemoval => (PeerDown::DeviceFailed, false),
        _ => return None,
    })
}
