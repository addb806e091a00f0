//! Event channels, and the rule by which a thread waits at one.

use super::host::host;
use crate::abi::*;
use crate::border::{Errno, guarded, object};
use crate::verbs::events::lock;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_verbs::{CmChannel, CmEvent, Device};

/// A channel as C holds it.
#[repr(C)]
pub(super) struct ChannelObject {
    base: UnsafeCell<rdma_event_channel>,
    pub(super) inner: Arc<dyn CmChannel>,
    /// Held while an event is taken and turned into C's: what a later event is about must be
    /// known by then, whichever thread takes it.
    turn: Mutex<()>,
    /// Threads in [`Self::next`].
    waiting: AtomicUsize,
}

impl ChannelObject {
    fn new() -> Result<Self, Errno> {
        let inner = host().device()?.connection_manager().create_channel()?;
        // Programs decide whether to wait, by this flag; nothing of ours waits in the descriptor.
        let flags = OFlag::from_bits_retain(fcntl(inner.as_fd(), FcntlArg::F_GETFL)?);
        fcntl(inner.as_fd(), FcntlArg::F_SETFL(flags.difference(OFlag::O_NONBLOCK)))?;
        let fd = inner.as_fd().as_raw_fd();
        let base = UnsafeCell::new(rdma_event_channel { fd });
        Ok(Self { base, inner, turn: Mutex::new(()), waiting: AtomicUsize::new(0) })
    }

    /// Puts a new channel where C can hold it.
    pub(super) fn create() -> Result<*mut rdma_event_channel, Errno> {
        Ok(Box::into_raw(Box::new(Self::new()?)).cast())
    }

    /// The channel behind a pointer of the program.
    ///
    /// # Safety
    /// The channel is not destroyed.
    pub(super) unsafe fn of<'a>(pointer: *mut rdma_event_channel) -> Result<&'a Self, Errno> {
        // SAFETY: the channels that programs hold stand first in a ChannelObject.
        unsafe { pointer.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)
    }

    /// Ends a channel. Ids that report to it keep what they need of it. A thread that waits at it goes on
    /// waiting, for good, as it does in the kernel: rping ends with one. The channel stays for its sake.
    ///
    /// # Safety
    /// The channel is not destroyed, and the program uses it no more.
    pub(super) unsafe fn destroy(pointer: *mut rdma_event_channel) {
        // SAFETY: the caller's promise.
        let waiting = unsafe { pointer.cast::<Self>().as_ref() }.map(|channel| &channel.waiting);
        if waiting.is_some_and(|waiting| waiting.load(Ordering::SeqCst) == 0) {
            // SAFETY: it was made by `create`, and nobody is inside; the caller's promise for the rest.
            drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
        }
    }

    /// Takes events until `take` makes something of one, waiting if the program has not set
    /// `O_NONBLOCK`.
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

/// Makes a channel.
#[unsafe(export_name = "trunkline_rdma_create_event_channel")]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object(ChannelObject::create)
}

/// Ends a channel, whose ids are destroyed or moved elsewhere.
///
/// # Safety
/// The channel is not destroyed, and the program uses it no more.
#[unsafe(export_name = "trunkline_rdma_destroy_event_channel")]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's promise.
    guarded((), || unsafe { ChannelObject::destroy(channel) });
}
