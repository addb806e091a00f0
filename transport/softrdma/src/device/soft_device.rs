//! The opened device, which creates all its objects.
//!
//! Owns the checks of the parameters of new objects. The objects implement the operations.
#![forbid(unsafe_code)]

use super::control::{Control, is_of_this_host, owner_of};
use super::core::Core;
use super::objects::cm_id::{SoftCmChannel, SoftCmId, own_channel};
use super::objects::cq::{SoftCompletionChannel, SoftCq};
use super::objects::pd::SoftPd;
use super::objects::qp::{QpHolds, SoftQp};
use super::objects::receive_queue::ReceiveQueue;
use super::objects::srq::SoftSrq;
use super::objects::xrcd::SoftXrcd;
use super::opening::{self, Opened};
use super::options::{OpenError, SoftOptions};
use super::shard::{QpParts, ReceiveSide, Shard};
use super::tables::directory::ShardIndex;
use super::tables::guid::node_guid;
use super::tables::use_count::UseGuard;
use super::{MAX_CQE, MAX_INLINE, MAX_SGE, MAX_WR};
use crate::host::Host;
use std::any::Any;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard};
use trunkline_machine::rings::owned::Turn;
use trunkline_verbs::{
    AddressOwner, AsyncEvent, Clock, CmChannel, CmId, CompletionChannel, CompletionQueue, ConnectionManager,
    Counter, CqInit, Device, DeviceAttributes, DeviceCapabilities, EndpointRequest, EndpointSide, GidEntry,
    PortAttributes, PortSpace, ProtectionDomain, QpInit, QpNumber, QpType, QueueCapacities, QueuePair,
    SharedReceiveQueue, SrqInit, SrqKind, VerbsError, XrcDomain, XrcdFlags,
};

/// Receive-queue depth of an RC QP for which 0 was requested.
const LEAST_RECEIVES: u32 = 1;

/// Guard that keeps all other threads out of a device, for a process that forks with the device open.
///
/// The child has a copy of the device and shares its sockets, but does not have the background threads. The caller of
/// `fork` first calls [`SoftDevice::hold`], so that control and the shards are not in use by a thread that does not
/// exist in the child. The child calls [`SoftDevice::forked`], after which the threads start again on first use. Only
/// one of the two processes may continue to use the open objects.
#[derive(Debug)]
pub struct Held<'a> {
    _shards: Vec<Turn<'a, Shard>>,
    _control: MutexGuard<'a, Control>,
}

/// An open software RDMA device.
#[derive(Debug)]
pub struct SoftDevice {
    core: Arc<Core>,
    attributes: DeviceAttributes,
    port: PortAttributes,
    /// Registry of the devices of this user.
    host: Option<Arc<Host>>,
}

impl SoftDevice {
    /// Waits until all threads have left the device, and keeps other threads out until the guard is dropped.
    pub fn hold(&self) -> Held<'_> {
        let control = self.core().control();
        Held { _shards: self.core().shards().map(|lock| lock.shard.enter()).collect(), _control: control }
    }

    /// Records in the child of a fork that the background threads do not exist. Returns the eventfds that wake the
    /// threads of the parent. The caller must replace each of them with a new eventfd at the same descriptor number.
    pub fn forked(&self) -> Vec<BorrowedFd<'_>> {
        self.core().forked()
    }

    /// Opens the device. Over UDP, all devices that this user opens in the network namespace, in any process, act as
    /// one device, and share XRC domains (contract A2).
    ///
    /// # Errors
    /// Returns an [`OpenError`] with the cause and a remedy.
    pub fn open(options: SoftOptions) -> Result<Arc<Self>, OpenError> {
        let Opened { core, attributes, port, host } = opening::open(options)?;
        Ok(Arc::new(Self { core, attributes, port, host }))
    }

    /// Passes all later asynchronous events to `listener` instead of the queue of
    /// [`Device::next_async_event`]. Use this to distribute events to several users of the device. The listener is
    /// called in a turn of a shard, so it must neither wait nor call the device. Has no effect if a listener is already
    /// set.
    pub fn on_async_event(&self, listener: impl Fn(AsyncEvent) + Send + Sync + 'static) {
        self.core.events.listen(Box::new(listener));
    }

    /// Disconnects all connections because the process exits. Each DREQ is sent only once, since the process exits
    /// before a retransmission. Call this as late as possible. Has no effect in the child of a fork that has not used
    /// the device.
    pub fn disconnect_all(&self) {
        self.core.disconnect_all();
    }

    /// Returns true if the user named the device's addresses and `address` is not among them. The address may still be
    /// a bound loopback address.
    pub fn is_named_without(&self, address: IpAddr) -> bool {
        self.core.control().gids().is_named_without(address)
    }

    /// Returns true if the device was removed. All its operations then fail.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.core.present().is_err()
    }

    /// Returns the state common to the device's objects.
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the GUID of a device with this first address.
    pub(super) fn guid_of(address: Option<IpAddr>) -> u64 {
        node_guid(address)
    }

    fn own_pd(&self, pd: Arc<dyn ProtectionDomain>) -> Result<UseGuard<SoftPd>, VerbsError> {
        let any: Arc<dyn Any + Send + Sync> = pd;
        let pd = any.downcast::<SoftPd>().ok().filter(|pd| Arc::ptr_eq(pd.core(), &self.core));
        UseGuard::new(pd.ok_or(VerbsError::Invalid("the protection domain belongs to another device"))?)
    }

    fn own_cq(&self, cq: Arc<dyn CompletionQueue>) -> Result<UseGuard<SoftCq>, VerbsError> {
        let any: Arc<dyn Any + Send + Sync> = cq;
        let cq = any.downcast::<SoftCq>().ok().filter(|cq| Arc::ptr_eq(cq.core(), &self.core));
        UseGuard::new(cq.ok_or(VerbsError::Invalid("the CQ belongs to another device"))?)
    }

    fn own_srq(&self, srq: Arc<dyn SharedReceiveQueue>) -> Result<UseGuard<SoftSrq>, VerbsError> {
        let any: Arc<dyn Any + Send + Sync> = srq;
        let srq = any.downcast::<SoftSrq>().ok().filter(|srq| Arc::ptr_eq(srq.core(), &self.core));
        UseGuard::new(srq.ok_or(VerbsError::Invalid("the SRQ belongs to another device"))?)
    }

    fn own_xrcd(&self, xrcd: Arc<dyn XrcDomain>) -> Result<UseGuard<SoftXrcd>, VerbsError> {
        let any: Arc<dyn Any + Send + Sync> = xrcd;
        let xrcd = any.downcast::<SoftXrcd>().ok().filter(|xrcd| Arc::ptr_eq(xrcd.core(), &self.core));
        UseGuard::new(xrcd.ok_or(VerbsError::Invalid("the XRC domain belongs to another device"))?)
    }

    /// Returns an error if the device was opened without XRC (contract A9).
    fn needs_xrc(&self) -> Result<(), VerbsError> {
        if self.attributes.capabilities.contains(DeviceCapabilities::XRC) {
            return Ok(());
        }
        Err(VerbsError::NotSupported("XRC"))
    }

    /// Checks and groups the parts of a QP according to its type (contract C1, C11, C12).
    fn qp_parts(&self, init: QpInit) -> Result<(QpHolds, QpParts, ShardIndex), VerbsError> {
        let mut holds = QpHolds::default();
        let needs = VerbsError::Invalid;
        let mut parts = QpParts {
            qp_type: init.qp_type,
            pd: None,
            send_cq: None,
            receive: ReceiveSide::None,
            capacities: capacities(&init)?,
            signal_all: init.signal_all,
        };
        if init.qp_type == QpType::XrcTgt {
            if let Some(srq) = init.srq {
                // contract C12: an XRC SRQ is accepted and ignored.
                if !self.own_srq(srq)?.is_xrc() {
                    return Err(needs("a TGT takes receives from XRC SRQs only"));
                }
            }
            let xrcd = self.own_xrcd(init.xrcd.ok_or(needs("a TGT needs an XRC domain"))?)?;
            parts.receive = ReceiveSide::Xrc { domain: xrcd.domain()? };
            holds.xrcd = Some(xrcd);
            return Ok((holds, parts, self.core.known_group(init.group)));
        }
        if init.xrcd.is_some() {
            return Err(needs("only a TGT has an XRC domain"));
        }
        let pd = self.own_pd(init.pd.ok_or(needs("the QP needs a protection domain"))?)?;
        let send_cq = self.own_cq(init.send_cq.ok_or(needs("the QP needs a send CQ"))?)?;
        parts.pd = Some(pd.number());
        parts.send_cq = Some(Arc::clone(send_cq.ring()));
        let home = send_cq.home();
        holds.pd = Some(pd);
        holds.send_cq = Some(send_cq);
        if init.qp_type == QpType::XrcIni {
            if init.srq.is_some() {
                return Err(needs("an INI has no SRQ"));
            }
            return Ok((holds, parts, home));
        }
        let receive_cq = self.own_cq(init.receive_cq.ok_or(needs("an RC QP needs a receive CQ"))?)?;
        let cq = Arc::clone(receive_cq.ring());
        holds.receive_cq = Some(receive_cq);
        parts.receive = match init.srq {
            Some(srq) => {
                let srq = self.own_srq(srq)?;
                if srq.is_xrc() {
                    return Err(needs("an RC QP takes receives from a basic SRQ only"));
                }
                let number = srq.card_number();
                holds.srq = Some(srq);
                ReceiveSide::Basic { srq: number, cq }
            }
            None => {
                let queue =
                    ReceiveQueue::new(parts.capacities.max_receive_wr, parts.capacities.max_receive_sge);
                ReceiveSide::Own { queue, cq }
            }
        };
        Ok((holds, parts, home))
    }
}

/// Returns the sizes of a QP's queues. Sizes that the type does not have are 0 (contract C2).
fn capacities(init: &QpInit) -> Result<QueueCapacities, VerbsError> {
    let asked = init.capacities;
    let sends = init.qp_type != QpType::XrcTgt;
    let receives = init.qp_type == QpType::Rc && init.srq.is_none();
    let too_many = (sends && (asked.max_send_wr > MAX_WR || asked.max_send_sge > MAX_SGE))
        || (receives && (asked.max_receive_wr > MAX_WR || asked.max_receive_sge > MAX_SGE))
        || (sends && asked.max_inline_data > MAX_INLINE);
    if too_many {
        return Err(VerbsError::Invalid("a queue size is above the device's limit"));
    }
    let when = |condition: bool, value: u32| if condition { value } else { 0 };
    Ok(QueueCapacities {
        max_send_wr: when(sends, asked.max_send_wr.max(1)),
        max_send_sge: when(sends, asked.max_send_sge.max(1)),
        max_inline_data: when(sends, asked.max_inline_data),
        max_receive_wr: when(receives, asked.max_receive_wr.max(LEAST_RECEIVES)),
        max_receive_sge: when(receives, asked.max_receive_sge.max(1)),
    })
}

impl Device for SoftDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.core.present()?;
        if port == 1 { Ok(self.port) } else { Err(VerbsError::Invalid("the device has port 1 only")) }
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        self.core.control().gids().entries()
    }

    fn address_owner(&self, address: IpAddr) -> AddressOwner {
        let asks_host = !self.core.runtime().is_simulated();
        self.host
            .as_ref()
            .map_or(AddressOwner::OtherHost, |host| owner_of(host, asks_host, address, is_of_this_host))
    }

    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
        Ok(SoftPd::new(Arc::clone(&self.core), self.core.new_pd()?))
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
        self.core.present()?;
        Ok(Arc::new(SoftCompletionChannel::new(self.core.runtime())?))
    }

    fn create_cq(&self, init: CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
        self.core.present()?;
        if init.capacity_cqe == 0 || init.capacity_cqe > MAX_CQE {
            return Err(VerbsError::Invalid("the CQ's capacity is 0 or above the device's limit"));
        }
        let channel = match init.channel {
            Some(channel) => {
                let any: Arc<dyn Any + Send + Sync> = channel;
                let own = any.downcast::<SoftCompletionChannel>();
                Some(own.map_err(|_| VerbsError::Invalid("the completion channel is another provider's"))?)
            }
            None => None,
        };
        let core = Arc::clone(&self.core);
        let home = self.core.shard_of_group(init.group)?;
        Ok(Arc::new(SoftCq::new(core, home, init.capacity_cqe, channel.as_deref(), init.context)))
    }

    fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Arc<dyn XrcDomain>, VerbsError> {
        self.core.present()?;
        self.needs_xrc()?;
        let domain = self.core.domains.open(file, flags)?;
        Ok(Arc::new(SoftXrcd::new(Arc::clone(&self.core), domain)))
    }

    fn create_srq(&self, init: SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        if matches!(init.kind, SrqKind::Xrc { .. }) {
            self.needs_xrc()?;
        }
        if init.max_wr == 0 || init.max_wr > MAX_WR || init.max_sge > MAX_SGE {
            return Err(VerbsError::Invalid("the SRQ's size is 0 or above the device's limit"));
        }
        let pd = self.own_pd(init.pd)?;
        let xrc = match init.kind {
            SrqKind::Basic => None,
            SrqKind::Xrc { xrcd, cq } => Some((self.own_xrcd(xrcd)?, self.own_cq(cq)?)),
        };
        let queue = ReceiveQueue::new(init.max_wr, init.max_sge.max(1));
        Ok(Arc::new(SoftSrq::new(Arc::clone(&self.core), pd, xrc, queue, init.context)?))
    }

    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        let qp_type = init.qp_type;
        if qp_type != QpType::Rc {
            self.needs_xrc()?;
        }
        let (holds, parts, home) = self.qp_parts(init)?;
        let capacities = parts.capacities;
        let (number, home) = self.core.act(|access, _| {
            access.control.present()?;
            access.control.qps().create(&mut access.shards, home, parts)
        })?;
        Ok(Arc::new(SoftQp::new(Arc::clone(&self.core), number, home, qp_type, capacities, holds)))
    }

    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<Arc<dyn QueuePair>, VerbsError> {
        self.needs_xrc()?;
        let xrcd = self.own_xrcd(Arc::clone(xrcd))?;
        let domain = xrcd.domain()?;
        let home = self.core.act(|access, now| {
            access.control.qps().open_tgt(&mut access.shards, number, &domain, now)?;
            Ok::<_, VerbsError>(access.shards.directory().home(number.get()))
        })?;
        let home = home.unwrap_or(ShardIndex::FIRST);
        let holds = QpHolds { xrcd: Some(xrcd), ..QpHolds::default() };
        let core = Arc::clone(&self.core);
        Ok(Arc::new(SoftQp::new(core, number, home, QpType::XrcTgt, QueueCapacities::default(), holds)))
    }

    fn connection_manager(&self) -> &dyn ConnectionManager {
        self
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.core.events.next()
    }

    fn async_event_fd(&self) -> BorrowedFd<'_> {
        self.core.events.as_fd()
    }

    fn has_async_event(&self) -> bool {
        self.core.events.has_event()
    }

    fn clock(&self) -> Clock {
        self.core.runtime().clock().clone()
    }

    fn counters(&self) -> Vec<Counter> {
        self.core.act(|access, now| access.control.counters(&mut access.shards, now))
    }
}

impl ConnectionManager for SoftDevice {
    fn create_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError> {
        self.core.present()?;
        Ok(SoftCmChannel::new(Arc::clone(&self.core))?)
    }

    fn create_id(
        &self,
        port_space: PortSpace,
        qp_type: QpType,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        check_port_space(port_space, qp_type)?;
        let channel = own_channel(&self.core, channel)?;
        let queue = Arc::clone(channel.queue());
        let mut control = self.core.control();
        control.present()?;
        let number = control.connections().create(port_space, qp_type, queue);
        drop(control);
        Ok(Arc::new(SoftCmId::new(Arc::clone(&self.core), number, channel)))
    }

    fn create_endpoint(
        &self,
        request: &EndpointRequest,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        let fits = matches!(
            (request.side, request.qp_type),
            (_, QpType::Rc)
                | (EndpointSide::Active { .. }, QpType::XrcIni)
                | (EndpointSide::Passive { .. }, QpType::XrcTgt)
        );
        if !fits {
            return Err(VerbsError::Invalid("an active XRC endpoint has an INI, a passive one a TGT"));
        }
        check_port_space(request.port_space, request.qp_type)?;
        let channel = own_channel(&self.core, channel)?;
        let queue = Arc::clone(channel.queue());
        let number =
            self.core.act(|access, _| access.control.create_endpoint(&mut access.shards, request, queue))?;
        Ok(Arc::new(SoftCmId::new(Arc::clone(&self.core), number, channel)))
    }
}

fn check_port_space(port_space: PortSpace, qp_type: QpType) -> Result<(), VerbsError> {
    if qp_type != QpType::Rc && port_space != PortSpace::Ib {
        return Err(VerbsError::Invalid("XRC needs the port space IB (contract J1)"));
    }
    Ok(())
}
