//! State, limits and partition key of the device's only port.

use super::objects::ContextObject;
use crate::abi::*;
use crate::border::{Errno, Handle, Out, OutBytes, status, value};
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use trunkline_verbs::{Device, PKEY_DEFAULT, PortState};

fn attributes(context: &ContextObject, port: u8) -> Result<ibv_port_attr, Errno> {
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
        // 4 lanes of 25 Gb/s. A software device has no rate, but programs print it.
        active_width: 2,
        active_speed: 32,
        // 5 is LinkUp, 3 is Disabled.
        phys_state: if now.state == PortState::Active { 5 } else { 3 },
        link_layer: IBV_LINK_LAYER_ETHERNET,
        // A GRH is required.
        flags: 1,
        port_cap_flags2: 0,
    })
}

/// Called by the header's `ibv_query_port(3)`. `attr_len` is the size of the structure in the program's header, in bytes.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    status(|| {
        // SAFETY: as `ibv_query_port(3)` requires, the program passes an open context, and the
        // wrapper in `verbs.h` passes the size of the program's structure.
        let (context, out) = unsafe { (Handle::new(context)?, OutBytes::new(attr, attr_len)?) };
        out.write(&attributes(&context, port)?);
        Ok(())
    })
}

/// Size of the structure that the exported `ibv_query_port` fills in, in bytes. In library version 1.1, the structure ends
/// with `flags`.
const COMPAT: usize = offset_of!(ibv_port_attr, port_cap_flags2);

/// `ibv_query_port(3)` for programs that were compiled against older headers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as `ibv_query_port(3)` requires, the program passes an open context, and a structure
    // of at least `COMPAT` bytes.
    unsafe { query_port(context, port, attr, COMPAT) }
}

/// `ibv_query_pkey(3)`: returns the default key, in network byte order. Only index 0 is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    value(|| {
        // SAFETY: as `ibv_query_pkey(3)` requires, the program passes an open context, and memory
        // for the key.
        let (context, pkey) = unsafe { (Handle::new(context)?, Out::new(pkey)?) };
        context.device.port(port)?;
        if index != 0 {
            return Err(Errno::EINVAL);
        }
        pkey.write(PKEY_DEFAULT.to_be());
        Ok(0)
    })
}

/// `ibv_get_pkey_index(3)`: the key is in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    value(|| {
        // SAFETY: as `ibv_get_pkey_index(3)` requires, the program passes an open context.
        unsafe { Handle::new(context)? }.device.port(port)?;
        if pkey == PKEY_DEFAULT.to_be() { Ok(0) } else { Err(Errno::EINVAL) }
    })
}
