//! Copies of librdmacm's events.
//!
//! An event and its data are valid only until the event is acknowledged, so the necessary parts are copied before. Kinds,
//! lengths and states are checked even though they come from the kernel.

use super::error::{Asked, named};
use rdma_sys::rdma_cm_event_type as code;
use rdma_sys::{rdma_ack_cm_event, rdma_cm_event, rdma_conn_param};
use std::ffi::c_int;
use std::ptr::NonNull;
use trunkline_verbs::{CmEventKind, ConnectParameters, QpNumber, RejectReason, UnreachableCause};

/// The copied contents of an event, which may already be acknowledged.
#[derive(Debug)]
pub(super) struct Copied {
    /// Number of the event's endpoint. For a request, number of the listener.
    pub(super) number: u64,
    /// `rdma_cm_event_type`.
    pub(super) code: u32,
    /// 0, a negative errno, or the reason for a rejection.
    pub(super) status: c_int,
    /// Parameters of the connection; default values if the event has none.
    pub(super) parameters: ConnectParameters,
    /// Private data, as long as the event states.
    pub(super) private_data: Vec<u8>,
}

/// Copies an event.
///
/// # Safety
/// librdmacm has returned the event, and it is not acknowledged.
pub(super) unsafe fn copy(event: NonNull<rdma_cm_event>) -> Copied {
    // SAFETY: this function's contract.
    let event = unsafe { event.as_ref() };
    let subject = if event.listen_id.is_null() { event.id } else { event.listen_id };
    // SAFETY: null, or an id that is not destroyed, since that waits for the acknowledgement.
    let number = unsafe { subject.as_ref() }.map_or(0, |id| id.context.addr() as u64);
    let mut copied = Copied {
        number,
        code: event.event,
        status: event.status,
        parameters: ConnectParameters::default(),
        private_data: Vec::new(),
    };
    let has_parameters = matches!(
        event.event,
        code::RDMA_CM_EVENT_CONNECT_REQUEST
            | code::RDMA_CM_EVENT_CONNECT_RESPONSE
            | code::RDMA_CM_EVENT_ESTABLISHED
            | code::RDMA_CM_EVENT_REJECTED
            | code::RDMA_CM_EVENT_DISCONNECTED
    );
    if has_parameters {
        // SAFETY: librdmacm zeroes the union, and writes this member for events of connected ids. This module creates
        // no other ids.
        let conn = unsafe { event.param.conn };
        copied.parameters = parameters(&conn);
        if !conn.private_data.is_null() {
            // SAFETY: the event is not acknowledged, so librdmacm keeps `private_data` with the length that
            // the event names.
            let bytes = unsafe {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(conn.private_data_len))
            };
            copied.private_data = bytes.to_vec();
        }
    }
    copied
}

/// Copies an event and acknowledges it.
///
/// # Safety
/// librdmacm has returned the event, it is not acknowledged, and it is not used after this.
pub(super) unsafe fn take(event: NonNull<rdma_cm_event>) -> Copied {
    // SAFETY: this function's contract.
    unsafe {
        let copied = copy(event);
        // Fails only for a null pointer.
        let _ = rdma_ack_cm_event(event.as_ptr());
        copied
    }
}

fn parameters(conn: &rdma_conn_param) -> ConnectParameters {
    ConnectParameters {
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        retry_count: conn.retry_count & 7,
        rnr_retry_count: conn.rnr_retry_count & 7,
        qp_number: Some(QpNumber::new(conn.qp_num)),
        flow_control: conn.flow_control != 0,
        srq: conn.srq != 0,
        ..ConnectParameters::default()
    }
}

impl Copied {
    /// Returns the kind of the program's event, or `None` if the event is not reported. Requests and responses are
    /// converted elsewhere, because their conversion requires the endpoint.
    pub(super) fn kind(&self) -> Option<CmEventKind> {
        let failed = |asked| CmEventKind::AddressError(named(asked, self.status.saturating_abs()));
        Some(match self.code {
            code::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            code::RDMA_CM_EVENT_ADDR_ERROR | code::RDMA_CM_EVENT_ROUTE_ERROR => failed(Asked::Resolve),
            code::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            code::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            code::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError,
            code::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable(UnreachableCause::NoAnswer),
            code::RDMA_CM_EVENT_REJECTED => {
                CmEventKind::Rejected(RejectReason(u16::try_from(self.status).unwrap_or(0)))
            }
            code::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected { is_answered: self.status == 0 },
            code::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
            code::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
            _ => return None,
        })
    }

    /// Returns the outcome of resolving an address.
    pub(super) fn resolved(&self) -> Result<(), trunkline_verbs::VerbsError> {
        match self.kind() {
            Some(CmEventKind::AddressResolved) => Ok(()),
            Some(CmEventKind::AddressError(error)) => Err(error),
            _ => Err(trunkline_verbs::VerbsError::Gone),
        }
    }
}
