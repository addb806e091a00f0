//! The endpoints and QPs of sessions: making, connecting, taking them down.
//!
//! Owned and called by the CM machine alone. An INI belongs here until its session is up and then
//! to its poller; TGTs belong here throughout. An endpoint is kept until its session ends, for
//! the disconnect, and a little longer so that the disconnect gets through.
#![forbid(unsafe_code)]

use super::awaited_packets::AwaitedPackets;
use crate::PeerKey;
use crate::connections::ConnectionKind;
use crate::incarnation::{DeviceShared, Intake};
use crate::shared::NodeShared;
use crate::sizes::{INLINE_BYTES, SEND_QUEUE_DEPTH};
use crate::status::PathStatus;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_verbs::{
    Access, AsyncEvent, CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, ConnectParameters,
    DeviceAttributes, EndpointDone, EndpointRequest, EndpointSide, PortSpace, QpInit, QpModify, QpNumber,
    QpState, QpType, QueueCapacities, QueuePair, SrqNumber, Time, VerbsError,
};

/// An endpoint that was disconnected is dropped after this at the latest.
const CLOSING_LIMIT: Duration = Duration::from_millis(400);
/// READs outstanding on an INI, at most.
const READS: u8 = 16;
/// Times that a packet is sent again: the kernel's rxe takes 7 for "without end", and would never
/// notice that a peer has died.
const RETRIES: u8 = 6;
/// RNR NAK timer of our TGTs: 0.64 ms. CM leaves 655 ms (contract J12).
const MIN_RNR_TIMER: u8 = 12;

/// End of a connection that an endpoint is, by poller: ours of an INI, the peer's of a TGT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Ini(u16),
    Tgt(u16),
}

#[derive(Debug)]
struct End {
    id: Arc<dyn CmId>,
    /// Gone from here once a poller has it.
    qp: Option<Arc<dyn QueuePair>>,
}

/// Parts that endpoints are made on.
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

    /// Takes a device, with what reports and listens there.
    pub(crate) fn attach(
        &mut self,
        device: Arc<DeviceShared>,
        channel: Arc<dyn CmChannel>,
        listeners: Vec<Arc<dyn CmId>>,
    ) {
        self.attached = Some(Attached { device, channel, listeners });
    }

    /// The device was removed, and all sessions are closed: no connection waits for its RTU.
    pub(crate) fn abandon(&mut self) {
        self.closing.clear();
        self.stop_listening();
    }

    /// Lets go of the device; what is left of it is the caller's.
    pub(crate) fn detach(&mut self) -> Option<(Arc<DeviceShared>, Arc<dyn CmChannel>)> {
        self.attached.take().map(|attached| (attached.device, attached.channel))
    }

    /// The name of the device.
    pub(crate) fn device_name(&self) -> &str {
        self.attached.as_ref().map_or("", |attached| attached.device.device.attributes().name.as_str())
    }

    /// Takes an asynchronous event of the device.
    pub(crate) fn next_async_event(&self) -> Option<AsyncEvent> {
        self.attached.as_ref()?.device.device.next_async_event()
    }

    /// A packet has come to a QP of ours whose connection may still await its peer's RTU.
    pub(crate) fn packet_came(&mut self, qp: QpNumber) {
        self.awaited_packets.packet_came(qp);
    }

    /// Takes an event of an endpoint.
    pub(crate) fn next_event(&self) -> Option<CmEvent> {
        self.attached.as_ref()?.channel.next_event()
    }

    /// Returns true if the descriptor of either is readable: a simulation asks, where a thread sleeps on them.
    pub(crate) fn has_event(&self) -> bool {
        self.attached
            .as_ref()
            .is_some_and(|attached| attached.channel.has_event() || attached.device.device.has_async_event())
    }

    /// The SRQ numbers of our pollers.
    pub(crate) fn srqs(&self) -> Vec<SrqNumber> {
        self.attached.as_ref().map(|attached| attached.device.srqs.clone()).unwrap_or_default()
    }

    /// Returns the kind of connections.
    pub(crate) fn connections(&self) -> ConnectionKind {
        self.attached.as_ref().map_or(ConnectionKind::Xrc, |attached| attached.device.connections)
    }

    fn device(&self) -> Result<Arc<DeviceShared>, VerbsError> {
        self.attached.as_ref().map(|attached| Arc::clone(&attached.device)).ok_or(VerbsError::Gone)
    }

    /// Returns the owner of that endpoint.
    pub(crate) fn role(&self, id: CmIdNumber) -> Option<(Role, PeerKey, u32)> {
        self.roles.get(&id).copied()
    }

    /// Begins to find the route to a peer; `done` is called with the result, on any thread.
    pub(crate) fn begin_dial(&self, remote: SocketAddr, source: Option<IpAddr>, done: EndpointDone) {
        let request = EndpointRequest {
            side: EndpointSide::Active { remote, source },
            port_space: PortSpace::Ib,
            qp_type: self.connections().sending(),
        };
        match &self.attached {
            Some(Attached { device, channel, .. }) => {
                device.device.connection_manager().begin_endpoint(request, channel, done);
            }
            None => done(Err(VerbsError::Gone)),
        }
    }

    /// Makes an INI for a poller and starts to connect it through an endpoint that knows the way.
    pub(crate) fn dial(
        &mut self,
        id: Arc<dyn CmId>,
        peer: PeerKey,
        number: u32,
        poller: u16,
        private_data: Vec<u8>,
    ) -> Result<(), VerbsError> {
        let device = self.device()?;
        let limits = &self.shared.limits;
        let asked = dial_parameters(device.connections, device.device.attributes(), limits.ack_timeout);
        let qp = self.make_ini(poller)?;
        self.shared.gauges.ini.fetch_add(1, Ordering::Relaxed);
        // From here on the session knows both, and closing it takes them down.
        self.add(peer, number, Role::Ini(poller), &id, Arc::clone(&qp));
        id.attach(qp)?;
        id.connect(&ConnectParameters { private_data, ..asked })
    }

    /// The QP through which a poller sends. Over RC the peer could send through it, too; such
    /// messages find no receive.
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

    /// The QP that takes what a poller of a peer sends. Over RC it belongs to one of our pollers.
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
                    // It never sends; some devices want a send queue all the same.
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

    /// The TGTs of a session.
    pub(crate) fn targets_of(&self, peer: PeerKey, number: u32) -> Vec<QpNumber> {
        let ends = self.sessions.get(&(peer, number)).into_iter().flatten();
        let targets = ends.filter(|(role, _)| matches!(role, Role::Tgt(_)));
        targets.filter_map(|(_, end)| Some(end.qp.as_ref()?.number())).collect()
    }

    /// The paths of all QPs of a session, if the device has more than one.
    pub(crate) fn paths_of(&self, peer: PeerKey, number: u32) -> Vec<PathStatus> {
        PathStatus::of(self.shared.session_qps.paths_of(peer, number))
    }

    /// Makes the TGT for a request and attaches it.
    pub(crate) fn make_target(
        &mut self,
        id: &Arc<dyn CmId>,
        peer: PeerKey,
        number: u32,
        poller: u16,
    ) -> Result<QpNumber, VerbsError> {
        let qp = self.make_tgt(poller)?;
        self.shared.gauges.tgt.fetch_add(1, Ordering::Relaxed);
        let number24 = qp.number();
        self.awaited_packets.await_packet(number24, id);
        self.add(peer, number, Role::Tgt(poller), id, Arc::clone(&qp));
        id.attach(Arc::clone(&qp))?;
        // The peer READs sources and probes by WRITE; attaching alone grants nothing.
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
        qp.modify(&QpModify { access: Some(rights), ..QpModify::default() })?;
        Ok(number24)
    }

    /// Accepts a request whose TGT was made.
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
            tracing::warn!(%error, "the RNR timer of a TGT stays at what CM chose");
        }
        Ok(())
    }

    /// A connection is there: its QP is ours alone from now on.
    pub(crate) fn connected(&mut self, peer: PeerKey, number: u32, role: Role) {
        let Some(end) = self.sessions.get(&(peer, number)).and_then(|ends| ends.get(&role)) else { return };
        end.id.detach();
        if let Some(qp) = &end.qp {
            self.awaited_packets.stop_waiting(qp.number(), &end.id);
        }
        // Over RC the peer could reach our memory through the QP that we send with, too. Connecting has
        // set its rights, so they are taken away only now.
        let nothing = QpModify { access: Some(Access::empty()), ..QpModify::default() };
        if let (Role::Ini(_), Some(qp)) = (role, &end.qp)
            && qp.qp_type() == QpType::Rc
            && let Err(error) = qp.modify(&nothing)
        {
            tracing::warn!(%error, "a QP that sends keeps the rights that CM has given it");
        }
    }

    /// The INIs of a session by poller, with their READ depth; they are the pollers' from now on.
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

    /// Takes a session down: TGTs first, so that the peer can no longer read our memory when the
    /// pollers are notified.
    pub(crate) fn close(&mut self, peer: PeerKey, number: u32) {
        let Some(ends) = self.sessions.remove(&(peer, number)) else { return };
        self.shared.session_qps.close(peer, number);
        let until = self.shared.runtime.clock().now() + CLOSING_LIMIT;
        for (role, end) in ends {
            self.roles.remove(&end.id.number());
            end.id.detach();
            if let Some(qp) = &end.qp {
                self.awaited_packets.stop_waiting(qp.number(), &end.id);
            }
            if end.id.disconnect().is_ok() {
                self.closing.insert(end.id.number(), (until, end.id));
            }
            if let Some(qp) = end.qp {
                self.destroy(role, qp.as_ref());
            }
        }
    }

    /// The request of an INI was refused; its session goes on without this endpoint.
    pub(crate) fn discard(&mut self, peer: PeerKey, number: u32, role: Role) {
        let Some(end) = self.sessions.get_mut(&(peer, number)).and_then(|ends| ends.remove(&role)) else {
            return;
        };
        self.roles.remove(&end.id.number());
        end.id.detach();
        if let Some(qp) = end.qp {
            self.destroy(role, qp.as_ref());
        }
    }

    fn destroy(&self, role: Role, qp: &dyn QueuePair) {
        let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
        if let Err(error) = qp.modify(&error) {
            tracing::debug!(%error, ?role, "moving a QP to ERR");
        }
        if let Err(error) = qp.destroy() {
            tracing::debug!(%error, ?role, "destroying a QP");
        }
        let gauges = &self.shared.gauges;
        let gauge = if matches!(role, Role::Ini(_)) { &gauges.ini } else { &gauges.tgt };
        gauge.fetch_sub(1, Ordering::Relaxed);
    }

    /// An endpoint that is being closed has said its last.
    pub(crate) fn forget_closing(&mut self, id: CmIdNumber, kind: &CmEventKind) {
        if matches!(kind, CmEventKind::Disconnected { .. } | CmEventKind::TimewaitExit) {
            self.closing.remove(&id);
        }
    }

    /// No request is taken any more.
    pub(crate) fn stop_listening(&mut self) {
        if let Some(attached) = &mut self.attached {
            attached.listeners.clear();
        }
    }

    /// Returns true if nothing is left but listeners.
    pub(crate) fn is_quiet(&self) -> bool {
        self.sessions.is_empty() && self.closing.is_empty()
    }

    /// Drops endpoints whose disconnect was not answered.
    pub(crate) fn tick(&mut self, now: Time) {
        self.closing.retain(|_, (until, _)| *until > now);
    }

    /// Returns the time at which [`Endpoints::tick`] has something to do.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        self.closing.values().map(|(until, _)| *until).min()
    }

    fn add(&mut self, peer: PeerKey, number: u32, role: Role, id: &Arc<dyn CmId>, qp: Arc<dyn QueuePair>) {
        self.roles.insert(id.number(), (role, peer, number));
        self.shared.session_qps.add(peer, number, &qp);
        let end = End { id: Arc::clone(id), qp: Some(qp) };
        self.sessions.entry((peer, number)).or_default().insert(role, end);
    }
}

/// Returns the parameters of an INI's connection, private data aside.
fn dial_parameters(kind: ConnectionKind, device: &DeviceAttributes, ack_timeout: u8) -> ConnectParameters {
    ConnectParameters {
        initiator_depth: READS.min(device.max_rd_atomic),
        responder_resources: match kind {
            ConnectionKind::Xrc => READS.min(device.max_dest_rd_atomic),
            // An RC QP could serve the peer's READs, too; nobody has asked ours to.
            ConnectionKind::Rc => 0,
        },
        retry_count: RETRIES,
        ack_timeout,
        ..ConnectParameters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_verbs::Device;

    /// The kernel's soft RoCE never gives up a packet when it is asked for 7 retries.
    #[test]
    fn a_peer_that_died_is_noticed_over_either_kind_of_connection() {
        let link = LinkChoice::InProcess(Arc::default());
        let addresses = vec![[127, 0, 0, 1].into()];
        let device = SoftDevice::open(SoftOptions { link, addresses, ..SoftOptions::default() }).unwrap();
        for kind in [ConnectionKind::Xrc, ConnectionKind::Rc] {
            let asked = dial_parameters(kind, device.attributes(), 15);
            assert_eq!((asked.retry_count, asked.ack_timeout), (6, 15), "{kind}");
            assert_eq!(asked.responder_resources > 0, kind == ConnectionKind::Xrc);
        }
    }
}
