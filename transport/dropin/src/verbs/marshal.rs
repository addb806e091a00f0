//! Conversions between structures of the kernel's interface and structures of libibverbs.
//!
//! rdma-core exports these four functions for programs that use the kernel's connection manager directly.

use crate::abi::*;
use crate::border::{Errno, In, Out, guarded};

fn ah_attr(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// Converts a structure and stores the result. Does nothing if a pointer is null, because the functions cannot return
/// errors.
///
/// # Safety
/// `from` is null, or points to a structure that is not changed during the call. `to` is null, or points to memory for
/// the other structure that is not used elsewhere.
unsafe fn convert<T, F>(to: *mut T, from: *const F, convert: impl FnOnce(&F) -> T) {
    guarded((), || {
        // SAFETY: this function's contract.
        let pointers: Result<_, Errno> = unsafe { In::new(from).and_then(|from| Ok((from, Out::new(to)?))) };
        if let Ok((from, to)) = pointers {
            to.write(convert(&from));
        }
    });
}

/// Converts address attributes from the kernel's form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const ib_uverbs_ah_attr) {
    // SAFETY: by rdma-core's contract the program passes pointers that meet the requirements of `convert`.
    unsafe { convert(to, from, ah_attr) };
}

/// Converts QP attributes from the kernel's form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const ib_uverbs_qp_attr) {
    let attributes = |from: &ib_uverbs_qp_attr| ibv_qp_attr {
        qp_state: from.qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: from.cap,
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: by rdma-core's contract the program passes pointers that meet the requirements of `convert`.
    unsafe { convert(to, from, attributes) };
}

/// Converts a path record from the kernel's form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    let record = |from: &ib_user_path_rec| ibv_sa_path_rec {
        dgid: ibv_gid { raw: from.dgid },
        sgid: ibv_gid { raw: from.sgid },
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_signed(),
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible.cast_signed(),
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu.to_le_bytes()[0],
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: by rdma-core's contract the program passes pointers that meet the requirements of `convert`.
    unsafe { convert(to, from, record) };
}

/// Converts a path record to the kernel's form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut ib_user_path_rec, from: *const ibv_sa_path_rec) {
    let record = |from: &ibv_sa_path_rec| ib_user_path_rec {
        dgid: from.dgid.raw,
        sgid: from.sgid.raw,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_unsigned(),
        flow_label: from.flow_label,
        reversible: from.reversible.cast_unsigned(),
        mtu: u32::from(from.mtu),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: by rdma-core's contract the program passes pointers that meet the requirements of `convert`.
    unsafe { convert(to, from, record) };
}
