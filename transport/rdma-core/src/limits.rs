//! Limits and capabilities of a device, queried once when it is opened.
//!
//! Devices do not report two of these reliably, so they are found by trial: support for XRC domains, and the maximum size
//! of inline data.

use crate::context::Opened;
use crate::convert::{limit, small_limit, zeroed};
use crate::cq::Cq;
use crate::error::{Doing, check};
use crate::inlines;
use crate::pd::Pd;
use crate::qp::{Qp, QpParts};
use crate::xrcd::Xrcd;
use rdma_sys::*;
use std::sync::Arc;
use trunkline_verbs::{
    DeviceAttributes, DeviceCapabilities, QpType, QueueCapacities, QueuePair, VerbsError, XrcdFlags,
};

/// Sizes of inline data to try, in bytes and in this order.
const INLINE_TRIED: [u32; 5] = [512, 256, 128, 64, 0];

/// Returns the device's attributes, including those found by trial.
pub(crate) fn attributes(opened: &Arc<Opened>) -> Result<DeviceAttributes, VerbsError> {
    let context = &opened.context;
    // SAFETY: the structure consists of numbers.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    // SAFETY: the context is open as long as `opened`, and the structure is local.
    check(Doing::Query, unsafe { ibv_query_device(context.raw(), &raw mut attr) })?;
    let mut capabilities = DeviceCapabilities::empty();
    capabilities.set(DeviceCapabilities::ATOMICS, attr.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE);
    let flag = |flag: ibv_device_cap_flags| attr.device_cap_flags & flag.0 != 0;
    capabilities.set(DeviceCapabilities::SRQ_RESIZE, flag(ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE));
    capabilities.set(DeviceCapabilities::XRC, flag(ibv_device_cap_flags::IBV_DEVICE_XRC) && has_xrc(opened));
    let link_layer = port_attr(opened, 1).map_or(0, |port| port.link_layer);
    let max_cqe = limit(attr.max_cqe);
    Ok(DeviceAttributes {
        name: context.name().to_owned(),
        link: match link_layer {
            1 => "infiniband",
            2 => "ethernet",
            _ => "unspecified",
        }
        .to_owned(),
        guid: context.guid(),
        capabilities,
        max_qp: limit(attr.max_qp),
        max_qp_wr: limit(attr.max_qp_wr),
        max_sge: limit(attr.max_sge),
        max_cq: limit(attr.max_cq),
        max_cqe,
        max_mr: limit(attr.max_mr),
        max_mr_size: attr.max_mr_size,
        max_srq: limit(attr.max_srq),
        max_srq_wr: limit(attr.max_srq_wr),
        max_srq_sge: limit(attr.max_srq_sge),
        max_dest_rd_atomic: small_limit(attr.max_qp_rd_atom),
        max_rd_atomic: small_limit(attr.max_qp_init_rd_atom),
        max_inline_data: max_inline_data(opened, max_cqe)?,
        ports: attr.phys_port_cnt,
    })
}

/// Returns true if an XRC domain can be opened. Some devices announce XRC but do not support domains.
fn has_xrc(opened: &Arc<Opened>) -> bool {
    match Xrcd::open(Arc::clone(opened), None, XrcdFlags::CREATE) {
        Ok(_) => true,
        Err(error) => {
            let device = opened.context.name();
            tracing::info!(device, %error, "XRC domain not opened, although the device announces XRC");
            false
        }
    }
}

/// Returns the attributes of a port. Port numbers start at 1.
pub(crate) fn port_attr(opened: &Opened, port: u8) -> Result<ibv_port_attr, VerbsError> {
    // SAFETY: the structure consists of numbers.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    check(Doing::Query, inlines::query_port(opened.live(), port, &mut attr))?;
    Ok(attr)
}

/// Returns the maximum size of a request's inline data, in bytes. It is the largest size with which an RC QP can be
/// created.
fn max_inline_data(opened: &Arc<Opened>, max_cqe: u32) -> Result<u32, VerbsError> {
    let pd = Pd::new(Arc::clone(opened))?;
    let cq = Arc::new(Cq::new(Arc::clone(opened), 1, max_cqe, None, 0)?);
    let granted = INLINE_TRIED.into_iter().find_map(|max_inline_data| {
        let capacities = QueueCapacities {
            max_send_wr: 1,
            max_receive_wr: 1,
            max_send_sge: 1,
            max_receive_sge: 1,
            max_inline_data,
        };
        let parts = QpParts {
            pd: Some(Arc::clone(&pd)),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            ..QpParts::default()
        };
        let qp = Qp::create(Arc::clone(opened), QpType::Rc, capacities, false, parts).ok()?;
        Some(max_inline_data.min(qp.capacities().max_inline_data))
    });
    Ok(granted.unwrap_or(0))
}
