//! One connection: the ids of both sides, its state, and the message to repeat.

use super::{CmConfig, ListenerId, Peer, Transport};
use crate::wire::cm::CmMessage;
use std::net::IpAddr;
use trunkline_verbs::{OneFlow, PeerHost, QpNumber, UnreachableCause};

/// Identifies a connection, and is the comm id in messages to the peer. Never 0, and not reused soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// The state of a connection; see the drawing in the module above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// Active: REQ sent.
    ReqSent,
    /// Active: REP received, the program brings its QP up.
    RepReceived,
    /// Passive: the program decides. Counts against the backlog of this listener until the request has
    /// been delivered to the program.
    ReqReceived(Option<ListenerId>),
    /// Passive: REP sent.
    RepSent,
    /// Both sides may send.
    Established,
    /// Passive XRC: the program has released the connection, but the peer's INI has not (contract J9). Kept
    /// for a while, so that late messages still find the connection.
    Idle,
    /// DREQ sent.
    DreqSent,
    /// Ended; kept until its packets can no longer be in the network.
    Timewait,
}

impl ConnectionState {
    /// Returns true if a peer could cause many connections in this state without cost.
    pub(super) const fn is_half_open(&self) -> bool {
        matches!(self, Self::ReqReceived(_) | Self::RepSent)
    }
}

/// Both addresses of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Addresses {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
}

/// Authenticated reports that a request has no receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusals {
    /// Time for which the request is repeated after the first report.
    retry_ns: u64,
    first: Option<u64>,
}

impl Refusals {
    pub(super) fn new(config: &CmConfig, retry: bool) -> Self {
        // 7 = 1 + 2 + 4: three transmissions with doubling waits.
        let retry_ns = if retry { config.first_retry_ns.saturating_mul(7) } else { 0 };
        Self { retry_ns, first: None }
    }

    /// Counts a report. Returns true if it ends the request.
    pub(super) fn ends(&mut self, now: u64) -> bool {
        now.saturating_sub(*self.first.get_or_insert(now)) >= self.retry_ns
    }
}

/// A message that is sent until it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) message: CmMessage,
    /// The number of transmissions so far.
    pub(super) sent: u32,
    /// Time from which on MRAs no longer extend the wait.
    pub(super) patience_until: u64,
    /// Time until which a DREQ is repeated for a program that waits for its outcome. Otherwise the number of
    /// transmissions is limited.
    pub(super) until: Option<u64>,
    /// Cause in an unauthenticated report about this message. The cause ends the attempt instead of the third
    /// retransmission.
    pub(super) unreachable: Option<UnreachableCause>,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// 0 before the peer's first message.
    pub(super) remote_id: u32,
    pub(super) addresses: Addresses,
    /// Host that a half-open connection counts for; `None` on the active side.
    pub(super) host: Option<PeerHost>,
    pub(super) transport: Transport,
    pub(super) is_active: bool,
    /// 0 until accepted.
    pub(super) local_qpn: QpNumber,
    /// The peer's values. On the active side before the REP: the requested values.
    pub(super) peer: Peer,
    /// Transaction id of the REQ, repeated by its answers (contract rocev2 9.4).
    pub(super) transaction: u64,
    pub(super) state: ConnectionState,
    pub(super) unanswered: Option<Unanswered>,
    /// True if the REQ offered an alternate path.
    pub(super) has_alternate: bool,
    /// Private data of the REP, until `confirm`.
    pub(super) reply_private: Vec<u8>,
    /// Use of one flow, from the REQ.
    pub(super) one_flow: OneFlow,
    pub(super) refusals: Refusals,
    /// True if the program has released the connection: only the last event is reported.
    pub(super) is_released: bool,
    /// Time for which a DREQ is repeated while the program waits for its outcome.
    pub(super) closing_ns: u64,
    /// Time at which the timer fires, if it runs.
    pub(super) timer: Option<u64>,
}

/// Lookup key of a connection for a peer's messages. It contains the peer's address, so that no other host
/// can use the peer's GUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RemoteKey<N> {
    pub(super) address: IpAddr,
    pub(super) ca_guid: u64,
    pub(super) number: N,
}

impl Connection {
    pub(super) const fn remote_id_key(&self) -> RemoteKey<u32> {
        RemoteKey { address: self.addresses.remote, ca_guid: self.peer.ca_guid, number: self.remote_id }
    }

    pub(super) const fn remote_qpn_key(&self) -> RemoteKey<QpNumber> {
        RemoteKey { address: self.addresses.remote, ca_guid: self.peer.ca_guid, number: self.peer.qpn }
    }

    /// Returns true if the peer's comm id has arrived.
    pub(super) const fn is_known(&self) -> bool {
        self.remote_id != 0
    }
}
