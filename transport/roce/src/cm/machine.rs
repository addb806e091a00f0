//! The machine, with its state, its queues, and the parts shared by all roles.

use super::connection::{Addresses, Connection, ConnectionId, ConnectionState, Unanswered};
use super::listener::{Listen, ListenerId, Listeners};
use super::other_kinds::{OtherKind, OtherKinds};
use super::questions::Questions;
use super::table::Table;
use super::{CmConfig, CmCounters, CmDrop, CmError, Event};
use crate::wire::cm::CmMessage;
use crate::wire::{Mad, ROCE_PORT};
use std::collections::VecDeque;
use std::net::IpAddr;
use trunkline_verbs::{AddressOwner, PeerHost, PeerView, UdpPorts, UnreachableCause};

/// A message to send, from QP 1 to QP 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Local address.
    pub from: IpAddr,
    /// The peer's address.
    pub to: IpAddr,
    /// UDP ports.
    pub ports: UdpPorts,
    /// The message.
    pub mad: Mad,
}

/// Returns true if a message requests a connection or a QP.
#[must_use]
pub fn is_request(mad: &Mad) -> bool {
    matches!(CmMessage::parse(mad), CmMessage::Req(_) | CmMessage::SidrReq(_))
}

/// A report that a message could not be delivered, such as an ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreachableReport {
    /// Local address.
    pub from: IpAddr,
    /// The peer's address.
    pub to: IpAddr,
    /// Transaction id of the message, if the report quotes enough of it. A report without it may be forged.
    pub transaction: Option<u64>,
    /// The cause.
    pub cause: UnreachableCause,
}

/// The sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadSource {
    /// Address of the sender, verified if the link can verify addresses.
    pub address: IpAddr,
    /// UDP ports of the message, in the order of an answer, with the destination port first.
    pub ports: (u16, u16),
    /// Owner of the address, which determines the host whose limits apply to the sender's requests. Used for requests only.
    pub owner: AddressOwner,
    /// Source port of the message, if a process of this user on this host owns the port.
    pub local_port: Option<u16>,
    /// Addresses from [`CmMachine::view_of`], if the ICRC of the message covers them in place of the
    /// addresses of its packet.
    pub view: Option<PeerView>,
}

impl From<IpAddr> for MadSource {
    /// Returns a sender on another host.
    fn from(address: IpAddr) -> Self {
        let (ports, owner) = ((ROCE_PORT, ROCE_PORT), AddressOwner::OtherHost);
        Self { address, ports, owner, local_port: None, view: None }
    }
}

/// Maximum number of messages that wait for [`CmMachine::poll_transmit`]. Further messages are dropped, as in a network.
const TRANSMIT_QUEUE: usize = 8_192;

/// The connections of one device, on all of its addresses.
///
/// Feed it with [`Self::handle_mad`] and [`Self::handle_timeout`] (at [`Self::next_timeout`]). After each
/// call, including failed ones, drain [`Self::poll_transmit`] and [`Self::poll_event`]. Times are nanoseconds
/// of a monotonic clock. A call that returns an error has no effect.
#[derive(Debug)]
pub struct CmMachine {
    pub(super) config: CmConfig,
    pub(super) listeners: Listeners,
    pub(super) table: Table,
    pub(super) questions: Questions,
    pub(super) counters: CmCounters,
    pub(super) other_kinds: OtherKinds,
    pub(super) agent: u64,
    /// Earliest time of the next check whether a peer still has a connection.
    pub(super) next_doubt: u64,
    next_id: u32,
    random: u64,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
}

impl CmMachine {
    /// Creates a machine without connections.
    #[must_use]
    pub fn new(config: CmConfig) -> Self {
        let mut machine = Self {
            config,
            listeners: Listeners::default(),
            table: Table::default(),
            questions: Questions::default(),
            counters: CmCounters::default(),
            other_kinds: OtherKinds::default(),
            agent: 0,
            next_doubt: 0,
            next_id: 0,
            random: config.seed,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        };
        // The upper half of a transaction id identifies the sender (contract rocev2 9.4).
        machine.agent = machine.random() << 32;
        machine.next_id = u32::try_from(machine.random() >> 32).unwrap_or(1);
        machine
    }

    /// Starts listening and returns the port, which is a free one if `listen.port` is 0.
    ///
    /// # Errors
    /// [`CmError::AddressInUse`], also if all ports are taken.
    pub fn listen(&mut self, listen: &Listen) -> Result<(ListenerId, u16), CmError> {
        let random = self.random();
        self.listeners.add(listen, random)
    }

    /// Stops listening. Requests already reported stay until they are answered or expire.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn unlisten(&mut self, listener: ListenerId) -> Result<(), CmError> {
        self.listeners.remove(listener)
    }

    /// Handles a received message. `to` is the local address at which it arrived.
    pub fn handle_mad(&mut self, now: u64, from: impl Into<MadSource>, to: IpAddr, mad: &Mad) {
        let from = from.into();
        self.counters.received += 1;
        if !mad.header.is_cm() {
            self.counters.count(CmDrop::NotCm);
            return;
        }
        let addresses = Addresses { local: to.to_canonical(), remote: from.address.to_canonical() };
        let host = PeerHost::new(addresses.remote, from.owner);
        let transaction = mad.header.transaction;
        match CmMessage::parse(mad) {
            CmMessage::Req(req) => self.handle_req(now, addresses, host, &from, transaction, &req),
            CmMessage::Mra(mra) => self.handle_mra(now, addresses, &mra),
            CmMessage::Rej(rej) => self.handle_rej(now, addresses, &rej),
            CmMessage::Rep(rep) => self.handle_rep(now, addresses, from.local_port, transaction, &rep),
            CmMessage::Rtu(rtu) => self.handle_rtu(addresses, transaction, &rtu),
            CmMessage::Dreq(dreq) => self.handle_dreq(now, addresses, transaction, &dreq),
            CmMessage::Drep(drep) => self.handle_drep(now, addresses, &drep),
            CmMessage::SidrReq(req) => self.handle_sidr_req(now, addresses, host, transaction, &req),
            CmMessage::SidrRep(rep) => self.handle_sidr_rep(addresses, &rep),
            CmMessage::Other(..) => self.counters.count(CmDrop::Unserved),
        }
    }

    /// Returns the addresses that the ICRC of a message may cover in place of `from` and `to`. They are the addresses in a
    /// REQ for one flow, or the addresses of the connection that another message names.
    #[must_use]
    pub fn view_of(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Option<PeerView> {
        if !mad.header.is_cm() {
            return None;
        }
        let addresses = Addresses { local: to.to_canonical(), remote: from.to_canonical() };
        let connection = match CmMessage::parse(mad) {
            CmMessage::Req(req) => return req.view(),
            CmMessage::Rej(rej) => self.rejected(addresses, &rej),
            message => self.table.get(ConnectionId(message.remote_id()?)),
        };
        connection.filter(|connection| connection.addresses == addresses)?.peer.ports.view
    }

    /// Takes the next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes the next peer that was refused because it requested RC from an XRC listener, or XRC from an RC listener. Each
    /// host is reported once, up to 64 hosts.
    pub fn poll_other_kind(&mut self) -> Option<OtherKind> {
        self.other_kinds.poll()
    }

    /// Returns the counters since the machine was created.
    #[must_use]
    pub const fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Returns the total number of SIDR requests and of connections, including connections in timewait.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len() + self.questions.len()
    }

    /// Returns true if this machine owns the comm id. Callers forward messages with other ids to other
    /// processes.
    #[must_use]
    pub fn has_connection(&self, comm_id: u32) -> bool {
        let id = ConnectionId(comm_id);
        self.table.contains(id) || self.questions.get(id).is_some()
    }

    /// Returns the connection named in a call of the program, unless it has ended or was released.
    pub(super) fn own(&self, id: ConnectionId) -> Result<&Connection, CmError> {
        self.table.get(id).filter(|connection| !connection.is_released).ok_or(CmError::Unknown)
    }

    /// Queues a message that does not belong to a connection.
    pub(super) fn queue(&mut self, addresses: Addresses, transaction: u64, message: &CmMessage) {
        let ports = UdpPorts::new(self.config.udp_port);
        self.queue_to(addresses, ports, transaction, message);
    }

    pub(super) fn queue_to(
        &mut self,
        addresses: Addresses,
        ports: UdpPorts,
        transaction: u64,
        message: &CmMessage,
    ) {
        if self.transmits.len() >= TRANSMIT_QUEUE {
            self.counters.count(CmDrop::TransmitQueueFull);
            return;
        }
        self.counters.sent += 1;
        let mad = message.mad(transaction);
        self.transmits.push_back(Transmit { from: addresses.local, to: addresses.remote, ports, mad });
    }

    /// Sends a message of a connection, once.
    pub(super) fn send(&mut self, id: ConnectionId, message: &CmMessage) {
        if let Some(&Connection { addresses, transaction, peer, .. }) = self.table.get(id) {
            self.queue_to(addresses, peer.ports, transaction, message);
        }
    }

    /// Sends a message until it is answered. The connection is in the state that awaits the answer.
    pub(super) fn send_until_answered(&mut self, now: u64, id: ConnectionId, message: CmMessage) {
        self.send(id, &message);
        let patience_until = now.saturating_add(self.config.patience_ns);
        if let Some(connection) = self.table.get_mut(id) {
            let unanswered = Unanswered { message, sent: 1, patience_until, until: None, unreachable: None };
            connection.unanswered = Some(unanswered);
        }
        self.table.set_timer(id, Some(now.saturating_add(self.config.first_retry_ns)));
    }

    /// Reports an event, unless the program has released the connection.
    pub(super) fn report(&mut self, event: Event) {
        let id = event.connection();
        let is_last = matches!(event, Event::TimewaitExit(..));
        if is_last || self.table.get(id).is_some_and(|connection| !connection.is_released) {
            self.events.push_back(event);
        }
    }

    /// Ends a SIDR request and reports its outcome.
    pub(super) fn report_question(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn enter(&mut self, id: ConnectionId, state: ConnectionState) {
        self.table.enter(&mut self.listeners, id, state);
    }

    pub(super) fn insert(&mut self, connection: Connection) {
        self.table.insert(&mut self.listeners, connection);
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.table.remove(&mut self.listeners, id);
    }

    /// Returns a free comm id, derived from the next index. It is never 0.
    pub(super) fn new_id(&mut self) -> ConnectionId {
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            let id = ConnectionId(self.config.comm_ids.number_of(self.next_id));
            if id.0 != 0 && !self.has_connection(id.0) {
                return id;
            }
        }
    }

    /// Returns the next number of `SplitMix64`. The numbers do not repeat, and must not be used as secrets.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
