//! Where endpoints report.
//!
//! Owns an event channel of librdmacm and knows the descriptors of synchronous listeners, all of
//! them non-blocking and behind one epoll descriptor, which programs wait for.

use super::endpoint::RawId;
use super::error::{Asked, check, last};
use super::event::{self, Copied};
use super::manager::{Shared, Table};
use super::{bring_up, id::Id};
use crate::context::unblock;
use crate::diagnosis;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdma_sys::rdma_cm_event_type as code;
use rdma_sys::{
    rdma_create_event_channel, rdma_destroy_event_channel, rdma_disconnect, rdma_establish,
    rdma_event_channel, rdma_get_cm_event, rdma_get_request, rdma_migrate_id,
};
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use trunkline_verbs::{CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, QpState, VerbsError};

/// Descriptors that are looked at in one go.
const READY: usize = 16;
/// In epoll, the event channel. Listeners go by their numbers, which begin at 1.
const EVENT_CHANNEL: u64 = 0;

/// A channel.
pub(super) struct Channel {
    raw: NonNull<rdma_event_channel>,
    epoll: Epoll,
    /// Counts up, so that no listener always has to wait for the others.
    turn: AtomicUsize,
    shared: Arc<Shared>,
}

// SAFETY: librdmacm's channels may be used from any thread; events are taken under the manager's lock.
unsafe impl Send for Channel {}
// SAFETY: as for Send.
unsafe impl Sync for Channel {}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// A channel of this manager, from its trait object.
pub(super) fn own_channel(
    shared: &Arc<Shared>,
    channel: &Arc<dyn CmChannel>,
) -> Result<Arc<Channel>, VerbsError> {
    let any: Arc<dyn Any + Send + Sync> = Arc::<dyn CmChannel>::clone(channel);
    any.downcast::<Channel>()
        .ok()
        .filter(|channel| Arc::ptr_eq(&channel.shared, shared))
        .ok_or(VerbsError::Invalid("the channel belongs to another device"))
}

/// What became of an attempt to take an event.
enum Taken {
    /// There was none.
    Nothing,
    /// There was one that programs are not told of.
    Untold,
    Event(CmEvent),
}

impl Channel {
    pub(super) fn new(shared: &Arc<Shared>) -> Result<Self, VerbsError> {
        // SAFETY: nothing is asked of the caller.
        let raw = unsafe { rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| diagnosis::of(last(Asked::Create)))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from);
        let epoll = epoll.inspect_err(|_| {
            // SAFETY: it was made right now, and nobody else has it.
            unsafe { rdma_destroy_event_channel(raw.as_ptr()) };
        })?;
        let channel = Self { raw, epoll, turn: AtomicUsize::new(0), shared: Arc::clone(shared) };
        channel.watch(channel.event_descriptor(), EVENT_CHANNEL)?;
        Ok(channel)
    }

    /// librdmacm's channel, which lives as long as this value.
    pub(super) fn raw(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }

    /// Makes a descriptor non-blocking and part of what programs wait for.
    fn watch(&self, descriptor: BorrowedFd<'_>, token: u64) -> Result<(), VerbsError> {
        unblock(descriptor.as_raw_fd())?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
        Ok(self.epoll.add(descriptor, event).map_err(io::Error::from)?)
    }

    /// Reads requests from a synchronous listener from now on. The caller holds the lock.
    pub(super) fn listen_at(&self, number: u64, raw: RawId) -> Result<(), VerbsError> {
        // SAFETY: a synchronous id has a channel of its own; the lock keeps the id.
        self.watch(unsafe { own_descriptor(raw) }, number)
    }

    /// Reads no requests from a synchronous listener any more. The caller holds the lock.
    pub(super) fn forget_listener(&self, raw: RawId) {
        // SAFETY: as above.
        let descriptor = unsafe { own_descriptor(raw) };
        // It fails where `listen_at` had failed.
        let _ = self.epoll.delete(descriptor);
    }

    /// Lets an id report here; what waits for it moves along. The caller holds the lock.
    pub(super) fn take_in(&self, raw: RawId) -> Result<(), VerbsError> {
        // SAFETY: the lock keeps the id; the channel lives as long as its ids, by their entries.
        check(Asked::Create, unsafe { rdma_migrate_id(raw.pointer(), self.raw()) })?;
        // The kernel wakes nobody for events that moved, so the descriptor is looked at anew.
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, EVENT_CHANNEL);
        Ok(self.epoll.modify(self.event_descriptor(), &mut event).map_err(io::Error::from)?)
    }

    fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: librdmacm keeps the descriptor open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    fn next(&self, table: &mut Table) -> Option<CmEvent> {
        // What goes on comes before what is new: a flood of requests must not hold up answers.
        loop {
            match self.next_of_channel(table) {
                Taken::Event(event) => return Some(event),
                Taken::Untold => {}
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
                    Taken::Untold => {}
                    Taken::Nothing => break,
                }
            }
        }
        None
    }

    fn next_of_channel(&self, table: &mut Table) -> Taken {
        let mut event = null_mut();
        // SAFETY: the channel is alive, its descriptor does not block, the place is ours.
        if unsafe { rdma_get_cm_event(self.raw(), &raw mut event) } != 0 {
            return self.nothing("an event channel");
        }
        let Some(event) = NonNull::new(event) else { return Taken::Nothing };
        // SAFETY: it was taken right now; an event's new id lives until it is destroyed.
        let (copied, subject) = unsafe { (event::copy(event), event.as_ref().id) };
        // SAFETY: as above; nobody uses it after.
        unsafe { rdma_sys::rdma_ack_cm_event(event.as_ptr()) };
        if copied.code != code::RDMA_CM_EVENT_CONNECT_REQUEST {
            return told(table, copied);
        }
        // The new id reports where its listener does: here.
        match RawId::new(subject) {
            Some(new) => self.requested(table, new, copied, false),
            None => Taken::Untold,
        }
    }

    fn next_of_listener(&self, table: &mut Table, listener: u64) -> Taken {
        let Some(raw) =
            table.entries.get(&listener).filter(|entry| entry.is_synchronous).map(|entry| entry.raw)
        else {
            return Taken::Nothing;
        };
        let mut new = null_mut();
        // SAFETY: the lock keeps the listener; its descriptor does not block, the place is ours.
        if unsafe { rdma_get_request(raw.pointer(), &raw mut new) } != 0 {
            // What was no request stays with the listener until the next attempt.
            // SAFETY: the lock keeps the listener, and that its event.
            let other = unsafe { NonNull::new((*raw.pointer()).event).map(|event| event::copy(event)) };
            return match other {
                Some(copied) => told(table, Copied { number: listener, ..copied }),
                None => self.nothing("a listener"),
            };
        }
        let Some(new) = RawId::new(new) else { return Taken::Untold };
        // SAFETY: a request leaves its event with the new id, until that is moved or destroyed.
        let copied = unsafe { NonNull::new((*new.pointer()).event).map(|event| event::copy(event)) };
        match copied {
            Some(copied) => self.requested(table, new, Copied { number: listener, ..copied }, true),
            None => {
                // SAFETY: nobody else knows it.
                unsafe { new.destroy() };
                Taken::Untold
            }
        }
    }

    fn nothing(&self, what: &str) -> Taken {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            tracing::debug!(%error, "reading {what}");
        }
        Taken::Nothing
    }

    /// Makes an endpoint of a request.
    fn requested(&self, table: &mut Table, new: RawId, copied: Copied, moves: bool) -> Taken {
        let listener = table.entries.get(&copied.number);
        let listener = listener.map(|listener| (listener.qp_type, Arc::clone(&listener.channel)));
        // A listener at every address is asked at other devices, too.
        // SAFETY: nobody else knows the new id.
        let fits = unsafe { self.shared.is_ours(new) };
        let taken_in = match listener {
            Some((qp_type, channel)) if fits => {
                // SAFETY: as above, and the lock is held.
                let number = unsafe { self.shared.enter(table, new, Arc::clone(&channel), qp_type, false) };
                if moves { channel.take_in(new).map(|()| number) } else { Ok(number) }
                    .inspect_err(|_| drop(table.entries.remove(&number)))
            }
            Some(_) => Err(VerbsError::NoDevice),
            None => Err(VerbsError::Gone),
        };
        match taken_in {
            Ok(number) => {
                let id: Arc<dyn CmId> = Arc::new(Id::new(number, Arc::clone(&self.shared)));
                let kind = CmEventKind::ConnectRequest { id, parameters: copied.parameters };
                let id = CmIdNumber(copied.number);
                Taken::Event(CmEvent { id, kind, private_data: copied.private_data })
            }
            Err(error) => {
                tracing::debug!(%error, "a request is not taken in");
                // The kernel refuses it.
                // SAFETY: nobody else knows it, and its event is acknowledged, or goes with it.
                unsafe { new.destroy() };
                Taken::Untold
            }
        }
    }
}

/// What a program is told of an event of an endpoint.
fn told(table: &mut Table, copied: Copied) -> Taken {
    // Its program may have dropped it in the meantime.
    let Some(entry) = table.entries.get_mut(&copied.number) else { return Taken::Untold };
    let (raw, qp) = (entry.raw, entry.qp.clone());
    let kind = if copied.code == code::RDMA_CM_EVENT_CONNECT_RESPONSE {
        match qp {
            None => Some(CmEventKind::ConnectResponse { parameters: copied.parameters }),
            Some(qp) => Some(match finish(raw, &qp) {
                Ok(()) => CmEventKind::Established,
                Err(error) => {
                    tracing::debug!(%error, "bringing a connection up");
                    bring_up::to_error(&qp);
                    entry.has_failed = true;
                    CmEventKind::ConnectError
                }
            }),
        }
    } else {
        let kind = copied.kind();
        let is_peers_view = matches!(kind, Some(CmEventKind::Rejected(_) | CmEventKind::Disconnected));
        if is_peers_view && entry.has_failed {
            return Taken::Untold;
        }
        if let (true, Some(qp)) = (is_peers_view, qp) {
            bring_up::to_error(&qp);
        }
        if matches!(kind, Some(CmEventKind::Disconnected)) {
            // The peer waits for an answer, which the kernel leaves to us. Where it was the peer's own
            // answer, this does nothing.
            // SAFETY: the caller holds the lock, and so the id; its channel is not its own, so nothing
            // waits.
            let _ = unsafe { rdma_disconnect(raw.pointer()) };
        }
        kind
    };
    match kind {
        Some(kind) => {
            Taken::Event(CmEvent { id: CmIdNumber(copied.number), kind, private_data: copied.private_data })
        }
        None => {
            tracing::debug!(code = copied.code, "an event of an endpoint that nobody is told of");
            Taken::Untold
        }
    }
}

/// The peer has accepted: brings the QP up and tells the peer.
fn finish(raw: RawId, qp: &crate::qp::Qp) -> Result<(), VerbsError> {
    // INIT once more: before it has asked, the kernel's connection manager grants the peer nothing.
    let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    bring_up::through(raw, qp, &states, bring_up::Limits::default())?;
    // SAFETY: the caller holds the lock, and so the id.
    check(Asked::Connect, unsafe { rdma_establish(raw.pointer()) })
}

/// The descriptor of a synchronous id.
///
/// # Safety
/// The id is alive for as long as the result is used.
unsafe fn own_descriptor<'a>(raw: RawId) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise; a synchronous id's channel lives as long as the id.
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
        // SAFETY: ids hold their channel, so none is left that reports here.
        unsafe { rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
