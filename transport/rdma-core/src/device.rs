//! Open devices, which create all other objects.
//!
//! A device checks that the objects passed to a call belong to it and fit together. The queries in `limits` run once, when
//! the device is opened.

use crate::channel::Channel;
use crate::cm::Manager;
use crate::context::Opened;
use crate::convert::{self, limit, zeroed};
use crate::counters::Counters;
use crate::cq::Cq;
use crate::inlines;
use crate::limits;
use crate::pd::Pd;
use crate::qp::{Qp, QpParts};
use crate::srq::Srq;
use crate::xrcd::Xrcd;
use rdma_sys::*;
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use trunkline_verbs::{
    AsyncEvent, CompletionChannel, CompletionQueue, ConnectionManager, Counter, CqInit, Device,
    DeviceAttributes, DeviceCapabilities, GidEntry, PortAttributes, PortState, ProtectionDomain, QpInit,
    QpNumber, QpType, QueueCapacities, QueuePair, SharedReceiveQueue, SrqInit, SrqKind, VerbsError,
    XrcDomain, XrcdFlags,
};

/// An open device.
#[derive(Debug)]
pub(crate) struct RdmaDevice {
    attributes: DeviceAttributes,
    counters: Counters,
    connections: Manager,
    opened: Arc<Opened>,
}

/// Converts a trait object to an object of this opening. Returns an error for objects of other providers and other
/// openings.
macro_rules! own {
    ($name:ident, $trait:ident, $type:ident, $what:literal) => {
        fn $name(&self, object: Arc<dyn $trait>) -> Result<Arc<$type>, VerbsError> {
            let any: Arc<dyn Any + Send + Sync> = object;
            let own = any.downcast::<$type>().ok();
            own.filter(|own| Arc::ptr_eq(own.opened(), &self.opened)).ok_or(VerbsError::Invalid(concat!(
                "the ",
                $what,
                " is another device's"
            )))
        }
    };
}

impl RdmaDevice {
    pub(crate) fn open(name: &str) -> Result<Self, VerbsError> {
        let opened = Opened::new(name)?;
        let attributes = limits::attributes(&opened)?;
        let connections = Manager::new(&opened);
        Ok(Self { attributes, counters: Counters::new(name), connections, opened })
    }

    own!(own_pd, ProtectionDomain, Pd, "protection domain");
    own!(own_cq, CompletionQueue, Cq, "CQ");
    own!(own_srq, SharedReceiveQueue, Srq, "SRQ");
    own!(own_xrcd, XrcDomain, Xrcd, "XRC domain");
    own!(own_channel, CompletionChannel, Channel, "completion channel");

    /// Returns an error if an operation needs XRC and the device does not support it. This check precedes all others
    /// (contract A9).
    fn needs_xrc(&self, what: &'static str) -> Result<(), VerbsError> {
        if self.attributes.capabilities.contains(DeviceCapabilities::XRC) {
            Ok(())
        } else {
            Err(VerbsError::NotSupported(what))
        }
    }

    /// Checks that the objects in `init` fit the QP type. Returns the objects and the capacities to request.
    fn qp_parts(&self, init: QpInit) -> Result<(QpParts, QueueCapacities), VerbsError> {
        let needs = VerbsError::Invalid;
        let capacities = self.capacities(&init)?;
        let mut parts = QpParts::default();
        if init.qp_type == QpType::XrcTgt {
            if let Some(srq) = init.srq {
                // contract C12: an XRC SRQ is accepted and ignored.
                if !self.own_srq(srq)?.is_xrc() {
                    return Err(needs("a TGT takes receives from XRC SRQs only"));
                }
            }
            let xrcd = init.xrcd.ok_or(needs("a TGT needs an XRC domain"))?;
            parts.xrcd = Some(self.own_xrcd(xrcd)?);
            return Ok((parts, capacities));
        }
        if init.xrcd.is_some() {
            return Err(needs("only a TGT has an XRC domain"));
        }
        parts.pd = Some(self.own_pd(init.pd.ok_or(needs("the QP needs a protection domain"))?)?);
        parts.send_cq = Some(self.own_cq(init.send_cq.ok_or(needs("the QP needs a send CQ"))?)?);
        if init.qp_type == QpType::XrcIni {
            if init.srq.is_some() {
                return Err(needs("an INI has no SRQ"));
            }
            return Ok((parts, capacities));
        }
        parts.receive_cq = Some(self.own_cq(init.receive_cq.ok_or(needs("an RC QP needs a receive CQ"))?)?);
        if let Some(srq) = init.srq {
            let srq = self.own_srq(srq)?;
            if srq.is_xrc() {
                return Err(needs("an RC QP takes receives from a basic SRQ only"));
            }
            parts.srq = Some(srq);
        }
        Ok((parts, capacities))
    }

    /// Returns the capacities to request. A capacity that the QP type does not use is 0 (contract C2).
    fn capacities(&self, init: &QpInit) -> Result<QueueCapacities, VerbsError> {
        let asked = init.capacities;
        let limits = &self.attributes;
        let sends = init.qp_type != QpType::XrcTgt;
        let receives = init.qp_type == QpType::Rc && init.srq.is_none();
        let fits = |wr: u32, sge: u32| wr <= limits.max_qp_wr && sge <= limits.max_sge;
        if (sends && !fits(asked.max_send_wr, asked.max_send_sge))
            || (receives && !fits(asked.max_receive_wr, asked.max_receive_sge))
        {
            return Err(VerbsError::Invalid("a queue size is above the device's limit"));
        }
        let when = |condition: bool, value: u32| if condition { value } else { 0 };
        Ok(QueueCapacities {
            max_send_wr: when(sends, asked.max_send_wr.max(1)),
            max_send_sge: when(sends, asked.max_send_sge.max(1)),
            max_inline_data: when(sends, asked.max_inline_data),
            max_receive_wr: when(receives, asked.max_receive_wr.max(1)),
            max_receive_sge: when(receives, asked.max_receive_sge.max(1)),
        })
    }
}

impl Device for RdmaDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        if port == 0 || port > self.attributes.ports {
            return Err(VerbsError::Invalid("the device has no port of this number"));
        }
        let attr = limits::port_attr(&self.opened, port)?;
        let is_active = attr.state == ibv_port_state::IBV_PORT_ACTIVE;
        Ok(PortAttributes {
            state: if is_active { PortState::Active } else { PortState::Down },
            max_mtu: convert::mtu(attr.max_mtu),
            active_mtu: convert::mtu(attr.active_mtu),
            max_message_bytes: attr.max_msg_sz,
            gid_table_length: u16::try_from(limit(attr.gid_tbl_len)).unwrap_or(u16::MAX),
        })
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        let length: usize = (1..=self.attributes.ports)
            .filter_map(|port| limits::port_attr(&self.opened, port).ok())
            .map(|port| usize::try_from(port.gid_tbl_len).unwrap_or(0))
            .sum();
        // SAFETY: the structure consists of numbers.
        let mut entries: Vec<_> = (0..length).map(|_| unsafe { zeroed::<ibv_gid_entry>() }).collect();
        let filled = inlines::query_gid_table(self.opened.live(), &mut entries);
        entries.truncate(usize::try_from(filled).unwrap_or(0));
        entries.iter().filter(|entry| entry.port_num == 1).filter_map(convert::gid_entry).collect()
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(Pd::new(Arc::clone(&self.opened))?)
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        Ok(Arc::new(Channel::new(Arc::clone(&self.opened))?))
    }

    fn create_cq(&self, init: CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        let channel = init.channel.map(|channel| self.own_channel(channel)).transpose()?;
        let opened = Arc::clone(&self.opened);
        let max_cqe = self.attributes.max_cqe;
        Ok(Arc::new(Cq::new(opened, init.capacity_cqe, max_cqe, channel, init.context)?))
    }

    fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.needs_xrc("XRC domains: this device has no XRC, use RC connections")?;
        Ok(Arc::new(Xrcd::open(Arc::clone(&self.opened), file, flags)?))
    }

    fn create_srq(&self, init: SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        if matches!(init.kind, SrqKind::Xrc { .. }) {
            self.needs_xrc("XRC SRQs: this device has no XRC")?;
        }
        let limits = &self.attributes;
        if init.max_wr == 0 || init.max_wr > limits.max_srq_wr || init.max_sge > limits.max_srq_sge {
            return Err(VerbsError::Invalid("the SRQ's size is 0 or above the device's limit"));
        }
        let pd = self.own_pd(init.pd)?;
        let xrc = match init.kind {
            SrqKind::Basic => None,
            SrqKind::Xrc { xrcd, cq } => Some((self.own_xrcd(xrcd)?, self.own_cq(cq)?)),
        };
        let max_sge = init.max_sge.max(1);
        Ok(Arc::new(Srq::new(pd, xrc, init.max_wr, max_sge, init.context)?))
    }

    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let (qp_type, signal_all) = (init.qp_type, init.signal_all);
        if qp_type != QpType::Rc {
            self.needs_xrc("XRC QPs: this device has no XRC")?;
        }
        let (parts, capacities) = self.qp_parts(init)?;
        let opened = Arc::clone(&self.opened);
        Ok(Arc::new(Qp::create(opened, qp_type, capacities, signal_all, parts)?))
    }

    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.needs_xrc("opening TGTs: this device has no XRC")?;
        let xrcd = self.own_xrcd(Arc::clone(xrcd))?;
        Ok(Arc::new(Qp::open(xrcd, number)?))
    }

    fn connection_manager(&self) -> &dyn ConnectionManager {
        &self.connections
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.opened.context.events().next(self.opened.live(), &self.opened.events)
    }

    fn async_event_fd(&self) -> BorrowedFd<'_> {
        self.opened.events.as_fd()
    }

    fn counters(&self) -> Vec<Counter> {
        self.counters.read()
    }
}
