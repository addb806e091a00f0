//! Making, opening and destroying queue pairs (contract C).

use super::convert::qp_type;
use super::events::{Element, EventCount, Target};
use super::host::host;
use super::objects::{QpObject, Turn, context_of, cq_of, hand_out, pd_of, qp_of, srq_of, take_back, xrcd_of};
use super::wr::{ALL_OPERATIONS, Posting, operations};
use crate::abi::*;
use crate::border::{Errno, object, status};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use trunkline_verbs::{AsyncSubject, Device, QpInit, QpNumber, QpType, QueueCapacities, QueuePair};

/// Inline bytes that every sending QP gets, asked for or not: rdma_xclient asks for none and posts
/// 16 (contract verbs-abi).
const LEAST_INLINE: u32 = 64;

/// `ibv_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    object(|| {
        // SAFETY: the caller's domain and request; its sizes are written back.
        unsafe {
            let asked = init.read();
            let mut extended = ibv_qp_init_attr_ex {
                qp_context: asked.qp_context,
                send_cq: asked.send_cq,
                recv_cq: asked.recv_cq,
                srq: asked.srq,
                cap: asked.cap,
                qp_type: asked.qp_type,
                sq_sig_all: asked.sq_sig_all,
                comp_mask: IBV_QP_INIT_ATTR_PD,
                pd,
                xrcd: null_mut(),
                create_flags: 0,
                max_tso_header: 0,
                rwq_ind_tbl: null_mut(),
                rx_hash_conf: ibv_rx_hash_conf {
                    rx_hash_function: 0,
                    rx_hash_key_len: 0,
                    rx_hash_key: null_mut(),
                    rx_hash_fields_mask: 0,
                },
                source_qpn: 0,
                send_ops_flags: 0,
            };
            let qp = create((*pd).context, &mut extended)?;
            (*init).cap = extended.cap;
            Ok(qp)
        }
    })
}

/// `ibv_create_qp_ex(3)`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's context and request.
    object(|| unsafe { create(context, &mut *init) })
}

/// What the mask asks for beyond the fields of `ibv_qp_init_attr`.
struct Asked {
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    send_ops: Option<u64>,
}

impl Asked {
    /// Programs may leave fields unset that their mask does not name.
    fn of(init: &ibv_qp_init_attr_ex, qp_type: QpType) -> Result<Self, Errno> {
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if init.comp_mask & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let has = |bit| init.comp_mask & bit != 0;
        // contract C13; for RC none of the flags is of any use.
        if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0 {
            return Err(Errno::EINVAL);
        }
        let send_ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(init.send_ops_flags);
        if send_ops.is_some_and(|ops| ops & !ALL_OPERATIONS != 0 || qp_type == QpType::XrcTgt) {
            return Err(Errno::EOPNOTSUPP);
        }
        // contract C1, C11
        if has(IBV_QP_INIT_ATTR_XRCD) != (qp_type == QpType::XrcTgt) {
            return Err(Errno::EINVAL);
        }
        let pd = if has(IBV_QP_INIT_ATTR_PD) { init.pd } else { null_mut() };
        let xrcd = if has(IBV_QP_INIT_ATTR_XRCD) { init.xrcd } else { null_mut() };
        Ok(Self { pd, xrcd, send_ops })
    }
}

unsafe fn create(context: *mut ibv_context, init: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    let kind = qp_type(init.qp_type)?;
    let asked = Asked::of(init, kind)?;
    let inline = if kind == QpType::XrcTgt { 0 } else { init.cap.max_inline_data.max(LEAST_INLINE) };
    // SAFETY: objects of the caller's, where they are not null.
    let request = unsafe {
        QpInit {
            qp_type: kind,
            pd: (!asked.pd.is_null()).then(|| Arc::clone(&pd_of(asked.pd).inner)),
            send_cq: (!init.send_cq.is_null()).then(|| Arc::clone(&cq_of(init.send_cq).inner)),
            receive_cq: (!init.recv_cq.is_null()).then(|| Arc::clone(&cq_of(init.recv_cq).inner)),
            srq: (!init.srq.is_null()).then(|| Arc::clone(&srq_of(init.srq).inner)),
            xrcd: (!asked.xrcd.is_null()).then(|| Arc::clone(&xrcd_of(asked.xrcd).inner)),
            capacities: QueueCapacities {
                max_send_wr: init.cap.max_send_wr,
                max_receive_wr: init.cap.max_recv_wr,
                max_send_sge: init.cap.max_send_sge,
                max_receive_sge: init.cap.max_recv_sge,
                max_inline_data: inline,
            },
            signal_all: init.sq_sig_all != 0,
        }
    };
    // SAFETY: the caller's context.
    let inner = unsafe { context_of(context) }.device.create_qp(request)?;
    init.cap = capacities(inner.capacities());
    let parts = Parts {
        qp_context: init.qp_context,
        pd: asked.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        qp_type: init.qp_type,
        state: IBV_QPS_RESET,
        signal_all: init.sq_sig_all != 0,
        send_ops: asked.send_ops,
    };
    // SAFETY: the caller's context.
    Ok(unsafe { hand_out_qp(context, &inner, &parts) })
}

/// Sizes as C has them.
pub(super) fn capacities(from: QueueCapacities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_receive_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_receive_sge,
        max_inline_data: from.max_inline_data,
    }
}

/// What C's structure of a QP begins with.
struct Parts {
    qp_context: *mut c_void,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    qp_type: c_uint,
    state: c_uint,
    signal_all: bool,
    send_ops: Option<u64>,
}

unsafe fn hand_out_qp(context: *mut ibv_context, inner: &Arc<dyn QueuePair>, parts: &Parts) -> *mut ibv_qp {
    // SAFETY: the caller's context.
    let owner = unsafe { context_of(context) };
    let base = ibv_qp {
        context,
        qp_context: parts.qp_context,
        pd: parts.pd,
        send_cq: parts.send_cq,
        recv_cq: parts.recv_cq,
        srq: parts.srq,
        handle: host().next_handle(),
        qp_num: inner.number().get(),
        state: parts.state,
        qp_type: parts.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let events = Arc::<EventCount>::default();
    let qp = hand_out(QpObject {
        base: UnsafeCell::new(operations(base)),
        inner: Arc::clone(inner),
        events: Arc::clone(&events),
        signal_all: parts.signal_all,
        is_extended: parts.send_ops.is_some(),
        turn: Turn::default(),
        posting: UnsafeCell::new(Posting::new(parts.send_ops.unwrap_or(0))),
    });
    let element = Element::Qp(Target { address: qp.expose_provenance(), count: events });
    host().router.listen(AsyncSubject::Qp(inner.number()), &owner.events, element);
    owner.live.qps.insert(qp, inner);
    qp.cast()
}

/// `ibv_open_qp(3)`: a further handle on a TGT (contract C4, C5).
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: the caller's request, read once.
        let attr = unsafe { attr.read() };
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & needed != needed || attr.qp_type != IBV_QPT_XRC_RECV || attr.xrcd.is_null() {
            return Err(Errno::EINVAL);
        }
        let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        // SAFETY: the caller's context and domain.
        let (owner, xrcd) = unsafe { (context_of(context), xrcd_of(attr.xrcd)) };
        if attr.qp_num > 0x00ff_ffff {
            return Err(Errno::EINVAL);
        }
        let inner = owner.device.open_qp(&xrcd.inner, QpNumber::new(attr.qp_num))?;
        let parts = Parts {
            qp_context: if has_context { attr.qp_context } else { null_mut() },
            pd: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            qp_type: IBV_QPT_XRC_RECV,
            state: IBV_QPS_UNKNOWN,
            signal_all: false,
            send_ops: None,
        };
        // SAFETY: the caller's context.
        Ok(unsafe { hand_out_qp(context, &inner, &parts) })
    })
}

/// `ibv_destroy_qp(3)`: of a TGT this handle alone (contract C6); waits until its events are
/// acknowledged (contract H6).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(|| {
        // SAFETY: a QP of the caller's, and its context.
        let (object, owner) = unsafe { (qp_of(qp), context_of((*qp).context)) };
        let number = object.inner.number();
        object.inner.destroy()?;
        host().router.leave(AsyncSubject::Qp(number), &owner.events, qp.addr());
        object.events.wait();
        owner.live.qps.remove(qp);
        // SAFETY: handed out above; the caller gives it up.
        unsafe { take_back(qp.cast::<QpObject>()) };
        Ok(())
    })
}

/// `ibv_query_qp_data_in_order(3)`: data is placed in order, but the manual's promise is about
/// what a processor sees without a completion, which nobody gives here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

/// `ibv_set_ece(3)`: this device has no options to negotiate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_query_ece(3)`: as rdma-core for such a device, nothing set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    if !ece.is_null() {
        // SAFETY: the caller's place for the answer.
        unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    }
    status(|| Err(Errno::EOPNOTSUPP))
}
