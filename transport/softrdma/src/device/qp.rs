//! Queue pairs, as programs hold them; of a TGT each of these is one handle.
#![forbid(unsafe_code)]

use super::core::Core;
use super::cq::SoftCq;
use super::pd::SoftPd;
use super::signal::lock;
use super::srq::SoftSrq;
use super::uses::Hold;
use super::xrcd::SoftXrcd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_verbs::{
    PostError, QpAttributes, QpModify, QpNumber, QpType, QueueCapacities, QueuePair, ReceiveRequest,
    SendRequest, VerbsError,
};

/// What a QP leans on.
#[derive(Debug, Default)]
pub(super) struct QpHolds {
    pub(super) pd: Option<Hold<SoftPd>>,
    pub(super) send_cq: Option<Hold<SoftCq>>,
    pub(super) receive_cq: Option<Hold<SoftCq>>,
    pub(super) srq: Option<Hold<SoftSrq>>,
    pub(super) xrcd: Option<Hold<SoftXrcd>>,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct SoftQp {
    core: Arc<Core>,
    number: QpNumber,
    qp_type: QpType,
    capacities: QueueCapacities,
    is_open: AtomicBool,
    holds: Mutex<QpHolds>,
}

impl SoftQp {
    /// A handle on a QP that the card has just made, or counted a handle for.
    pub(super) fn new(
        core: Arc<Core>,
        number: QpNumber,
        qp_type: QpType,
        capacities: QueueCapacities,
        holds: QpHolds,
    ) -> Self {
        Self { core, number, qp_type, capacities, is_open: AtomicBool::new(true), holds: Mutex::new(holds) }
    }

    /// The device it belongs to.
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// A TGT lives on while other handles are open, but not for this one.
    fn check_open(&self) -> Result<(), VerbsError> {
        if self.is_open.load(Ordering::Acquire) { Ok(()) } else { Err(VerbsError::Gone) }
    }
}

impl QueuePair for SoftQp {
    fn number(&self) -> QpNumber {
        self.number
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn capacities(&self) -> QueueCapacities {
        self.capacities
    }

    fn modify(&self, change: &QpModify) -> Result<(), VerbsError> {
        self.check_open()?;
        self.core.act(|card, now| {
            let result = card.modify_qp(self.number, change);
            card.flush(now);
            result
        })
    }

    fn query(&self) -> Result<QpAttributes, VerbsError> {
        self.check_open()?;
        self.core.card().query_qp(self.number)
    }

    fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.check_open().map_err(|cause| PostError { index: 0, cause })?;
        self.core.act(|card, now| card.post_send(self.number, requests, now))
    }

    fn post_send_whole(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.check_open().map_err(|cause| PostError { index: 0, cause })?;
        self.core.act(|card, now| card.post_send_whole(self.number, requests, now))
    }

    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.check_open().map_err(|cause| PostError { index: 0, cause })?;
        self.core.card().post_receive(self.number, requests)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if !self.is_open.swap(false, Ordering::AcqRel) {
            return Err(VerbsError::Gone);
        }
        self.core.card().close_qp(self.number);
        drop(std::mem::take(&mut *lock(&self.holds)));
        Ok(())
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        let _destroyed_before = self.destroy();
    }
}
