//! The threads that look for the way to a peer, so that nobody else waits for it.
//!
//! Owns endpoints that are wanted and not made yet. `rdma_create_ep` waits up to 2 s for an address
//! that nobody has and 2 s more for a route, so threads that call it for whatever comes would all be
//! taken by a few dead peers while live ones wait. Hence two steps:
//!
//! ```text
//! begin ─► the scout: one thread and one event channel, which resolves any number of peers' addresses
//!          at once and in passing puts them into the kernel's tables
//!            │ there is one                              │ there is none, or not within 2 s
//!            ▼                                           ▼
//!          ready ─► a maker: rdma_create_ep, now quick   the error, to who waits
//! ```
//!
//! Dead addresses never reach the makers. A route that cannot be found (on RoCE it needs no finding)
//! takes one maker for 2 s at most, because a peer has one endpoint in the making at a time.
//!
//! Threads start with the first need of them. At the end of the manager what was not begun is
//! answered by [`VerbsError::Gone`], and the threads are waited for, a maker inside `rdma_create_ep`
//! too.

use super::address::CAddress;
use super::channel::Channel;
use super::endpoint::{self, RawId};
use super::error::{Asked, check, last};
use super::event;
use super::id::RESOLVE_MS;
use super::manager::Shared;
use crate::context::unblock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rdma_sys::rdma_port_space::RDMA_PS_TCP;
use rdma_sys::{
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_event_channel,
    rdma_get_cm_event, rdma_resolve_addr,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use trunkline_verbs::{EndpointDone, EndpointRequest, VerbsError};

/// Threads that call `rdma_create_ep`, at most.
const MAKERS: usize = 4;
/// Endpoints wanted at once, at most.
const WANTED: usize = 4096;

/// Where to, and from where.
type Way = (SocketAddr, Option<IpAddr>);

/// An endpoint that is wanted.
struct Job {
    request: EndpointRequest,
    way: Way,
    channel: Arc<Channel>,
    done: EndpointDone,
}

/// What is under way.
#[derive(Default)]
struct Work {
    /// For the scout to begin with.
    unknown: VecDeque<Way>,
    /// Until the scout knows.
    waiting: HashMap<Way, Vec<Job>>,
    ready: VecDeque<Job>,
    /// Peers that a maker is at.
    busy: HashSet<IpAddr>,
    /// All jobs that were not answered.
    wanted: usize,
    idle_makers: usize,
    has_ended: bool,
    scout: Option<JoinHandle<()>>,
    makers: Vec<JoinHandle<()>>,
}

struct Inner {
    shared: Arc<Shared>,
    work: Mutex<Work>,
    for_makers: Condvar,
    for_scout: EventFd,
}

/// The resolver of a manager.
pub(super) struct Resolver {
    /// Made at the first need.
    inner: Mutex<Option<Arc<Inner>>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Resolver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { inner: Mutex::new(None), shared }
    }

    /// Finds the way, makes the endpoint, tells `done`; never waits.
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
        let for_scout = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| VerbsError::Os(errno as i32))?;
        let made = Arc::new(Inner {
            shared: Arc::clone(&self.shared),
            work: Mutex::default(),
            for_makers: Condvar::new(),
            for_scout,
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
            (left, work.scout.take().into_iter().chain(makers).collect::<Vec<_>>())
        };
        inner.for_makers.notify_all();
        inner.wake_scout();
        for job in left {
            (job.done)(Err(VerbsError::Gone));
        }
        for thread in threads {
            // What is told may hold the last of the device, so this may be one of them.
            if thread.thread().id() != thread::current().id() {
                // A panic there has been reported, and nothing is left to be done about it.
                let _ = thread.join();
            }
        }
    }
}

impl Inner {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_scout(&self) {
        // It fails when the counter is full, and then the scout is awake.
        let _ = self.for_scout.write(1);
    }

    /// Takes a job in, or refuses it.
    fn take(self: &Arc<Self>, job: Job) {
        let mut work = self.work();
        if let Err(error) = self.has_room(&mut work) {
            drop(work);
            (job.done)(Err(error));
            return;
        }
        work.wanted += 1;
        let way = job.way;
        let jobs = work.waiting.entry(way).or_default();
        jobs.push(job);
        if jobs.len() == 1 {
            work.unknown.push_back(way);
            drop(work);
            self.wake_scout();
        }
    }

    fn has_room(self: &Arc<Self>, work: &mut Work) -> Result<(), VerbsError> {
        if work.wanted >= WANTED {
            return Err(VerbsError::OutOfResources("too many endpoints are being made"));
        }
        if work.scout.is_none() {
            let inner = Arc::clone(self);
            let scout = thread::Builder::new().name("trunkline-scout".to_owned());
            work.scout = Some(scout.spawn(move || Scout::run(&inner))?);
        }
        Ok(())
    }

    /// The scout knows of a way.
    fn scouted(self: &Arc<Self>, way: Way, outcome: Result<(), VerbsError>) {
        let mut work = self.work();
        let jobs = work.waiting.remove(&way).unwrap_or_default();
        let (refused, error) = match outcome {
            Ok(()) => {
                work.ready.extend(jobs);
                match self.see_to_makers(&mut work) {
                    Ok(()) => return,
                    Err(error) => (work.ready.drain(..).collect(), error),
                }
            }
            Err(error) => (jobs, error),
        };
        work.wanted -= refused.len();
        drop(work);
        for job in refused {
            (job.done)(Err(error));
        }
    }

    /// Starts makers as they are needed; fails when there is not even one.
    fn see_to_makers(self: &Arc<Self>, work: &mut Work) -> Result<(), VerbsError> {
        let missing = work.ready.len().saturating_sub(work.idle_makers).min(MAKERS - work.makers.len());
        for _ in 0..missing {
            let inner = Arc::clone(self);
            let maker = thread::Builder::new().name("trunkline-maker".to_owned());
            match maker.spawn(move || inner.make()) {
                Ok(thread) => work.makers.push(thread),
                Err(error) if work.makers.is_empty() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "starting a further thread that makes endpoints");
                    break;
                }
            }
        }
        self.for_makers.notify_all();
        Ok(())
    }

    /// A maker's life.
    fn make(self: Arc<Self>) {
        let mut work = self.work();
        while !work.has_ended {
            let next = work.ready.iter().position(|job| !work.busy.contains(&job.way.0.ip()));
            let Some(job) = next.and_then(|at| work.ready.remove(at)) else {
                work.idle_makers += 1;
                work = self.for_makers.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.idle_makers -= 1;
                continue;
            };
            let peer = job.way.0.ip();
            work.busy.insert(peer);
            drop(work);
            let Job { request, channel, done, .. } = job;
            let made = endpoint::create(&request).and_then(|raw| self.shared.adopt(raw, &request, channel));
            {
                let mut work = self.work();
                work.busy.remove(&peer);
                work.wanted -= 1;
            }
            // Others may have passed over this peer's next.
            self.for_makers.notify_all();
            done(made);
            work = self.work();
        }
    }
}

/// The scout's own: ids that look for addresses, by number.
struct Scout {
    channel: NonNull<rdma_event_channel>,
    ids: HashMap<u64, (RawId, Way)>,
    last: u64,
}

impl Scout {
    /// The scout's life.
    fn run(inner: &Arc<Inner>) {
        // SAFETY: nothing is asked of the caller.
        let made = NonNull::new(unsafe { rdma_create_event_channel() }).ok_or_else(|| last(Asked::Create));
        // SAFETY: librdmacm keeps the descriptor open as long as the channel.
        let ready = made.and_then(|channel| unblock(unsafe { channel.as_ref() }.fd).map(|()| channel));
        let mut scout = ready.map(|channel| Self { channel, ids: HashMap::new(), last: 0 });
        loop {
            let ways: Vec<Way> = {
                let mut work = inner.work();
                if work.has_ended {
                    break;
                }
                work.unknown.drain(..).collect()
            };
            for way in ways {
                let begun = match &mut scout {
                    Ok(scout) => scout.begin(way),
                    Err(error) => Err(*error),
                };
                if let Err(error) = begun {
                    inner.scouted(way, Err(error));
                }
            }
            if let Ok(scout) = &mut scout {
                while let Some((way, outcome)) = scout.next() {
                    inner.scouted(way, outcome);
                }
            }
            let mut waited = vec![PollFd::new(inner.for_scout.as_fd(), PollFlags::POLLIN)];
            if let Ok(scout) = &scout {
                waited.push(PollFd::new(scout.descriptor(), PollFlags::POLLIN));
            }
            // A signal's interruption is as good as an event.
            let _ = poll(&mut waited, PollTimeout::NONE);
            let _ = inner.for_scout.read();
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: librdmacm keeps the descriptor open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Begins to look for the address of a peer.
    fn begin(&mut self, way: Way) -> Result<(), VerbsError> {
        self.last += 1;
        let context = without_provenance_mut(usize::try_from(self.last).unwrap_or(0));
        let mut raw = null_mut();
        // SAFETY: the channel is alive and outlives its ids; the place is ours.
        check(Asked::Create, unsafe {
            rdma_create_id(self.channel.as_ptr(), &raw mut raw, context, RDMA_PS_TCP)
        })?;
        let raw = RawId::new(raw).ok_or(VerbsError::Gone)?;
        self.ids.insert(self.last, (raw, way));
        let (remote, source) =
            (CAddress::from(way.0), way.1.map(|ip| CAddress::from(SocketAddr::new(ip, 0))));
        let from = source.as_ref().map_or(null_mut(), CAddress::pointer);
        // SAFETY: the id was made right now, the addresses live here. Its channel is not its own,
        // so nothing waits.
        let begun = check(Asked::Resolve, unsafe {
            rdma_resolve_addr(raw.pointer(), from.cast(), remote.pointer().cast(), RESOLVE_MS)
        });
        begun.inspect_err(|_| self.end(self.last))
    }

    /// What was found of a peer, if there is something.
    fn next(&mut self) -> Option<(Way, Result<(), VerbsError>)> {
        loop {
            let mut event = null_mut();
            // SAFETY: the channel is alive, its descriptor does not block, the place is ours.
            if unsafe { rdma_get_cm_event(self.channel.as_ptr(), &raw mut event) } != 0 {
                return None;
            }
            // SAFETY: it was taken right now, and goes back at once.
            let told = unsafe { event::take(NonNull::new(event)?) };
            let way = self.ids.get(&told.number).map(|(_, way)| *way);
            self.end(told.number);
            if let Some(way) = way {
                return Some((way, told.resolved()));
            }
        }
    }

    fn end(&mut self, number: u64) {
        if let Some((raw, _)) = self.ids.remove(&number) {
            // SAFETY: this thread alone knows the id, and has acknowledged its events.
            unsafe { raw.destroy() };
        }
    }
}

impl Drop for Scout {
    fn drop(&mut self) {
        for (_, (raw, _)) in self.ids.drain() {
            // SAFETY: this thread alone knows the id, and has acknowledged its events.
            unsafe { raw.destroy() };
        }
        // SAFETY: its ids are gone.
        unsafe { rdma_destroy_event_channel(self.channel.as_ptr()) };
    }
}
