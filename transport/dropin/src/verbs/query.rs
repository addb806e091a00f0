//! What the device can do.

use super::objects::context_of;
use crate::abi::*;
use crate::border::{Errno, status};
use std::ffi::{c_char, c_int};
use trunkline_verbs::{Device, DeviceAttributes, DeviceCapabilities};

/// Something for `fw_ver`: the version of this library.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Protection domains and address handles are numbers and cost nothing; this is what programs are told.
const MANY: c_int = 1 << 20;

/// No vendor's number; the kernel's software device has the same. Programs take 0 for a failure.
const NO_VENDOR: u32 = 0x00ff_ffff;

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn attributes(from: &DeviceAttributes) -> ibv_device_attr {
    let mut flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
    if from.capabilities.contains(DeviceCapabilities::XRC) {
        flags |= IBV_DEVICE_XRC;
    }
    if from.capabilities.contains(DeviceCapabilities::SRQ_RESIZE) {
        flags |= IBV_DEVICE_SRQ_RESIZE;
    }
    let atomic_cap = if from.capabilities.contains(DeviceCapabilities::ATOMICS) {
        IBV_ATOMIC_HCA
    } else {
        IBV_ATOMIC_NONE
    };
    let mut fw_ver: [c_char; 64] = [0; 64];
    for (to, byte) in fw_ver.iter_mut().zip(VERSION.bytes().take(63)) {
        *to = byte.cast_signed();
    }
    let max_sge = int(from.max_sge);
    ibv_device_attr {
        fw_ver,
        node_guid: from.guid.to_be(),
        sys_image_guid: from.guid.to_be(),
        max_mr_size: from.max_mr_size,
        page_size_cap: 0xffff_f000,
        vendor_id: NO_VENDOR,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: int(from.max_qp),
        max_qp_wr: int(from.max_qp_wr),
        device_cap_flags: flags,
        max_sge,
        max_sge_rd: max_sge,
        max_cq: int(from.max_cq),
        max_cqe: int(from.max_cqe),
        max_mr: int(from.max_mr),
        max_pd: MANY,
        max_qp_rd_atom: c_int::from(from.max_dest_rd_atomic),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(from.max_qp).saturating_mul(c_int::from(from.max_dest_rd_atomic)),
        max_qp_init_rd_atom: c_int::from(from.max_rd_atomic),
        max_ee_init_rd_atom: 0,
        atomic_cap,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 0,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: MANY,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(from.max_srq),
        max_srq_wr: int(from.max_srq_wr),
        max_srq_sge: int(from.max_srq_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: from.ports,
    }
}

/// `ibv_query_device(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    status(|| {
        // SAFETY: an opened context of the caller's, and its place for the answer.
        unsafe { attr.write(attributes(context_of(context).device.attributes())) };
        Ok(())
    })
}

/// `ibv_query_device_ex(3)`. Nothing beyond the plain attributes is to be had, and no on-demand
/// paging (contract K4).
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller's input, perhaps none.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(Errno::EINVAL);
        }
        // The caller's header may be older or newer; the plain attributes were always there.
        if attr_size < size_of::<ibv_device_attr>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: an opened context of the caller's.
        let device = unsafe { &context_of(context).device };
        let plain = attributes(device.attributes());
        // SAFETY: all fields are integers, for which zeros are valid.
        let mut answer: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        answer.orig_attr = plain;
        answer.device_cap_flags_ex = u64::from(plain.device_cap_flags);
        answer.phys_port_cnt_ex = u32::from(plain.phys_port_cnt);
        // SAFETY: the caller's place has `attr_size` bytes; what lies beyond our structure is zeroed.
        unsafe {
            attr.cast::<u8>().write_bytes(0, attr_size);
            let known = attr_size.min(size_of::<ibv_device_attr_ex>());
            attr.cast::<u8>().copy_from_nonoverlapping((&raw const answer).cast(), known);
        }
        Ok(())
    })
}
