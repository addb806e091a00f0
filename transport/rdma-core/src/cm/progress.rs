//! Translation of librdmacm's events to the program's events.
//!
//! This module creates an endpoint for a request, brings up the attached QP when the peer replies, and moves the QP to ERR
//! when the connection ends. `channel` reads the events and calls these functions with the manager's lock held.

use super::bring_up;
use super::channel::Taken;
use super::endpoint::RawId;
use super::error::{Asked, check};
use super::event::Copied;
use super::id::Id;
use super::manager::{CmState, Table};
use rdma_sys::rdma_cm_event_type as code;
use rdma_sys::{rdma_disconnect, rdma_establish};
use std::sync::Arc;
use trunkline_verbs::{CmEvent, CmEventKind, CmId, CmIdNumber, QpState, VerbsError};

/// Creates an endpoint for a request. `migrates` is true if the new id has a separate channel, as an id from a synchronous
/// listener does. The caller holds the lock.
pub(super) fn request(
    shared: &Arc<CmState>,
    table: &mut Table,
    new: RawId,
    copied: Copied,
    migrates: bool,
) -> Taken {
    let listener = table.entries.get(&copied.number);
    let listener = listener.map(|listener| (listener.qp_type, Arc::clone(&listener.channel)));
    // A listener on the wildcard address also receives requests to other devices. SAFETY: librdmacm has just returned the
    // id, so no other code uses it.
    let fits = unsafe { shared.is_ours(new) };
    let adopted = match listener {
        Some((qp_type, channel)) if fits => {
            // SAFETY: the new id is not shared, and the lock is held.
            let number = unsafe { shared.enter(table, new, Arc::clone(&channel), qp_type, false) };
            if migrates { channel.take_in(new).map(|()| number) } else { Ok(number) }
                .inspect_err(|_| drop(table.entries.remove(&number)))
        }
        Some(_) => Err(VerbsError::NoDevice),
        None => Err(VerbsError::Gone),
    };
    match adopted {
        Ok(number) => {
            let id: Arc<dyn CmId> = Arc::new(Id::new(number, Arc::clone(shared)));
            let kind = CmEventKind::ConnectRequest { id, parameters: copied.parameters };
            let id = CmIdNumber(copied.number);
            Taken::Event(CmEvent { id, kind, private_data: copied.private_data })
        }
        Err(error) => {
            tracing::debug!(%error, "connection request not adopted");
            // The kernel then rejects the request. SAFETY: the new id is not shared, and its event is acknowledged or kept
            // by the id.
            unsafe { new.destroy() };
            Taken::Ignored
        }
    }
}

/// Translates an endpoint's event to the program's event, and performs the steps that librdmacm would perform for an id
/// with a QP. The caller holds the lock.
pub(super) fn event(table: &mut Table, copied: Copied) -> Taken {
    // The program may already have dropped the endpoint.
    let Some(entry) = table.entries.get_mut(&copied.number) else { return Taken::Ignored };
    let (raw, qp) = (entry.raw, entry.qp.clone());
    let kind = if copied.code == code::RDMA_CM_EVENT_CONNECT_RESPONSE {
        match qp {
            None => Some(CmEventKind::ConnectResponse { parameters: copied.parameters }),
            Some(qp) => Some(match finish(raw, &qp) {
                Ok(()) => CmEventKind::Established,
                Err(error) => {
                    tracing::debug!(%error, "connection not brought up after the peer accepted");
                    bring_up::to_error(&qp);
                    entry.has_failed = true;
                    CmEventKind::ConnectError
                }
            }),
        }
    } else {
        let kind = copied.kind();
        let ends_by_peer = matches!(kind, Some(CmEventKind::Rejected(_) | CmEventKind::Disconnected { .. }));
        if ends_by_peer && entry.has_failed {
            return Taken::Ignored;
        }
        if let (true, Some(qp)) = (ends_by_peer, qp) {
            bring_up::to_error(&qp);
        }
        if matches!(kind, Some(CmEventKind::Disconnected { .. })) {
            // The peer waits for a DREP, which the kernel leaves to this side. If the event was the peer's own DREP, this
            // call has no effect. SAFETY: the caller holds the lock, so the id is not destroyed. It is not synchronous, so
            // the call does not wait.
            let _ = unsafe { rdma_disconnect(raw.pointer()) };
        }
        kind
    };
    match kind {
        Some(kind) => {
            Taken::Event(CmEvent { id: CmIdNumber(copied.number), kind, private_data: copied.private_data })
        }
        None => {
            tracing::debug!(code = copied.code, "connection event ignored");
            Taken::Ignored
        }
    }
}

/// Brings up the QP after the peer has accepted, and establishes the connection.
fn finish(raw: RawId, qp: &crate::qp::Qp) -> Result<(), VerbsError> {
    // Enter INIT again. The kernel's connection manager does not grant access rights to the peer before the request is
    // sent.
    let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    bring_up::through(raw, qp, &states, bring_up::Limits::default())?;
    // SAFETY: the caller holds the lock, so the id is not destroyed.
    check(Asked::Connect, unsafe { rdma_establish(raw.pointer()) })
}
