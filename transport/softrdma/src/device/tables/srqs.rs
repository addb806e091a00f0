//! Shared receive queues.
//!
//! Owns the SRQs' posted requests and limits. Programs post receives, and the responders of all shards take them, so an
//! SRQ does not belong to a shard. Its receives are lent to the shards in small batches
//! ([`trunkline_machine::rings::lending`]), so that shards that deliver into the same SRQ contend only once per batch.
//! Receives are not lent while a limit is armed. Lent receives count as posted, but do not occupy the queue, so a
//! program may post that many in addition.
#![forbid(unsafe_code)]

use super::directory::ShardIndex;
use super::domain_table::{Domain, DomainNumber};
use super::keys::PdNumber;
use super::numbers::{NumberMap, Numbers};
use crate::device::MAX_SRQS;
use crate::device::objects::async_events::AsyncEvents;
use crate::device::objects::cq_ring::CqRing;
use crate::device::objects::receive_queue::{ReceiveQueue, Taken, post_all};
use crate::device::threads::signal::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_machine::rings::keyed::Keyed;
use trunkline_machine::rings::lending::Lending;
use trunkline_machine::rings::readers::{Readers, Reading};
use trunkline_roce::engine::{NakCode, Placement};
use trunkline_verbs::{
    AsyncEventKind, AsyncSubject, PostError, ReceiveRequest, SrqAttributes, SrqNumber, VerbsError,
};

/// Number of receives lent to a shard in one batch.
const LENT_AT_ONCE: usize = 8;

/// Domain and CQ of an XRC SRQ.
#[derive(Debug)]
pub(in crate::device) struct XrcSide {
    /// Domain of the SRQ.
    pub(in crate::device) domain: Arc<Domain>,
    /// CQ in which the receives of the SRQ complete.
    pub(in crate::device) cq: Arc<CqRing>,
}

/// A shared receive queue.
#[derive(Debug)]
pub(in crate::device) struct Srq {
    number: u32,
    receives: Lending<ReceiveQueue>,
    /// PD of lkeys, and of the rkeys of messages that name the SRQ (contract G4, G5).
    pd: PdNumber,
    /// `None` for a basic SRQ.
    xrc: Option<Xrc>,
    /// Limit below which one event is raised; 0 if disarmed. Written while the lock of the receives is held.
    limit: AtomicU32,
    /// Context returned in events.
    context: u64,
    /// True once the SRQ is destroyed.
    is_gone: AtomicBool,
}

#[derive(Debug)]
struct Xrc {
    number: DomainNumber,
    /// Number of the domain among the members of the host, if a file names it.
    shared: Option<u64>,
    cq: Arc<CqRing>,
    /// Keeps the domain alive until the SRQ is destroyed.
    domain: Mutex<Option<Arc<Domain>>>,
}

impl Srq {
    /// Returns the SRQ's number. A basic SRQ also has a number.
    pub(in crate::device) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the PD of lkeys, and of the rkeys of messages that name the SRQ.
    pub(in crate::device) fn pd(&self) -> PdNumber {
        self.pd
    }

    /// Returns the CQ in which the SRQ's receives complete, if the SRQ is in the domain.
    pub(in crate::device) fn cq_in(&self, domain: DomainNumber) -> Option<&CqRing> {
        self.xrc.as_ref().filter(|xrc| xrc.number == domain).map(|xrc| &*xrc.cq)
    }

    /// Returns true if any receive is posted.
    pub(in crate::device) fn has_receives(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Takes a receive for a message that arrived at a shard, and raises the limit event (contract D6).
    /// Returns false if the queue is empty. `borrower` is `None` on a device with one shard, where receives
    /// are not borrowed.
    #[inline]
    pub(in crate::device) fn take(
        &self,
        borrower: Option<ShardIndex>,
        taken: &mut Taken,
        events: &AsyncEvents,
    ) -> bool {
        let borrower = borrower.map(ShardIndex::place);
        let take = |queue: &mut ReceiveQueue| queue.take(taken).then_some(());
        self.receives
            .take(borrower, take, |home| {
                let limit = self.limit.load(Ordering::Relaxed);
                if limit > 0 && home.stock().len() < limit as usize {
                    self.limit.store(0, Ordering::Relaxed);
                    home.keep_home(false);
                    events.raise(AsyncEventKind::SrqLimitReached, AsyncSubject::Srq(self.context));
                }
            })
            .is_some()
    }

    fn present(&self) -> Result<(), VerbsError> {
        if self.is_gone.load(Ordering::Acquire) { Err(VerbsError::Gone) } else { Ok(()) }
    }

    pub(in crate::device) fn post(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.present().map_err(|cause| PostError { index: 0, cause })?;
        self.receives.with_home(|queue| post_all(queue, requests))
    }

    /// Returns the queue's sizes and its limit.
    pub(in crate::device) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        self.present()?;
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let limit = self.limit.load(Ordering::Relaxed);
        Ok(self.receives.with_home(|queue| SrqAttributes {
            max_wr: count(queue.capacity()),
            max_sge: count(queue.max_sge()),
            limit,
        }))
    }

    /// Arms the limit (contract D6).
    pub(in crate::device) fn arm(&self, limit: u32) -> Result<(), VerbsError> {
        self.present()?;
        let mut home = self.receives.home();
        if limit as usize > home.stock().capacity() {
            return Err(VerbsError::Invalid("the limit is above the size of the SRQ"));
        }
        self.limit.store(limit, Ordering::Relaxed);
        home.keep_home(limit > 0);
        Ok(())
    }

    /// Changes the maximum number of requests (contract D7).
    pub(in crate::device) fn resize(&self, max_wr: u32) -> Result<(), VerbsError> {
        self.present()?;
        let mut home = self.receives.home();
        if max_wr < self.limit.load(Ordering::Relaxed) {
            return Err(VerbsError::Invalid("the armed limit is above the new size; disarm it first"));
        }
        if !home.stock().resize(max_wr) {
            return Err(VerbsError::Invalid("more receives are posted than the new size holds"));
        }
        Ok(())
    }

    /// Moves the SRQ to the error state if its CQ has lost a completion (contract G10).
    fn end_if_overflowed(&self, events: &AsyncEvents) {
        if !self.xrc.as_ref().is_some_and(|xrc| xrc.cq.is_overflowed()) {
            return;
        }
        let mut home = self.receives.home();
        if !home.stock().is_broken() {
            home.stock().break_off();
            events.raise(AsyncEventKind::SrqError, AsyncSubject::Srq(self.context));
        }
    }

    fn end(&self) {
        self.is_gone.store(true, Ordering::Release);
        if let Some(xrc) = &self.xrc {
            drop(lock(&xrc.domain).take());
        }
    }
}

/// The SRQs of a device.
#[derive(Debug)]
pub(in crate::device) struct Srqs {
    table: Keyed<Arc<Srq>>,
    /// Free numbers, and numbers in use; `None` after the device was removed.
    numbers: Mutex<Option<(Numbers, NumberMap<()>)>>,
}

impl Srqs {
    pub(in crate::device) fn new(readers: &Arc<Readers>, numbers: Numbers) -> Self {
        Self { table: Keyed::new(readers), numbers: Mutex::new(Some((numbers, NumberMap::default()))) }
    }

    #[cfg(test)]
    pub(in crate::device) fn with_writers_locked(&self, action: impl FnOnce()) {
        let _numbers = lock(&self.numbers);
        action();
    }

    pub(in crate::device) fn create(
        &self,
        queue: ReceiveQueue,
        pd: PdNumber,
        xrc: Option<XrcSide>,
        context: u64,
    ) -> Result<Arc<Srq>, VerbsError> {
        let mut numbers = lock(&self.numbers);
        let (numbers, taken) = numbers.as_mut().ok_or(VerbsError::Gone)?;
        if taken.len() >= MAX_SRQS {
            return Err(VerbsError::OutOfResources("the device holds no more SRQs"));
        }
        let number = numbers.take(ShardIndex::FIRST.0, |number| taken.contains(number))?;
        taken.insert(number, ());
        let xrc = xrc.map(|XrcSide { domain, cq }| Xrc {
            number: domain.number(),
            shared: domain.shared(),
            cq,
            domain: Mutex::new(Some(domain)),
        });
        let srq = Arc::new(Srq {
            number,
            receives: Lending::new(queue, LENT_AT_ONCE),
            pd,
            xrc,
            limit: AtomicU32::new(0),
            context,
            is_gone: AtomicBool::new(false),
        });
        self.table.insert(number, Arc::clone(&srq));
        Ok(srq)
    }

    /// Destroys an SRQ and drops its posted receives (contract D9).
    pub(in crate::device) fn destroy(&self, number: u32) {
        if let Some(srq) = self.table.remove(number) {
            srq.end();
            if let Some((numbers, taken)) = lock(&self.numbers).as_mut() {
                taken.remove(number);
                numbers.free(number);
            }
        }
    }

    /// Destroys all SRQs, and refuses to create more.
    pub(in crate::device) fn close(&self) {
        let numbers = lock(&self.numbers).take();
        for number in self.table.keys() {
            if let Some(srq) = self.table.remove(number) {
                srq.end();
            }
        }
        drop(numbers);
    }

    #[inline]
    pub(in crate::device) fn get<'r>(&'r self, reading: &'r Reading<'_>, number: u32) -> Option<&'r Srq> {
        self.table.get(reading, number).map(|srq| &**srq)
    }

    /// Returns the number of an XRC SRQ's domain on this device, and its number among the members of the host.
    pub(in crate::device) fn domain_of(
        &self,
        reading: &Reading<'_>,
        number: SrqNumber,
    ) -> Option<(DomainNumber, Option<u64>)> {
        let xrc = self.get(reading, number.get())?.xrc.as_ref()?;
        Some((xrc.number, xrc.shared))
    }

    /// Returns the number of receives posted to SRQs, including receives lent to shards.
    pub(in crate::device) fn posted(&self, reading: &Reading<'_>) -> usize {
        let posted = |number: &u32| self.get(reading, *number).map_or(0, |srq| srq.receives.count());
        self.table.keys().iter().map(posted).sum()
    }

    /// Moves XRC SRQs whose CQ has lost a completion to the error state (contract G10). Senders see them as empty.
    pub(in crate::device) fn end_overflowed(&self, reading: &Reading<'_>, events: &AsyncEvents) {
        for number in self.table.keys() {
            if let Some(srq) = self.get(reading, number) {
                srq.end_if_overflowed(events);
            }
        }
    }
}

/// Response of a TGT to a packet that names an SRQ outside the TGT's domain (contract G7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownSrq {
    /// NAK 0x64, invalid RD request; the TGT goes to ERR.
    #[default]
    Nak64,
    /// NAK 0x62, remote access error; the TGT goes to ERR.
    Nak62,
    /// The packet is dropped; the peer runs out of retries.
    Drop,
}

impl UnknownSrq {
    /// Returns the placement with which the responder answers the packet.
    pub(in crate::device) fn placement(self) -> Placement {
        match self {
            Self::Nak64 => Placement::Nak(NakCode::INVALID_RD_REQUEST),
            Self::Nak62 => Placement::Nak(NakCode::REMOTE_ACCESS),
            Self::Drop => Placement::Drop,
        }
    }
}
