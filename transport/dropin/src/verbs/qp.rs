//! Creation, opening and destruction of queue pairs (contract C).

use super::convert::qp_type;
use super::events::{Element, EventCount, Target};
use super::host::host;
use super::objects::QpObject;
use super::turn::Turn;
use super::wr::{ALL_OPERATIONS, Posting, operations};
use crate::abi::*;
use crate::border::{Errno, Handle, In, InOut, Out, hand_out, object, status};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use trunkline_verbs::{AsyncSubject, Device, QpInit, QpNumber, QpType, QueueCapacities, QueuePair};

/// Minimum inline capacity of every sending QP, in bytes. rdma_xclient requests 0 and posts 16
/// (`librdmacm/examples/rdma_xclient.c` of rdma-core).
const MIN_INLINE_BYTES: u32 = 64;

/// `ibv_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    object(|| {
        // SAFETY: as `ibv_create_qp(3)` requires, the program passes a live PD, and attributes that
        // only the library accesses until the call returns.
        let (domain, mut init) = unsafe { (Handle::new(pd)?, InOut::new(init)?) };
        let mut extended = ibv_qp_init_attr_ex {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
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
        // SAFETY: as `ibv_create_qp(3)` requires, the attributes refer to live objects.
        let qp = unsafe { create(domain.owner()?, &mut extended) }?;
        init.cap = extended.cap;
        Ok(qp)
    })
}

/// `ibv_create_qp_ex(3)`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: as `ibv_create_qp_ex(3)` requires, the program passes an open context, and
        // attributes that only the library accesses until the call returns.
        let (context, mut init) = unsafe { (Handle::new(context)?, InOut::new(init)?) };
        // SAFETY: as `ibv_create_qp_ex(3)` requires, the attributes refer to live objects.
        unsafe { create(context, &mut init) }
    })
}

/// Attributes that only `ibv_create_qp_ex` accepts, as selected by its mask.
struct Extended {
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    send_ops: Option<u64>,
}

impl Extended {
    /// Reads only the fields in the mask, because programs may leave other fields uninitialised.
    fn of(init: &ibv_qp_init_attr_ex, qp_type: QpType) -> Result<Self, Errno> {
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if init.comp_mask & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let has = |bit| init.comp_mask & bit != 0;
        // contract C13; RC QPs support none of the flags.
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

/// Creates a QP and stores its capacities in `init`.
///
/// # Safety
/// Each object that `init` names is null or not destroyed.
unsafe fn create(
    owner: Handle<'_, ibv_context>,
    init: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    let kind = qp_type(init.qp_type)?;
    let extended = Extended::of(init, kind)?;
    let inline = if kind == QpType::XrcTgt { 0 } else { init.cap.max_inline_data.max(MIN_INLINE_BYTES) };
    // SAFETY: by this function's contract each object is null or not destroyed.
    let (pd, send_cq, receive_cq, srq, xrcd) = unsafe {
        (
            Handle::optional(extended.pd),
            Handle::optional(init.send_cq),
            Handle::optional(init.recv_cq),
            Handle::optional(init.srq),
            Handle::optional(extended.xrcd),
        )
    };
    let inner = owner.device.create_qp(QpInit {
        qp_type: kind,
        pd: pd.map(|pd| Arc::clone(&pd.inner)),
        send_cq: send_cq.map(|cq| Arc::clone(&cq.inner)),
        receive_cq: receive_cq.map(|cq| Arc::clone(&cq.inner)),
        srq: srq.map(|srq| Arc::clone(&srq.inner)),
        xrcd: xrcd.map(|xrcd| Arc::clone(&xrcd.inner)),
        capacities: QueueCapacities {
            max_send_wr: init.cap.max_send_wr,
            max_receive_wr: init.cap.max_recv_wr,
            max_send_sge: init.cap.max_send_sge,
            max_receive_sge: init.cap.max_recv_sge,
            max_inline_data: inline,
        },
        signal_all: init.sq_sig_all != 0,
        ..QpInit::new(kind)
    })?;
    init.cap = capacities(inner.capacities());
    let fields = Fields {
        qp_context: init.qp_context,
        pd: extended.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        qp_type: init.qp_type,
        state: IBV_QPS_RESET,
        signal_all: init.sq_sig_all != 0,
        send_ops: extended.send_ops,
    };
    Ok(hand_out_qp(owner, &inner, &fields))
}

/// Converts the capacities of a QP to C.
pub(super) fn capacities(from: QueueCapacities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_receive_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_receive_sge,
        max_inline_data: from.max_inline_data,
    }
}

/// Values for a QP's C structure and for its object.
struct Fields {
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

fn hand_out_qp(owner: Handle<'_, ibv_context>, inner: &Arc<dyn QueuePair>, fields: &Fields) -> *mut ibv_qp {
    let base = ibv_qp {
        context: owner.as_ptr(),
        qp_context: fields.qp_context,
        pd: fields.pd,
        send_cq: fields.send_cq,
        recv_cq: fields.recv_cq,
        srq: fields.srq,
        handle: host().next_handle(),
        qp_num: inner.number().get(),
        state: fields.state,
        qp_type: fields.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let events = Arc::<EventCount>::default();
    let qp: Handle<'_, ibv_qp> = hand_out(QpObject {
        base: UnsafeCell::new(operations(base)),
        inner: Arc::clone(inner),
        events: Arc::clone(&events),
        signal_all: fields.signal_all,
        is_extended: fields.send_ops.is_some(),
        turn: Turn::new(Posting::new(fields.send_ops.unwrap_or(0))),
    });
    let element = Element::Qp(Target { address: qp.address(), count: events });
    host().router.listen(AsyncSubject::Qp(inner.number()), &owner.events, element);
    owner.live.qps.insert(qp.address(), inner);
    qp.as_ptr()
}

/// `ibv_open_qp(3)`: opens another handle of a TGT (contract C4, C5).
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: as `ibv_open_qp(3)` requires, the program passes an open context, and attributes
        // that do not change during the call.
        let (owner, attr) = unsafe { (Handle::new(context)?, In::new(attr)?) };
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & needed != needed || attr.qp_type != IBV_QPT_XRC_RECV || attr.xrcd.is_null() {
            return Err(Errno::EINVAL);
        }
        let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        // SAFETY: as `ibv_open_qp(3)` requires, the attributes refer to an open XRC domain.
        let xrcd = unsafe { Handle::new(attr.xrcd)? };
        if attr.qp_num > 0x00ff_ffff {
            return Err(Errno::EINVAL);
        }
        let inner = owner.device.open_qp(&xrcd.inner, QpNumber::new(attr.qp_num))?;
        let fields = Fields {
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
        Ok(hand_out_qp(owner, &inner, &fields))
    })
}

/// `ibv_destroy_qp(3)`: for a TGT, destroys only this handle (contract C6). Waits until the program has
/// acknowledged the QP's events (contract H6).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(|| {
        // SAFETY: as `ibv_destroy_qp(3)` requires, the program passes a live QP.
        let qp = unsafe { Handle::new(qp)? };
        let owner = qp.owner()?;
        let number = qp.inner.number();
        qp.inner.destroy()?;
        host().router.leave(AsyncSubject::Qp(number), &owner.events, qp.address());
        qp.events.wait();
        owner.live.qps.remove(qp.address());
        // SAFETY: this is the program's last use of the QP. The router and the context do not list it
        // any more, and all its events are acknowledged.
        unsafe { qp.release() };
        Ok(())
    })
}

/// `ibv_query_qp_data_in_order(3)`: returns 0. Data is placed in order, but the manual refers to the order in which a
/// processor sees data without waiting for a completion. This device does not guarantee that order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

/// `ibv_set_ece(3)`: `EOPNOTSUPP`, because this device has no options to negotiate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_query_ece(3)`: `EOPNOTSUPP`. The options are set to 0, as in rdma-core.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        // SAFETY: as `ibv_query_ece(3)` requires, the program passes memory for the options.
        if let Some(ece) = unsafe { Out::optional(ece) } {
            ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
        }
        Err(Errno::EOPNOTSUPP)
    })
}
