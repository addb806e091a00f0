//! Shared receive queues of the card.
//!
//! Owns their posted requests and limits; the verbs objects post, the targets take.

use super::Card;
use crate::device::cq_ring::CqRing;
use crate::device::domain_table::Domain;
use crate::device::keys::PdNumber;
use crate::device::limits::MAX_SRQS;
use crate::device::receive_queue::ReceiveQueue;
use std::sync::Arc;
use trunkline_verbs::{PostError, ReceiveRequest, SrqAttributes, VerbsError};

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
pub(in crate::device) struct SrqState {
    /// Posted requests.
    pub(super) queue: ReceiveQueue,
    /// Domain of lkeys, and of rkeys of messages that name it (contract G4, G5).
    pub(super) pd: PdNumber,
    /// `None` for a basic one.
    pub(super) xrc: Option<XrcSide>,
    /// One event when fewer are posted; 0 is disarmed.
    pub(super) limit: u32,
    /// Returned in events.
    pub(super) context: u64,
}

impl Card {
    /// Makes an SRQ; answers its number.
    pub(in crate::device) fn create_srq(
        &mut self,
        queue: ReceiveQueue,
        pd: PdNumber,
        xrc: Option<XrcSide>,
        context: u64,
    ) -> Result<u32, VerbsError> {
        self.present()?;
        if self.srqs.len() >= MAX_SRQS {
            return Err(VerbsError::OutOfResources("the device holds no more SRQs"));
        }
        let number = self.srq_numbers.take(|number| self.srqs.contains(number))?;
        self.srqs.insert(number, SrqState { queue, pd, xrc, limit: 0, context });
        Ok(number)
    }

    /// Forgets an SRQ and what is posted in it (contract D9).
    pub(in crate::device) fn destroy_srq(&mut self, number: u32) {
        if self.srqs.remove(number).is_some() {
            self.srq_numbers.free(number);
        }
    }

    fn srq(&mut self, number: u32) -> Result<&mut SrqState, VerbsError> {
        self.srqs.get_mut(number).ok_or(VerbsError::Gone)
    }

    /// Posts receives.
    pub(in crate::device) fn post_srq(
        &mut self,
        number: u32,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let srq = self.srq(number).map_err(|cause| PostError { index: 0, cause })?;
        post_all(&mut srq.queue, requests)
    }

    /// Sizes and limit.
    pub(in crate::device) fn query_srq(&mut self, number: u32) -> Result<SrqAttributes, VerbsError> {
        let srq = self.srq(number)?;
        let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(SrqAttributes {
            max_wr: count(srq.queue.capacity()),
            max_sge: count(srq.queue.max_sge()),
            limit: srq.limit,
        })
    }

    /// Arms the limit (contract D6).
    pub(in crate::device) fn arm_srq(&mut self, number: u32, limit: u32) -> Result<(), VerbsError> {
        let srq = self.srq(number)?;
        if limit as usize > srq.queue.capacity() {
            return Err(VerbsError::Invalid("the limit is above the size of the SRQ"));
        }
        srq.limit = limit;
        Ok(())
    }

    /// Changes how many requests it can hold (contract D7).
    pub(in crate::device) fn resize_srq(&mut self, number: u32, max_wr: u32) -> Result<(), VerbsError> {
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
