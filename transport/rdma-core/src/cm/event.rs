//! Copies of librdmacm's events.
//!
//! An event is librdmacm's until it is acknowledged, and what it points to with it; everything that
//! is needed of one is copied first. Numbers of kinds, lengths and states come from the kernel and
//! are checked nevertheless.

use super::error::{Asked, named};
use rdma_sys::rdma_cm_event_type as code;
use rdma_sys::{rdma_ack_cm_event, rdma_cm_event, rdma_conn_param};
use std::ffi::c_int;
use std::ptr::NonNull;
use trunkline_verbs::{CmEventKind, ConnectParameters, QpNumber, RejectReason};

/// What is known of an event when librdmacm has it back.
#[derive(Debug)]
pub(super) struct Copied {
    /// The number of the endpoint that it is about; of the listener for a request.
    pub(super) number: u64,
    /// `rdma_cm_event_type`.
    pub(super) code: u32,
    /// 0, a negative errno, or the reason of a rejection.
    pub(super) status: c_int,
    /// Counts and numbers; empty where the event has none.
    pub(super) parameters: ConnectParameters,
    /// Of the field's full size.
    pub(super) private_data: Vec<u8>,
}

/// Copies an event.
///
/// # Safety
/// The event is librdmacm's and not acknowledged.
pub(super) unsafe fn copy(event: NonNull<rdma_cm_event>) -> Copied {
    // SAFETY: the caller's promise; an event keeps its ids from being destroyed.
    let event = unsafe { event.as_ref() };
    let subject = if event.listen_id.is_null() { event.id } else { event.listen_id };
    // SAFETY: as above, where librdmacm names one.
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
        // SAFETY: librdmacm zeroes the union and writes this member for these events: ids of
        // other types than connected ones are not made here.
        let conn = unsafe { event.param.conn };
        copied.parameters = parameters(&conn);
        if !conn.private_data.is_null() {
            // SAFETY: as many bytes as the length says stand behind an event that is not acknowledged.
            let bytes = unsafe {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(conn.private_data_len))
            };
            copied.private_data = bytes.to_vec();
        }
    }
    copied
}

/// Copies an event and gives it back to librdmacm.
///
/// # Safety
/// The event is librdmacm's and not acknowledged; nobody uses it after.
pub(super) unsafe fn take(event: NonNull<rdma_cm_event>) -> Copied {
    // SAFETY: the caller's promise.
    unsafe {
        let copied = copy(event);
        // It fails for null pointers only.
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
        srq: conn.srq != 0,
        ..ConnectParameters::default()
    }
}

impl Copied {
    /// What a program is told of it, if it is told; not for requests and responses, in which
    /// endpoints have a part.
    pub(super) fn kind(&self) -> Option<CmEventKind> {
        let failed = |asked| CmEventKind::AddressError(named(asked, self.status.saturating_abs()));
        Some(match self.code {
            code::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            code::RDMA_CM_EVENT_ADDR_ERROR | code::RDMA_CM_EVENT_ROUTE_ERROR => failed(Asked::Resolve),
            code::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            code::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            code::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError,
            code::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable,
            code::RDMA_CM_EVENT_REJECTED => {
                CmEventKind::Rejected(RejectReason(u16::try_from(self.status).unwrap_or(0)))
            }
            code::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            code::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
            code::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
            _ => return None,
        })
    }

    /// Whether resolving failed, and how.
    pub(super) fn resolved(&self) -> Result<(), trunkline_verbs::VerbsError> {
        match self.kind() {
            Some(CmEventKind::AddressResolved) => Ok(()),
            Some(CmEventKind::AddressError(error)) => Err(error),
            _ => Err(trunkline_verbs::VerbsError::Gone),
        }
    }
}
