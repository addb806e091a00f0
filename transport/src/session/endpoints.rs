//! Creation, connection and release of the endpoints and QPs of sessions.
//!
//! Owned and called only by the CM machine. The INIs of a session belong to this module until the session is up, and
//! then to their pollers. TGTs always belong to this module. An endpoint is kept for the disconnect until its session
//! ends, and slightly longer so that the disconnect is delivered.
#![forbid(unsafe_code)]

use super::awaited_packets::AwaitedPackets;
use super::private_data::Refusal;
use crate::PathStatus;
use crate::PeerKey;
use crate::credit;
use crate::node::incarnation::{DeviceShared, Intake};
use crate::node::shared::NodeShared;
use crate::provider::SOFTWARE;
use crate::provider::connections::ConnectionKind;
use crate::wire::{INLINE_BYTES, SEND_QUEUE_DEPTH};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_verbs::{
    Access, AddressOwner, AsyncEvent, CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, CmOption,
    ConnectParameters, DeviceAttributes, EndpointDone, EndpointRequest, EndpointSide, Mtu, OneFlow,
    PortSpace, QpInit, QpModify, QpNumber, QpState, QpType, QueueCapacities, QueuePair, SrqNumber, Time,
    UdpPorts, VerbsError,
};

/// Maximum time before a disconnected endpoint is dropped.
const CLOSING_LIMIT: Duration = Duration::from_millis(400);
/// Maximum number of outstanding READs on an INI.
const READS: u8 = 16;
/// Number of times that a packet is sent before its peer counts as dead. The kernel's rxe treats 7 retries as
/// infinite, and would then never detect a dead peer.
const SENDINGS: RangeInclusive<u8> = 3..=7;
/// Codes of ACK timeouts, from 134 ms, the minimum of a software device, to 8.6 s.
const ACK_TIMEOUTS: RangeInclusive<u8> = 15..=21;
/// RNR NAK timer of this node's TGTs: 0.64 ms. CM sets 655 ms (contract J12).
const MIN_RNR_TIMER: u8 = 12;

/// Role of an endpoint in its connection, with the index of the sending poller. The sending poller is local for an INI,
/// and belongs to the peer for a TGT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Ini(u16),
    Tgt(u16),
}

#[derive(Debug)]
struct End {
    id: Arc<dyn CmId>,
    /// `None` once taken by a poller.
    qp: Option<Arc<dyn QueuePair>>,
    /// Private data of the connection's REQ and REP.
    #[cfg(feature = "identity")]
    carried: [Vec<u8>; 2],
}

/// The first pair of connections of a session, from this node's side.
#[cfg(feature = "identity")]
#[derive(Debug)]
pub(crate) struct FirstPair {
    /// Connections of this node's INI and of the peer's INI.
    pub(crate) inis: [FirstConnection; 2],
    pub(crate) qp: Arc<dyn QueuePair>,
}

/// A connection of the first pair.
#[cfg(feature = "identity")]
#[derive(Debug)]
pub(crate) struct FirstConnection {
    pub(crate) ini: QpNumber,
    pub(crate) tgt: QpNumber,
    /// Dialling node's address according to its REQ. Behind an address translator, it differs from the source of the
    /// node's packets.
    pub(crate) from: IpAddr,
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Vec<u8>,
}

/// Device, channel and listeners for endpoints.
#[derive(Debug)]
struct Attached {
    device: Arc<DeviceShared>,
    channel: Arc<dyn CmChannel>,
    listeners: Vec<Arc<dyn CmId>>,
}

/// All endpoints of a node.
#[derive(Debug)]
pub(crate) struct Endpoints {
    shared: Arc<NodeShared>,
    /// `None` while the device is away.
    attached: Option<Attached>,
    sessions: BTreeMap<(PeerKey, u32), BTreeMap<Role, End>>,
    roles: BTreeMap<CmIdNumber, (Role, PeerKey, u32)>,
    closing: BTreeMap<CmIdNumber, (Time, Arc<dyn CmId>)>,
    awaited_packets: AwaitedPackets,
}

/// Returns an error if a peer has another UDP port than this node, unless the device is a software device.
fn check_udp_port(peer: PeerKey, provider: &str) -> Result<(), VerbsError> {
    if peer.udp_port().is_some() && provider != SOFTWARE {
        return Err(VerbsError::Invalid(
            "an RDMA card has no UDP ports: remove the slash and the port after it from the server's address, or run this node on \
             the software device",
        ));
    }
    Ok(())
}

impl Endpoints {
    pub(crate) fn new(shared: Arc<NodeShared>) -> Self {
        Self {
            shared,
            attached: None,
            sessions: BTreeMap::new(),
            roles: BTreeMap::new(),
            closing: BTreeMap::new(),
            awaited_packets: AwaitedPackets::default(),
        }
    }

    /// Takes a device, with its event channel and listeners.
    pub(crate) fn attach(
        &mut self,
        device: Arc<DeviceShared>,
        channel: Arc<dyn CmChannel>,
        listeners: Vec<Arc<dyn CmId>>,
    ) {
        self.attached = Some(Attached { device, channel, listeners });
    }

    /// Drops the listeners and the closing endpoints. Called when the device was removed and all sessions are closed.
    pub(crate) fn abandon(&mut self) {
        self.closing.clear();
        self.stop_listening();
    }

    /// Passes the device and its channel to the caller.
    pub(crate) fn detach(&mut self) -> Option<(Arc<DeviceShared>, Arc<dyn CmChannel>)> {
        self.attached.take().map(|attached| (attached.device, attached.channel))
    }

    /// Returns true if an address belongs to a process of this user on this host.
    pub(crate) fn is_of_this_user(&self, address: IpAddr) -> bool {
        self.owner_of(address) == Some(AddressOwner::ThisUser)
    }

    /// Returns true if an address belongs to another host.
    pub(crate) fn is_of_other_host(&self, address: IpAddr) -> bool {
        self.owner_of(address) == Some(AddressOwner::OtherHost)
    }

    fn owner_of(&self, address: IpAddr) -> Option<AddressOwner> {
        self.attached.as_ref().map(|attached| attached.device.device.address_owner(address))
    }

    /// Returns an endpoint of a session.
    pub(crate) fn id(&self, peer: PeerKey, number: u32, role: Role) -> Option<Arc<dyn CmId>> {
        Some(Arc::clone(&self.sessions.get(&(peer, number))?.get(&role)?.id))
    }

    pub(crate) fn device_name(&self) -> &str {
        self.attached.as_ref().map_or("", |attached| attached.device.device.attributes().name.as_str())
    }

    /// Takes an asynchronous event of the device.
    pub(crate) fn next_async_event(&self) -> Option<AsyncEvent> {
        self.attached.as_ref()?.device.device.next_async_event()
    }

    /// Handles a packet at a local QP whose connection may still await its peer's RTU.
    pub(crate) fn packet_came(&mut self, qp: QpNumber) {
        self.awaited_packets.packet_came(qp);
    }

    /// Takes an event of an endpoint.
    pub(crate) fn next_event(&self) -> Option<CmEvent> {
        self.attached.as_ref()?.channel.next_event()
    }

    /// Returns true if either descriptor is readable. A simulation calls this in place of sleeping on them.
    pub(crate) fn has_event(&self) -> bool {
        self.attached
            .as_ref()
            .is_some_and(|attached| attached.channel.has_event() || attached.device.device.has_async_event())
    }

    /// Returns the SRQ numbers of this node's pollers.
    pub(crate) fn srqs(&self) -> Vec<SrqNumber> {
        self.attached.as_ref().map(|attached| attached.device.srqs.clone()).unwrap_or_default()
    }

    pub(crate) fn connections(&self) -> ConnectionKind {
        self.attached.as_ref().map_or(ConnectionKind::Xrc, |attached| attached.device.connections)
    }

    /// Returns the maximum number of remote pollers whose base credits fit in an SRQ.
    pub(crate) fn pollers_limit(&self) -> u32 {
        let deepest = self.attached.as_ref().map_or(0, |attached| attached.device.deepest_srq);
        credit::capacity(deepest)
    }

    fn device(&self) -> Result<Arc<DeviceShared>, VerbsError> {
        self.attached.as_ref().map(|attached| Arc::clone(&attached.device)).ok_or(VerbsError::Gone)
    }

    /// Returns the role, peer and session number of an endpoint.
    pub(crate) fn role(&self, id: CmIdNumber) -> Option<(Role, PeerKey, u32)> {
        self.roles.get(&id).copied()
    }

    /// Begins to resolve the route to a peer. `done` is called with the result, on any thread.
    pub(crate) fn begin_dial(&self, peer: PeerKey, source: Option<IpAddr>, done: EndpointDone) {
        let Some(Attached { device, channel, .. }) = &self.attached else {
            return done(Err(VerbsError::Gone));
        };
        if let Err(error) = check_udp_port(peer, device.provider) {
            return done(Err(error));
        }
        let request = EndpointRequest {
            side: EndpointSide::Active { remote: peer.address(), source },
            port_space: PortSpace::Ib,
            qp_type: self.connections().sending(),
        };
        device.device.connection_manager().begin_endpoint(request, channel, done);
    }

    /// Creates an INI for a poller, and connects it through an endpoint whose route is resolved.
    pub(crate) fn dial(
        &mut self,
        id: Arc<dyn CmId>,
        peer: PeerKey,
        number: u32,
        poller: u16,
        private_data: Vec<u8>,
        flow: (OneFlow, Option<UdpPorts>),
        path_mtu: Option<Mtu>,
    ) -> Result<(), VerbsError> {
        let device = self.device()?;
        let limits = &self.shared.limits;
        let asked = dial_parameters(device.connections, device.device.attributes(), limits.session_loss_time);
        let qp = self.make_ini(poller)?;
        self.shared.gauges.ini.fetch_add(1, Ordering::Relaxed);
        // From this point the session owns the endpoint and the QP, and closing it destroys them.
        self.add(peer, number, Role::Ini(poller), &id, Arc::clone(&qp));
        #[cfg(feature = "identity")]
        self.carried(peer, number, Role::Ini(poller), 0, &private_data);
        let (one_flow, ports) = flow;
        if let Some(ports) = ports {
            id.set_option(CmOption::UdpPorts(ports))?;
        }
        if one_flow != OneFlow::No && device.provider == SOFTWARE {
            id.set_option(CmOption::OneFlow(one_flow))?;
        }
        if let Some(mtu) = path_mtu.filter(|_| device.provider == SOFTWARE) {
            id.set_option(CmOption::PathMtu(mtu))?;
        }
        id.attach(qp)?;
        id.connect(&ConnectParameters { private_data, ..asked })
    }

    /// Creates the QP through which a poller sends. Over RC, the peer could also send through this QP, but its
    /// receive queue stays empty.
    fn make_ini(&self, poller: u16) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let device = self.device()?;
        let cq = device.cqs.get(usize::from(poller)).ok_or(VerbsError::Invalid("no such poller"))?;
        let is_rc = device.connections == ConnectionKind::Rc;
        device.device.create_qp(QpInit {
            pd: Some(Arc::clone(&device.pd)),
            send_cq: Some(Arc::clone(cq)),
            receive_cq: is_rc.then(|| Arc::clone(cq)),
            capacities: QueueCapacities {
                max_send_wr: u32::try_from(SEND_QUEUE_DEPTH).unwrap_or(u32::MAX),
                max_send_sge: 1,
                max_receive_wr: u32::from(is_rc),
                max_receive_sge: u32::from(is_rc),
                max_inline_data: INLINE_BYTES.min(device.device.attributes().max_inline_data),
            },
            ..QpInit::new(device.connections.sending())
        })
    }

    /// Creates the QP that receives from a poller of a peer. Over RC it belongs to one of this node's
    /// pollers.
    fn make_tgt(&self, poller: u16) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let device = self.device()?;
        let init = QpInit::new(device.connections.receiving());
        device.device.create_qp(match &device.intake {
            Intake::Xrc(xrcd) => {
                let home = usize::from(poller) % device.cqs.len().max(1);
                let group = u32::try_from(home).unwrap_or_default();
                QpInit { xrcd: Some(Arc::clone(xrcd)), group, ..init }
            }
            Intake::Rc(srqs) => {
                let home = usize::from(poller) % srqs.len().max(1);
                let none = VerbsError::Invalid("no poller");
                let (srq, cq) = srqs.get(home).zip(device.cqs.get(home)).ok_or(none)?;
                QpInit {
                    pd: Some(Arc::clone(&device.pd)),
                    send_cq: Some(Arc::clone(cq)),
                    receive_cq: Some(Arc::clone(cq)),
                    srq: Some(Arc::clone(srq)),
                    // The QP never sends, but some devices require a send queue.
                    capacities: QueueCapacities {
                        max_send_wr: 1,
                        max_send_sge: 1,
                        ..QueueCapacities::default()
                    },
                    ..init
                }
            }
        })
    }

    /// Returns the UDP ports and the path MTU from the peer's request in a session; `None` before its first
    /// request and on hardware.
    pub(crate) fn asked(&self, peer: PeerKey, number: u32) -> Option<(UdpPorts, Mtu)> {
        let ends = self.sessions.get(&(peer, number))?;
        let (_, end) = ends.iter().find(|(role, _)| matches!(role, Role::Tgt(_)))?;
        end.id.udp_ports().zip(end.id.asked_mtu())
    }

    pub(crate) fn targets_of(&self, peer: PeerKey, number: u32) -> Vec<QpNumber> {
        let ends = self.sessions.get(&(peer, number)).into_iter().flatten();
        let targets = ends.filter(|(role, _)| matches!(role, Role::Tgt(_)));
        targets.filter_map(|(_, end)| Some(end.qp.as_ref()?.number())).collect()
    }

    /// Returns the paths of all QPs of a session, if the device has more than one.
    pub(crate) fn paths_of(&self, peer: PeerKey, number: u32) -> Vec<PathStatus> {
        PathStatus::of(self.shared.session_qps.paths_of(peer, number))
    }

    /// Creates the TGT for a request, and attaches it.
    pub(crate) fn make_target(
        &mut self,
        id: &Arc<dyn CmId>,
        peer: PeerKey,
        number: u32,
        poller: u16,
        is_proved: bool,
    ) -> Result<QpNumber, VerbsError> {
        let qp = self.make_tgt(poller)?;
        self.shared.gauges.tgt.fetch_add(1, Ordering::Relaxed);
        let number24 = qp.number();
        self.awaited_packets.await_packet(number24, id);
        self.add(peer, number, Role::Tgt(poller), id, Arc::clone(&qp));
        id.attach(Arc::clone(&qp))?;
        // Attaching alone does not grant rights.
        if is_proved {
            qp.modify(&rights())?;
        }
        Ok(number24)
    }

    /// Records the private data of a first connection's REQ (part 0) or REP (part 1).
    #[cfg(feature = "identity")]
    pub(crate) fn carried(&mut self, peer: PeerKey, number: u32, role: Role, part: usize, data: &[u8]) {
        let is_first = matches!(role, Role::Ini(0) | Role::Tgt(0));
        let ends = self.sessions.get_mut(&(peer, number)).filter(|_| is_first);
        if let Some(end) = ends.and_then(|ends| ends.get_mut(&role)) {
            end.carried[part] = data.to_vec();
        }
    }

    /// Returns the first pair of connections of a session. Both must be established.
    #[cfg(feature = "identity")]
    pub(crate) fn first_pair(&self, peer: PeerKey, number: u32) -> Option<FirstPair> {
        let ends = self.sessions.get(&(peer, number))?;
        let [ini, tgt] = [ends.get(&Role::Ini(0))?, ends.get(&Role::Tgt(0))?];
        let numbers = |end: &End| {
            let qp = end.qp.as_ref()?;
            Some((qp.number(), qp.query().ok()?.destination_qp))
        };
        let connection = |end: &End, ini, tgt, from| {
            let [request, reply] = end.carried.clone();
            FirstConnection { ini, tgt, from, request, reply }
        };
        let ((own_ini, their_tgt), (own_tgt, their_ini)) = (numbers(ini)?, numbers(tgt)?);
        let view = |end: &End| end.id.udp_ports().and_then(|ports| ports.view);
        let own = view(ini).map_or(ini.id.local_address(), |view| view.own);
        let peer = view(tgt).map(|view| view.peer).or(tgt.id.peer_address())?;
        let ours = connection(ini, own_ini, their_tgt, own.ip());
        let theirs = connection(tgt, their_ini, own_tgt, peer.ip());
        Some(FirstPair { inis: [ours, theirs], qp: Arc::clone(ini.qp.as_ref()?) })
    }

    /// Allows a peer that has proved its name to READ and WRITE through the TGTs of a session.
    #[cfg(feature = "identity")]
    pub(crate) fn grant_rights(&self, peer: PeerKey, number: u32) -> Result<(), VerbsError> {
        let ends = self.sessions.get(&(peer, number)).into_iter().flatten();
        let targets = ends.filter(|(role, _)| matches!(role, Role::Tgt(_)));
        targets.filter_map(|(_, end)| end.qp.as_ref()).try_for_each(|qp| qp.modify(&rights()))
    }

    /// Accepts a request whose TGT was created.
    pub(crate) fn accept(
        &mut self,
        id: &Arc<dyn CmId>,
        parameters: &ConnectParameters,
        private_data: Vec<u8>,
    ) -> Result<(), VerbsError> {
        let device = self.device()?;
        let attributes = device.device.attributes();
        let answer = ConnectParameters {
            private_data,
            responder_resources: parameters.responder_resources.min(READS.min(attributes.max_dest_rd_atomic)),
            initiator_depth: parameters.initiator_depth,
            ..ConnectParameters::default()
        };
        id.accept(&answer)?;
        let timer = QpModify { min_rnr_timer: Some(MIN_RNR_TIMER), ..QpModify::default() };
        let qp = self
            .roles
            .get(&id.number())
            .and_then(|(role, peer, number)| self.sessions.get(&(*peer, *number))?.get(role)?.qp.clone());
        if let Some(qp) = qp
            && let Err(error) = qp.modify(&timer)
        {
            tracing::warn!(%error, "RNR timer of a TGT not set");
        }
        Ok(())
    }

    /// Handles an established connection, whose QP the connection manager no longer changes.
    pub(crate) fn connected(&mut self, peer: PeerKey, number: u32, role: Role) {
        let Some(end) = self.sessions.get(&(peer, number)).and_then(|ends| ends.get(&role)) else { return };
        end.id.detach();
        if let Some(qp) = &end.qp {
            self.awaited_packets.stop_waiting(qp.number(), &end.id);
        }
        // Over RC, the peer could also access this node's memory through the sending QP. Connecting sets the QP's
        // rights, so they can be removed only now.
        let nothing = QpModify { access: Some(Access::empty()), ..QpModify::default() };
        if let (Role::Ini(_), Some(qp)) = (role, &end.qp)
            && qp.qp_type() == QpType::Rc
            && let Err(error) = qp.modify(&nothing)
        {
            tracing::warn!(%error, "remote access rights of a sending QP not removed");
        }
    }

    /// Returns the INIs of a session by poller, with their READ depth. From now on the INIs belong to the
    /// pollers.
    pub(crate) fn take_inis(&mut self, peer: PeerKey, number: u32) -> Option<Vec<(Arc<dyn QueuePair>, u8)>> {
        let ends = self.sessions.get_mut(&(peer, number))?;
        let pollers = u16::try_from(self.shared.pollers.len()).ok()?;
        if (0..pollers).any(|poller| ends.get(&Role::Ini(poller)).is_none_or(|end| end.qp.is_none())) {
            return None;
        }
        let take = |poller| {
            let qp = ends.get_mut(&Role::Ini(poller))?.qp.take()?;
            let depth = qp.query().map_or(1, |attributes| attributes.max_rd_atomic);
            Some((qp, depth))
        };
        (0..pollers).map(take).collect()
    }

    /// Closes a session. Its TGTs are destroyed immediately, so that the peer can no longer READ this node's memory
    /// when the pollers are notified. Sends the cause to the peer, if given.
    pub(crate) fn close(&mut self, peer: PeerKey, number: u32, cause: Option<Refusal>) {
        let Some(ends) = self.sessions.remove(&(peer, number)) else { return };
        self.shared.session_qps.close(peer, number);
        let until = self.shared.runtime.clock().now() + CLOSING_LIMIT;
        let private_data = cause.map(|cause| cause.emit(false)).unwrap_or_default();
        for (role, end) in ends {
            self.roles.remove(&end.id.number());
            end.id.detach();
            if let Some(qp) = &end.qp {
                self.awaited_packets.stop_waiting(qp.number(), &end.id);
            }
            if end.id.disconnect_with(&private_data).is_ok() {
                self.closing.insert(end.id.number(), (until, end.id));
            }
            if let Some(qp) = end.qp {
                self.destroy(role, qp.as_ref());
            }
        }
    }

    /// Drops an endpoint whose request was refused, or which does not belong to the session. The session
    /// continues. Returns the endpoint's QP.
    pub(crate) fn discard(&mut self, peer: PeerKey, number: u32, role: Role) -> Option<QpNumber> {
        let end = self.sessions.get_mut(&(peer, number)).and_then(|ends| ends.remove(&role))?;
        self.roles.remove(&end.id.number());
        end.id.detach();
        let qp = end.qp?;
        self.awaited_packets.stop_waiting(qp.number(), &end.id);
        self.destroy(role, qp.as_ref());
        Some(qp.number())
    }

    fn destroy(&self, role: Role, qp: &dyn QueuePair) {
        let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
        if let Err(error) = qp.modify(&error) {
            tracing::debug!(%error, ?role, "QP not moved to ERR");
        }
        if let Err(error) = qp.destroy() {
            tracing::debug!(%error, ?role, "QP not destroyed");
        }
        let gauges = &self.shared.gauges;
        let gauge = if matches!(role, Role::Ini(_)) { &gauges.ini } else { &gauges.tgt };
        gauge.fetch_sub(1, Ordering::Relaxed);
    }

    /// Removes a closing endpoint after its last event.
    pub(crate) fn forget_closing(&mut self, id: CmIdNumber, kind: &CmEventKind) {
        if matches!(kind, CmEventKind::Disconnected { .. } | CmEventKind::TimewaitExit) {
            self.closing.remove(&id);
        }
    }

    /// Stops taking requests.
    pub(crate) fn stop_listening(&mut self) {
        if let Some(attached) = &mut self.attached {
            attached.listeners.clear();
        }
    }

    /// Returns true if only listeners are left.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sessions.is_empty() && self.closing.is_empty()
    }

    /// Drops endpoints whose disconnect was not answered.
    pub(crate) fn tick(&mut self, now: Time) {
        self.closing.retain(|_, (until, _)| *until > now);
    }

    /// Returns the time of the next call of [`Endpoints::tick`].
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.closing.values().map(|(until, _)| *until).min()
    }

    fn add(&mut self, peer: PeerKey, number: u32, role: Role, id: &Arc<dyn CmId>, qp: Arc<dyn QueuePair>) {
        self.roles.insert(id.number(), (role, peer, number));
        self.shared.session_qps.add(peer, number, &qp);
        let end = End {
            id: Arc::clone(id),
            qp: Some(qp),
            #[cfg(feature = "identity")]
            carried: Default::default(),
        };
        self.sessions.entry((peer, number)).or_default().insert(role, end);
    }
}

/// Returns the rights of a peer at a TGT. The peer READs sources, and probes by WRITE.
fn rights() -> QpModify {
    QpModify { access: Some(Access::REMOTE_READ | Access::REMOTE_WRITE), ..QpModify::default() }
}

/// Returns the parameters of an INI's connection, without private data.
fn dial_parameters(
    kind: ConnectionKind,
    device: &DeviceAttributes,
    loss_time: Duration,
) -> ConnectParameters {
    let (retry_count, ack_timeout) = retries(loss_time);
    ConnectParameters {
        initiator_depth: READS.min(device.max_rd_atomic),
        responder_resources: match kind {
            ConnectionKind::Xrc => READS.min(device.max_dest_rd_atomic),
            // The QP could also serve the peer's READs, but the transport does not use that.
            ConnectionKind::Rc => 0,
        },
        retry_count,
        ack_timeout,
        ..ConnectParameters::default()
    }
}

/// Returns the retry count and the code of the ACK timeout that end a session after at most `loss_time` without an
/// acknowledgement, and after at least three quarters of it. Among equal times, it prefers more retries.
fn retries(loss_time: Duration) -> (u8, u8) {
    let pairs = SENDINGS.flat_map(|sendings| ACK_TIMEOUTS.map(move |code| (sendings, code)));
    let time = |(sendings, code): (u8, u8)| Duration::from_nanos((4096 << code) * u64::from(sendings));
    let (sendings, code) = pairs
        .filter(|pair| time(*pair) <= loss_time)
        .max_by_key(|pair| (time(*pair), pair.0))
        .unwrap_or((*SENDINGS.start(), *ACK_TIMEOUTS.start()));
    (sendings - 1, code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_verbs::Device;

    /// With 7 retries, the kernel's soft RoCE retransmits without end.
    #[test]
    fn dead_peer_is_detected_over_either_kind_of_connection() {
        let link = LinkChoice::InProcess(Arc::default());
        let addresses = vec![[127, 0, 0, 1].into()];
        let device = SoftDevice::open(SoftOptions { link, addresses, ..SoftOptions::default() }).unwrap();
        for kind in [ConnectionKind::Xrc, ConnectionKind::Rc] {
            let asked = dial_parameters(kind, device.attributes(), Duration::from_secs(1));
            assert_eq!((asked.retry_count, asked.ack_timeout), (6, 15), "{kind}");
            assert_eq!(asked.responder_resources > 0, kind == ConnectionKind::Xrc);
        }
    }

    #[test]
    fn nic_does_not_reach_peer_at_other_udp_port() {
        let [usual, other] = ["10.0.0.1:7000", "10.0.0.1:7000/4792"].map(|text| text.parse().unwrap());
        assert!(check_udp_port(usual, "rdma-core").is_ok() && check_udp_port(other, SOFTWARE).is_ok());
        let error = check_udp_port(other, "rdma-core").unwrap_err().to_string();
        assert!(error.contains("no UDP ports: remove the slash"), "{error}");
    }

    #[test]
    fn retries_take_three_quarters_to_whole_session_loss_time() {
        let millis =
            |(retry_count, code): (u8, u8)| (u128::from(retry_count) + 1) * (4096_u128 << code) / 1_000_000;
        for time_ms in 500..=60_000_u64 {
            let (found, most) = (retries(Duration::from_millis(time_ms)), u128::from(time_ms));
            assert!((most * 3 / 4..=most).contains(&millis(found)), "{time_ms} ms: {found:?}");
            assert!((2..7).contains(&found.0), "{time_ms} ms: {found:?}");
        }
        // The table in docs/book/src/operate/memory.md.
        for (time_ms, found, reached_ms) in [
            (500, (2, 15), 402),
            (1_000, (6, 15), 939),
            (2_000, (6, 16), 1_879),
            (5_000, (3, 18), 4_294),
            (10_000, (3, 19), 8_589),
            (30_000, (5, 20), 25_769),
            (60_000, (5, 21), 51_539),
        ] {
            assert_eq!((retries(Duration::from_millis(time_ms)), millis(found)), (found, reached_ms));
        }
    }
}
