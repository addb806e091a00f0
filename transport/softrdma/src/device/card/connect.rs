//! What programs ask of connection endpoints.
//!
//! Owns an endpoint's own facts: channel, addresses, attached QP, what was agreed.

use super::Card;
use super::resolve::PORTS_TRIED;
use crate::device::gid_table::GidTable;
use crate::device::limits::MAX_RD_ATOMIC;
use crate::device::signal::Signal;
use crate::host::ServiceClaim;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use trunkline_roce::cm::{Accept, CmError, Connect, ConnectionId, Listen, ListenerId, Peer, Transport};
use trunkline_verbs::{
    Access, AddressVector, CmIdNumber, ConnectParameters, Gid, PortSpace, Psn, QpModify, QpNumber, QpState,
    QpType, RejectReason, SidrStatus, Time, VerbsError,
};

/// An event on its way to a channel, without the objects that the program gets.
#[derive(Debug)]
pub(in crate::device) struct PendingCmEvent {
    pub(in crate::device) id: CmIdNumber,
    pub(in crate::device) kind: PendingCmEventKind,
    pub(in crate::device) private_data: Vec<u8>,
}

/// `CmEventKind` without objects.
#[derive(Debug)]
pub(in crate::device) enum PendingCmEventKind {
    ConnectRequest { new: CmIdNumber, parameters: ConnectParameters },
    AddressResolved,
    AddressError(VerbsError),
    RouteResolved,
    ConnectResponse { parameters: ConnectParameters },
    Established,
    ServiceResolved { parameters: ConnectParameters },
    ServiceRefused(SidrStatus),
    ConnectError,
    Unreachable,
    Rejected(RejectReason),
    Disconnected { is_answered: bool },
    DeviceRemoval,
    TimewaitExit,
}

/// Which end of a connection an endpoint is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It neither listens nor has a peer.
    Undecided,
    /// It connects to there.
    Active { remote: SocketAddr },
    /// It listens, or a listener made it.
    Passive,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) channel: Arc<Signal<PendingCmEvent>>,
    pub(super) port_space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) role: Role,
    pub(super) local: SocketAddr,
    /// `local` was asked for, so that nobody else gets it.
    pub(super) is_bound: bool,
    pub(super) has_route: bool,
    /// It has asked its peer. As in the kernel, it does so once.
    pub(super) has_asked: bool,
    pub(super) peer: Option<SocketAddr>,
    pub(super) connection: Option<ConnectionId>,
    pub(super) listener: Option<ListenerId>,
    pub(super) qp: Option<QpNumber>,
    /// The QP that the program brings up itself.
    pub(super) named_qp: Option<QpNumber>,
    /// What the peer said.
    pub(super) offered: Option<Peer>,
    /// Where the peer starts to send.
    announced: Psn,
    pub(super) traffic_class: u8,
    pub(super) reuses_address: bool,
    pub(super) is_family_only: bool,
    pub(super) ack_timeout: Option<u8>,
    /// Its service, which no other device that shares the addresses has.
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
            claims: Vec::new(),
        }
    }

    /// The changes that bring the QP from INIT to RTS (contract rocev2 12.7).
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

fn to_init() -> QpModify {
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

impl Card {
    /// Own and peer's address.
    pub(in crate::device) fn endpoint_addresses(
        &self,
        id: CmIdNumber,
    ) -> Option<(SocketAddr, Option<SocketAddr>)> {
        self.cm.endpoints.get(&id).map(|endpoint| (endpoint.local, endpoint.peer))
    }

    pub(super) fn endpoint(&mut self, id: CmIdNumber) -> Result<&mut Endpoint, VerbsError> {
        self.cm.endpoints.get_mut(&id).ok_or(VerbsError::Gone)
    }

    /// Gives an endpoint its QP, and moves that to INIT.
    pub(in crate::device) fn attach(&mut self, id: CmIdNumber, qp: QpNumber) -> Result<(), VerbsError> {
        let qp_type = self.type_of(qp).ok_or(VerbsError::Gone)?;
        let endpoint = self.endpoint(id)?;
        if endpoint.qp.is_some() {
            return Err(VerbsError::Invalid("the endpoint has a QP"));
        }
        if endpoint.port_space == PortSpace::Udp {
            return Err(VerbsError::Invalid("no connection of port space UDP is there for a QP"));
        }
        if endpoint.qp_type != qp_type {
            return Err(VerbsError::Invalid("the QP's type is not the endpoint's"));
        }
        endpoint.qp = Some(qp);
        if self.query_qp(qp)?.state == QpState::Reset {
            self.modify_qp(qp, &to_init())?;
        }
        Ok(())
    }

    /// Takes the QP away again.
    pub(in crate::device) fn detach(&mut self, id: CmIdNumber) {
        self.set_awaits_rtu(id, false);
        if let Some(endpoint) = self.cm.endpoints.get_mut(&id) {
            endpoint.qp = None;
        }
    }

    /// What brings a QP of the connection to a state.
    pub(in crate::device) fn qp_changes(
        &mut self,
        id: CmIdNumber,
        state: QpState,
    ) -> Result<QpModify, VerbsError> {
        let endpoint = self.cm.endpoints.get(&id).ok_or(VerbsError::Gone)?;
        if state == QpState::Init {
            return Ok(to_init());
        }
        let peer = endpoint.offered.ok_or(VerbsError::Invalid("the peer has not asked or answered yet"))?;
        let resources = peer.responder_resources.min(MAX_RD_ATOMIC);
        let depth = peer.initiator_depth.min(MAX_RD_ATOMIC);
        let (rtr, rts) = endpoint.transitions(&mut self.gids, &peer, resources, depth)?;
        match state {
            QpState::ReadyToReceive => Ok(rtr),
            QpState::ReadyToSend => Ok(rts),
            _ => Err(VerbsError::Invalid("connections know changes to INIT, RTR and RTS only")),
        }
    }

    /// Starts to listen.
    pub(in crate::device) fn listen(&mut self, id: CmIdNumber, backlog: u32) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        if endpoint.role != Role::Undecided {
            return Err(VerbsError::Invalid("the endpoint listens already, or is an active one"));
        }
        if endpoint.qp_type == QpType::XrcIni {
            return Err(VerbsError::Invalid("an INI's endpoint does not listen"));
        }
        let (local, only) = (endpoint.local, endpoint.is_family_only);
        let (port_space, qp_type) = (endpoint.port_space, endpoint.qp_type);
        let is_claimed = !endpoint.claims.is_empty();
        self.open_for_listener(local.ip(), only)?;
        let listen = Listen {
            address: local.ip(),
            is_family_only: only,
            port_space,
            port: local.port(),
            transport: Some(transport(qp_type)),
            backlog: backlog.max(1),
        };
        let (listener, port, claims) = self.listen_for(&listen, is_claimed, only)?;
        self.cm.by_listener.insert(listener, id);
        let endpoint = self.endpoint(id)?;
        endpoint.claims.extend(claims);
        endpoint.listener = Some(listener);
        endpoint.role = Role::Passive;
        endpoint.is_bound = true;
        endpoint.local.set_port(port);
        Ok(())
    }

    /// Listens here, and claims the service among the devices that share the addresses unless
    /// binding did.
    fn listen_for(
        &mut self,
        listen: &Listen,
        is_claimed: bool,
        is_family_only: bool,
    ) -> Result<(ListenerId, u16, Vec<ServiceClaim>), VerbsError> {
        for _ in 0..PORTS_TRIED {
            let (listener, port) = self.cm.machine.listen(listen).map_err(refusal)?;
            if is_claimed {
                return Ok((listener, port, Vec::new()));
            }
            match self.claim_port(listen.port_space, SocketAddr::new(listen.address, port), is_family_only) {
                Ok(claims) => return Ok((listener, port, claims)),
                Err(error) => {
                    let _gone = self.cm.machine.unlisten(listener);
                    if listen.port != 0 || !matches!(error, VerbsError::AddressInUse(_)) {
                        return Err(error);
                    }
                }
            }
        }
        Err(VerbsError::AddressInUse("no port is free"))
    }

    /// The own addresses that an unspecified one stands for.
    pub(super) fn covered(&self, address: IpAddr, is_family_only: bool) -> Vec<IpAddr> {
        let wanted =
            |own: &IpAddr| own.is_ipv4() == address.is_ipv4() || (address.is_ipv6() && !is_family_only);
        self.gids.addresses().iter().copied().filter(wanted).collect()
    }

    /// Opens the address, or all of a wildcard's that are free.
    fn open_for_listener(&mut self, address: IpAddr, is_family_only: bool) -> Result<(), VerbsError> {
        if !address.is_unspecified() {
            return self.open_address(address);
        }
        let all = self.covered(address, is_family_only);
        let mut result = Err(VerbsError::AddressNotAvailable("the device has no address of this family"));
        for own in all {
            let opened = self.open_address(own);
            if let Err(error) = opened {
                tracing::warn!(%own, %error, "a wildcard listener goes without an address");
            }
            if result.is_err() {
                result = opened;
            }
        }
        result
    }

    /// The program has been told of a request, whose endpoint this is.
    pub(in crate::device) fn request_heard(&mut self, id: CmIdNumber) {
        if let Some(connection) = self.cm.endpoints.get(&id).and_then(|endpoint| endpoint.connection) {
            self.cm.machine.request_delivered(connection);
        }
    }

    /// Sends the request of an active endpoint.
    pub(in crate::device) fn connect(
        &mut self,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        if self.is_service(id) {
            return self.ask(id, parameters, now);
        }
        let endpoint = self.endpoint(id)?;
        let Role::Active { remote } = endpoint.role else {
            return Err(VerbsError::Invalid(
                "an endpoint without a peer, or a passive one, does not connect",
            ));
        };
        if endpoint.qp_type == QpType::XrcTgt {
            return Err(VerbsError::Invalid("a TGT's endpoint does not connect"));
        }
        if !endpoint.has_route {
            return Err(VerbsError::Invalid("the way to the peer is not resolved"));
        }
        if endpoint.has_asked {
            return Err(VerbsError::Invalid("the endpoint has asked its peer already; make another"));
        }
        let none = VerbsError::Invalid("attach a QP before connecting, or name one");
        let qpn = endpoint.qp.or(parameters.qp_number).ok_or(none)?;
        endpoint.named_qp = parameters.qp_number.filter(|_| endpoint.qp.is_none());
        let starting_psn = endpoint.announced;
        let (port_space, qp_type, local) = (endpoint.port_space, endpoint.qp_type, endpoint.local);
        let ack_timeout = endpoint.ack_timeout.unwrap_or(parameters.ack_timeout);
        let mtu = self.mtu_of(local.ip());
        let connect = Connect {
            local,
            remote,
            port_space,
            transport: transport(qp_type),
            qpn,
            starting_psn,
            mtu,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            retry_count: parameters.retry_count.min(7),
            rnr_retry: parameters.rnr_retry_count.min(7),
            ack_timeout: ack_timeout.clamp(1, 31),
            srq: parameters.srq,
            private: &parameters.private_data,
        };
        let connection = self.cm.machine.connect(now.0, &connect).map_err(refusal)?;
        self.under_way(id, connection, now)
    }

    /// What an endpoint asks is on its way.
    pub(super) fn under_way(
        &mut self,
        id: CmIdNumber,
        connection: ConnectionId,
        now: Time,
    ) -> Result<(), VerbsError> {
        self.cm.by_connection.insert(connection, id);
        let endpoint = self.endpoint(id)?;
        endpoint.connection = Some(connection);
        endpoint.has_asked = true;
        self.finish(now);
        Ok(())
    }

    /// Brings the QP up and answers a request.
    pub(in crate::device) fn accept(
        &mut self,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        if self.is_service(id) {
            return self.answer(id, parameters, now);
        }
        let endpoint = self.endpoint(id)?;
        let not_asked = VerbsError::Invalid("the endpoint has no request to answer");
        let connection = endpoint.connection.ok_or(not_asked)?;
        let peer = endpoint.offered.ok_or(not_asked)?;
        if endpoint.role != Role::Passive {
            return Err(not_asked);
        }
        let none = VerbsError::Invalid("attach a QP before accepting, or name one");
        let attached = endpoint.qp;
        let qpn = attached.or(parameters.qp_number).ok_or(none)?;
        endpoint.named_qp = parameters.qp_number.filter(|_| attached.is_none());
        let starting_psn = endpoint.announced;
        let resources = parameters.responder_resources.min(MAX_RD_ATOMIC);
        let depth = parameters.initiator_depth.min(peer.initiator_depth);
        if attached.is_some() {
            self.bring_up(id, qpn, resources, depth)?;
        }
        let accept = Accept {
            qpn,
            starting_psn,
            responder_resources: resources,
            initiator_depth: depth,
            rnr_retry: parameters.rnr_retry_count.min(7),
            srq: parameters.srq,
            private: &parameters.private_data,
        };
        self.set_awaits_rtu(id, true);
        if let Err(error) = self.cm.machine.accept(now.0, connection, &accept) {
            self.fail_attached(id);
            return Err(refusal(error));
        }
        self.finish(now);
        Ok(())
    }

    /// The program has brought its QP up after the peer's answer.
    pub(in crate::device) fn establish(&mut self, id: CmIdNumber, now: Time) -> Result<(), VerbsError> {
        let none = VerbsError::Invalid("no peer has answered this endpoint");
        let connection = self.endpoint(id)?.connection.ok_or(none)?;
        self.cm.machine.confirm(connection).map_err(refusal)?;
        self.finish(now);
        Ok(())
    }

    /// The program has seen a packet at the QP of an endpoint that it accepted for.
    pub(in crate::device) fn communication_established(&mut self, id: CmIdNumber, now: Time) {
        let qp = self.cm.endpoints.get(&id).and_then(|endpoint| endpoint.qp.or(endpoint.named_qp));
        if let Some(qp) = qp {
            self.cm.machine.communication_established(qp);
            self.finish(now);
        }
    }

    /// Refuses a request.
    pub(in crate::device) fn reject(
        &mut self,
        id: CmIdNumber,
        reason: RejectReason,
        private: &[u8],
        now: Time,
    ) -> Result<(), VerbsError> {
        if self.is_service(id) {
            return self.decline(id, private, now);
        }
        let none = VerbsError::Invalid("the endpoint has no request to answer");
        let connection = self.endpoint(id)?.connection.ok_or(none)?;
        self.cm.machine.reject(now.0, connection, reason, private).map_err(refusal)?;
        self.finish(now);
        Ok(())
    }

    /// Ends a connection.
    pub(in crate::device) fn disconnect(&mut self, id: CmIdNumber, now: Time) -> Result<(), VerbsError> {
        let none = VerbsError::Invalid("the endpoint has no connection");
        let connection = self.endpoint(id)?.connection.ok_or(none)?;
        self.cm.machine.disconnect(now.0, connection).map_err(refusal)?;
        self.fail_attached(id);
        self.finish(now);
        Ok(())
    }

    /// Reports to another channel from now on.
    pub(in crate::device) fn migrate(
        &mut self,
        id: CmIdNumber,
        channel: &Arc<Signal<PendingCmEvent>>,
    ) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        if Arc::ptr_eq(&endpoint.channel, channel) {
            return Ok(());
        }
        let old = std::mem::replace(&mut endpoint.channel, Arc::clone(channel));
        for event in old.extract(|event| event.id == id) {
            if channel.push(event).is_err() {
                return Err(VerbsError::OutOfResources("the channel holds too many events"));
            }
        }
        Ok(())
    }

    /// The program has dropped an endpoint. Its QP is left alone.
    pub(in crate::device) fn drop_endpoint(&mut self, id: CmIdNumber, now: Time) {
        let Some(endpoint) = self.cm.endpoints.remove(&id) else { return };
        // Connection requests that the program has not seen are refused along with their listener: nobody
        // is left to accept them.
        for event in endpoint.channel.extract(|event| event.id == id) {
            if let PendingCmEventKind::ConnectRequest { new, .. } = event.kind {
                self.drop_endpoint(new, now);
            }
        }
        if let Some(listener) = endpoint.listener {
            self.cm.by_listener.remove(&listener);
            let _gone = self.cm.machine.unlisten(listener);
        }
        if let Some(connection) = endpoint.connection {
            self.cm.by_connection.remove(&connection);
            self.cm.machine.release(now.0, connection);
        }
        self.finish(now);
    }

    pub(super) fn finish(&mut self, now: Time) {
        self.serve_cm(now);
        self.flush(now);
    }
}

fn transport(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Rc => Transport::Rc,
        QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
    }
}

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
