//! Tests of device queries, memory registration and refused calls.

use super::lab::{Lab, request};
use std::ffi::c_void;
use std::ptr::null_mut;
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

#[test]
fn device_has_xrc_and_no_paging() {
    let lab = Lab::open();
    // SAFETY: zeros are valid for attributes, and the results are local.
    unsafe {
        let mut attr: ibv_device_attr = std::mem::zeroed();
        assert_eq!(ibv_query_device(lab.context, &raw mut attr), 0);
        assert_ne!(attr.device_cap_flags & IBV_DEVICE_XRC, 0);
        let mut extended: ibv_device_attr_ex = std::mem::zeroed();
        let query = lab.table().query_device_ex.unwrap();
        let size = size_of::<ibv_device_attr_ex>();
        assert_eq!(query(lab.context, std::ptr::null(), &raw mut extended, size), 0);
        assert_eq!((extended.xrc_odp_caps, extended.phys_port_cnt_ex), (0, 1), "contract K4");
        assert_eq!(extended.orig_attr.max_qp, attr.max_qp);
        let mut port: ibv_port_attr = std::mem::zeroed();
        let query = lab.table().query_port.unwrap();
        assert_eq!(query(lab.context, 1, &raw mut port, size_of::<ibv_port_attr>()), 0);
        assert_eq!((port.state, port.link_layer), (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET));
        assert_eq!(query(lab.context, 2, &raw mut port, size_of::<ibv_port_attr>()), libc::EINVAL);
    }
    lab.close();
}

/// Checks fields that Linux sets and that programs divide by, print, or use as indices.
#[test]
fn attributes_filled_by_kernel_are_non_zero() {
    let lab = Lab::open();
    // SAFETY: zeros are valid for attributes, the results are local, and devices are never freed.
    unsafe {
        let device = &*(*lab.context).device;
        for text in [
            device.name.as_ptr(),
            device.dev_name.as_ptr(),
            device.dev_path.as_ptr(),
            device.ibdev_path.as_ptr(),
        ] {
            assert!(!std::ffi::CStr::from_ptr(text).is_empty());
        }
        let mut attr: ibv_device_attr = std::mem::zeroed();
        assert_eq!(ibv_query_device(lab.context, &raw mut attr), 0);
        assert_eq!(attr.node_guid, ibv_get_device_guid((*lab.context).device));
        assert!(
            attr.node_guid != 0 && attr.sys_image_guid != 0 && attr.vendor_id != 0 && attr.fw_ver[0] != 0
        );
        assert!(attr.page_size_cap != 0 && attr.max_mr_size != 0 && attr.local_ca_ack_delay != 0);
        assert_eq!((attr.max_pkeys, attr.phys_port_cnt), (1, 1));
        assert!(attr.max_pd > 0 && attr.max_ah > 0 && attr.max_qp_rd_atom > 0 && attr.max_res_rd_atom > 0);
        let mut port: ibv_port_attr = std::mem::zeroed();
        assert_eq!(ibv_query_port(lab.context, 1, &raw mut port), 0);
        assert!(port.max_mtu >= port.active_mtu && port.active_mtu > 0 && port.max_msg_sz > 0);
        assert!(port.active_width > 0 && port.active_speed > 0 && port.gid_tbl_len > 0);
        assert_eq!((port.pkey_tbl_len, port.max_vl_num, port.phys_state), (1, 1, 5));
    }
    lab.close();
}

#[test]
fn gid_queries_return_by_their_conventions() {
    let lab = Lab::open();
    // SAFETY: the context is open, and the results are local.
    unsafe {
        let mut entry = ibv_gid_entry::default();
        let size = size_of::<ibv_gid_entry>();
        assert_eq!(_ibv_query_gid_ex(lab.context, 1, 0, &raw mut entry, 0, size), 0);
        assert_eq!(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
        assert_eq!(entry.gid, lab.own_gid());
        assert_eq!(entry.ndev_ifindex, libc::if_nametoindex(c"lo".as_ptr()), "the interface of the address");
        assert_eq!((entry.gid_index, entry.port_num), (0, 1));
        assert_eq!(_ibv_query_gid_ex(lab.context, 1, 255, &raw mut entry, 0, size), libc::ENODATA);
        assert_eq!(_ibv_query_gid_ex(lab.context, 1, 256, &raw mut entry, 0, size), libc::EINVAL);
        assert_eq!(_ibv_query_gid_table(lab.context, &raw mut entry, 0, 0, size), -(libc::EINVAL as isize));
        assert!(_ibv_query_gid_table(lab.context, [entry; 256].as_mut_ptr(), 256, 0, size) >= 1);
        let mut gid = ibv_gid { raw: [1; 16] };
        assert_eq!(ibv_query_gid(lab.context, 1, 255, &raw mut gid), 0);
        assert_eq!(gid, ibv_gid::default(), "an empty slot");
        assert_eq!(ibv_query_gid(lab.context, 1, 256, &raw mut gid), -1);
        let mut kind = 9;
        assert_eq!((ibv_query_gid_type(lab.context, 1, 0, &raw mut kind), kind), (0, 1));
        assert_eq!((ibv_query_gid_type(lab.context, 1, 255, &raw mut kind), kind), (0, 0));
        let mut pkey = 0;
        assert_eq!((ibv_query_pkey(lab.context, 1, 0, &raw mut pkey), pkey), (0, 0xffff));
        assert_eq!(ibv_get_pkey_index(lab.context, 1, 0xffff), 0);
        assert_eq!(ibv_get_pkey_index(lab.context, 1, 0x1234), -1);
    }
    lab.close();
}

#[test]
fn invalid_memory_registrations_are_refused() {
    let lab = Lab::open();
    let mut bytes = [0_u8; 64];
    let address: *mut c_void = bytes.as_mut_ptr().cast();
    // SAFETY: the memory belongs to the test, or is refused.
    unsafe {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert!(ibv_reg_mr(lab.pd, address, 0, 1).is_null());
        assert_eq!(errno(), Some(libc::EINVAL));
        assert!(ibv_reg_mr(lab.pd, null_mut(), 4096, 1).is_null());
        assert_eq!(errno(), Some(libc::EFAULT));
        let nowhere = std::ptr::without_provenance_mut(1 << 46);
        assert!(ibv_reg_mr(lab.pd, nowhere, 4096, 1).is_null(), "a hole");
        assert_eq!(errno(), Some(libc::EFAULT));
        assert!(ibv_reg_mr(lab.pd, address, 64, IBV_ACCESS_REMOTE_WRITE.cast_signed()).is_null());
        assert_eq!(errno(), Some(libc::EINVAL), "remote write without local write");
        let hinted = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
        let elsewhere = (1 << 20) + (address.addr() % 4096) as u64;
        assert!(
            ibv_reg_mr_iova2(lab.pd, address, 64, elsewhere ^ 8, hinted).is_null(),
            "another place in a page"
        );
        assert_eq!(errno(), Some(libc::EINVAL));
        let mr = ibv_reg_mr_iova2(lab.pd, address, 64, elsewhere, hinted);
        assert!(!mr.is_null());
        assert_eq!(((*mr).addr, (*mr).length), (address, 64));
        assert_eq!(ibv_rereg_mr(mr, 4, null_mut(), null_mut(), 0, 0), IBV_REREG_MR_ERR_INPUT);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert!(ibv_reg_dmabuf_mr(lab.pd, 0, 64, 0, 1, 1).is_null());
        assert_eq!(errno(), Some(libc::EOPNOTSUPP));
    }
    lab.close();
}

#[test]
fn read_only_memory_is_not_registered_for_writing() {
    let lab = Lab::open();
    // SAFETY: the test's own mapping.
    unsafe {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(null_mut(), 2 * 4096, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        let last = pages.byte_add(4096);
        assert_eq!(libc::mprotect(last, 4096, libc::PROT_READ), 0);
        // A kernel without `MADV_POPULATE_WRITE` does not support the check, so the registration succeeds.
        let is_told = libc::madvise(pages, 4096, libc::MADV_POPULATE_WRITE) == 0;
        for (start, length, is_writable) in [(pages, 4096, true), (pages, 4097, false), (last, 64, false)] {
            for access in [IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ] {
                let mr = ibv_reg_mr(lab.pd, start, length, access.cast_signed());
                let is_good = is_writable || access == IBV_ACCESS_REMOTE_READ || !is_told;
                assert_eq!(!mr.is_null(), is_good, "{length} bytes, access {access}");
                if mr.is_null() {
                    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
                } else {
                    assert_eq!(ibv_dereg_mr(mr), 0);
                }
            }
        }
        assert_eq!(libc::munmap(pages, 2 * 4096), 0);
    }
    lab.close();
}

#[test]
fn missing_features_fail_without_crash() {
    let lab = Lab::open();
    let table = lab.table();
    assert!(table.create_wq.is_null() && table.alloc_dm.is_null() && table.ibv_create_flow.is_null());
    let ops = table.context.ops;
    assert!(ops.alloc_mw.is_none());
    // SAFETY: these functions ignore their arguments.
    unsafe {
        assert_eq!(ops.bind_mw.unwrap()(null_mut(), null_mut(), null_mut()), libc::EOPNOTSUPP);
        assert_eq!(ops.dealloc_mw.unwrap()(null_mut()), libc::EOPNOTSUPP);
    }
    for kind in [IBV_QPT_UD, IBV_QPT_UC, IBV_QPT_RAW_PACKET] {
        let cq = lab.cq(null_mut());
        assert!(lab.qp(&mut request(kind, lab.pd, cq)).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        // SAFETY: the test's own objects, for the last time.
        assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
    }
    lab.close();
}
