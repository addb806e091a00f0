//! The functions that libibverbs has in its header only, in Rust.
//!
//! Owns the way through the ops tables: `ibv_context.ops` for the data path, and for extended verbs
//! the `verbs_context` that stands before an `ibv_context`. Each function here is one inline of
//! verbs.h, with its checks and its answers; the bindings' own are not used, because they fail on
//! 64-bit machines. Nothing else is in this file, and nothing else reads those tables.

use rdma_sys::*;
use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::ptr::{NonNull, null_mut};

unsafe extern "C" {
    /// `ibv_query_gid_table` of the header is this with the size of an entry.
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

/// The extended context, if there is one that has the function at `offset` (`verbs_get_ctx_op`).
///
/// # Safety
/// `context` is an open context of libibverbs.
unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<NonNull<verbs_context>> {
    // SAFETY: the caller's promise.
    let mark = unsafe { (*context).abi_compat };
    // All ones of a pointer, not of 32 bits.
    if mark.addr() != usize::MAX {
        return None;
    }
    // SAFETY: the mark says that the context is the last field of a verbs_context, so the bytes
    // before it belong to the same object.
    let extended = unsafe { context.cast::<u8>().sub(offset_of!(verbs_context, context)) };
    let extended = NonNull::new(extended.cast::<verbs_context>())?;
    // SAFETY: `sz` is among its oldest fields.
    let size = unsafe { (*extended.as_ptr()).sz };
    // The structure grew at its front: one of an older library lacks the first fields.
    (size >= size_of::<verbs_context>() - offset).then_some(extended)
}

/// A function of the extended context's table, `None` when the library or the device lacks it.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {
        // SAFETY: by the promise of the function around this, the context is open; the field may
        // be read, since the table reaches that far.
        unsafe { extended($context, offset_of!(verbs_context, $op)).and_then(|table| (*table.as_ptr()).$op) }
    };
}

fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own errno may always be written.
    unsafe { *libc::__errno_location() = errno };
}

/// `ibv_open_xrcd`: null and errno when it fails.
///
/// # Safety
/// `context` is open, and `attributes` a whole structure.
pub(crate) unsafe fn open_xrcd(
    context: *mut ibv_context,
    attributes: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let Some(open) = extended_op!(context, open_xrcd) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe { open(context, attributes) }
}

/// `ibv_close_xrcd`: 0 or an errno.
///
/// # Safety
/// `xrcd` is open, and of an open context.
pub(crate) unsafe fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { (*xrcd).context };
    match extended_op!(context, close_xrcd) {
        // SAFETY: the caller's promise.
        Some(close) => unsafe { close(xrcd) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_create_srq_ex` for an XRC SRQ; null and errno when it fails.
///
/// # Safety
/// `context` is open, `attributes` a whole structure whose objects are alive.
pub(crate) unsafe fn create_srq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let Some(create) = extended_op!(context, create_srq_ex) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe { create(context, attributes) }
}

/// `ibv_get_srq_num`: 0 or an errno.
///
/// # Safety
/// `srq` is alive.
pub(crate) unsafe fn get_srq_num(srq: *mut ibv_srq, number: &mut u32) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { (*srq).context };
    match extended_op!(context, get_srq_num) {
        // SAFETY: the caller's promise; the number is the caller's to write.
        Some(get) => unsafe { get(srq, number) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_create_qp_ex`: null and errno when it fails.
///
/// # Safety
/// `context` is open, `attributes` a whole structure whose objects are alive.
pub(crate) unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    let (mask, pd) = unsafe { ((*attributes).comp_mask, (*attributes).pd) };
    if mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
        // SAFETY: the first fields of the extended structure are those of the plain one.
        return unsafe { ibv_create_qp(pd, attributes.cast()) };
    }
    let Some(create) = extended_op!(context, create_qp_ex) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe { create(context, attributes) }
}

/// `ibv_open_qp`: null and errno when it fails.
///
/// # Safety
/// `context` is open, `attributes` a whole structure whose domain is open.
pub(crate) unsafe fn open_qp(context: *mut ibv_context, attributes: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    let Some(open) = extended_op!(context, open_qp) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe { open(context, attributes) }
}

/// `ibv_query_port`: 0 or an errno.
///
/// # Safety
/// `context` is open, `attributes` a whole structure full of zeros.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    match extended_op!(context, query_port) {
        // SAFETY: the caller's promise.
        Some(query) => unsafe { query(context, port, attributes, size_of::<ibv_port_attr>()) },
        // SAFETY: the exported function fills the older, shorter form of the same structure.
        None => unsafe { ibv_query_port(context, port, attributes.cast()) },
    }
}

/// `ibv_query_gid_table`: how many entries were filled, or a negative errno.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn query_gid_table(context: *mut ibv_context, entries: &mut [ibv_gid_entry]) -> isize {
    // SAFETY: the caller's promise; the slice's own length bounds what is written.
    unsafe {
        _ibv_query_gid_table(context, entries.as_mut_ptr(), entries.len(), 0, size_of::<ibv_gid_entry>())
    }
}

/// `ibv_post_send`: 0, or an errno and the request that was refused.
///
/// # Safety
/// `qp` is alive, `requests` a linked list that ends.
#[inline]
pub(crate) unsafe fn post_send(
    qp: *mut ibv_qp,
    requests: *mut ibv_send_wr,
    refused: &mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's promise; each device fills this slot of its table.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: the caller's promise.
        Some(post) => unsafe { post(qp, requests, refused) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_post_recv`: 0, or an errno and the request that was refused.
///
/// # Safety
/// `qp` is alive, `requests` a linked list that ends.
#[inline]
pub(crate) unsafe fn post_recv(
    qp: *mut ibv_qp,
    requests: *mut ibv_recv_wr,
    refused: &mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise; each device fills this slot of its table.
    match unsafe { (*(*qp).context).ops.post_recv } {
        // SAFETY: the caller's promise.
        Some(post) => unsafe { post(qp, requests, refused) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_post_srq_recv`: 0, or an errno and the request that was refused.
///
/// # Safety
/// `srq` is alive, `requests` a linked list that ends.
#[inline]
pub(crate) unsafe fn post_srq_recv(
    srq: *mut ibv_srq,
    requests: *mut ibv_recv_wr,
    refused: &mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise; each device fills this slot of its table.
    match unsafe { (*(*srq).context).ops.post_srq_recv } {
        // SAFETY: the caller's promise.
        Some(post) => unsafe { post(srq, requests, refused) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_poll_cq`: how many completions were written, negative when the device failed.
///
/// # Safety
/// `cq` is alive, and `completions` has room for `count`.
#[inline]
pub(crate) unsafe fn poll_cq(cq: *mut ibv_cq, count: c_int, completions: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise; each device fills this slot of its table.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: the caller's promise.
        Some(poll) => unsafe { poll(cq, count, completions) },
        None => -1,
    }
}

/// `ibv_req_notify_cq`: 0 or an errno.
///
/// # Safety
/// `cq` is alive.
pub(crate) unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: bool) -> c_int {
    // SAFETY: the caller's promise; each device fills this slot of its table.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: the caller's promise.
        Some(request) => unsafe { request(cq, c_int::from(solicited_only)) },
        None => libc::EOPNOTSUPP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a C program prints of Debian's headers; a check of the drop-in libraries prints it anew.
    const LAYOUT: &str = include_str!("../../dropin/exports/layout.txt");

    fn of_c(line: &str) -> usize {
        let number = LAYOUT.lines().find_map(|of_c| of_c.strip_prefix(line)?.strip_prefix(' '));
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("C says nothing of {line}"))
    }

    macro_rules! same_as_c {
        ($($type:ident { $($field:ident),* })*) => {$(
            assert_eq!(size_of::<$type>(), of_c(concat!("sizeof ", stringify!($type))), stringify!($type));
            $(assert_eq!(
                offset_of!($type, $field),
                of_c(concat!("offsetof ", stringify!($type), " ", stringify!($field))),
                concat!(stringify!($type), ".", stringify!($field))
            );)*
        )*};
    }

    #[test]
    fn what_is_reached_into_lies_where_c_has_it() {
        same_as_c! {
            verbs_context {
                query_port, query_device_ex, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd,
                close_xrcd, sz, context
            }
            ibv_context { device, ops, async_fd, abi_compat }
            ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
            ibv_xrcd { context }
            ibv_xrcd_init_attr { comp_mask, fd, oflags }
            ibv_srq { context }
            ibv_srq_attr { max_wr, max_sge, srq_limit }
            ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq }
            ibv_qp { context, qp_num }
            ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
            ibv_qp_init_attr_ex {
                qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd
            }
            ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
            ibv_qp_attr {
                qp_state, cur_qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr,
                pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
                rnr_retry
            }
            ibv_ah_attr { grh, is_global, port_num }
            ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
            ibv_gid_entry { gid, gid_index, port_num, gid_type }
            ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, max_msg_sz, link_layer }
            ibv_cq { context, cqe }
            ibv_wc { wr_id, status, opcode, byte_len, qp_num, wc_flags }
            ibv_sge { addr, length, lkey }
            ibv_recv_wr { wr_id, next, sg_list, num_sge }
            ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr }
            ibv_mr { lkey, rkey }
            ibv_comp_channel { fd }
            ibv_async_event { element, event_type }
        }
        // The bindings name the unions, C the fields in them.
        let srqn = offset_of!(ibv_send_wr, qp_type) + offset_of!(xrc_t, remote_srqn);
        assert_eq!(srqn, of_c("offsetof ibv_send_wr qp_type.xrc.remote_srqn"));
        let immediate = offset_of!(ibv_send_wr, imm_data_invalidated_rkey_union);
        assert_eq!(immediate, of_c("offsetof ibv_send_wr imm_data"));
    }

    #[test]
    fn an_extended_verb_needs_the_mark_and_a_table_that_reaches_so_far() {
        // SAFETY: a structure of plain numbers and pointers.
        let mut table: Box<verbs_context> = Box::new(unsafe { crate::convert::zeroed() });
        unsafe extern "C" fn refuse(_: *mut ibv_context, _: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
            set_errno(libc::ENOMEM);
            null_mut()
        }
        table.open_xrcd = Some(refuse);
        let table = Box::into_raw(table);
        let open = || {
            // SAFETY: the table is alive until it is taken back below.
            let context = unsafe { &raw mut (*table).context };
            let mut attributes = ibv_xrcd_init_attr { comp_mask: 0, fd: -1, oflags: 0 };
            // SAFETY: as much of a context as the function looks at is there.
            assert!(unsafe { open_xrcd(context, &raw mut attributes) }.is_null());
            crate::error::last_errno()
        };
        let mark = |bits: usize, size: usize| {
            // SAFETY: the table is alive until it is taken back below.
            unsafe {
                (*table).context.abi_compat = std::ptr::without_provenance_mut(bits);
                (*table).sz = size;
            }
        };
        let whole = size_of::<verbs_context>();
        mark(usize::MAX, whole);
        assert_eq!(open(), libc::ENOMEM);
        mark(usize::MAX, whole - offset_of!(verbs_context, open_xrcd) - 1);
        assert_eq!(open(), libc::EOPNOTSUPP, "the library's table is too short");
        mark(usize::MAX, whole - offset_of!(verbs_context, open_xrcd));
        assert_eq!(open(), libc::ENOMEM, "it reaches just so far");
        mark(0xffff_ffff, whole);
        assert_eq!(open(), libc::EOPNOTSUPP, "the mark has all ones of a pointer");
        // SAFETY: it was made by `into_raw` above, and nobody else knows it.
        drop(unsafe { Box::from_raw(table) });
    }
}
