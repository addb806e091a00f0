//! The fields of an id's C structure that the library reads and writes.
//!
//! Programs read all of them and may write `context` and `qp`. Each field is therefore copied in and out separately, with
//! `id.get(QP)` and `id.set(QP, qp)`.

use crate::abi::*;
use crate::border::{Field, Handle, field};
use libc::sockaddr_storage;
use std::ffi::{c_int, c_uint, c_void};

/// An id that belongs to the program or will be given to it.
pub(super) type Id<'a> = Handle<'a, rdma_cm_id>;

type IdField<F> = Field<rdma_cm_id, F>;

pub(super) const VERBS: IdField<*mut ibv_context> = field!(rdma_cm_id, verbs);
pub(super) const CHANNEL: IdField<*mut rdma_event_channel> = field!(rdma_cm_id, channel);
pub(super) const CONTEXT: IdField<*mut c_void> = field!(rdma_cm_id, context);
pub(super) const QP: IdField<*mut ibv_qp> = field!(rdma_cm_id, qp);
pub(super) const SOURCE: IdField<sockaddr_storage> = field!(rdma_cm_id, route.addr.src);
pub(super) const DESTINATION: IdField<sockaddr_storage> = field!(rdma_cm_id, route.addr.dst);
pub(super) const GIDS: IdField<rdma_ib_addr> = field!(rdma_cm_id, route.addr.ibaddr);
pub(super) const PATH: IdField<*mut ibv_sa_path_rec> = field!(rdma_cm_id, route.path_rec);
pub(super) const PATH_COUNT: IdField<c_int> = field!(rdma_cm_id, route.num_paths);
pub(super) const PORT_SPACE: IdField<c_uint> = field!(rdma_cm_id, ps);
pub(super) const PORT: IdField<u8> = field!(rdma_cm_id, port_num);
/// The event of a synchronous id's last call. The library acknowledges it.
pub(super) const EVENT: IdField<*mut rdma_cm_event> = field!(rdma_cm_id, event);
pub(super) const SEND_CHANNEL: IdField<*mut ibv_comp_channel> = field!(rdma_cm_id, send_cq_channel);
pub(super) const SEND_CQ: IdField<*mut ibv_cq> = field!(rdma_cm_id, send_cq);
pub(super) const RECEIVE_CHANNEL: IdField<*mut ibv_comp_channel> = field!(rdma_cm_id, recv_cq_channel);
pub(super) const RECEIVE_CQ: IdField<*mut ibv_cq> = field!(rdma_cm_id, recv_cq);
pub(super) const SRQ: IdField<*mut ibv_srq> = field!(rdma_cm_id, srq);
pub(super) const PD: IdField<*mut ibv_pd> = field!(rdma_cm_id, pd);
pub(super) const QP_TYPE: IdField<c_uint> = field!(rdma_cm_id, qp_type);
