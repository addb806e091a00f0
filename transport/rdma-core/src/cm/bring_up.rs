//! Moves an attached QP through its states, as librdmacm does for an id with a QP.
//!
//! The attributes are passed unchanged from the kernel's connection manager to the device, because a [`QpModify`] lacks
//! attributes that only some links have (service level, LID). The QP can be destroyed between two changes, but not during a
//! change.

use super::endpoint::RawId;
use super::error::{Asked, check};
use crate::convert;
use crate::qp::Qp;
use rdma_sys::{ibv_qp_attr, ibv_qp_state, rdma_init_qp_attr};
use std::any::Any;
use std::ffi::c_int;
use std::sync::Arc;
use trunkline_verbs::{QpModify, QpState, QueuePair, VerbsError};

/// Limits on outstanding READs and atomics. `None` selects the value that both sides have agreed on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// Maximum number of READs and atomics that the QP serves at a time.
    pub(super) resources: Option<u8>,
    /// Maximum number of READs and atomics that the QP has outstanding.
    pub(super) depth: Option<u8>,
}

/// Converts a trait object to a QP of this provider.
pub(super) fn own_qp(qp: Arc<dyn QueuePair>) -> Result<Arc<Qp>, VerbsError> {
    let any: Arc<dyn Any + Send + Sync> = qp;
    any.downcast::<Qp>().map_err(|_| VerbsError::Invalid("the QP belongs to another device"))
}

/// Moves a QP through `states` with the attributes of the endpoint's connection.
pub(super) fn through(id: RawId, qp: &Qp, states: &[QpState], limits: Limits) -> Result<(), VerbsError> {
    for &state in states {
        let (mut attributes, mask) = changes(id, state)?;
        if let (QpState::ReadyToReceive, Some(resources)) = (state, limits.resources) {
            attributes.max_dest_rd_atomic = resources;
        }
        if let (QpState::ReadyToSend, Some(depth)) = (state, limits.depth) {
            attributes.max_rd_atomic = depth;
        }
        qp.modify_raw(&mut attributes, mask)?;
    }
    Ok(())
}

/// Moves a QP to ERR. This fails only if the QP is already in ERR or destroyed.
pub(super) fn to_error(qp: &Qp) {
    let change = QpModify { state: Some(QpState::Error), ..QpModify::default() };
    if let Err(error) = qp.modify(&change) {
        tracing::debug!(%error, "QP of an ended connection not moved to ERR");
    }
}

/// Returns the attributes that move a QP of the endpoint's connection to `state`.
///
/// # Errors
/// Returns [`VerbsError::Invalid`] if the endpoint does not have the attributes yet.
pub(super) fn named_changes(id: RawId, state: QpState) -> Result<QpModify, VerbsError> {
    let (attributes, mask) = changes(id, state)?;
    Ok(convert::to_modify(&attributes, mask.cast_unsigned()))
}

fn changes(id: RawId, state: QpState) -> Result<(ibv_qp_attr, c_int), VerbsError> {
    let code: ibv_qp_state::Type = match state {
        QpState::Init => ibv_qp_state::IBV_QPS_INIT,
        QpState::ReadyToReceive => ibv_qp_state::IBV_QPS_RTR,
        QpState::ReadyToSend => ibv_qp_state::IBV_QPS_RTS,
        _ => return Err(VerbsError::Invalid("connections bring QPs to INIT, RTR and RTS")),
    };
    // SAFETY: the structure consists of numbers.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = code;
    let mut mask = 0;
    // SAFETY: the caller holds the manager's lock, so the id is not destroyed; the results are local.
    check(Asked::QpChanges, unsafe { rdma_init_qp_attr(id.pointer(), &raw mut attributes, &raw mut mask) })?;
    Ok((attributes, mask))
}
