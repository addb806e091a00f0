//! The address thread, which concurrently resolves the addresses of any number of peers.

use super::super::address::CAddress;
use super::super::endpoint::RawId;
use super::super::error::{Asked, check, last};
use super::super::event;
use super::super::id::RESOLVE_MS;
use super::{Inner, Way};
use crate::context::unblock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdma_sys::rdma_port_space::RDMA_PS_TCP;
use rdma_sys::{
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_event_channel,
    rdma_get_cm_event, rdma_resolve_addr,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use trunkline_verbs::VerbsError;
use trunkline_verbs::descriptors::HeldStdio;

/// State of the address thread, with the ids that are resolving addresses.
pub(super) struct AddressThread {
    channel: NonNull<rdma_event_channel>,
    ids: HashMap<u64, (RawId, Way)>,
    last: u64,
}

impl AddressThread {
    /// Resolves addresses until the manager is dropped. Runs on the thread.
    pub(super) fn run(inner: &Arc<Inner>) {
        let held = HeldStdio::take().map_err(VerbsError::from);
        // SAFETY: the function has no requirements.
        let make =
            |_held| NonNull::new(unsafe { rdma_create_event_channel() }).ok_or_else(|| last(Asked::Create));
        let made = held.and_then(make);
        // SAFETY: the channel is not destroyed before this value, and its descriptor is open as long.
        let ready = made.and_then(|channel| unblock(unsafe { channel.as_ref() }.fd).map(|()| channel));
        let mut addresses = ready.map(|channel| Self { channel, ids: HashMap::new(), last: 0 });
        loop {
            let ways: Vec<Way> = {
                let mut work = inner.work();
                if work.has_ended {
                    break;
                }
                work.unknown.drain(..).collect()
            };
            for way in ways {
                let begun = match &mut addresses {
                    Ok(addresses) => addresses.begin(way),
                    Err(error) => Err(*error),
                };
                if let Err(error) = begun {
                    inner.resolved(way, Err(error));
                }
            }
            if let Ok(addresses) = &mut addresses {
                while let Some((way, outcome)) = addresses.next() {
                    inner.resolved(way, outcome);
                }
            }
            let mut waited = vec![PollFd::new(inner.for_addresses.as_fd(), PollFlags::POLLIN)];
            if let Ok(addresses) = &addresses {
                waited.push(PollFd::new(addresses.descriptor(), PollFlags::POLLIN));
            }
            // An interruption by a signal is handled like an event.
            let _ = poll(&mut waited, PollTimeout::NONE);
            let _ = inner.for_addresses.read();
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is not destroyed before this value, and its descriptor is open as long.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Starts resolving a peer's address.
    fn begin(&mut self, way: Way) -> Result<(), VerbsError> {
        self.last += 1;
        let context = without_provenance_mut(usize::try_from(self.last).unwrap_or(0));
        let mut raw = null_mut();
        // SAFETY: the channel is destroyed after its ids, and the result is local.
        check(Asked::Create, unsafe {
            rdma_create_id(self.channel.as_ptr(), &raw mut raw, context, RDMA_PS_TCP)
        })?;
        let raw = RawId::new(raw).ok_or(VerbsError::Gone)?;
        self.ids.insert(self.last, (raw, way));
        let (remote, source) =
            (CAddress::from(way.0), way.1.map(|ip| CAddress::from(SocketAddr::new(ip, 0))));
        let from = source.as_ref().map_or(null_mut(), CAddress::pointer);
        // SAFETY: only this thread uses the id, and the addresses are local. The id is not synchronous, so
        // the call does not wait.
        let begun = check(Asked::Resolve, unsafe {
            rdma_resolve_addr(raw.pointer(), from.cast(), remote.pointer().cast(), RESOLVE_MS)
        });
        begun.inspect_err(|_| self.end(self.last))
    }

    /// Returns the next outcome, and destroys the id that resolved the address. Returns `None` if no outcome is available.
    fn next(&mut self) -> Option<(Way, Result<(), VerbsError>)> {
        loop {
            let mut event = null_mut();
            // SAFETY: the channel is not destroyed, and the result is local. Its descriptor does not block.
            if unsafe { rdma_get_cm_event(self.channel.as_ptr(), &raw mut event) } != 0 {
                return None;
            }
            // SAFETY: the event was returned above, and is not used after this.
            let copied = unsafe { event::take(NonNull::new(event)?) };
            let way = self.ids.get(&copied.number).map(|(_, way)| *way);
            self.end(copied.number);
            if let Some(way) = way {
                return Some((way, copied.resolved()));
            }
        }
    }

    fn end(&mut self, number: u64) {
        if let Some((raw, _)) = self.ids.remove(&number) {
            // SAFETY: only this thread uses the id, and it has acknowledged the id's events.
            unsafe { raw.destroy() };
        }
    }
}

impl Drop for AddressThread {
    fn drop(&mut self) {
        #[expect(clippy::iter_over_hash_type, reason = "the ids do not depend on each other")]
        for (_, (raw, _)) in self.ids.drain() {
            // SAFETY: only this thread uses the id, and it has acknowledged the id's events.
            unsafe { raw.destroy() };
        }
        // SAFETY: its ids are destroyed.
        unsafe { rdma_destroy_event_channel(self.channel.as_ptr()) };
    }
}
