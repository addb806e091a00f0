//! Completion queues.
//!
//! Entries are read into a batch on the stack and then converted.

use crate::channel::Channel;
use crate::context::Opened;
use crate::convert::completion;
use crate::error::{Doing, check, check_destroy, last};
use crate::handle::{Handle, dropped};
use crate::inlines;
use rdma_sys::{ibv_cq, ibv_create_cq, ibv_destroy_cq, ibv_resize_cq, ibv_wc};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_verbs::{AsyncSubject, Completion, CompletionQueue, Notify, VerbsError};

/// Number of entries that are read from the device in one call. They use 1.5 KiB of stack.
const BATCH: usize = 32;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    handle: Handle<ibv_cq>,
    channel: Option<Arc<Channel>>,
    max_cqe: u32,
    capacity_cqe: Mutex<u32>,
    opened: Arc<Opened>,
}

impl Cq {
    pub(crate) fn new(
        opened: Arc<Opened>,
        capacity_cqe: u32,
        max_cqe: u32,
        channel: Option<Arc<Channel>>,
        number: u64,
    ) -> Result<Self, VerbsError> {
        let cqe = entries(capacity_cqe, max_cqe)?;
        let number =
            usize::try_from(number).map_err(|_| VerbsError::Invalid("the context exceeds a pointer"))?;
        // C stores the number and returns it in events. It is never used as a pointer.
        let carried = without_provenance_mut::<c_void>(number);
        let make = |channel: *mut _| {
            opened.enter(|| {
                // SAFETY: `opened` keeps the context open, and the channel is null or `Live`.
                let raw = unsafe { ibv_create_cq(opened.raw(), cqe, carried, channel, 0) };
                let raw = NonNull::new(raw).ok_or_else(|| last(Doing::CreateCq))?;
                Ok((raw, AsyncSubject::Cq(number as u64)))
            })
        };
        let raw = match &channel {
            Some(channel) => channel.handle().with(|channel| make(channel.raw()))??,
            None => make(null_mut())?,
        };
        // SAFETY: libibverbs has just created the CQ.
        let got = unsafe { (*raw.as_ptr()).cqe };
        let capacity_cqe = Mutex::new(got.try_into().unwrap_or(capacity_cqe));
        // SAFETY: libibverbs has just created it, and only this value destroys it.
        let handle = unsafe { Handle::new(raw) };
        Ok(Self { handle, channel, max_cqe, capacity_cqe, opened })
    }

    /// Returns the C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_cq> {
        &self.handle
    }

    /// Returns the opening to which the CQ belongs.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

fn entries(capacity_cqe: u32, max_cqe: u32) -> Result<c_int, VerbsError> {
    match c_int::try_from(capacity_cqe) {
        Ok(cqe) if cqe > 0 && capacity_cqe <= max_cqe => Ok(cqe),
        _ => Err(VerbsError::Invalid("the CQ's capacity is 0 or above the device's limit")),
    }
}

impl CompletionQueue for Cq {
    fn poll(&self, completions: &mut [Completion]) -> usize {
        let taken = self.handle.with(|cq| {
            let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
            let mut taken = 0;
            while taken < completions.len() {
                let wanted = BATCH.min(completions.len() - taken);
                let got = inlines::poll_cq(cq, &mut entries[..wanted]);
                let got = usize::try_from(got).unwrap_or(0).min(wanted);
                for (entry, place) in entries[..got].iter().zip(&mut completions[taken..]) {
                    // SAFETY: libibverbs has written as many entries as it returned.
                    *place = completion(unsafe { entry.assume_init_ref() });
                }
                taken += got;
                if got < wanted {
                    break;
                }
            }
            taken
        });
        taken.unwrap_or(0)
    }

    fn request_notify(&self, notify: Notify) -> Result<(), VerbsError> {
        if self.channel.is_none() {
            return Err(VerbsError::Invalid("the CQ has no channel"));
        }
        let status = self.handle.with(|cq| inlines::req_notify_cq(cq, notify == Notify::Solicited))?;
        check(Doing::Query, status)
    }

    fn capacity_cqe(&self) -> u32 {
        *self.capacity_cqe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resize(&self, capacity_cqe: u32) -> Result<(), VerbsError> {
        let cqe = entries(capacity_cqe, self.max_cqe)?;
        let mut capacity_cqe = self.capacity_cqe.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle.with(|cq| {
            // SAFETY: the CQ is `Live`.
            check(Doing::ResizeCq, unsafe { ibv_resize_cq(cq.raw(), cqe) })?;
            // SAFETY: the CQ is `Live`. Only resizing writes the field, and the lock excludes concurrent resizing.
            *capacity_cqe = unsafe { (*cq.raw()).cqe }.try_into().unwrap_or(0);
            Ok(())
        })?
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.handle.destroy(
            // SAFETY: the CQ is `Live`. If the call succeeds, `Handle::destroy` clears the pointer, so the
            // CQ is not used afterwards.
            |cq| self.opened.leave(cq.raw(), |cq| unsafe { ibv_destroy_cq(cq) }),
            |errno| check_destroy(errno, "an SRQ or a QP completes into this CQ"),
        )
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        dropped("a completion queue", self.destroy());
    }
}
