//! Who does the card's work: the program's pollers, or the background thread.
//!
//! Owns the background thread and the words by which the work changes hands. While a program
//! polls, the thread looks once per tick whether it still does, and packets do not wake it. When
//! nobody has polled for a tick, or a program arms a CQ to go to sleep, the thread does the work
//! and sleeps on the link's descriptors until the card's next deadline.
//!
//! | thread | it sleeps on | `watching` | `sleeps_until_ns` |
//! |---|---|---|---|
//! | leaves the work to pollers | the waker, one tick | false | 0: no deadline is missed by more than a tick |
//! | does the work | waker and descriptors | true | the card's deadline when it fell asleep |
#![forbid(unsafe_code)]

use super::card::Card;
use super::core::Shared;
use super::signal::{event_fd, lock};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::eventfd::EventFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trunkline_rings::handover::{Duty, Handover};

/// How long after the last poll the background thread takes over.
const TICK: Duration = Duration::from_millis(1);
const WAKER: Token = Token(0);
const LINK: Token = Token(1);

/// The words between pollers and the background thread.
#[derive(Debug)]
pub(super) struct Progress {
    handover: Handover,
    /// The thread sleeps, or is about to, on the descriptors of an armed link. Written under the
    /// card's lock when it becomes true.
    watching: AtomicBool,
    /// Nanoseconds after `start` at which the sleeping thread wakes by itself.
    sleeps_until_ns: AtomicU64,
    /// Which version of the link's descriptors it watches.
    watched_version: AtomicU64,
    stopping: AtomicBool,
    /// This process is a child that has no background thread yet.
    orphan: AtomicBool,
    waker: EventFd,
    start: Instant,
}

impl Progress {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            handover: Handover::new(),
            watching: AtomicBool::new(false),
            sleeps_until_ns: AtomicU64::new(0),
            watched_version: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            waker: event_fd()?,
            start: Instant::now(),
        })
    }

    /// In the child of a fork: there is no thread any more. Answers the waker.
    pub(super) fn forked(&self) -> BorrowedFd<'_> {
        self.orphan.store(true, Ordering::Relaxed);
        self.waker.as_fd()
    }

    /// Whether a background thread is missing since a fork.
    pub(super) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Relaxed)
    }

    /// A new thread is about to begin, as the first one did.
    pub(super) fn adopt(&self) {
        self.watching.store(false, Ordering::Relaxed);
        self.sleeps_until_ns.store(0, Ordering::Relaxed);
        self.watched_version.store(0, Ordering::Relaxed);
        let _nobody_sleeps_yet = self.handover.arm();
        self.orphan.store(false, Ordering::Relaxed);
    }

    /// A poller is at work.
    pub(super) fn note_poll(&self) {
        if self.handover.poller_entered() {
            self.wake();
        }
    }

    /// A poller goes to sleep.
    pub(super) fn hand_over(&self) {
        if self.handover.arm() {
            self.wake();
        }
    }

    /// After a thread of the program has changed the card, under its lock.
    pub(super) fn card_changed(&self, card: &Card, now: Instant) {
        let watched = self.watched_version.load(Ordering::Relaxed);
        if self.watching.load(Ordering::Relaxed) && card.descriptors_version() != watched {
            self.wake();
            return;
        }
        let Some(deadline) = card.deadline(now) else { return };
        if self.nanoseconds(deadline) < self.sleeps_until_ns.load(Ordering::Relaxed) {
            // Woken once is enough, however many calls follow before it runs.
            self.sleeps_until_ns.store(0, Ordering::Relaxed);
            self.wake();
        }
    }

    /// After a poller has done the card's work, under its lock. What it took off the link may have
    /// ended the link's arming; a thread that sleeps on the descriptors relies on it.
    pub(super) fn worked(&self, card: &mut Card, now: Instant) {
        if !self.watching.load(Ordering::Relaxed) {
            return;
        }
        if !card.stays_armed() && card.arm() {
            self.wake();
        } else {
            self.card_changed(card, now);
        }
    }

    fn nanoseconds(&self, when: Instant) -> u64 {
        u64::try_from(when.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the thread wakes anyway.
        let _full = self.waker.write(1);
    }
}

/// The background thread.
#[derive(Debug)]
pub(super) struct Background {
    thread: JoinHandle<()>,
}

impl Background {
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let mut sleeper = Sleeper::new(shared.progress.waker.as_raw_fd())?;
        let thread = std::thread::Builder::new()
            .name("trunkline-card".to_owned())
            .spawn(move || run(&shared, &mut sleeper))?;
        Ok(Self { thread })
    }

    /// Ends the thread.
    pub(super) fn stop(self, progress: &Progress) {
        progress.stopping.store(true, Ordering::Release);
        progress.wake();
        if self.thread.thread().id() != std::thread::current().id() {
            // It panics only by a defect of ours, which has been printed then.
            let _panicked = self.thread.join();
        }
    }
}

fn run(shared: &Shared, sleeper: &mut Sleeper) {
    let progress = &shared.progress;
    while !progress.stopping.load(Ordering::Acquire) {
        progress.watching.store(false, Ordering::Relaxed);
        progress.sleeps_until_ns.store(0, Ordering::Relaxed);
        let woken = match progress.handover.background_check() {
            Duty::Leave => sleeper.tick(),
            Duty::TakeOver => match work(shared, sleeper) {
                Some(timeout) => sleeper.sleep(timeout),
                // A wake that came meanwhile ends the next sleep.
                None => false,
            },
        };
        if woken {
            let _empty = progress.waker.read();
        }
    }
}

/// Does the card's work. `Some` when there is no more for now: how long to sleep at most.
fn work(shared: &Shared, sleeper: &mut Sleeper) -> Option<Option<Duration>> {
    let progress = &shared.progress;
    let mut card = lock(&shared.card);
    if card.work(Instant::now()) {
        drop(card);
        // Others wait for the lock, and std's mutex is not fair.
        std::thread::yield_now();
        return None;
    }
    sleeper.watch(&card);
    progress.watched_version.store(sleeper.version, Ordering::Relaxed);
    if card.arm() {
        return None;
    }
    let now = Instant::now();
    let deadline = card.deadline(now);
    if deadline.is_some_and(|when| when <= now) {
        return None;
    }
    let until = deadline.map_or(u64::MAX, |when| progress.nanoseconds(when));
    progress.sleeps_until_ns.store(until, Ordering::Relaxed);
    progress.watching.store(true, Ordering::Relaxed);
    Some(deadline.map(|when| when - now))
}

/// Two sets of descriptors to sleep on.
#[derive(Debug)]
struct Sleeper {
    /// The waker alone.
    quiet: Poll,
    /// The waker and the link.
    full: Poll,
    events: Events,
    watched: Vec<RawFd>,
    version: u64,
}

impl Sleeper {
    fn new(waker: RawFd) -> io::Result<Self> {
        let (quiet, full) = (Poll::new()?, Poll::new()?);
        for poll in [&quiet, &full] {
            poll.registry().register(&mut SourceFd(&waker), WAKER, Interest::READABLE)?;
        }
        Ok(Self { quiet, full, events: Events::with_capacity(16), watched: Vec::new(), version: 0 })
    }

    /// Follows the link when its descriptors have changed.
    fn watch(&mut self, card: &Card) {
        if card.descriptors_version() == self.version {
            return;
        }
        let (version, fds) = card.descriptors();
        for fd in self.watched.drain(..) {
            // A closed descriptor has left the set by itself.
            let _closed = self.full.registry().deregister(&mut SourceFd(&fd));
        }
        for fd in fds {
            match self.full.registry().register(&mut SourceFd(&fd), LINK, Interest::READABLE) {
                Ok(()) => self.watched.push(fd),
                Err(error) => tracing::error!(%error, "the card cannot watch a descriptor of its link"),
            }
        }
        self.version = version;
    }

    /// Sleeps for a tick; answers whether the waker was written.
    fn tick(&mut self) -> bool {
        sleep_on(&mut self.quiet, &mut self.events, Some(TICK))
    }

    /// Sleeps until packets come, too; answers whether the waker was written.
    fn sleep(&mut self, timeout: Option<Duration>) -> bool {
        sleep_on(&mut self.full, &mut self.events, timeout)
    }
}

fn sleep_on(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> bool {
    if let Err(error) = poll.poll(events, timeout)
        && error.kind() != io::ErrorKind::Interrupted
    {
        tracing::error!(%error, "the card's background thread cannot sleep");
        std::thread::sleep(TICK);
    }
    events.iter().any(|event| event.token() == WAKER)
}
