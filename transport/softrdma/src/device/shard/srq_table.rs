//! Shared receive queues.
//!
//! Owns their posted requests and limits; the verbs objects post, the responders take.

use crate::device::async_events::AsyncEvents;
use crate::device::cq_ring::CqRing;
use crate::device::domain_table::{Domain, DomainNumber};
use crate::device::keys::PdNumber;
use crate::device::limits::MAX_SRQS;
use crate::device::numbers::{NumberMap, Numbers};
use crate::device::receive_queue::{ReceiveQueue, Taken};
use std::sync::Arc;
use trunkline_verbs::{
    AsyncEventKind, AsyncSubject, PostError, ReceiveRequest, SrqAttributes, SrqNumber, VerbsError,
};

/// Where the receives of an XRC SRQ belong.
#[derive(Debug)]
pub(in crate::device) struct XrcSide {
    /// Its domain.
    pub(in crate::device) domain: Arc<Domain>,
    /// Where they complete.
    pub(in crate::device) cq: Arc<CqRing>,
}

/// A shared receive queue.
#[derive(Debug)]
struct Srq {
    queue: ReceiveQueue,
    /// Domain of lkeys, and of rkeys of messages that name it (contract G4, G5).
    pd: PdNumber,
    /// `None` for a basic one.
    xrc: Option<XrcSide>,
    /// One event when fewer are posted; 0 is disarmed.
    limit: u32,
    /// Returned in events.
    context: u64,
}

/// The receive queue that a message uses, with what belongs to it.
#[derive(Debug)]
pub(super) struct Receives<'a> {
    queue: &'a mut ReceiveQueue,
    lkey_pd: PdNumber,
    rkey_pd: PdNumber,
    cq: &'a CqRing,
    /// Limit and context of an SRQ.
    limit: Option<(&'a mut u32, u64)>,
}

impl<'a> Receives<'a> {
    /// A queue of a QP's own.
    pub(super) fn own(queue: &'a mut ReceiveQueue, pd: PdNumber, cq: &'a CqRing) -> Self {
        Self { queue, lkey_pd: pd, rkey_pd: pd, cq, limit: None }
    }

    /// Whether it is an SRQ.
    pub(super) fn is_shared(&self) -> bool {
        self.limit.is_some()
    }

    /// The PD that the lkeys of receives belong to.
    pub(super) fn lkey_pd(&self) -> PdNumber {
        self.lkey_pd
    }

    /// The PD that the rkeys of messages belong to.
    pub(super) fn rkey_pd(&self) -> PdNumber {
        self.rkey_pd
    }

    /// Where they complete.
    pub(super) fn cq(&self) -> &'a CqRing {
        self.cq
    }

    /// How many are posted.
    pub(super) fn posted(&self) -> usize {
        self.queue.len()
    }

    /// Takes a receive for a message, and raises the limit event (contract D6); `false` when none is
    /// posted.
    pub(super) fn take(&mut self, taken: &mut Taken, events: &AsyncEvents) -> bool {
        if !self.queue.take(taken) {
            return false;
        }
        if let Some((limit, context)) = &mut self.limit
            && self.queue.len() < **limit as usize
        {
            **limit = 0;
            events.raise(AsyncEventKind::SrqLimitReached, AsyncSubject::Srq(*context));
        }
        true
    }

    /// Takes a receive that is to be flushed; `false` when none is left.
    pub(super) fn take_to_flush(&mut self, taken: &mut Taken) -> bool {
        self.queue.take(taken)
    }
}

/// The SRQs.
#[derive(Debug)]
pub(in crate::device) struct SrqTable {
    srqs: NumberMap<Srq>,
    numbers: Numbers,
}

impl SrqTable {
    pub(super) fn new(numbers: Numbers) -> Self {
        Self { srqs: NumberMap::default(), numbers }
    }

    /// Makes an SRQ; returns its number.
    pub(in crate::device) fn create(
        &mut self,
        queue: ReceiveQueue,
        pd: PdNumber,
        xrc: Option<XrcSide>,
        context: u64,
    ) -> Result<u32, VerbsError> {
        if self.srqs.len() >= MAX_SRQS {
            return Err(VerbsError::OutOfResources("the device holds no more SRQs"));
        }
        let number = self.numbers.take(|number| self.srqs.contains(number))?;
        self.srqs.insert(number, Srq { queue, pd, xrc, limit: 0, context });
        Ok(number)
    }

    /// Forgets an SRQ and what is posted in it (contract D9).
    pub(in crate::device) fn destroy(&mut self, number: u32) {
        if self.srqs.remove(number).is_some() {
            self.numbers.free(number);
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        for number in self.srqs.numbers() {
            self.destroy(number);
        }
    }

    /// A basic SRQ, for a QP with this PD and CQ.
    pub(super) fn basic<'a>(
        &'a mut self,
        number: u32,
        rkey_pd: PdNumber,
        cq: &'a CqRing,
    ) -> Option<Receives<'a>> {
        let Srq { queue, pd, limit, context, .. } = self.srqs.get_mut(number)?;
        Some(Receives { queue, lkey_pd: *pd, rkey_pd, cq, limit: Some((limit, *context)) })
    }

    /// The SRQ that a packet names, if it is in the domain.
    pub(super) fn in_domain(&mut self, srq: Option<SrqNumber>, domain: DomainNumber) -> Option<Receives<'_>> {
        let Srq { queue, pd, xrc, limit, context } = self.srqs.get_mut(srq?.get())?;
        let side = xrc.as_ref().filter(|side| side.domain.number() == domain)?;
        Some(Receives { queue, lkey_pd: *pd, rkey_pd: *pd, cq: &side.cq, limit: Some((limit, *context)) })
    }

    /// The domain of an XRC SRQ.
    pub(in crate::device) fn domain_of(&self, number: SrqNumber) -> Option<&Domain> {
        Some(&*self.srqs.get(number.get())?.xrc.as_ref()?.domain)
    }

    /// Ends the XRC SRQs whose CQ has lost a completion (contract G10): their senders see them as
    /// empty.
    pub(super) fn end_overflowed(&mut self, events: &AsyncEvents) {
        for number in self.srqs.numbers() {
            let Some(srq) = self.srqs.get_mut(number) else { continue };
            let broken = srq.xrc.as_ref().is_some_and(|side| side.cq.is_overflowed());
            if broken && !srq.queue.is_broken() {
                srq.queue.break_off();
                events.raise(AsyncEventKind::SrqError, AsyncSubject::Srq(srq.context));
            }
        }
    }

    fn srq(&mut self, number: u32) -> Result<&mut Srq, VerbsError> {
        self.srqs.get_mut(number).ok_or(VerbsError::Gone)
    }

    /// Posts receives.
    pub(in crate::device) fn post(
        &mut self,
        number: u32,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let srq = self.srq(number).map_err(|cause| PostError { index: 0, cause })?;
        post_all(&mut srq.queue, requests)
    }

    /// Sizes and limit.
    pub(in crate::device) fn query(&mut self, number: u32) -> Result<SrqAttributes, VerbsError> {
        let srq = self.srq(number)?;
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(SrqAttributes {
            max_wr: count(srq.queue.capacity()),
            max_sge: count(srq.queue.max_sge()),
            limit: srq.limit,
        })
    }

    /// Arms the limit (contract D6).
    pub(in crate::device) fn arm(&mut self, number: u32, limit: u32) -> Result<(), VerbsError> {
        let srq = self.srq(number)?;
        if limit as usize > srq.queue.capacity() {
            return Err(VerbsError::Invalid("the limit is above the size of the SRQ"));
        }
        srq.limit = limit;
        Ok(())
    }

    /// Changes how many requests it can hold (contract D7).
    pub(in crate::device) fn resize(&mut self, number: u32, max_wr: u32) -> Result<(), VerbsError> {
        let srq = self.srq(number)?;
        if max_wr < srq.limit {
            return Err(VerbsError::Invalid("the armed limit is above the new size; disarm it first"));
        }
        if !srq.queue.resize(max_wr) {
            return Err(VerbsError::Invalid("more receives are posted than the new size holds"));
        }
        Ok(())
    }
}

/// Posts until one is refused.
pub(super) fn post_all(queue: &mut ReceiveQueue, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
    for (index, request) in requests.iter().enumerate() {
        queue.post(request).map_err(|cause| PostError { index, cause })?;
    }
    Ok(())
}
