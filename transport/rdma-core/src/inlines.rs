//! Rust versions of the functions that libibverbs defines only in its header.
//!
//! They call functions through tables: `ibv_context.ops` for the data path, and the `verbs_context` around an `ibv_context`
//! for extended verbs. Each function corresponds to one inline function in verbs.h, with the same checks and results. The
//! inline functions in the bindings are not used, because they fail on 64-bit machines. The tables are read only in this
//! file.

use crate::handle::Live;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::ptr::{NonNull, null_mut};

unsafe extern "C" {
    /// The header's `ibv_query_gid_table` calls this function with the size of an entry.
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

/// Returns the extended context, if it exists and contains the function at `offset` (`verbs_get_ctx_op`).
fn extended(context: Live<'_, ibv_context>, offset: usize) -> Option<NonNull<verbs_context>> {
    let context = context.raw();
    // SAFETY: the context is open while it is `Live`.
    let mark = unsafe { (*context).abi_compat };
    // All bits of the mark are set, not only the lower 32.
    if mark.addr() != usize::MAX {
        return None;
    }
    // SAFETY: libibverbs sets the mark if the context is the last field of a verbs_context, so the bytes
    // before it belong to the same object.
    let extended = unsafe { context.cast::<u8>().sub(offset_of!(verbs_context, context)) };
    let extended = NonNull::new(extended.cast::<verbs_context>())?;
    // SAFETY: every version of the structure has the field `sz`.
    let size = unsafe { (*extended.as_ptr()).sz };
    // Newer versions add fields at the front, so in an older library the structure lacks the first fields.
    (size >= size_of::<verbs_context>() - offset).then_some(extended)
}

/// Returns a function from the extended context's table, or `None` if the library or the device does not provide it.
macro_rules! extended_op {
    ($context:expr, $op:ident) => {
        extended($context, offset_of!(verbs_context, $op))
            // SAFETY: `extended` has checked that the table of this open context has the field.
            .and_then(|table| unsafe { (*table.as_ptr()).$op })
    };
}

/// Returns the context of an object, which is open.
macro_rules! context_of {
    ($object:expr) => {
        // SAFETY: libibverbs stores the context when it creates the object, and this crate closes no
        // context while an object of it is alive.
        unsafe { NonNull::new((*$object.raw()).context).map(|context| Live::new(context)) }
    };
}

fn set_errno(errno: c_int) {
    // SAFETY: a thread may write its own errno at any time.
    unsafe { *libc::__errno_location() = errno };
}

/// `ibv_open_xrcd`: returns null and sets errno on failure.
pub(crate) fn open_xrcd(
    context: Live<'_, ibv_context>,
    attributes: &mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let Some(open) = extended_op!(context, open_xrcd) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the context is open while it is `Live`. A wrong descriptor is an error, not a danger.
    unsafe { open(context.raw(), attributes) }
}

/// `ibv_close_xrcd`: returns 0 or an errno.
///
/// # Safety
/// The domain must not be used after this function has returned 0.
pub(crate) unsafe fn close_xrcd(xrcd: Live<'_, ibv_xrcd>) -> c_int {
    match context_of!(xrcd).and_then(|context| extended_op!(context, close_xrcd)) {
        // SAFETY: the domain is open while it is `Live`, and by this function's contract it is not used afterwards.
        Some(close) => unsafe { close(xrcd.raw()) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_create_srq_ex` for an XRC SRQ; returns null and sets errno on failure.
///
/// # Safety
/// The objects in `attributes` must not be destroyed during the call.
pub(crate) unsafe fn create_srq_ex(
    context: Live<'_, ibv_context>,
    attributes: &mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let Some(create) = extended_op!(context, create_srq_ex) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the context is open while it is `Live`, and by this function's contract the objects are not destroyed.
    unsafe { create(context.raw(), attributes) }
}

/// `ibv_get_srq_num`: returns 0 or an errno.
pub(crate) fn get_srq_num(srq: Live<'_, ibv_srq>, number: &mut u32) -> c_int {
    match context_of!(srq).and_then(|context| extended_op!(context, get_srq_num)) {
        // SAFETY: the SRQ is not destroyed while it is `Live`.
        Some(get) => unsafe { get(srq.raw(), number) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_create_qp_ex`: returns null and sets errno on failure.
///
/// # Safety
/// The objects in `attributes` must not be destroyed during the call.
pub(crate) unsafe fn create_qp_ex(
    context: Live<'_, ibv_context>,
    attributes: &mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    if attributes.comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
        let pd = attributes.pd;
        // SAFETY: the extended structure begins with the fields of the plain one, and by this function's contract the
        // objects are not destroyed.
        return unsafe { ibv_create_qp(pd, std::ptr::from_mut(attributes).cast()) };
    }
    let Some(create) = extended_op!(context, create_qp_ex) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the context is open while it is `Live`, and by this function's contract the objects are not destroyed.
    unsafe { create(context.raw(), attributes) }
}

/// `ibv_open_qp`: returns null and sets errno on failure.
///
/// # Safety
/// The domain in `attributes` must not be closed during the call.
pub(crate) unsafe fn open_qp(
    context: Live<'_, ibv_context>,
    attributes: &mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    let Some(open) = extended_op!(context, open_qp) else {
        set_errno(libc::EOPNOTSUPP);
        return null_mut();
    };
    // SAFETY: the context is open while it is `Live`, and by this function's contract the domain is not closed.
    unsafe { open(context.raw(), attributes) }
}

/// `ibv_query_port`: returns 0 or an errno. Fields unknown to an older library are left unchanged.
pub(crate) fn query_port(context: Live<'_, ibv_context>, port: u8, attributes: &mut ibv_port_attr) -> c_int {
    match extended_op!(context, query_port) {
        // SAFETY: the context is open while it is `Live`, and the structure has the given size.
        Some(query) => unsafe { query(context.raw(), port, attributes, size_of::<ibv_port_attr>()) },
        // SAFETY: the context is open while it is `Live`. The exported function fills the older, shorter form
        // of the structure.
        None => unsafe { ibv_query_port(context.raw(), port, std::ptr::from_mut(attributes).cast()) },
    }
}

/// `ibv_query_gid_table`: returns the number of entries filled in, or a negative errno.
pub(crate) fn query_gid_table(context: Live<'_, ibv_context>, entries: &mut [ibv_gid_entry]) -> isize {
    let context = context.raw();
    // SAFETY: the context is open while it is `Live`, and the library writes no more entries than the
    // slice has.
    unsafe {
        _ibv_query_gid_table(context, entries.as_mut_ptr(), entries.len(), 0, size_of::<ibv_gid_entry>())
    }
}

/// `ibv_post_send`: returns 0, or an errno and the refused request.
///
/// # Safety
/// `requests` must be a linked list that ends with null. All memory to which its requests point must be valid during the
/// call.
#[inline]
pub(crate) unsafe fn post_send(
    qp: Live<'_, ibv_qp>,
    requests: *mut ibv_send_wr,
    refused: &mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the QP is not destroyed while it is `Live`, nor is its context closed.
    match unsafe { (*(*qp.raw()).context).ops.post_send } {
        // SAFETY: the object is not destroyed while it is `Live`; by this function's contract the list is
        // valid.
        Some(post) => unsafe { post(qp.raw(), requests, refused) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_post_recv`: returns 0, or an errno and the refused request.
///
/// # Safety
/// `requests` must be a linked list that ends with null. All memory to which its requests point must be valid during the
/// call.
#[inline]
pub(crate) unsafe fn post_recv(
    qp: Live<'_, ibv_qp>,
    requests: *mut ibv_recv_wr,
    refused: &mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the QP is not destroyed while it is `Live`, nor is its context closed.
    match unsafe { (*(*qp.raw()).context).ops.post_recv } {
        // SAFETY: the object is not destroyed while it is `Live`; by this function's contract the list is
        // valid.
        Some(post) => unsafe { post(qp.raw(), requests, refused) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_post_srq_recv`: returns 0, or an errno and the refused request.
///
/// # Safety
/// `requests` must be a linked list that ends with null. All memory to which its requests point must be valid during the
/// call.
#[inline]
pub(crate) unsafe fn post_srq_recv(
    srq: Live<'_, ibv_srq>,
    requests: *mut ibv_recv_wr,
    refused: &mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the SRQ is not destroyed while it is `Live`, nor is its context closed.
    match unsafe { (*(*srq.raw()).context).ops.post_srq_recv } {
        // SAFETY: the object is not destroyed while it is `Live`; by this function's contract the list is
        // valid.
        Some(post) => unsafe { post(srq.raw(), requests, refused) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_poll_cq`: returns the number of completions written, or a negative number if the device has failed.
#[inline]
pub(crate) fn poll_cq(cq: Live<'_, ibv_cq>, completions: &mut [MaybeUninit<ibv_wc>]) -> c_int {
    let count = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
    // SAFETY: the CQ is not destroyed while it is `Live`, nor is its context closed.
    match unsafe { (*(*cq.raw()).context).ops.poll_cq } {
        // SAFETY: the CQ is not destroyed while it is `Live`, and the slice has room for `count` completions.
        Some(poll) => unsafe { poll(cq.raw(), count, completions.as_mut_ptr().cast()) },
        None => -1,
    }
}

/// `ibv_req_notify_cq`: returns 0 or an errno.
pub(crate) fn req_notify_cq(cq: Live<'_, ibv_cq>, solicited_only: bool) -> c_int {
    // SAFETY: the CQ is not destroyed while it is `Live`, nor is its context closed.
    match unsafe { (*(*cq.raw()).context).ops.req_notify_cq } {
        // SAFETY: the CQ is not destroyed while it is `Live`.
        Some(request) => unsafe { request(cq.raw(), c_int::from(solicited_only)) },
        None => libc::EOPNOTSUPP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of a C program that uses Debian's headers. `deploy/checks/30-abi.sh` compares the file with the headers.
    const LAYOUT: &str = include_str!("../../dropin/exports/layout.txt");

    fn in_c(line: &str) -> usize {
        let number = LAYOUT.lines().find_map(|known| known.strip_prefix(line)?.strip_prefix(' '));
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("the layout does not name {line}"))
    }

    macro_rules! same_as_c {
        ($($type:ident { $($field:ident),* })*) => {$(
            assert_eq!(size_of::<$type>(), in_c(concat!("sizeof ", stringify!($type))), stringify!($type));
            $(assert_eq!(
                offset_of!($type, $field),
                in_c(concat!("offsetof ", stringify!($type), " ", stringify!($field))),
                concat!(stringify!($type), ".", stringify!($field))
            );)*
        )*};
    }

    #[test]
    fn bindings_have_layout_of_headers() {
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
        // The bindings have names for the unions. The header has names for the fields in them.
        let srqn = offset_of!(ibv_send_wr, qp_type) + offset_of!(xrc_t, remote_srqn);
        assert_eq!(srqn, in_c("offsetof ibv_send_wr qp_type.xrc.remote_srqn"));
        let immediate = offset_of!(ibv_send_wr, imm_data_invalidated_rkey_union);
        assert_eq!(immediate, in_c("offsetof ibv_send_wr imm_data"));
    }

    #[test]
    fn extended_verb_needs_abi_mark_and_large_enough_table() {
        // SAFETY: the structure consists of numbers and pointers.
        let mut table: Box<verbs_context> = Box::new(unsafe { crate::convert::zeroed() });
        unsafe extern "C" fn refuse(_: *mut ibv_context, _: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
            set_errno(libc::ENOMEM);
            null_mut()
        }
        table.open_xrcd = Some(refuse);
        let table = Box::into_raw(table);
        let open = || {
            // SAFETY: the table is freed only at the end, and it contains all fields that the function reads.
            let context = unsafe { Live::new(NonNull::new_unchecked(&raw mut (*table).context)) };
            let mut attributes = ibv_xrcd_init_attr { comp_mask: 0, fd: -1, oflags: 0 };
            assert!(open_xrcd(context, &mut attributes).is_null());
            crate::error::last_errno()
        };
        let mark = |bits: usize, size: usize| {
            // SAFETY: the table is freed only at the end.
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
        assert_eq!(open(), libc::ENOMEM, "the table ends with it");
        mark(0xffff_ffff, whole);
        assert_eq!(open(), libc::EOPNOTSUPP, "the mark is a pointer of all ones");
        // SAFETY: `into_raw` returned it above, and it is not used after this.
        drop(unsafe { Box::from_raw(table) });
    }
}
