//! Translation of an endpoint's events to the program's events. This includes steps that librdmacm performs: an id is
//! created for a request, and the QP of an id is brought up when the peer replies.

use super::super::fields::{CHANNEL, CONTEXT, GIDS, Id, PORT_SPACE, QP, QP_TYPE};
use super::super::host::host;
use super::super::id::{destroy, hand_out_id};
use super::super::migrate::migrate;
use super::super::qp;
use super::CmEventHandle;
use super::content::EventContent;
use crate::abi::*;
use crate::border::Errno;
use crate::verbs::events::lock;
use std::ffi::c_int;
use std::sync::Arc;
use trunkline_verbs::{
    CmEvent, CmEventKind, CmId, ConnectParameters, Device, QpState, RejectReason, SidrStatus,
    UnreachableCause,
};

/// Converts an endpoint's event to the program's event. Returns `None` if the event is not reported.
pub(super) fn take<'a>(event: CmEvent) -> Option<CmEventHandle<'a>> {
    let Some(id) = host().report(event.id) else {
        // The program has destroyed the id. If the event is a request to a listener, the new endpoint is dropped here,
        // which rejects the request.
        return None;
    };
    match content(id, event) {
        Some(content) => Some(content.hand_out(id)),
        None => {
            id.outstanding.acknowledge(1);
            None
        }
    }
}

/// Returns the contents of the program's event, or `None` if the event is not reported.
fn content(id: Id<'_>, event: CmEvent) -> Option<EventContent<'static>> {
    let CmEvent { kind, private_data, .. } = event;
    let mut facts = lock(&id.facts);
    if facts.awaits_accept {
        return None;
    }
    // Report a port without a listener in the same way as the CM of an RDMA host.
    let kind = match kind {
        CmEventKind::Unreachable(UnreachableCause::Port) if id.get(PORT_SPACE) == RDMA_PS_UDP => {
            CmEventKind::ServiceRefused(SidrStatus::UNSUPPORTED)
        }
        CmEventKind::Unreachable(UnreachableCause::Port) => {
            CmEventKind::Rejected(RejectReason::INVALID_SERVICE_ID)
        }
        kind => kind,
    };
    match kind {
        CmEventKind::AddressResolved => {
            drop(facts);
            Some(match id.show_addresses() {
                Ok(()) => EventContent::plain(RDMA_CM_EVENT_ADDR_RESOLVED),
                Err(errno) => EventContent::failed(RDMA_CM_EVENT_ADDR_ERROR, errno.0),
            })
        }
        CmEventKind::AddressError(error) => {
            Some(EventContent::failed(RDMA_CM_EVENT_ADDR_ERROR, error.errno()))
        }
        CmEventKind::RouteResolved => {
            drop(facts);
            id.show_route();
            Some(EventContent::plain(RDMA_CM_EVENT_ROUTE_RESOLVED))
        }
        CmEventKind::ConnectRequest { id: new, parameters } => {
            drop(facts);
            request(id, new, parameters, private_data)
        }
        CmEventKind::ConnectResponse { parameters } => {
            facts.offered = (parameters.responder_resources, parameters.initiator_depth);
            drop(facts);
            Some(response(id, parameters, private_data))
        }
        CmEventKind::Established => {
            facts.was_connected = true;
            Some(EventContent::plain(RDMA_CM_EVENT_ESTABLISHED))
        }
        CmEventKind::ServiceResolved { parameters } => {
            drop(facts);
            let address = path_to_peer(id);
            let established = EventContent::plain(RDMA_CM_EVENT_ESTABLISHED);
            Some(EventContent { private_data, parameters: Some(parameters), address, ..established })
        }
        CmEventKind::ServiceRefused(SidrStatus(status)) => {
            let unreachable = EventContent::plain(RDMA_CM_EVENT_UNREACHABLE);
            Some(EventContent { status: c_int::from(status), private_data, ..unreachable })
        }
        _ if facts.has_failed && !matches!(kind, CmEventKind::TimewaitExit) => None,
        CmEventKind::ConnectError => Some(EventContent::failed(RDMA_CM_EVENT_CONNECT_ERROR, libc::EIO)),
        CmEventKind::Unreachable(_) => Some(EventContent::failed(RDMA_CM_EVENT_UNREACHABLE, libc::ETIMEDOUT)),
        CmEventKind::Rejected(RejectReason(reason)) => {
            drop(facts);
            let _no_qp = qp::to_error(id);
            let rejected = EventContent::plain(RDMA_CM_EVENT_REJECTED);
            Some(EventContent { status: c_int::from(reason), private_data, ..rejected })
        }
        CmEventKind::Disconnected { is_answered } => {
            facts.is_disconnected = true;
            // The kernel reports this status if the peer did not answer the DREQ.
            let errno = if is_answered { 0 } else { libc::ETIMEDOUT };
            Some(EventContent::failed(RDMA_CM_EVENT_DISCONNECTED, errno))
        }
        CmEventKind::DeviceRemoval => Some(EventContent::plain(RDMA_CM_EVENT_DEVICE_REMOVAL)),
        CmEventKind::TimewaitExit => Some(EventContent::plain(RDMA_CM_EVENT_TIMEWAIT_EXIT)),
        // rdma_cm has no number for other kinds of events.
        _ => None,
    }
}

/// Returns the path to the peer of a resolved id, as needed by UD QPs.
fn path_to_peer(id: Id<'_>) -> ibv_ah_attr {
    let rdma_ib_addr { sgid, dgid, .. } = id.get(GIDS);
    let table = host().device().map(|device| device.gid_table()).unwrap_or_default();
    let own = table.iter().find(|entry| entry.gid.0 == sgid.raw);
    let sgid_index = own.and_then(|entry| u8::try_from(entry.index).ok()).unwrap_or(0);
    let traffic_class = lock(&id.facts).traffic_class;
    let grh =
        ibv_global_route { dgid, sgid_index, hop_limit: 64, traffic_class, ..ibv_global_route::default() };
    ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
}

/// Creates an id for a request. The id uses the listener's channel, or a separate channel if the listener is synchronous.
fn request(
    listener: Id<'_>,
    new: Arc<dyn CmId>,
    parameters: ConnectParameters,
    private_data: Vec<u8>,
) -> Option<EventContent<'static>> {
    let (channel, context) = (listener.get(CHANNEL), listener.get(CONTEXT));
    let (ps, qp_type) = (listener.get(PORT_SPACE), listener.get(QP_TYPE));
    let id: Id<'static> = hand_out_id(new, channel, context, ps, qp_type, false);
    {
        let mut facts = lock(&id.facts);
        facts.offered = (parameters.responder_resources, parameters.initiator_depth);
        (facts.was_asked, facts.awaits_accept) = (true, true);
        let path =
            id.endpoint.qp_changes(QpState::ReadyToReceive).ok().and_then(|change| change.address_vector);
        facts.traffic_class = path.map_or(0, |path| path.traffic_class);
    }
    let mut ready = id.show_addresses();
    id.show_route();
    if ready.is_ok() && listener.is_synchronous() {
        ready = migrate(id, None);
    }
    if ready.is_err() {
        // SAFETY: the id was created above, and the program does not have it yet. This rejects the peer.
        unsafe { destroy(id) };
        return None;
    }
    let plain = EventContent::plain(RDMA_CM_EVENT_CONNECT_REQUEST);
    Some(EventContent { private_data, parameters: Some(parameters), new: Some(id), ..plain })
}

/// Handles a peer's reply. If the id has a QP, completes the connection. Otherwise the program completes it.
fn response(id: Id<'_>, parameters: ConnectParameters, private_data: Vec<u8>) -> EventContent<'static> {
    let event = if id.get(QP).is_null() {
        RDMA_CM_EVENT_CONNECT_RESPONSE
    } else {
        let up = qp::bring_up(id, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH)
            .and_then(|()| id.endpoint.establish().map_err(Errno::from));
        if let Err(errno) = up {
            let _no_qp = qp::to_error(id);
            let _no_connection = id.endpoint.reject_for(RejectReason::NO_RESOURCES, &[]);
            lock(&id.facts).has_failed = true;
            return EventContent::failed(RDMA_CM_EVENT_CONNECT_ERROR, errno.0);
        }
        lock(&id.facts).was_connected = true;
        RDMA_CM_EVENT_ESTABLISHED
    };
    EventContent { private_data, parameters: Some(parameters), ..EventContent::plain(event) }
}
