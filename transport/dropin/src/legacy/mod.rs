//! The XRC calls of OFED 1.x, declared in `include/infiniband/xrc_legacy.h` (contract B).
//!
//! Owns nothing: each context keeps what the process is registered with, as [`trunkline_verbs::legacy`] does it. C programs
//! written to the older interface call these functions; they stand in the library under a version of our own. A domain of
//! theirs is an `ibv_xrcd`.
#![allow(clippy::missing_safety_doc, reason = "callers are C programs; the header is the contract")]

use crate::abi::*;
use crate::border::{Errno, object, status};
use crate::verbs::objects::{ContextObject, context_of, xrcd_of};
use crate::verbs::{attributes, change, close_xrcd, create_srq_ex, open_xrcd};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use trunkline_verbs::legacy::LegacyError;
use trunkline_verbs::{QpNumber, XrcDomain};

/// A domain: never looked into by a program.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_xrc_domain {
    _xrcd: [u8; 0],
}

/// `struct ibv_xrc_rcv_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_xrc_rcv_init_attr {
    /// Where the QP is to be.
    pub xrc_domain: *mut ibv_xrc_domain,
}

impl From<LegacyError> for Errno {
    fn from(error: LegacyError) -> Self {
        Self(error.errno())
    }
}

/// A domain's context and the domain itself; `EINVAL` for NULL.
unsafe fn parts<'a>(
    domain: *mut ibv_xrc_domain,
) -> Result<(&'a ContextObject, &'a Arc<dyn XrcDomain>), Errno> {
    let xrcd: *mut ibv_xrcd = domain.cast();
    if xrcd.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so a domain that `ibv_open_xrc_domain` answered, with the context it was opened in.
    unsafe { Ok((context_of((*xrcd).context), &xrcd_of(xrcd).inner)) }
}

/// Opens the domain of a file's inode, or with -1 one of its own.
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
    // SAFETY: the caller's context.
    unsafe { open_xrcd(context, &raw mut init).cast() }
}

/// Closes a domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_xrc_domain(domain: *mut ibv_xrc_domain) -> c_int {
    if domain.is_null() {
        return status(|| Err(Errno::EINVAL));
    }
    // SAFETY: a domain that `ibv_open_xrc_domain` answered.
    unsafe { close_xrcd(domain.cast()) }
}

/// Makes an XRC SRQ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_xrc_srq(
    pd: *mut ibv_pd,
    domain: *mut ibv_xrc_domain,
    cq: *mut ibv_cq,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    if pd.is_null() || init.is_null() {
        return object(|| Err(Errno::EINVAL));
    }
    // SAFETY: the caller's request, and its domain of protection; NULL for the rest is refused by the call below.
    unsafe {
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: (*init).srq_context,
            attr: (*init).attr,
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
        let srq = create_srq_ex((*pd).context, &raw mut extended);
        (*init).attr = extended.attr;
        srq
    }
}

/// Makes an XRC receive QP and registers this process with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_xrc_rcv_qp(init: *mut ibv_xrc_rcv_init_attr, number: *mut u32) -> c_int {
    status(|| {
        if init.is_null() || number.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's request, its domain, and its place for the number.
        unsafe {
            let (owner, domain) = parts((*init).xrc_domain)?;
            number.write(owner.legacy.create_xrc_rcv_qp(domain)?.get());
        }
        Ok(())
    })
}

/// Moves a receive QP on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: the caller's domain, and attributes of which those count that the mask names.
        unsafe {
            let (owner, domain) = parts(domain)?;
            let change = change(attr.as_ref().ok_or(Errno::EINVAL)?, mask.cast_unsigned())?;
            Ok(owner.legacy.modify_xrc_rcv_qp(domain, QpNumber::new(number), &change)?)
        }
    })
}

/// Attributes of a receive QP. They are all written, whatever the mask names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_xrc_rcv_qp(
    domain: *mut ibv_xrc_domain,
    number: u32,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's domain and places.
        unsafe {
            let (owner, domain) = parts(domain)?;
            let now = owner.legacy.query_xrc_rcv_qp(domain, QpNumber::new(number))?;
            attr.write(attributes(&now, ibv_qp_cap::default()));
            if !init.is_null() {
                init.write(RECEIVE_QP);
            }
        }
        Ok(())
    })
}

/// What a receive QP was made with: nothing.
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
        // SAFETY: the caller's domain.
        let (owner, domain) = unsafe { parts(domain)? };
        Ok(owner.legacy.reg_xrc_rcv_qp(domain, QpNumber::new(number))?)
    })
}

/// Ends the registration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unreg_xrc_rcv_qp(domain: *mut ibv_xrc_domain, number: u32) -> c_int {
    status(|| {
        // SAFETY: the caller's domain.
        let (owner, domain) = unsafe { parts(domain)? };
        Ok(owner.legacy.unreg_xrc_rcv_qp(domain, QpNumber::new(number))?)
    })
}
