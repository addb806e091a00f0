//! Completion channels.
//!
//! A sleeping thread waits for the channel's descriptor. A CQ's number is stored in its `cq_context`, so no table is
//! needed. Each event is acknowledged as soon as it is read, because the destruction of a CQ waits for the acknowledgement.

use crate::context::{Opened, unblock};
use crate::error::{Doing, check_destroy, last};
use crate::handle::{Handle, dropped};
use rdma_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use trunkline_verbs::descriptors::HeldStdio;
use trunkline_verbs::{CompletionChannel, VerbsError};

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    handle: Handle<ibv_comp_channel>,
    descriptor: RawFd,
    opened: Arc<Opened>,
}

impl Channel {
    pub(crate) fn new(opened: Arc<Opened>) -> Result<Self, VerbsError> {
        let _held = HeldStdio::take()?;
        // SAFETY: `opened` keeps the context open.
        let raw = unsafe { ibv_create_comp_channel(opened.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| last(Doing::Allocate))?;
        // SAFETY: libibverbs has just created the channel.
        let descriptor = unsafe { (*raw.as_ptr()).fd };
        // SAFETY: libibverbs has just created it, and only this value destroys it.
        let handle = unsafe { Handle::new(raw) };
        let channel = Self { handle, descriptor, opened };
        unblock(descriptor)?;
        Ok(channel)
    }

    /// Returns the C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_comp_channel> {
        &self.handle
    }

    /// Returns the opening to which the channel belongs.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which is destroyed only together with this value.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl CompletionChannel for Channel {
    fn next_event(&self) -> Option<u64> {
        let event = self.handle.with(|channel| {
            let mut cq = null_mut();
            let mut context = null_mut();
            // SAFETY: the channel is `Live`, and both results are local. The call does not block, because `new` has made
            // the descriptor non-blocking.
            if unsafe { ibv_get_cq_event(channel.raw(), &raw mut cq, &raw mut context) } != 0 {
                return None;
            }
            // SAFETY: libibverbs destroys a CQ only after its events are acknowledged, so this CQ is not destroyed.
            unsafe { ibv_ack_cq_events(cq, 1) };
            Some(context.addr() as u64)
        });
        event.ok().flatten()
    }

    /// No-op, because libibverbs discards the events of a destroyed CQ.
    fn forget(&self, _context: u64) {}
}

impl Drop for Channel {
    fn drop(&mut self) {
        let result = self.handle.destroy(
            // SAFETY: the channel is `Live`. If the call succeeds, `Handle::destroy` clears the pointer, so
            // the channel is not used afterwards. CQs hold their channel, so no CQ uses it.
            |channel| unsafe { ibv_destroy_comp_channel(channel.raw()) },
            |errno| check_destroy(errno, "a CQ reports to this channel"),
        );
        dropped("a completion channel", result);
    }
}
