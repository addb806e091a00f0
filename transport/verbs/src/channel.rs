//! Completion channels, which wake a sleeping thread when a completion is added to a CQ.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};

/// A queue of completion events, with a file descriptor that becomes readable when a completion is added to an armed CQ of
/// the channel.
///
/// To sleep, arm the CQ with [`crate::CompletionQueue::request_notify`], poll it once more because a completion may have
/// arrived before arming, then wait on the descriptor. When it is readable, call [`CompletionChannel::next_event`] until it
/// returns `None`. The descriptor is non-blocking.
pub trait CompletionChannel: Any + AsFd + Send + Sync + Debug {
    /// Takes one event and returns the `context` of its CQ, or `None` if the channel is empty.
    fn next_event(&self) -> Option<u64>;

    /// Returns true if the descriptor is readable now. Simulations call this instead of sleeping on the descriptor.
    fn has_event(&self) -> bool {
        is_readable(self.as_fd())
    }

    /// Discards the queued events with this `context`. Called after the CQ is destroyed.
    fn forget(&self, context: u64);
}

/// Returns true if a descriptor is readable now. A descriptor that cannot be polled counts as readable, so
/// that its owner reads from it and gets the error.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut set = [PollFd::new(fd, PollFlags::POLLIN)];
    !matches!(poll(&mut set, PollTimeout::ZERO), Ok(0))
}
