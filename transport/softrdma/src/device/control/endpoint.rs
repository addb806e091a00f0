//! A connection endpoint, and the events queued for its program.
//!
//! Owns the endpoint's state: channel, addresses, attached QP, agreed parameters.

use crate::device::tables::gid_table::GidTable;
use crate::device::threads::signal::Signal;
use crate::host::ServiceClaim;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use trunkline_roce::cm::{CmError, ConnectionId, ListenerId, Peer, Transport};
use trunkline_verbs::{
    Access, AddressVector, CmEventKind, CmIdNumber, ConnectParameters, Gid, Mtu, OneFlow, PortSpace, Psn,
    QpModify, QpNumber, QpState, QpType, UdpPorts, VerbsError,
};

/// An event in the queue of a channel, without the objects that the program gets with it.
#[derive(Debug)]
pub(in crate::device) struct PendingCmEvent {
    pub(in crate::device) id: CmIdNumber,
    pub(in crate::device) kind: PendingCmEventKind,
    pub(in crate::device) private_data: Vec<u8>,
}

/// Kind of a queued event.
#[derive(Debug)]
pub(in crate::device) enum PendingCmEventKind {
    /// A peer's request. The program gets the object of the new endpoint when it takes the event.
    ConnectRequest { new: CmIdNumber, parameters: ConnectParameters },
    /// Any other event.
    Other(CmEventKind),
}

/// Role of an endpoint in its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Neither listens nor has a peer.
    Undecided,
    /// Connects to a peer.
    Active { remote: SocketAddr },
    /// Listens, or was created by a listener.
    Passive,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) channel: Arc<Signal<PendingCmEvent>>,
    pub(super) port_space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) role: Role,
    pub(super) local: SocketAddr,
    /// True if the program chose `local`, which is then exclusive to this endpoint unless `reuses_address` is set.
    pub(super) is_bound: bool,
    pub(super) has_route: bool,
    /// True if the endpoint has sent a request to its peer. As in the kernel, an endpoint can send only one.
    pub(super) has_asked: bool,
    pub(super) peer: Option<SocketAddr>,
    pub(super) connection: Option<ConnectionId>,
    pub(super) listener: Option<ListenerId>,
    pub(super) qp: Option<QpNumber>,
    /// QP that the program named and brings up itself.
    pub(super) named_qp: Option<QpNumber>,
    /// Parameters that the peer offered.
    pub(super) offered: Option<Peer>,
    /// Starting PSN of the peer's packets, which this side sends in its REQ or REP.
    pub(super) announced: Psn,
    pub(super) traffic_class: u8,
    pub(super) reuses_address: bool,
    pub(super) is_family_only: bool,
    pub(super) ack_timeout: Option<u8>,
    /// Upper limit on the path MTU to request.
    pub(super) path_mtu: Option<Mtu>,
    pub(super) one_flow: OneFlow,
    pub(super) retry_refused: bool,
    /// UDP ports of the connection, or the ports that the program named if the endpoint is not connected.
    pub(super) ports: Option<UdpPorts>,
    /// Services that the endpoint has claimed. Other devices that share the addresses cannot claim them.
    pub(super) claims: Vec<ServiceClaim>,
}

impl Endpoint {
    pub(super) fn new(
        channel: Arc<Signal<PendingCmEvent>>,
        port_space: PortSpace,
        qp_type: QpType,
        announced: Psn,
    ) -> Self {
        Self {
            channel,
            port_space,
            qp_type,
            role: Role::Undecided,
            local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            is_bound: false,
            has_route: false,
            has_asked: false,
            peer: None,
            connection: None,
            listener: None,
            qp: None,
            named_qp: None,
            offered: None,
            announced,
            traffic_class: 0,
            reuses_address: false,
            is_family_only: false,
            ack_timeout: None,
            path_mtu: None,
            one_flow: OneFlow::No,
            retry_refused: false,
            ports: None,
            claims: Vec::new(),
        }
    }

    /// Returns the changes that move the QP from INIT to RTR and from RTR to RTS (contract rocev2 12.7).
    pub(super) fn transitions(
        &self,
        gids: &mut GidTable,
        peer: &Peer,
        max_dest_rd_atomic: u8,
        max_rd_atomic: u8,
    ) -> Result<(QpModify, QpModify), VerbsError> {
        let remote = self.peer.ok_or(VerbsError::Gone)?.ip();
        let source_gid_index = gids.index_of(self.local.ip()).ok_or(VerbsError::AddressNotAvailable(
            "the connection's own address is in no GID table entry",
        ))?;
        let rtr = QpModify {
            state: Some(QpState::ReadyToReceive),
            access: Some(granted(max_dest_rd_atomic)),
            address_vector: Some(AddressVector {
                source_gid_index,
                destination: Gid::from(remote),
                port: 1,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: self.traffic_class,
            }),
            path_mtu: Some(peer.mtu),
            destination_qp: Some(peer.qpn),
            rq_psn: Some(self.announced),
            max_dest_rd_atomic: Some(max_dest_rd_atomic),
            min_rnr_timer: Some(0),
            ..QpModify::default()
        };
        let rts = QpModify {
            state: Some(QpState::ReadyToSend),
            timeout: Some(peer.ack_timeout),
            retry_count: Some(peer.retry_count.min(7)),
            rnr_retry: Some(peer.rnr_retry.min(7)),
            sq_psn: Some(peer.send_psn),
            max_rd_atomic: Some(max_rd_atomic),
            ..QpModify::default()
        };
        Ok((rtr, rts))
    }
}

/// Returns the change that moves a QP to INIT.
pub(super) fn to_init() -> QpModify {
    QpModify {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(granted(1)),
        ..QpModify::default()
    }
}

fn granted(responder_resources: u8) -> Access {
    match responder_resources {
        0 => Access::REMOTE_WRITE,
        _ => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    }
}

/// Returns the transport of a connection between QPs of this type.
pub(super) fn transport(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Rc => Transport::Rc,
        QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
    }
}

/// Returns the error for an operation that the connection machine refuses.
pub(super) fn refusal(error: CmError) -> VerbsError {
    match error {
        CmError::AddressInUse => VerbsError::AddressInUse("another listener has this address and port"),
        CmError::Full { .. } => VerbsError::OutOfResources("the device has too many connections"),
        CmError::PrivateDataTooLong { .. } => VerbsError::Invalid("too much private data for this message"),
        CmError::AddressFamily => {
            VerbsError::Invalid("source and destination are of different address families")
        }
        CmError::Unknown => VerbsError::Invalid("the connection is over"),
        _ => VerbsError::Invalid("the connection is not in a state for this call"),
    }
}
