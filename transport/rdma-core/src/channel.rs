//! Completion channels.
//!
//! Owns the descriptor on which a sleeping thread waits. The context number of a CQ travels in
//! its `cq_context`, so no table is needed, and each event is acknowledged as soon as it was read:
//! the destruction of a CQ waits for just that.

use crate::context::{Opened, unblock};
use crate::error::{Doing, last};
use crate::handle::{Handle, dropped};
use crate::pd::check_destroy;
use rdma_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
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
        // SAFETY: the context is open.
        let raw = unsafe { ibv_create_comp_channel(opened.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| last(Doing::Allocate))?;
        // SAFETY: libibverbs has just made it.
        let descriptor = unsafe { (*raw.as_ptr()).fd };
        let channel = Self { handle: Handle::new(raw), descriptor, opened };
        unblock(descriptor)?;
        Ok(channel)
    }

    /// The C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_comp_channel> {
        &self.handle
    }

    /// Whose it is.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the channel, which is destroyed with this value only.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }
}

impl CompletionChannel for Channel {
    fn next_event(&self) -> Option<u64> {
        let event = self.handle.with(|channel| {
            let mut cq = null_mut();
            let mut context = null_mut();
            // SAFETY: the channel lives and does not block; the two places are ours.
            if unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) } != 0 {
                return None;
            }
            // SAFETY: a CQ is not destroyed before the events that were read of it are
            // acknowledged, so it is alive here.
            unsafe { ibv_ack_cq_events(cq, 1) };
            Some(context.addr() as u64)
        });
        event.ok().flatten()
    }

    /// The events of a CQ vanish with it.
    fn forget(&self, _context: u64) {}
}

impl Drop for Channel {
    fn drop(&mut self) {
        let result = self.handle.destroy(
            // SAFETY: the handle lends a live channel, and takes it as gone when this succeeds. CQs
            // hold their channel, so none is left that would use it.
            |channel| unsafe { ibv_destroy_comp_channel(channel) },
            |errno| check_destroy(errno, "a CQ reports to this channel"),
        );
        dropped("a completion channel", result);
    }
}
