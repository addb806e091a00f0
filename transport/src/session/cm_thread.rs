//! The CM thread: one per node. It owns the endpoints, makes INIs and TGTs, feeds the machines
//! and performs what they ask for. `dialling.rs`, `answers.rs` and `events.rs` are its active half, its
//! passive half, and what it is told.
//!
//! Pollers reach it by commands and it reaches them the same way; neither waits for the other.
//! It sleeps in mio whenever there is nothing to do, and nothing that it calls blocks.
#![forbid(unsafe_code)]

use super::absence::Presence;
use super::endpoints::Endpoints;
use super::machine::{Action, Machine};
use super::peers::{PeerSession, Peers};
use crate::incarnation::{DeviceShared, Listening};
use crate::log_limit::LogLimit;
use crate::options::NodeOptions;
use crate::poller::command::Command;
use crate::shared::NodeShared;
use crate::{PeerDown, PeerKey, PollerIndex};
use crossbeam_queue::SegQueue;
use mio::{Events, Poll, Token, Waker};
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, CmId, VerbsError};

/// Readiness of the waker; the device's descriptors have others.
const WAKER: Token = Token(0);

/// An endpoint that knows the way to a peer, or why there is none.
pub(super) type DialOutcome = Result<Arc<dyn CmId>, VerbsError>;

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
    pub(super) handle: CmHandle,
    pub(super) endpoints: Endpoints,
    /// Addresses that we listen on.
    pub(super) listening: Vec<SocketAddr>,
    pub(super) presence: Presence,
    pub(super) peers: Peers,
    drained: HashSet<PollerIndex>,
    /// For lines about strangers.
    pub(super) log: LogLimit,
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
                match (event.kind, event.subject) {
                    (AsyncEventKind::DeviceFatal, _) => self.device_removed(),
                    (AsyncEventKind::CommunicationEstablished, AsyncSubject::Qp(qp)) => {
                        self.endpoints.packet_came(qp);
                    }
                    _ => {}
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

    pub(super) fn peer(&mut self, key: PeerKey, address: SocketAddr) -> &mut PeerSession {
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
