//! The contents of an event, and their conversion to C.

use super::super::fields::Id;
use super::{CmEventHandle, EventObject};
use crate::abi::*;
use crate::border::hand_out;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use trunkline_verbs::ConnectParameters;

/// The contents of an event.
pub(super) struct EventContent<'a> {
    /// Kind of the event, one of `RDMA_CM_EVENT_*`.
    pub(super) event: c_uint,
    /// 0, a negative error number, or the peer's reason for a rejection.
    pub(super) status: c_int,
    pub(super) private_data: Vec<u8>,
    pub(super) parameters: Option<ConnectParameters>,
    /// Path to the peer's QP; only in port space UDP.
    pub(super) address: ibv_ah_attr,
    /// The id that was created for a request.
    pub(super) new: Option<Id<'a>>,
}

impl EventContent<'_> {
    /// Creates the contents of an event that consists only of a kind.
    pub(super) fn plain(event: c_uint) -> Self {
        let address = ibv_ah_attr::default();
        Self { event, status: 0, private_data: Vec::new(), parameters: None, address, new: None }
    }

    /// Creates the contents of an event that reports a failure. `errno` is positive.
    pub(super) fn failed(event: c_uint, errno: c_int) -> Self {
        Self { status: -errno, ..Self::plain(event) }
    }

    /// Creates the C structure of the event, which is already counted on the id. Private data is truncated to 255 bytes,
    /// the maximum in C.
    pub(super) fn hand_out<'e>(self, id: Id<'_>) -> CmEventHandle<'e> {
        let mut private_data = self.private_data;
        private_data.truncate(usize::from(u8::MAX));
        let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let from = self.parameters.as_ref();
        let conn = rdma_conn_param {
            private_data: if private_data.is_empty() { null() } else { private_data.as_ptr().cast() },
            private_data_len: length,
            responder_resources: from.map_or(0, |from| from.responder_resources),
            initiator_depth: from.map_or(0, |from| from.initiator_depth),
            flow_control: from.map_or(0, |from| u8::from(from.flow_control)),
            retry_count: from.map_or(0, |from| from.retry_count),
            rnr_retry_count: from.map_or(0, |from| from.rnr_retry_count),
            srq: from.map_or(0, |from| u8::from(from.srq)),
            qp_num: from.and_then(|from| from.qp_number).map_or(0, |number| number.get()),
        };
        let ud = rdma_ud_param {
            private_data: conn.private_data,
            private_data_len: length,
            ah_attr: self.address,
            qp_num: conn.qp_num,
            qkey: from.map_or(0, |from| from.q_key),
        };
        // Set the larger member of the union first, so that all its bytes are initialised. SAFETY: zeros are valid for the
        // union's numbers and pointers.
        let mut param = rdma_cm_event_param { ud: unsafe { std::mem::zeroed() } };
        if id.is_datagram() {
            param.ud = ud;
        } else {
            param.conn = conn;
        }
        let (id_shown, listener) = match self.new {
            Some(new) => (new.as_ptr(), id.as_ptr()),
            None => (id.as_ptr(), null_mut()),
        };
        let base = rdma_cm_event {
            id: id_shown,
            listen_id: listener,
            event: self.event,
            status: self.status,
            param,
        };
        hand_out(EventObject {
            base: UnsafeCell::new(base),
            _private_data: private_data,
            outstanding: Arc::clone(&id.outstanding),
        })
    }
}
