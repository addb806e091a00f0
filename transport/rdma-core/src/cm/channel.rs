//! Event channels of endpoints.
//!
//! A channel consists of a librdmacm event channel and an epoll descriptor. The epoll descriptor monitors the event channel
//! and the descriptors of synchronous listeners. All these descriptors are non-blocking, and programs wait for the epoll
//! descriptor.

use super::endpoint::RawId;
use super::error::{Asked, check, last};
use super::event::{self, Copied};
use super::manager::{CmState, Table};
use super::progress;
use crate::context::unblock;
use crate::diagnosis;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdma_sys::rdma_cm_event_type as code;
use rdma_sys::{
    rdma_create_event_channel, rdma_destroy_event_channel, rdma_event_channel, rdma_get_cm_event,
    rdma_get_request, rdma_migrate_id,
};
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use trunkline_verbs::descriptors::HeldStdio;
use trunkline_verbs::{CmChannel, CmEvent, VerbsError};

/// Number of ready descriptors read per call.
const READY: usize = 16;
/// Epoll token of the event channel. A listener's token is its number, which is at least 1.
const EVENT_CHANNEL: u64 = 0;

/// A channel.
pub(super) struct Channel {
    raw: NonNull<rdma_event_channel>,
    epoll: Epoll,
    /// Number of reads so far. Each read begins with another listener, so that no listener starves.
    turn: AtomicUsize,
    shared: Arc<CmState>,
}

// SAFETY: librdmacm lets any thread use a channel; events are taken with the manager's lock held.
unsafe impl Send for Channel {}
// SAFETY: librdmacm lets several threads use a channel; the manager's lock allows one read at a time.
unsafe impl Sync for Channel {}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// Converts a trait object to a channel of this connection manager.
pub(super) fn own_channel(
    shared: &Arc<CmState>,
    channel: &Arc<dyn CmChannel>,
) -> Result<Arc<Channel>, VerbsError> {
    let any: Arc<dyn Any + Send + Sync> = Arc::<dyn CmChannel>::clone(channel);
    any.downcast::<Channel>()
        .ok()
        .filter(|channel| Arc::ptr_eq(&channel.shared, shared))
        .ok_or(VerbsError::Invalid("the channel belongs to another device"))
}

/// The result of reading a descriptor.
pub(super) enum Taken {
    /// No event was available.
    Nothing,
    /// The event is not reported to programs.
    Ignored,
    Event(CmEvent),
}

impl Channel {
    pub(super) fn new(shared: &Arc<CmState>) -> Result<Self, VerbsError> {
        let _held = HeldStdio::take()?;
        // SAFETY: the function has no requirements.
        let raw = unsafe { rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| diagnosis::of(last(Asked::Create)))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from);
        let epoll = epoll.inspect_err(|_| {
            // SAFETY: it was created above and is not shared.
            unsafe { rdma_destroy_event_channel(raw.as_ptr()) };
        })?;
        let channel = Self { raw, epoll, turn: AtomicUsize::new(0), shared: Arc::clone(shared) };
        channel.watch(channel.event_descriptor(), EVENT_CHANNEL)?;
        Ok(channel)
    }

    /// Returns librdmacm's channel, which is destroyed when this value is dropped.
    pub(super) fn raw(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }

    /// Makes a descriptor non-blocking and adds it to the epoll descriptor.
    fn watch(&self, descriptor: BorrowedFd<'_>, token: u64) -> Result<(), VerbsError> {
        unblock(descriptor.as_raw_fd())?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        Ok(self.epoll.add(descriptor, event).map_err(io::Error::from)?)
    }

    /// Starts reading requests from a synchronous listener. The caller holds the lock.
    pub(super) fn listen_at(&self, number: u64, raw: RawId) -> Result<(), VerbsError> {
        // SAFETY: the id is synchronous, and the lock is held, so it is not destroyed.
        self.watch(unsafe { own_descriptor(raw) }, number)
    }

    /// Stops reading requests from a synchronous listener. The caller holds the lock.
    pub(super) fn forget_listener(&self, raw: RawId) {
        // SAFETY: as in `listen_at`.
        let descriptor = unsafe { own_descriptor(raw) };
        // This fails only if `listen_at` has failed.
        let _ = self.epoll.delete(descriptor);
    }

    /// Moves an id and its unread events to this channel. The caller holds the lock.
    pub(super) fn take_in(&self, raw: RawId) -> Result<(), VerbsError> {
        // SAFETY: the lock is held, so the id is not destroyed; table entries hold their channel.
        check(Asked::Create, unsafe { rdma_migrate_id(raw.pointer(), self.raw()) })?;
        // The kernel does not wake waiters for moved events, so make epoll check the descriptor again.
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, EVENT_CHANNEL);
        Ok(self.epoll.modify(self.event_descriptor(), &mut event).map_err(io::Error::from)?)
    }

    fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as librdmacm's channel.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    fn next(&self, table: &mut Table) -> Option<CmEvent> {
        // Read events of endpoints first, so that a flood of requests does not delay them.
        loop {
            match self.next_of_channel(table) {
                Taken::Event(event) => return Some(event),
                Taken::Ignored => {}
                Taken::Nothing => break,
            }
        }
        let mut ready = [EpollEvent::empty(); READY];
        let count = self.epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for index in 0..count {
            let listener = ready[(index + turn) % count].data();
            if listener == EVENT_CHANNEL {
                continue;
            }
            loop {
                match self.next_of_listener(table, listener) {
                    Taken::Event(event) => return Some(event),
                    Taken::Ignored => {}
                    Taken::Nothing => break,
                }
            }
        }
        None
    }

    fn next_of_channel(&self, table: &mut Table) -> Taken {
        let mut event = null_mut();
        // SAFETY: the channel is not destroyed, and the result is local. The descriptor does not block.
        if unsafe { rdma_get_cm_event(self.raw(), &raw mut event) } != 0 {
            return self.nothing("event channel");
        }
        let Some(event) = NonNull::new(event) else { return Taken::Nothing };
        // SAFETY: the event was returned above and is not acknowledged yet.
        let (copied, subject) = unsafe { (event::copy(event), event.as_ref().id) };
        // SAFETY: the event was returned above, is acknowledged once, and is not used after this.
        unsafe { rdma_sys::rdma_ack_cm_event(event.as_ptr()) };
        if copied.code != code::RDMA_CM_EVENT_CONNECT_REQUEST {
            return progress::event(table, copied);
        }
        // The new id uses the channel of its listener, which is this channel.
        match RawId::new(subject) {
            Some(new) => progress::request(&self.shared, table, new, copied, false),
            None => Taken::Ignored,
        }
    }

    fn next_of_listener(&self, table: &mut Table, listener: u64) -> Taken {
        let Some(raw) =
            table.entries.get(&listener).filter(|entry| entry.is_synchronous).map(|entry| entry.raw)
        else {
            return Taken::Nothing;
        };
        let mut new = null_mut();
        // SAFETY: the lock is held, so the listener is not destroyed; the result is local. The descriptor
        // does not block.
        if unsafe { rdma_get_request(raw.pointer(), &raw mut new) } != 0 {
            // Until the next call, the listener keeps an event that is not a request. SAFETY: the lock is held, so neither
            // the listener nor that event is freed.
            let other = unsafe { NonNull::new((*raw.pointer()).event).map(|event| event::copy(event)) };
            return match other {
                Some(copied) => progress::event(table, Copied { number: listener, ..copied }),
                None => self.nothing("listener"),
            };
        }
        let Some(new) = RawId::new(new) else { return Taken::Ignored };
        // SAFETY: librdmacm keeps the event in the new id until the id is migrated or destroyed.
        let copied = unsafe { NonNull::new((*new.pointer()).event).map(|event| event::copy(event)) };
        match copied {
            Some(copied) => {
                let copied = Copied { number: listener, ..copied };
                progress::request(&self.shared, table, new, copied, true)
            }
            None => {
                // SAFETY: librdmacm has just returned the id, so no other code uses it.
                unsafe { new.destroy() };
                Taken::Ignored
            }
        }
    }

    fn nothing(&self, what: &str) -> Taken {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            tracing::debug!(%error, channel = what, "connection events not read");
        }
        Taken::Nothing
    }
}

/// Returns the descriptor of a synchronous id.
///
/// # Safety
/// The id is synchronous, and is not destroyed during `'a`.
unsafe fn own_descriptor<'a>(raw: RawId) -> BorrowedFd<'a> {
    // SAFETY: by this function's contract the id is synchronous and not destroyed, and its channel exists as long as
    // the id.
    unsafe { BorrowedFd::borrow_raw((*(*raw.pointer()).channel).fd) }
}

impl CmChannel for Channel {
    fn next_event(&self) -> Option<CmEvent> {
        self.next(&mut self.shared.table())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: table entries hold their channel, so no id reports to it any more.
        unsafe { rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
