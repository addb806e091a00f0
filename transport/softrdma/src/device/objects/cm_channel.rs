//! Channels of connection events.
//!
//! Owns the queue that endpoints report to. Creates the object of a new endpoint when the program takes its
//! request.
#![forbid(unsafe_code)]

use crate::device::control::{PendingCmEvent, PendingCmEventKind};
use crate::device::core::Core;
use crate::device::threads::signal::Signal;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use trunkline_verbs::{CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, VerbsError};

/// Maximum number of queued events. A listener's backlog bounds its share far below.
const MAX_WAITING: usize = 1 << 16;

/// A channel of connection events.
#[derive(Debug)]
pub(in crate::device) struct SoftCmChannel {
    core: Arc<Core>,
    queue: Arc<Signal<PendingCmEvent>>,
    /// This channel, for new endpoints that report to it.
    this: Weak<Self>,
    make_id: MakeCmId,
}

/// Creates the object of an endpoint that reports to a channel.
pub(in crate::device) type MakeCmId = fn(Arc<Core>, CmIdNumber, Arc<SoftCmChannel>) -> Arc<dyn CmId>;

impl SoftCmChannel {
    pub(in crate::device) fn new(core: Arc<Core>, make_id: MakeCmId) -> Result<Arc<Self>, VerbsError> {
        let queue = Arc::new(Signal::new(core.runtime(), MAX_WAITING)?);
        Ok(Arc::new_cyclic(|this| Self { core, queue, this: Weak::clone(this), make_id }))
    }

    /// Returns the queue that endpoints push to.
    pub(in crate::device) fn queue(&self) -> &Arc<Signal<PendingCmEvent>> {
        &self.queue
    }

    /// Returns the channel's device.
    pub(in crate::device) fn core(&self) -> &Arc<Core> {
        &self.core
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
                let id = (self.make_id)(Arc::clone(&self.core), new, channel);
                CmEventKind::ConnectRequest { id, parameters }
            }
            PendingCmEventKind::AddressResolved => CmEventKind::AddressResolved,
            PendingCmEventKind::AddressError(error) => CmEventKind::AddressError(error),
            PendingCmEventKind::RouteResolved => CmEventKind::RouteResolved,
            PendingCmEventKind::ConnectResponse { parameters } => CmEventKind::ConnectResponse { parameters },
            PendingCmEventKind::Established => CmEventKind::Established,
            PendingCmEventKind::ServiceResolved { parameters } => CmEventKind::ServiceResolved { parameters },
            PendingCmEventKind::ServiceRefused(status) => CmEventKind::ServiceRefused(status),
            PendingCmEventKind::ConnectError => CmEventKind::ConnectError,
            PendingCmEventKind::Unreachable => CmEventKind::Unreachable,
            PendingCmEventKind::Rejected(reason) => CmEventKind::Rejected(reason),
            PendingCmEventKind::Disconnected { is_answered } => CmEventKind::Disconnected { is_answered },
            PendingCmEventKind::DeviceRemoval => CmEventKind::DeviceRemoval,
            PendingCmEventKind::TimewaitExit => CmEventKind::TimewaitExit,
        };
        Some(CmEvent { id, kind, private_data })
    }

    fn has_event(&self) -> bool {
        self.queue.has_event()
    }
}

impl Drop for SoftCmChannel {
    fn drop(&mut self) {
        // Requests that the program did not take are refused, since the peer would otherwise wait for an
        // answer.
        while let Some(event) = self.queue.pop() {
            if let PendingCmEventKind::ConnectRequest { new, .. } = event.kind {
                self.core.act(|access, now| access.control.drop_endpoint(&mut access.shards, new, now));
            }
        }
    }
}
