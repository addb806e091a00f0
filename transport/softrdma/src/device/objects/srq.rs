//! Handles of programs on shared receive queues.
#![forbid(unsafe_code)]

use super::cq::SoftCq;
use super::pd::SoftPd;
use super::receive_queue::ReceiveQueue;
use super::xrcd::SoftXrcd;
use crate::device::MAX_WR;
use crate::device::core::Core;
use crate::device::tables::srqs::{Srq, XrcSide};
use crate::device::tables::use_count::{Counted, UseCount, UseGuard};
use crate::device::threads::signal::lock;
use std::sync::{Arc, Mutex};
use trunkline_verbs::{PostError, ReceiveRequest, SharedReceiveQueue, SrqAttributes, SrqNumber, VerbsError};

/// The objects that an SRQ uses (contract D2).
#[derive(Debug)]
struct Parts {
    _pd: UseGuard<SoftPd>,
    _xrc: Option<(UseGuard<SoftXrcd>, UseGuard<SoftCq>)>,
}

/// A shared receive queue.
#[derive(Debug)]
pub(in crate::device) struct SoftSrq {
    core: Arc<Core>,
    queue: Arc<Srq>,
    is_xrc: bool,
    use_count: UseCount,
    /// `None` once destroyed.
    parts: Mutex<Option<Parts>>,
}

impl SoftSrq {
    /// Creates an SRQ: an XRC SRQ if a domain and a CQ are given, otherwise a basic SRQ.
    pub(in crate::device) fn new(
        core: Arc<Core>,
        pd: UseGuard<SoftPd>,
        xrc: Option<(UseGuard<SoftXrcd>, UseGuard<SoftCq>)>,
        queue: ReceiveQueue,
        context: u64,
    ) -> Result<Self, VerbsError> {
        let side = match &xrc {
            Some((xrcd, cq)) => Some(XrcSide { domain: xrcd.domain()?, cq: Arc::clone(cq.ring()) }),
            None => None,
        };
        let is_xrc = side.is_some();
        let queue = core.tables().srqs.create(queue, pd.number(), side, context)?;
        let parts = Mutex::new(Some(Parts { _pd: pd, _xrc: xrc }));
        Ok(Self { core, queue, is_xrc, use_count: UseCount::default(), parts })
    }

    /// Returns the SRQ's number on the device. Basic SRQs also have a number.
    pub(in crate::device) fn card_number(&self) -> u32 {
        self.queue.number()
    }

    /// Returns true for an XRC SRQ, whose receives are taken by TGTs.
    pub(in crate::device) fn is_xrc(&self) -> bool {
        self.is_xrc
    }

    /// Returns the SRQ's device.
    pub(in crate::device) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn remove(&self) {
        let parts = lock(&self.parts).take();
        self.core.tables().srqs.destroy(self.queue.number());
        drop(parts);
    }
}

impl Counted for SoftSrq {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}

impl SharedReceiveQueue for SoftSrq {
    fn number(&self) -> Result<SrqNumber, VerbsError> {
        if self.is_xrc {
            Ok(SrqNumber::new(self.queue.number()))
        } else {
            Err(VerbsError::Invalid("a basic SRQ has no number that a peer could name"))
        }
    }

    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.queue.post(requests)
    }

    fn query(&self) -> Result<SrqAttributes, VerbsError> {
        self.queue.query()
    }

    fn arm_limit(&self, limit: u32) -> Result<(), VerbsError> {
        self.queue.arm(limit)
    }

    fn resize(&self, max_wr: u32) -> Result<(), VerbsError> {
        if max_wr == 0 || max_wr > MAX_WR {
            return Err(VerbsError::Invalid("the SRQ's size is 0 or above the device's limit"));
        }
        self.queue.resize(max_wr)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.use_count.retire("a QP takes its receives from this SRQ")?;
        self.remove();
        Ok(())
    }
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        if !self.use_count.retire_at_drop() {
            self.remove();
        }
    }
}
