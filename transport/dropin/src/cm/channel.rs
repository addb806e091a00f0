//! Event channels, and waits for their events.

use super::host::host;
use crate::abi::*;
use crate::border::{Errno, Handle, Structure, guarded, hand_out, object};
use crate::verbs::events::lock;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_verbs::{CmChannel, CmEvent, Device};

/// A channel that belongs to the program or to a synchronous id.
pub(super) type Channel<'a> = Handle<'a, rdma_event_channel>;

/// An event channel.
#[repr(C)]
pub(crate) struct ChannelObject {
    base: UnsafeCell<rdma_event_channel>,
    pub(super) inner: Arc<dyn CmChannel>,
    /// Locked while an event is taken and converted to C. Another thread may take the next event, which may belong to the
    /// id that the current event creates.
    turn: Mutex<()>,
    /// The number of threads in [`Self::next`].
    waiting: AtomicUsize,
}

// SAFETY: `ChannelObject` is `repr(C)` and begins with `base`.
unsafe impl Structure for rdma_event_channel {
    type Object = ChannelObject;
}

impl ChannelObject {
    fn new() -> Result<Self, Errno> {
        let inner = host().device()?.connection_manager().create_channel()?;
        // Blocking is the default in C, and the program may change it. The library does not block on the descriptor.
        let flags = OFlag::from_bits_retain(fcntl(inner.as_fd(), FcntlArg::F_GETFL)?);
        fcntl(inner.as_fd(), FcntlArg::F_SETFL(flags.difference(OFlag::O_NONBLOCK)))?;
        let fd = inner.as_fd().as_raw_fd();
        let base = UnsafeCell::new(rdma_event_channel { fd });
        Ok(Self { base, inner, turn: Mutex::new(()), waiting: AtomicUsize::new(0) })
    }

    /// Creates a channel.
    pub(super) fn create<'a>() -> Result<Channel<'a>, Errno> {
        Ok(hand_out(Self::new()?))
    }

    /// Takes events until `take` returns a value for one of them. Waits for events unless the program has set `O_NONBLOCK`.
    pub(super) fn next<T>(&self, take: impl FnMut(CmEvent) -> Option<T>) -> Result<T, Errno> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = self.wait(take);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    fn wait<T>(&self, mut take: impl FnMut(CmEvent) -> Option<T>) -> Result<T, Errno> {
        loop {
            {
                let _turn = lock(&self.turn);
                while let Some(event) = self.inner.next_event() {
                    if let Some(taken) = take(event) {
                        return Ok(taken);
                    }
                }
            }
            let fd = self.inner.as_fd();
            let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
            if flags.contains(OFlag::O_NONBLOCK) {
                return Err(Errno::EAGAIN);
            }
            poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE)?;
        }
    }
}

/// Destroys a channel. Its ids keep the parts of the channel that they need. As in the kernel, a thread that waits for
/// events of the channel is not woken; rping exits with such a thread. In this case the channel remains allocated.
///
/// # Safety
/// The channel is alive, and neither the program nor an id uses it after this.
pub(super) unsafe fn destroy(channel: Channel<'_>) {
    if channel.waiting.load(Ordering::SeqCst) == 0 {
        // SAFETY: this function's contract, and no thread uses the channel.
        unsafe { channel.release() };
    }
}

/// `rdma_create_event_channel(3)`.
#[unsafe(export_name = "trunkline_rdma_create_event_channel")]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object(|| Ok(ChannelObject::create()?.as_ptr()))
}

/// `rdma_destroy_event_channel(3)`: the program has destroyed the channel's ids or moved them to other channels.
///
/// # Safety
/// The channel is not destroyed, and the program does not use it after this.
#[unsafe(export_name = "trunkline_rdma_destroy_event_channel")]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the program upholds this function's contract.
    guarded((), || unsafe {
        if let Some(channel) = Handle::optional(channel) {
            destroy(channel);
        }
    });
}
