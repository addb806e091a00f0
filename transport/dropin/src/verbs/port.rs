//! The port.

use super::objects::context_of;
use crate::abi::*;
use crate::border::{Errno, status, value};
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use trunkline_verbs::{Device, PKEY_DEFAULT, PortState};

fn attributes(context: &super::objects::ContextObject, port: u8) -> Result<ibv_port_attr, Errno> {
    let now = context.device.port(port)?;
    Ok(ibv_port_attr {
        state: if now.state == PortState::Active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: c_uint::from(now.max_mtu.code()),
        active_mtu: c_uint::from(now.active_mtu.code()),
        gid_tbl_len: c_int::from(now.gid_table_length),
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: now.max_message_bytes,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        // 4 lanes of 25 Gb/s: a number that programs print, of an interface that has none.
        active_width: 2,
        active_speed: 32,
        // LinkUp, Disabled.
        phys_state: if now.state == PortState::Active { 5 } else { 3 },
        link_layer: IBV_LINK_LAYER_ETHERNET,
        // A GRH is required.
        flags: 1,
        port_cap_flags2: 0,
    })
}

/// What the header makes of `ibv_query_port(3)`.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    status(|| {
        // SAFETY: an opened context of the caller's.
        let answer = attributes(unsafe { context_of(context) }, port)?;
        // SAFETY: the caller's place has `attr_len` bytes, fewer or more than we know.
        unsafe {
            attr.cast::<u8>().write_bytes(0, attr_len);
            let known = attr_len.min(size_of::<ibv_port_attr>());
            attr.cast::<u8>().copy_from_nonoverlapping((&raw const answer).cast(), known);
        }
        Ok(())
    })
}

/// Bytes of the structure that `ibv_query_port` itself fills in: that of version 1.1, which ends
/// with `flags`.
const COMPAT: usize = offset_of!(ibv_port_attr, port_cap_flags2);

/// `ibv_query_port(3)` for programs that were compiled against older headers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: passed on from the caller.
    unsafe { query_port(context, port, attr, COMPAT) }
}

/// `ibv_query_pkey(3)`: one key, the default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    value(|| {
        // SAFETY: an opened context of the caller's.
        unsafe { context_of(context) }.device.port(port)?;
        if index != 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's place for it.
        unsafe { pkey.write(PKEY_DEFAULT.to_be()) };
        Ok(0)
    })
}

/// `ibv_get_pkey_index(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    value(|| {
        // SAFETY: an opened context of the caller's.
        unsafe { context_of(context) }.device.port(port)?;
        if pkey == PKEY_DEFAULT.to_be() { Ok(0) } else { Err(Errno::EINVAL) }
    })
}
