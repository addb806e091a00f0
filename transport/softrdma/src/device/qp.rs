//! Queue pairs, as programs hold them; of a TGT each of these is one handle.
#![forbid(unsafe_code)]

use super::card::{Asked, ModifyTicket};
use super::core::Core;
use super::cq::SoftCq;
use super::pd::SoftPd;
use super::signal::lock;
use super::srq::SoftSrq;
use super::uses::Hold;
use super::xrcd::SoftXrcd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trunkline_verbs::{
    PostError, QpAttributes, QpModify, QpNumber, QpType, QueueCapacities, QueuePair, ReceiveRequest,
    SendRequest, VerbsError,
};

/// The process that executes a shared TGT answers at once, unless it is stopped.
const HOME_ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How often its answer is looked for.
const LOOK_FOR_ANSWER: Duration = Duration::from_micros(50);

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

    /// Waits for what the process that executes a TGT makes of a change; `None` when that changed
    /// meanwhile, so that the change is to be asked for anew.
    fn await_home(&self, ticket: ModifyTicket, until: Instant) -> Option<Result<(), VerbsError>> {
        loop {
            self.core.work();
            match self.core.card().asked(self.number, ticket) {
                Asked::Answered(result) => return Some(result),
                Asked::HomeGone => return None,
                Asked::Waiting => {}
            }
            if Instant::now() >= until {
                self.core.card().forget_asked(ticket);
                return Some(Err(VerbsError::Os(libc::ETIMEDOUT)));
            }
            std::thread::sleep(LOOK_FOR_ANSWER);
        }
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
        let until = Instant::now() + HOME_ANSWERS_WITHIN;
        loop {
            let asked = self.core.act(|card, now| {
                let asked = card.ask_home(self.number, change);
                card.flush(now);
                asked
            });
            let Some(asked) = asked else { break };
            if let Some(result) = self.await_home(asked?, until) {
                return result;
            }
        }
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
        self.core.act(|card, now| {
            card.close_qp(self.number);
            // Another process may have to hear of it.
            card.flush(now);
        });
        drop(std::mem::take(&mut *lock(&self.holds)));
        Ok(())
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        let _destroyed_before = self.destroy();
    }
}
