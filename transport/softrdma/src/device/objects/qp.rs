//! Handles of programs on queue pairs. A TGT can have several.
//!
//! A change to a TGT that another process executes is a [`PendingModify`], which is polled, so that the device does not
//! block. Only [`QueuePair::modify`], which programs call, blocks until the outcome arrives. In a simulation, where
//! callers must not block, it returns an error instead.
#![forbid(unsafe_code)]

use super::cq::SoftCq;
use super::pd::SoftPd;
use super::srq::SoftSrq;
use super::xrcd::SoftXrcd;
use crate::device::core::Core;
use crate::device::sharing::{ModifyProgress, ModifyTicket};
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::use_count::UseGuard;
use crate::device::threads::signal::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trunkline_verbs::{
    PostError, QpAttributes, QpModify, QpNumber, QpPath, QpType, QueueCapacities, QueuePair, ReadAllowance,
    ReceiveRequest, SendRequest, Time, VerbsError,
};

/// Time limit for the answer from the process that executes a shared TGT. The process answers immediately unless it is
/// stopped.
const EXECUTOR_ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Interval at which a waiting caller checks for the answer.
const LOOK_FOR_ANSWER: Duration = Duration::from_micros(50);

/// The objects that a QP uses.
#[derive(Debug, Default)]
pub(in crate::device) struct QpHolds {
    pub(in crate::device) pd: Option<UseGuard<SoftPd>>,
    pub(in crate::device) send_cq: Option<UseGuard<SoftCq>>,
    pub(in crate::device) receive_cq: Option<UseGuard<SoftCq>>,
    pub(in crate::device) srq: Option<UseGuard<SoftSrq>>,
    pub(in crate::device) xrcd: Option<UseGuard<SoftXrcd>>,
}

/// A change requested from the process that executes a shared TGT, without an answer yet.
#[derive(Debug)]
pub(in crate::device) struct PendingModify {
    change: QpModify,
    ticket: ModifyTicket,
    until: Time,
}

/// Result of starting a change.
#[derive(Debug)]
pub(in crate::device) enum BegunModify {
    /// The change was applied or refused.
    Done(Result<(), VerbsError>),
    /// The change was requested from another process. [`SoftQp::poll_modify`] returns the outcome.
    Pending(PendingModify),
}

/// A program's handle on a queue pair.
#[derive(Debug)]
pub(in crate::device) struct SoftQp {
    core: Arc<Core>,
    number: QpNumber,
    /// Shard of the QP. If another process executes the TGT, this is the first shard, in which this process would
    /// execute the TGT.
    home: ShardIndex,
    qp_type: QpType,
    capacities: QueueCapacities,
    is_open: AtomicBool,
    holds: Mutex<QpHolds>,
}

impl SoftQp {
    /// Creates a handle on a QP. The caller has created the QP for this handle, or opened the handle in control.
    pub(in crate::device) fn new(
        core: Arc<Core>,
        number: QpNumber,
        home: ShardIndex,
        qp_type: QpType,
        capacities: QueueCapacities,
        holds: QpHolds,
    ) -> Self {
        let (is_open, holds) = (AtomicBool::new(true), Mutex::new(holds));
        Self { core, number, home, qp_type, capacities, is_open, holds }
    }

    /// Returns the QP's device.
    pub(in crate::device) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Applies a change, or requests it from the process that executes the TGT. Never waits.
    pub(in crate::device) fn begin_modify(&self, change: &QpModify) -> BegunModify {
        match self.check_open() {
            Ok(()) => self.ask_for(change, self.core.runtime().clock().now() + EXECUTOR_ANSWERS_WITHIN),
            gone => BegunModify::Done(gone),
        }
    }

    /// Returns the outcome of a change; `None` if the process that executes the TGT has not answered. Repeats
    /// the request if another process has taken the TGT over.
    pub(in crate::device) fn poll_modify(
        &self,
        pending: &mut PendingModify,
    ) -> Option<Result<(), VerbsError>> {
        self.core.work(ShardIndex::FIRST);
        let progress = self.core.control().qps().modify_progress(self.number, pending.ticket);
        match progress {
            ModifyProgress::Done(result) => return Some(result),
            ModifyProgress::ExecutorGone => match self.ask_for(&pending.change, pending.until) {
                BegunModify::Done(result) => return Some(result),
                BegunModify::Pending(again) => *pending = again,
            },
            ModifyProgress::Pending => {}
        }
        if self.core.runtime().clock().now() < pending.until {
            return None;
        }
        self.core.control().qps().forget_modify(pending.ticket);
        Some(Err(VerbsError::Os(libc::ETIMEDOUT)))
    }

    fn ask_for(&self, change: &QpModify, until: Time) -> BegunModify {
        let asked = self.core.act(|access, now| {
            let asked = access.control.qps().ask_executor(&mut access.shards, self.number, change);
            access.shards.flush(now);
            asked
        });
        match asked {
            Some(Ok(ticket)) => BegunModify::Pending(PendingModify { change: *change, ticket, until }),
            Some(Err(refused)) => BegunModify::Done(Err(refused)),
            None => BegunModify::Done(self.core.act(|access, now| {
                let result = access.control.qps().modify(&mut access.shards, self.number, change);
                access.shards.flush(now);
                result
            })),
        }
    }

    /// Drops a change whose outcome the caller no longer awaits.
    fn forget_modify(&self, pending: &PendingModify) {
        self.core.control().qps().forget_modify(pending.ticket);
    }

    /// Checks that this handle is open. A TGT can outlive the handle through other handles.
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
        let mut pending = match self.begin_modify(change) {
            BegunModify::Done(result) => return result,
            BegunModify::Pending(pending) => pending,
        };
        if self.core.is_simulated() {
            self.forget_modify(&pending);
            return Err(VerbsError::NotSupported("waiting for another process in a simulation"));
        }
        loop {
            if let Some(result) = self.poll_modify(&mut pending) {
                return result;
            }
            #[expect(clippy::disallowed_methods, reason = "a simulation has returned above")]
            std::thread::sleep(LOOK_FOR_ANSWER);
        }
    }

    fn query(&self) -> Result<QpAttributes, VerbsError> {
        self.check_open()?;
        self.core.act(|access, _| access.control.qps().query(&mut access.shards, self.number))
    }

    fn path(&self) -> Option<QpPath> {
        self.core.shard(self.home).shard.enter().path(self.number.get())
    }

    fn received_packets(&self) -> Option<u64> {
        self.core.shard(self.home).shard.enter().received_packets(self.number.get())
    }

    fn read_allowance(&self) -> Option<ReadAllowance> {
        let now = self.core.runtime().clock().now();
        self.core.shard(self.home).shard.enter().read_allowance(self.number.get(), now)
    }

    fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.check_open().map_err(|cause| PostError { index: 0, cause })?;
        self.core.act_on(self.home, |shard, now| shard.post_send(self.number.get(), requests, now))
    }

    fn post_send_whole(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.check_open().map_err(|cause| PostError { index: 0, cause })?;
        self.core.act_on(self.home, |shard, now| shard.post_send_whole(self.number.get(), requests, now))
    }

    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.check_open().map_err(|cause| PostError { index: 0, cause })?;
        self.core.act_on(self.home, |shard, _| shard.post_receive(self.number.get(), requests))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if !self.is_open.swap(false, Ordering::AcqRel) {
            return Err(VerbsError::Gone);
        }
        self.core.act(|access, now| {
            access.control.qps().close(&mut access.shards, self.number);
            // Send the resulting message to another process, if any.
            access.shards.flush(now);
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
