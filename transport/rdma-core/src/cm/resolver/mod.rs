//! Threads that resolve peers and create endpoints to them, so that callers do not wait.
//!
//! This module handles requests for endpoints to peers. `rdma_create_ep` waits up to 2 s for an address and up to 2 s for a
//! route. If threads called it for every request, a few unreachable peers would occupy all threads while reachable peers
//! wait. Requests are therefore handled in two steps:
//!
//! ```text
//! begin ─► the address thread: resolves the addresses of any number of peers at once, on one event
//!          channel; the kernel remembers them
//!            │ resolved                                  │ not resolved, or not within 2 s
//!            ▼                                           ▼
//!          ready ─► a maker: rdma_create_ep, now quick   the error, to the caller's `done`
//! ```
//!
//! Unreachable addresses are not passed to the makers. A missing route, which cannot occur on RoCE, occupies one maker for
//! at most 2 s, because only one endpoint to a peer is created at a time.
//!
//! The threads are started when they are first needed. When the manager is dropped, requests that are not yet being handled
//! by a maker fail with [`VerbsError::Gone`]. The drop waits for the threads, including a maker inside `rdma_create_ep`.
//!
//! `address_thread` implements the first step, and `makers` the second.

mod address_thread;
mod makers;

use super::channel::Channel;
use super::manager::CmState;
use address_thread::AddressThread;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use trunkline_verbs::descriptors::HeldStdio;
use trunkline_verbs::internal_thread::{self, InternalThread};
use trunkline_verbs::{EndpointDone, EndpointRequest, VerbsError};

/// Maximum number of threads that call `rdma_create_ep`.
const MAKERS: usize = 4;
/// Maximum number of pending requests for endpoints.
const REQUESTED: usize = 4096;

/// The peer's address, and the local address if the request specifies one.
type Way = (SocketAddr, Option<IpAddr>);

/// A request for an endpoint.
struct Job {
    request: EndpointRequest,
    way: Way,
    channel: Arc<Channel>,
    done: EndpointDone,
}

/// The unfinished requests, and the threads.
#[derive(Default)]
struct Work {
    /// Addresses that are not being resolved yet.
    unknown: VecDeque<Way>,
    /// Requests whose addresses are not resolved yet.
    waiting: HashMap<Way, Vec<Job>>,
    /// Requests for the makers.
    ready: VecDeque<Job>,
    /// Peers to which a maker is currently creating an endpoint.
    busy: HashSet<IpAddr>,
    /// Number of unfinished requests.
    requested: usize,
    idle_makers: usize,
    has_ended: bool,
    address_thread: Option<InternalThread<()>>,
    makers: Vec<InternalThread<()>>,
}

struct Inner {
    shared: Arc<CmState>,
    work: Mutex<Work>,
    for_makers: Condvar,
    for_addresses: EventFd,
}

/// The resolver of a connection manager.
pub(super) struct Resolver {
    /// Created when the first endpoint is requested.
    inner: Mutex<Option<Arc<Inner>>>,
    shared: Arc<CmState>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Resolver {
    pub(super) fn new(shared: Arc<CmState>) -> Self {
        Self { inner: Mutex::new(None), shared }
    }

    /// Resolves the peer, creates the endpoint and calls `done` with it, all on other threads. Does not block.
    pub(super) fn begin(
        &self,
        request: EndpointRequest,
        way: Way,
        channel: Arc<Channel>,
        done: EndpointDone,
    ) {
        let job = Job { request, way, channel, done };
        match self.inner() {
            Ok(inner) => inner.take(job),
            Err(error) => (job.done)(Err(error)),
        }
    }

    fn inner(&self) -> Result<Arc<Inner>, VerbsError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = &*inner {
            return Ok(Arc::clone(inner));
        }
        let _held = HeldStdio::take()?;
        let for_addresses = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| VerbsError::Os(errno as i32))?;
        let made = Arc::new(Inner {
            shared: Arc::clone(&self.shared),
            work: Mutex::default(),
            for_makers: Condvar::new(),
            for_addresses,
        });
        Ok(Arc::clone(inner.insert(made)))
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(inner) = inner else { return };
        let (left, threads) = {
            let mut work = inner.work();
            work.has_ended = true;
            let mut left: Vec<Job> = work.waiting.drain().flat_map(|(_, jobs)| jobs).collect();
            left.extend(work.ready.drain(..));
            let makers = std::mem::take(&mut work.makers);
            (left, work.address_thread.take().into_iter().chain(makers).collect::<Vec<_>>())
        };
        inner.for_makers.notify_all();
        inner.wake_address_thread();
        for job in left {
            (job.done)(Err(VerbsError::Gone));
        }
        for thread in threads {
            // `done` may hold the last reference to the device, so the drop may run on one of the threads.
            if !thread.number().is_current() {
                // The thread's panic has already been printed.
                let _ = thread.join();
            }
        }
    }
}

impl Inner {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_address_thread(&self) {
        // Fails only if the counter is at its maximum. In this case, the thread is awake.
        let _ = self.for_addresses.write(1);
    }

    /// Accepts or refuses a request.
    fn take(self: &Arc<Self>, job: Job) {
        let mut work = self.work();
        if let Err(error) = self.has_room(&mut work) {
            drop(work);
            (job.done)(Err(error));
            return;
        }
        work.requested += 1;
        let way = job.way;
        let jobs = work.waiting.entry(way).or_default();
        jobs.push(job);
        if jobs.len() == 1 {
            work.unknown.push_back(way);
            drop(work);
            self.wake_address_thread();
        }
    }

    fn has_room(self: &Arc<Self>, work: &mut Work) -> Result<(), VerbsError> {
        if work.requested >= REQUESTED {
            return Err(VerbsError::OutOfResources("too many endpoints are being made"));
        }
        if work.address_thread.is_none() {
            let inner = Arc::clone(self);
            let run = move || AddressThread::run(&inner);
            work.address_thread = Some(internal_thread::spawn("trunkline-address", run)?);
        }
        Ok(())
    }

    /// Handles the outcome of resolving an address.
    fn resolved(self: &Arc<Self>, way: Way, outcome: Result<(), VerbsError>) {
        let mut work = self.work();
        let jobs = work.waiting.remove(&way).unwrap_or_default();
        let (refused, error) = match outcome {
            Ok(()) => {
                work.ready.extend(jobs);
                match self.start_makers(&mut work) {
                    Ok(()) => return,
                    Err(error) => (work.ready.drain(..).collect(), error),
                }
            }
            Err(error) => (jobs, error),
        };
        work.requested -= refused.len();
        drop(work);
        for job in refused {
            (job.done)(Err(error));
        }
    }
}
