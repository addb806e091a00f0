//! One connection: its two sides' names, its state, what it sends again.

use super::{ListenerId, Peer, Transport};
use crate::wire::cm::CmMessage;
use std::net::IpAddr;
use trunkline_verbs::QpNumber;

/// Names a connection; it is the comm id that the peer sees. Never 0, and not used again for
/// long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// Where a connection stands; see the drawing in the module above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Active: REQ sent.
    ReqSent,
    /// Active: REP received, the program brings its QP up.
    RepReceived,
    /// Passive: the program decides. Held against the backlog of this listener until the program has
    /// heard of it.
    ReqReceived(Option<ListenerId>),
    /// Passive: REP sent.
    RepSent,
    /// Both sides may send.
    Established,
    /// Passive XRC: the program has let go, the peer's INI has not (contract J9). Kept for a
    /// while, so that late messages are not answered as if there had never been a connection.
    Idle,
    /// DREQ sent.
    DreqSent,
    /// Over; kept until no packet of it is on the way any more.
    Timewait,
}

impl State {
    /// Whether a peer could make many of these at no cost.
    pub(super) const fn is_half_open(&self) -> bool {
        matches!(self, Self::ReqReceived(_) | Self::RepSent)
    }
}

/// Both addresses of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Addresses {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
}

/// A message that is sent until it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) message: CmMessage,
    /// How often it has been sent.
    pub(super) sent: u32,
    /// When an MRA no longer counts.
    pub(super) patience_until: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// 0 until known.
    pub(super) remote_id: u32,
    pub(super) addresses: Addresses,
    pub(super) transport: Transport,
    pub(super) is_active: bool,
    /// 0 until accepted.
    pub(super) local_qpn: QpNumber,
    /// What the peer said. On the active side before the REP: what we asked for.
    pub(super) peer: Peer,
    /// Transaction id of the REQ, repeated by its answers (contract rocev2 9.4).
    pub(super) transaction: u64,
    pub(super) state: State,
    pub(super) unanswered: Option<Unanswered>,
    /// The REQ offered an alternate path.
    pub(super) has_alternate: bool,
    /// Private data of the REP, until `confirm`.
    pub(super) reply_private: Vec<u8>,
    /// The program has let go of it: no event but the last.
    pub(super) is_released: bool,
    /// When the timer fires, if it runs.
    pub(super) timer: Option<u64>,
}

/// How a peer's messages find a connection: the peer's address is part of the key, so that
/// nobody can speak for another host's adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// Whether the peer has told its names.
    pub(super) const fn is_known(&self) -> bool {
        self.remote_id != 0
    }
}
