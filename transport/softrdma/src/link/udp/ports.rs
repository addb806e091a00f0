//! The ports of the UDP link, and the member that holds the device's port (4791 by default).
//!
//! Owns the sockets. Several processes of one host share an address: the first holds the device's port and forwards
//! datagrams to the others (`relay`). Each of the others sends from a port chosen by the system, to which peers send
//! after its first packet. When the holder dies, the first member that detects this also binds the device's port. It
//! keeps its other socket, since peers use that port.
//!
//! In a device with several shards, each shard except the first has a port chosen by the system at each
//! address ([`Ports::leave_roce_port`]).
//!
//! | the device's port is | [`Ports::open`] |
//! |---|---|
//! | free | binds it |
//! | held by a live member | binds another port, and watches the member |
//! | bound, and its holder is dead | binds another port, and binds the device's port as soon as possible |
//! | bound, but never held by a member | fails, since a program that is not a member holds it |
//!
//! A member records each port in the registry before it sends packets from the port, since other members drop
//! packets from unrecorded ports. Other members see the binding and recording of the device's port as one step, so the
//! last row can be decided without waiting. A failed attempt is repeated, without blocking, at the time that
//! [`Ports::next_attempt`] returns.
#![forbid(unsafe_code)]

use crate::host::{Members, PortHolder, PortRefused};
use crate::link::sockets::{DatagramSocket, Sockets};
use crate::link::{LinkError, ROCE_PORT};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_verbs::Time;

/// Delay between the first two attempts to bind the device's port. It doubles with each attempt, up to [`LAST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(2);
const LAST_WAIT: Duration = Duration::from_millis(50);

/// A socket of an open address.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) address: IpAddr,
    pub(super) socket: Box<dyn DatagramSocket>,
    /// True if the socket is bound to the port of the device, 4791 by default.
    pub(super) is_main: bool,
}

/// The sockets of a device's first shard. A one-flow connection uses one of them, even if its QP belongs to
/// another shard.
#[derive(Debug, Default)]
pub(crate) struct FirstSockets(Mutex<Vec<Box<dyn DatagramSocket>>>);

impl FirstSockets {
    fn lock(&self) -> MutexGuard<'_, Vec<Box<dyn DatagramSocket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a handle for sending from the socket at a local address and port.
    fn share(&self, local: SocketAddr) -> Option<Box<dyn DatagramSocket>> {
        self.lock().iter().find(|socket| socket.local() == local)?.share()
    }
}

/// The next attempt to bind the device's port.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    at: Time,
    /// Time from this attempt to the next.
    wait: Duration,
}

/// The sockets of all open addresses.
#[derive(Debug)]
pub(super) struct Ports {
    sockets: Box<dyn Sockets>,
    /// The device's port.
    main_port: u16,
    bound: Vec<Bound>,
    /// Connections with the other members; `None` if addresses are not shared.
    members: Option<Arc<Members>>,
    /// True if the device's port is left to the first shard.
    leaves_roce_port: bool,
    /// Sockets of the first shard, and this shard's handles to the ones that it uses.
    first: Arc<FirstSockets>,
    shared: Vec<Bound>,
    attempt: Option<Attempt>,
    /// True if a failed attempt was logged after the last successful one.
    has_warned: bool,
    /// Number of sockets that were added by calls other than `open`.
    changes: u64,
    taken_over: u64,
}

impl Ports {
    pub(super) fn new(sockets: Box<dyn Sockets>) -> Self {
        Self {
            sockets,
            main_port: ROCE_PORT,
            bound: Vec::new(),
            members: None,
            leaves_roce_port: false,
            first: Arc::default(),
            shared: Vec::new(),
            attempt: None,
            has_warned: false,
            changes: 0,
            taken_over: 0,
        }
    }

    pub(super) fn receive_at(&mut self, port: u16) {
        self.main_port = port;
    }

    pub(super) fn main_port(&self) -> u16 {
        self.main_port
    }

    /// Shares addresses with the other members of the host.
    pub(super) fn share(&mut self, members: Arc<Members>) {
        self.members = Some(members);
    }

    /// Shares the sockets of the device's first shard with its other shards.
    pub(super) fn share_first(&mut self, first: &Arc<FirstSockets>) {
        self.first = Arc::clone(first);
    }

    /// Restricts the link to ports chosen by the system.
    pub(super) fn leave_roce_port(&mut self) {
        self.leaves_roce_port = true;
    }

    pub(super) fn sockets(&self) -> &dyn Sockets {
        &*self.sockets
    }

    pub(super) fn all(&self) -> &[Bound] {
        &self.bound
    }

    pub(super) fn all_mut(&mut self) -> &mut [Bound] {
        &mut self.bound
    }

    /// Returns the socket at a local address and port. The socket belongs to this shard or to the first shard.
    pub(super) fn at(&mut self, local: SocketAddr) -> Option<&mut Bound> {
        let is_it =
            |bound: &Bound| bound.address == local.ip() && bound.socket.local().port() == local.port();
        if let Some(own) = self.bound.iter().position(is_it) {
            return self.bound.get_mut(own);
        }
        let shared = self.shared.iter().position(is_it).or_else(|| {
            let socket = self.first.share(local).filter(|_| self.leaves_roce_port)?;
            self.shared.push(Bound { address: local.ip(), socket, is_main: false });
            Some(self.shared.len() - 1)
        });
        self.shared.get_mut(shared?)
    }

    fn add(&mut self, bound: Bound) {
        if !self.leaves_roce_port {
            self.first.lock().extend(bound.socket.share());
        }
        self.bound.push(bound);
    }

    pub(super) fn is_open(&self, address: IpAddr) -> bool {
        self.bound.iter().any(|bound| bound.address == address)
    }

    /// Returns the port from which datagrams are sent at an address.
    pub(super) fn source(&self, address: IpAddr) -> u16 {
        let bound = self.bound.iter().find(|bound| bound.address == address);
        bound.map_or(self.main_port, |bound| bound.socket.local().port())
    }

    /// Returns a port at an open address that is not the device's port, and binds one if necessary. If that
    /// fails, returns the device's port.
    pub(super) fn other_source(&mut self, address: IpAddr) -> u16 {
        let has = |bound: &&Bound| bound.address == address && !bound.is_main;
        if self.is_open(address) && !self.bound.iter().any(|bound| has(&bound)) {
            match self.bind_any(address) {
                Ok(socket) => {
                    self.add(Bound { address, socket, is_main: false });
                    self.changes += 1;
                }
                Err(error) => tracing::debug!(%address, %error, "second UDP port not bound"),
            }
        }
        self.bound.iter().find(has).map_or(self.main_port, |bound| bound.socket.local().port())
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn taken_over(&self) -> u64 {
        self.taken_over
    }

    /// Opens an address according to the table in the module documentation.
    pub(super) fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        if self.is_open(address) {
            return Ok(());
        }
        if self.leaves_roce_port {
            let socket = self.bind_any(address)?;
            self.add(Bound { address, socket, is_main: false });
            return Ok(());
        }
        let (socket, is_main) = match self.hold(address) {
            Ok(socket) => (socket, true),
            Err((LinkError::AddressInUse { .. }, PortHolder::Alive(holder))) => {
                let is_watched = self.members.as_ref().is_some_and(|members| members.watch(holder));
                if !is_watched {
                    self.attempt_now();
                }
                (self.bind_any(address)?, false)
            }
            Err((LinkError::AddressInUse { .. }, PortHolder::Dead))
                if !self.sockets.is_held_by_stranger(SocketAddr::new(address, self.main_port)) =>
            {
                self.attempt_now();
                (self.bind_any(address)?, false)
            }
            Err((error, _)) => return Err(error),
        };
        self.add(Bound { address, socket, is_main });
        Ok(())
    }

    pub(super) fn close(&mut self, address: IpAddr) {
        self.shared.retain(|bound| bound.address != address);
        if !self.leaves_roce_port {
            self.first.lock().retain(|socket| socket.local().ip() != address);
        }
        let Self { bound, members, leaves_roce_port, .. } = self;
        let port =
            bound.iter().find(|bound| bound.address == address).map(|bound| bound.socket.local().port());
        let mut close = || bound.retain(|bound| bound.address != address);
        match members {
            Some(members) => members.host().release_port(address, port.filter(|_| *leaves_roce_port), close),
            None => close(),
        }
    }

    /// Schedules an immediate attempt to bind the device's port at each address, since a member that may have held it
    /// has left.
    pub(super) fn attempt_now(&mut self) {
        self.attempt = Some(Attempt { at: Time(0), wait: FIRST_WAIT });
    }

    /// Returns the time of the next [`Ports::poll`]. Time 0 means immediately.
    pub(super) fn next_attempt(&self) -> Option<Time> {
        self.attempt.map(|attempt| attempt.at)
    }

    /// Tries to bind the device's port if an attempt is due.
    pub(super) fn poll(&mut self, now: Time) {
        let Some(Attempt { wait, .. }) = self.attempt.take_if(|attempt| attempt.at <= now) else { return };
        if !self.take_over(wait == LAST_WAIT) {
            self.attempt = Some(Attempt { at: now + wait, wait: (wait * 2).min(LAST_WAIT) });
        }
    }

    /// Binds the device's port at each address, or watches the member that holds it. Returns false if neither succeeds
    /// at one of the addresses.
    ///
    /// A port that is in use may be in use only until an ended process is gone, so this is logged only if `is_late`.
    fn take_over(&mut self, is_late: bool) -> bool {
        let mut addresses: Vec<IpAddr> = self.bound.iter().map(|bound| bound.address).collect();
        addresses.retain(|address| !self.holds(*address));
        let mut is_settled = true;
        for address in addresses {
            match self.hold(address) {
                Ok(socket) => {
                    self.add(Bound { address, socket, is_main: true });
                    self.changes += 1;
                    self.taken_over += 1;
                    tracing::debug!(%address, "UDP port 4791 taken over");
                }
                Err((LinkError::AddressInUse { .. }, PortHolder::Alive(holder))) => {
                    is_settled &= self.members.as_ref().is_some_and(|members| members.watch(holder));
                }
                Err((LinkError::AddressInUse { .. }, _)) if !is_late => is_settled = false,
                Err((error, _)) => {
                    // Log only the first failure, since each attempt may fail for the same reason.
                    if !std::mem::replace(&mut self.has_warned, true) {
                        tracing::warn!(
                            %address,
                            %error,
                            "UDP port 4791 not taken over, retrying"
                        );
                    }
                    is_settled = false;
                }
            }
        }
        self.has_warned &= !is_settled;
        is_settled
    }

    /// Returns true if a socket of this shard holds the device's port at an address.
    pub(super) fn holds_main(&self, at: SocketAddr) -> bool {
        at.port() == self.main_port && self.holds(at.ip())
    }

    fn holds(&self, address: IpAddr) -> bool {
        self.bound.iter().any(|bound| bound.address == address && bound.is_main)
    }

    /// Binds the device's port and records this member as its holder. Returns the holder in the error.
    fn hold(&self, address: IpAddr) -> Result<Box<dyn DatagramSocket>, (LinkError, PortHolder)> {
        let bind = || self.sockets.bind(address, self.main_port);
        let Some(members) = &self.members else {
            return bind().map_err(|error| (error, PortHolder::Nobody));
        };
        members.host().hold_port(address, bind).map_err(|refused| match refused {
            PortRefused::Bind(error, holder) => (error, holder),
            PortRefused::Record(source) => (LinkError::NotRecorded { address, source }, PortHolder::Nobody),
        })
    }

    /// Binds a port chosen by the system and records it in the registry.
    fn bind_any(&self, address: IpAddr) -> Result<Box<dyn DatagramSocket>, LinkError> {
        let socket = self.sockets.bind(address, 0)?;
        if let Some(members) = &self.members {
            let recorded = members.host().record_port(SocketAddr::new(address, socket.local().port()));
            recorded.map_err(|source| LinkError::NotRecorded { address, source })?;
        }
        Ok(socket)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        // A forked child leaves the ports open, since its parent uses them.
        let is_own = self.members.as_ref().is_some_and(|members| members.host().is_own_process());
        if is_own {
            while let Some(address) = self.bound.first().map(|bound| bound.address) {
                self.close(address);
            }
        }
    }
}
