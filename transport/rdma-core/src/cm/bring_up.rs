//! The states of an attached QP, as librdmacm drives that of an id which has one.
//!
//! The attributes go from the kernel's connection manager to the device as they are, without the
//! detour over [`QpModify`] that would lose what only some links have (service level, LID). The QP
//! is held for as long as each change takes and not longer.

use super::endpoint::RawId;
use super::error::{Asked, check};
use crate::convert;
use crate::qp::Qp;
use rdma_sys::{ibv_qp_attr, ibv_qp_state, rdma_init_qp_attr};
use std::any::Any;
use std::ffi::c_int;
use std::sync::Arc;
use trunkline_verbs::{QpModify, QpState, QueuePair, VerbsError};

/// How far READs and atomics go; `None` leaves what both sides agreed on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// Served at once.
    pub(super) resources: Option<u8>,
    /// Outstanding.
    pub(super) depth: Option<u8>,
}

/// A QP of this provider, from its trait object.
pub(super) fn own_qp(qp: Arc<dyn QueuePair>) -> Result<Arc<Qp>, VerbsError> {
    let any: Arc<dyn Any + Send + Sync> = qp;
    any.downcast::<Qp>().map_err(|_| VerbsError::Invalid("the QP belongs to another device"))
}

/// Moves a QP through states as the endpoint's connection wants them.
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

/// Moves a QP to ERR. It may be there, or be destroyed; that is as good.
pub(super) fn to_error(qp: &Qp) {
    let change = QpModify { state: Some(QpState::Error), ..QpModify::default() };
    if let Err(error) = qp.modify(&change) {
        tracing::debug!(%error, "moving the QP of an ended connection to ERR");
    }
}

/// What brings a QP of the endpoint's connection to a state.
///
/// # Errors
/// [`VerbsError::Invalid`] when the endpoint does not know it yet.
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
    // SAFETY: numbers alone.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = code;
    let mut mask = 0;
    // SAFETY: the caller holds the manager's lock, and so the id; the places are ours.
    check(Asked::QpChanges, unsafe { rdma_init_qp_attr(id.pointer(), &raw mut attributes, &raw mut mask) })?;
    Ok((attributes, mask))
}
