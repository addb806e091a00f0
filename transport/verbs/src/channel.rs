//! Completion channels: how a sleeping thread learns that a CQ has something.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};

/// A file descriptor that becomes readable when an armed CQ of the channel gets a completion.
///
/// Use: arm with [`crate::CompletionQueue::request_notify`], poll the CQ once more (an entry may
/// have come before the arming), then wait on the descriptor; when it is readable drain
/// [`CompletionChannel::next_event`] until `None`. The descriptor is non-blocking.
pub trait CompletionChannel: Any + AsFd + Send + Sync + Debug {
    /// Takes one event: the `context` of the CQ that fired. `None` when there is none now.
    fn next_event(&self) -> Option<u64>;

    /// Whether the descriptor is readable now. A simulation asks, where a thread would sleep on it.
    fn has_event(&self) -> bool {
        is_readable(self.as_fd())
    }

    /// Drops the waiting events of CQs with this `context`, after such a CQ was destroyed.
    fn forget(&self, context: u64);
}

/// Whether a descriptor is readable now. One that cannot be asked counts as readable, so that its
/// owner looks and finds the error.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut set = [PollFd::new(fd, PollFlags::POLLIN)];
    !matches!(poll(&mut set, PollTimeout::ZERO), Ok(0))
}
