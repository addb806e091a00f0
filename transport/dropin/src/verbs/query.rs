//! The limits and capabilities of the device.

use crate::abi::*;
use crate::border::{Errno, Handle, In, Out, OutBytes, status};
use std::ffi::{c_char, c_int};
use trunkline_verbs::{Device, DeviceAttributes, DeviceCapabilities};

/// Value of `fw_ver`, which is the version of this library.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Reported limit on protection domains and address handles. Their real limit is memory.
const UNLIMITED: c_int = 1 << 20;

/// An unassigned vendor number, which the kernel's software device also uses. Programs treat 0 as an error.
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
        max_pd: UNLIMITED,
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
        max_ah: UNLIMITED,
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
        // SAFETY: as `ibv_query_device(3)` requires, the program passes an open context, and memory
        // for the attributes.
        let (context, attr) = unsafe { (Handle::new(context)?, Out::new(attr)?) };
        attr.write(attributes(context.device.attributes()));
        Ok(())
    })
}

/// `ibv_query_device_ex(3)`: all extended capabilities are zero, including on-demand paging (contract K4). `attr_size` is
/// the size of the structure in the program's header, in bytes.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    status(|| {
        // SAFETY: as `ibv_query_device_ex(3)` requires, the program passes an open context, input
        // or null, and the wrapper in `verbs.h` passes the size of the program's structure.
        let (context, input, out) =
            unsafe { (Handle::new(context)?, In::optional(input), OutBytes::new(attr, attr_size)?) };
        if input.is_some_and(|input| input.comp_mask != 0) {
            return Err(Errno::EINVAL);
        }
        // The program's header may be older or newer than this library. Every version has the plain attributes.
        if attr_size < size_of::<ibv_device_attr>() {
            return Err(Errno::EINVAL);
        }
        let plain = attributes(context.device.attributes());
        // SAFETY: zeros are valid for the structure's integers.
        let mut extended: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        extended.orig_attr = plain;
        extended.device_cap_flags_ex = u64::from(plain.device_cap_flags);
        extended.phys_port_cnt_ex = u32::from(plain.phys_port_cnt);
        out.write(&extended);
        Ok(())
    })
}
