//! A connection, with the ids of both sides, its state, and the message to repeat.

use super::{CmConfig, ListenerId, Peer, Transport};
use crate::wire::cm::CmMessage;
use std::net::IpAddr;
use trunkline_verbs::{OneFlow, PeerHost, QpNumber, UnreachableCause};

/// Id of a connection, which is also the comm id in messages to the peer. It is never 0, and not reused soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// State of a connection. The diagram in the parent module shows the transitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// On the active side, the REQ was sent.
    ReqSent,
    /// On the active side, the REP was received, and the program moves its QP to RTS.
    RepReceived,
    /// On the passive side, the program decides. The request counts against the backlog of this listener until it is
    /// delivered to the program.
    ReqReceived(Option<ListenerId>),
    /// On the passive side, the REP was sent.
    RepSent,
    /// Both sides may send.
    Established,
    /// The program has released the connection of a TGT, but the peer's INI has not (contract J9). The connection is kept
    /// for a while to handle late messages.
    Idle,
    DreqSent,
    /// The connection has ended, and is kept until its packets can no longer be in the network.
    Timewait,
}

impl ConnectionState {
    /// Returns true in a state that a peer can cause for many connections without cost.
    pub(super) const fn is_half_open(&self) -> bool {
        matches!(self, Self::ReqReceived(_) | Self::RepSent)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Addresses {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
}

/// Authenticated reports that a request was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusals {
    /// Time for which the request is repeated after the first report.
    retry_ns: u64,
    first: Option<u64>,
}

impl Refusals {
    pub(super) fn new(config: &CmConfig, retry: bool) -> Self {
        // 7 = 1 + 2 + 4, for three transmissions with doubling waits.
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
    /// Time after which MRAs no longer extend the wait.
    pub(super) patience_until: u64,
    /// Time until which a DREQ is repeated for a program that waits for its outcome. Otherwise the number of
    /// transmissions is limited.
    pub(super) until: Option<u64>,
    /// Cause from an unauthenticated report about this message. If it is set, the attempt ends instead of the third
    /// retransmission.
    pub(super) unreachable: Option<UnreachableCause>,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// 0 until the peer's first message.
    pub(super) remote_id: u32,
    pub(super) addresses: Addresses,
    /// Host against whose limit a half-open connection counts; `None` on the active side.
    pub(super) host: Option<PeerHost>,
    pub(super) transport: Transport,
    pub(super) is_active: bool,
    /// 0 until accepted.
    pub(super) local_qpn: QpNumber,
    /// The peer's values. On the active side, the requested values until the REP arrives.
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
    /// True if the program has released the connection. Only the last event is then reported.
    pub(super) is_released: bool,
    /// Time for which a DREQ is repeated while the program waits for its outcome.
    pub(super) closing_ns: u64,
    /// Time at which the timer fires, if it runs.
    pub(super) timer: Option<u64>,
}

/// Lookup key for the connection of a peer's messages. It contains the peer's address, so that no other host can use the
/// peer's GUID.
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
