//! The XRC calls of OFED 1.x, declared in `include/infiniband/xrc_legacy.h` (contract B).
//!
//! Each context keeps the registrations of the process in a [`trunkline_verbs::legacy::LegacyXrc`]. C programs written for
//! the older interface call these functions, which are exported under a separate symbol version. In the older interface, a
//! domain is an `ibv_xrcd`.
#![allow(clippy::missing_safety_doc, reason = "callers are C programs; the header is the contract")]

use crate::abi::*;
use crate::border::{Errno, Handle, In, InOut, Out, made, object, status};
use crate::verbs::{attributes, change, close_xrcd, create_srq_ex, open_xrcd};
use std::ffi::c_int;
use std::ptr::null_mut;
use trunkline_verbs::QpNumber;
use trunkline_verbs::legacy::LegacyError;

/// A domain. Its contents are opaque to programs.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_xrc_domain {
    _xrcd: [u8; 0],
}

/// `struct ibv_xrc_rcv_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_xrc_rcv_init_attr {
    /// Domain of the QP.
    pub xrc_domain: *mut ibv_xrc_domain,
}

impl From<LegacyError> for Errno {
    fn from(error: LegacyError) -> Self {
        Self(error.errno())
    }
}

/// A domain, and the context in which it was opened.
struct Domain<'a> {
    owner: Handle<'a, ibv_context>,
    xrcd: Handle<'a, ibv_xrcd>,
}

impl Domain<'_> {
    /// # Safety
    /// `domain` is null, or `ibv_open_xrc_domain` returned it and the program does not close it during
    /// `'a`.
    unsafe fn new(domain: *mut ibv_xrc_domain) -> Result<Self, Errno> {
        // SAFETY: this function's contract; `ibv_open_xrc_domain` returns an XRC domain.
        let xrcd: Handle<'_, ibv_xrcd> = unsafe { Handle::new(domain.cast())? };
        Ok(Self { owner: xrcd.owner()?, xrcd })
    }
}

/// Opens the domain of a file's inode, or a private domain if `fd` is -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_xrc_domain(
    context: *mut ibv_context,
    fd: c_int,
    oflag: c_int,
) -> *mut ibv_xrc_domain {
    let mut init = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd,
        oflags: oflag,
    };
    // SAFETY: by the header's contract the program passes a context that it has not closed. The attributes
    // are local.
    unsafe { open_xrcd(context, &raw mut init).cast() }
}

/// Closes a domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_xrc_domain(domain: *mut ibv_xrc_domain) -> c_int {
    if domain.is_null() {
        return status(|| Err(Errno::EINVAL));
    }
    // SAFETY: by the header's contract the program passes a domain that `ibv_open_xrc_domain` returned, for
    // the last time.
    unsafe { close_xrcd(domain.cast()) }
}

/// Creates an XRC SRQ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_xrc_srq(
    pd: *mut ibv_pd,
    domain: *mut ibv_xrc_domain,
    cq: *mut ibv_cq,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: by the header's contract the program passes a PD that it has not deallocated, and
        // attributes that only the library uses until it returns.
        let (owner, mut init) = unsafe { (Handle::new(pd)?.owner()?, InOut::new(init)?) };
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE
                | IBV_SRQ_INIT_ATTR_PD
                | IBV_SRQ_INIT_ATTR_XRCD
                | IBV_SRQ_INIT_ATTR_CQ,
            srq_type: IBV_SRQT_XRC,
            pd,
            xrcd: domain.cast(),
            cq,
            max_num_tags: 0,
            max_ops: 0,
        };
        // SAFETY: by the header's contract the program passes an open domain and a live CQ; the call refuses NULL for
        // either. The attributes are local.
        let srq = made(unsafe { create_srq_ex(owner.as_ptr(), &raw mut extended) });
        init.attr = extended.attr;
        srq
    })
}

/// Creates an XRC receive QP and registers this process with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_xrc_rcv_qp(init: *mut ibv_xrc_rcv_init_attr, number: *mut u32) -> c_int {
    status(|| {
        // SAFETY: by the header's contract the program passes attributes that do not change during the
        // call, with a domain that it has not closed, and memory for the number.
        let (domain, number) = unsafe {
            let init = In::new(init)?;
            (Domain::new(init.xrc_domain)?, Out::new(number)?)
        };
        number.write(domain.owner.legacy.create_xrc_rcv_qp(&domain.xrcd.inner)?.get());
        Ok(())
    })
}

/// Changes attributes or the state of a receive QP. Only attributes in the mask are read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: by the header's contract the program passes a domain that it has not closed, and
        // attributes that do not change during the call.
        let (domain, attr) = unsafe { (Domain::new(domain)?, In::new(attr)?) };
        let change = change(&attr, mask.cast_unsigned())?;
        Ok(domain.owner.legacy.modify_xrc_rcv_qp(&domain.xrcd.inner, QpNumber::new(number), &change)?)
    })
}

/// Returns all attributes of a receive QP, whatever the mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        // SAFETY: by the header's contract the program passes a domain that it has not closed, memory for
        // the attributes, and memory for the initial ones or null.
        let (domain, attr, init) = unsafe { (Domain::new(domain)?, Out::new(attr)?, Out::optional(init)) };
        let now = domain.owner.legacy.query_xrc_rcv_qp(&domain.xrcd.inner, QpNumber::new(number))?;
        attr.write(attributes(&now, ibv_qp_cap::default()));
        if let Some(init) = init {
            init.write(RECEIVE_QP);
        }
        Ok(())
    })
}

/// Initial attributes of a receive QP, which has no queues.
const RECEIVE_QP: ibv_qp_init_attr = ibv_qp_init_attr {
    qp_context: null_mut(),
    send_cq: null_mut(),
    recv_cq: null_mut(),
    srq: null_mut(),
    cap: ibv_qp_cap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
    qp_type: IBV_QPT_XRC_RECV,
    sq_sig_all: 0,
};

/// Registers this process with a receive QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_xrc_rcv_qp(domain: *mut ibv_xrc_domain, number: u32) -> c_int {
    status(|| {
        // SAFETY: by the header's contract the program passes a domain that it has not closed.
        let domain = unsafe { Domain::new(domain)? };
        Ok(domain.owner.legacy.reg_xrc_rcv_qp(&domain.xrcd.inner, QpNumber::new(number))?)
    })
}

/// Ends this process's registration for a receive QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unreg_xrc_rcv_qp(domain: *mut ibv_xrc_domain, number: u32) -> c_int {
    status(|| {
        // SAFETY: by the header's contract the program passes a domain that it has not closed.
        let domain = unsafe { Domain::new(domain)? };
        Ok(domain.owner.legacy.unreg_xrc_rcv_qp(&domain.xrcd.inner, QpNumber::new(number))?)
    })
}
