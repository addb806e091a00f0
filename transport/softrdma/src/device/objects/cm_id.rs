//! Connection endpoints, and the channels for their events.
//!
//! Owns the program's handle on an endpoint of control, and the queue to which endpoints report. Dropping the
//! handle destroys the endpoint but not its QP.
#![forbid(unsafe_code)]

use super::qp::SoftQp;
use crate::device::control::{PendingCmEvent, PendingCmEventKind};
use crate::device::core::Core;
use crate::device::threads::signal::{Signal, lock};
use std::any::Any;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, CmOption, ConnectParameters, Mtu, QpModify, QpState,
    QueuePair, RejectReason, UdpPorts, VerbsError,
};

/// Maximum number of queued events. The backlog limits a listener to a far smaller number.
const MAX_WAITING: usize = 1 << 16;

/// A channel of connection events.
#[derive(Debug)]
pub(in crate::device) struct SoftCmChannel {
    core: Arc<Core>,
    queue: Arc<Signal<PendingCmEvent>>,
    /// Reference to this channel, for new endpoints that report to it.
    this: Weak<Self>,
}

impl SoftCmChannel {
    pub(in crate::device) fn new(core: Arc<Core>) -> Result<Arc<Self>, VerbsError> {
        let queue = Arc::new(Signal::new(core.runtime(), MAX_WAITING)?);
        Ok(Arc::new_cyclic(|this| Self { core, queue, this: Weak::clone(this) }))
    }

    /// Returns the queue to which endpoints push events.
    pub(in crate::device) fn queue(&self) -> &Arc<Signal<PendingCmEvent>> {
        &self.queue
    }
}

impl AsFd for SoftCmChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl CmChannel for SoftCmChannel {
    fn next_event(&self) -> Option<CmEvent> {
        let PendingCmEvent { id, kind, private_data } = self.queue.pop()?;
        let kind = match kind {
            PendingCmEventKind::ConnectRequest { new, parameters } => {
                let channel = self.this.upgrade()?;
                self.core.control().connections().request_heard(new);
                let id = Arc::new(SoftCmId::new(Arc::clone(&self.core), new, channel));
                CmEventKind::ConnectRequest { id, parameters }
            }
            PendingCmEventKind::Other(kind) => kind,
        };
        Some(CmEvent { id, kind, private_data })
    }

    fn has_event(&self) -> bool {
        self.queue.has_event()
    }
}

impl Drop for SoftCmChannel {
    fn drop(&mut self) {
        // Refuse the requests that the program has not taken, so that peers do not wait for an answer.
        while let Some(event) = self.queue.pop() {
            if let PendingCmEventKind::ConnectRequest { new, .. } = event.kind {
                self.core.act(|access, now| access.control.drop_endpoint(&mut access.shards, new, now));
            }
        }
    }
}

/// A program's handle on an endpoint.
#[derive(Debug)]
pub(in crate::device) struct SoftCmId {
    core: Arc<Core>,
    number: CmIdNumber,
    qp: Mutex<Option<Arc<SoftQp>>>,
    /// The channel to which the endpoint reports, kept alive while the endpoint exists.
    channel: Mutex<Arc<SoftCmChannel>>,
}

impl SoftCmId {
    pub(in crate::device) fn new(core: Arc<Core>, number: CmIdNumber, channel: Arc<SoftCmChannel>) -> Self {
        Self { core, number, qp: Mutex::new(None), channel: Mutex::new(channel) }
    }
}

/// Returns the channel behind a trait object, if it belongs to this device.
pub(in crate::device) fn own_channel(
    core: &Arc<Core>,
    channel: &Arc<dyn CmChannel>,
) -> Result<Arc<SoftCmChannel>, VerbsError> {
    let any: Arc<dyn Any + Send + Sync> = Arc::<dyn CmChannel>::clone(channel);
    any.downcast::<SoftCmChannel>()
        .ok()
        .filter(|channel| Arc::ptr_eq(&channel.core, core))
        .ok_or(VerbsError::Invalid("the channel belongs to another device"))
}

impl CmId for SoftCmId {
    fn number(&self) -> CmIdNumber {
        self.number
    }

    fn local_address(&self) -> SocketAddr {
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        self.core.control().connections().addresses(self.number).map_or(nowhere, |(local, _)| local)
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.core.control().connections().addresses(self.number).and_then(|(_, peer)| peer)
    }

    fn local_user(&self) -> Option<u32> {
        self.core.control().local_user(self.number)
    }

    fn udp_ports(&self) -> Option<UdpPorts> {
        self.core.control().connections().udp_ports(self.number)
    }

    fn asked_mtu(&self) -> Option<Mtu> {
        self.core.control().connections().asked_mtu(self.number)
    }

    fn attach(&self, qp: Arc<dyn QueuePair>) -> Result<(), VerbsError> {
        let any: Arc<dyn Any + Send + Sync> = qp;
        let qp = any
            .downcast::<SoftQp>()
            .ok()
            .filter(|qp| Arc::ptr_eq(qp.core(), &self.core))
            .ok_or(VerbsError::Invalid("the QP belongs to another device"))?;
        let mut attached = lock(&self.qp);
        self.core.act(|access, _| access.control.attach(&mut access.shards, self.number, qp.number()))?;
        *attached = Some(qp);
        Ok(())
    }

    fn detach(&self) -> Option<Arc<dyn QueuePair>> {
        let mut attached = lock(&self.qp);
        self.core.act(|access, _| access.control.detach(&mut access.shards, self.number));
        attached.take().map(|qp| qp as Arc<dyn QueuePair>)
    }

    fn bind(&self, local: SocketAddr) -> Result<(), VerbsError> {
        self.core.control().bind(self.number, local)
    }

    fn resolve_address(&self, source: Option<SocketAddr>, remote: SocketAddr) -> Result<(), VerbsError> {
        self.core
            .act(|access, _| access.control.resolve_address(&mut access.shards, self.number, source, remote))
    }

    fn resolve_route(&self) -> Result<(), VerbsError> {
        self.core.control().connections().resolve_route(self.number)
    }

    fn set_option(&self, option: CmOption) -> Result<(), VerbsError> {
        self.core.control().connections().set_option(self.number, option)
    }

    fn qp_changes(&self, state: QpState) -> Result<QpModify, VerbsError> {
        self.core.control().qp_changes(self.number, state)
    }

    fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        self.core.act(|access, _| access.control.listen(&mut access.shards, self.number, backlog))
    }

    fn connect(&self, parameters: &ConnectParameters) -> Result<(), VerbsError> {
        self.core.act(|access, now| access.control.connect(&mut access.shards, self.number, parameters, now))
    }

    fn accept(&self, parameters: &ConnectParameters) -> Result<(), VerbsError> {
        self.core.act(|access, now| access.control.accept(&mut access.shards, self.number, parameters, now))
    }

    fn establish(&self) -> Result<(), VerbsError> {
        self.core.act(|access, now| access.control.establish(&mut access.shards, self.number, now))
    }

    fn communication_established(&self) {
        self.core.act(|access, now| {
            access.control.communication_established(&mut access.shards, self.number, now)
        });
    }

    fn reject_for(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), VerbsError> {
        self.core.act(|access, now| {
            access.control.reject(&mut access.shards, self.number, reason, private_data, now)
        })
    }

    fn disconnect_with(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.core
            .act(|access, now| access.control.disconnect(&mut access.shards, self.number, private_data, now))
    }

    fn migrate(&self, channel: &Arc<dyn CmChannel>) -> Result<(), VerbsError> {
        let channel = own_channel(&self.core, channel)?;
        self.core.control().connections().migrate(self.number, channel.queue())?;
        let old = std::mem::replace(&mut *lock(&self.channel), channel);
        drop(old);
        Ok(())
    }
}

impl Drop for SoftCmId {
    fn drop(&mut self) {
        self.core.act(|access, now| access.control.drop_endpoint(&mut access.shards, self.number, now));
    }
}
