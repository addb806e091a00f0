//! Who does the card's work: the program's pollers, or the background machine.
//!
//! Owns the background machine, which is a thread outside of simulations, and the words by which the
//! work changes hands. While a program polls, the machine checks once per tick whether it still does,
//! and packets do not wake it. When nobody has polled for a tick, or a program arms a CQ to go to
//! sleep, the machine does the work and sleeps on the link's descriptors until the card's next
//! deadline.
//!
//! | machine | it sleeps on | `watching` | `sleeps_until_ns` |
//! |---|---|---|---|
//! | leaves the work to pollers | the waker, one tick | false | 0: no deadline is missed by more than a tick |
//! | does the work | waker and descriptors | true | the card's deadline when it fell asleep |
//!
//! In a simulation nothing waits on descriptors: the machine is woken by a bell, and asked whether
//! datagrams have arrived.
#![forbid(unsafe_code)]

use super::card::Card;
use super::core::Shared;
use super::signal::{event_fd, lock};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::eventfd::EventFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, TryLockError};
use std::time::Duration;
use trunkline_machine::{Machine, Running, Runtime, Sleeper, Turn, Waker};
use trunkline_rings::handover::{Duty, Handover};
use trunkline_verbs::Time;

/// How long after the last poll the background machine takes over.
const TICK: Duration = Duration::from_millis(1);
const WAKER: Token = Token(0);
const LINK: Token = Token(1);

/// The words between pollers and the background machine.
#[derive(Debug)]
pub(super) struct Progress {
    handover: Handover,
    /// The machine sleeps, or is about to, on the descriptors of an armed link. Written under the
    /// card's lock when it becomes true.
    watching: AtomicBool,
    /// When the sleeping machine wakes by itself.
    sleeps_until_ns: AtomicU64,
    /// Which version of the link's descriptors it watches.
    watched_version: AtomicU64,
    stopping: AtomicBool,
    /// This process is a child that has no background thread yet.
    orphan: AtomicBool,
    waker: EventFd,
    /// Wakes the machine in place of `waker`, in a simulation.
    bell: Option<Waker>,
}

impl Progress {
    /// The words, and what the machine sleeps on in a simulation.
    pub(super) fn new(runtime: &Runtime) -> io::Result<(Self, Option<Sleeper>)> {
        let (sleeper, bell) = match runtime.is_simulated() {
            true => runtime.sleeper().map(|(sleeper, bell)| (Some(sleeper), Some(bell)))?,
            false => (None, None),
        };
        let progress = Self {
            handover: Handover::new(),
            watching: AtomicBool::new(false),
            sleeps_until_ns: AtomicU64::new(0),
            watched_version: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            waker: event_fd()?,
            bell,
        };
        Ok((progress, sleeper))
    }

    /// In the child of a fork: there is no thread any more. Returns the waker.
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
    pub(super) fn card_changed(&self, card: &Card, now: Time) {
        let watched = self.watched_version.load(Ordering::Relaxed);
        if self.watching.load(Ordering::Relaxed) && card.descriptors_version() != watched {
            self.wake();
            return;
        }
        let Some(deadline) = card.deadline(now) else { return };
        if deadline.0 < self.sleeps_until_ns.load(Ordering::Relaxed) {
            // Woken once is enough, however many calls follow before it runs.
            self.sleeps_until_ns.store(0, Ordering::Relaxed);
            self.wake();
        }
    }

    /// After a poller has done the card's work, under its lock. What it took off the link may have
    /// ended the link's arming; a thread that sleeps on the descriptors relies on it.
    pub(super) fn worked(&self, card: &mut Card, now: Time) {
        if !self.watching.load(Ordering::Relaxed) {
            return;
        }
        if !card.stays_armed() && card.arm() {
            self.wake();
        } else {
            self.card_changed(card, now);
        }
    }

    fn wake(&self) {
        match &self.bell {
            Some(bell) => bell.wake(),
            None => {
                // Fails only when the counter is full, and then the thread wakes anyway.
                let _full = self.waker.write(1);
            }
        }
    }
}

/// The background machine, started.
#[derive(Debug)]
pub(super) struct Background {
    machine: Running,
}

impl Background {
    /// Starts the machine; `sleeper` is what it sleeps on in a simulation.
    pub(super) fn start(shared: Arc<Shared>, sleeper: Option<Sleeper>) -> io::Result<Self> {
        let runtime = shared.runtime.clone();
        let make = Box::new(move || {
            let rest = match sleeper {
                Some(sleeper) => Rest::Bell(sleeper),
                None => Rest::Descriptors(Descriptors::new(shared.progress.waker.as_raw_fd())?),
            };
            Ok(Box::new(CardMachine { shared, rest, step: Step::Check }) as Box<dyn Machine>)
        });
        Ok(Self { machine: runtime.spawn("trunkline-card", make)? })
    }

    /// Ends the machine.
    pub(super) fn stop(self, progress: &Progress) {
        progress.stopping.store(true, Ordering::Release);
        progress.wake();
        // It panics only by a defect of ours, which has been printed then.
        let _panicked = self.machine.join();
    }
}

/// The background machine.
struct CardMachine {
    shared: Arc<Shared>,
    rest: Rest,
    step: Step,
}

/// Where the machine is in its cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It finds out whose the work is.
    Check,
    /// The work is its own.
    Work,
    /// It sleeps until the next tick, whatever arrives.
    Tick,
    /// It sleeps until something arrives.
    Sleep,
}

/// What it sleeps on.
enum Rest {
    Descriptors(Descriptors),
    /// In a simulation.
    Bell(Sleeper),
}

impl CardMachine {
    /// Whose is the work?
    fn check(&mut self) -> Turn {
        let progress = &self.shared.progress;
        if let Rest::Bell(sleeper) = &self.rest {
            // Whoever rings from here on ends the next sleep, as the count of an eventfd does.
            sleeper.announce();
        }
        if progress.stopping.load(Ordering::Acquire) {
            return Turn::Done;
        }
        progress.watching.store(false, Ordering::Relaxed);
        progress.sleeps_until_ns.store(0, Ordering::Relaxed);
        match progress.handover.background_check() {
            Duty::Leave => {
                self.step = Step::Tick;
                Turn::Sleep(Some(self.shared.now() + TICK))
            }
            Duty::TakeOver => {
                self.step = Step::Work;
                Turn::Again
            }
        }
    }

    /// Does the card's work.
    fn work(&mut self) -> Turn {
        self.step = Step::Check;
        let progress = &self.shared.progress;
        let mut card = lock(&self.shared.card);
        if card.work(self.shared.now()) {
            // Others wait for the lock, and std's mutex is not fair.
            return Turn::Yield;
        }
        if let Rest::Descriptors(descriptors) = &mut self.rest {
            descriptors.watch(&card);
        }
        progress.watched_version.store(card.descriptors_version(), Ordering::Relaxed);
        if card.arm() {
            return Turn::Again;
        }
        let now = self.shared.now();
        let deadline = card.deadline(now);
        if deadline.is_some_and(|when| when <= now) {
            return Turn::Again;
        }
        progress.sleeps_until_ns.store(deadline.unwrap_or(Time::MAX).0, Ordering::Relaxed);
        progress.watching.store(true, Ordering::Relaxed);
        self.step = Step::Sleep;
        Turn::Sleep(deadline)
    }
}

impl Machine for CardMachine {
    fn turn(&mut self) -> Turn {
        match self.step {
            Step::Work => self.work(),
            Step::Check | Step::Tick | Step::Sleep => self.check(),
        }
    }

    fn sleep(&mut self, until: Option<Time>) {
        let Rest::Descriptors(descriptors) = &mut self.rest else { return };
        let woken = match self.step {
            Step::Sleep => descriptors.sleep(until.map(|until| until - self.shared.now())),
            Step::Tick | Step::Check | Step::Work => descriptors.tick(),
        };
        if woken {
            let _empty = self.shared.progress.waker.read();
        }
    }

    fn is_woken(&self) -> bool {
        let Rest::Bell(sleeper) = &self.rest else { return true };
        let arrived = || match self.shared.card.try_lock() {
            Ok(card) => card.has_arrivals(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().has_arrivals(),
            Err(TryLockError::WouldBlock) => true,
        };
        sleeper.is_woken() || (self.step == Step::Sleep && arrived())
    }
}

/// Two sets of descriptors to sleep on.
#[derive(Debug)]
struct Descriptors {
    /// The waker alone.
    quiet: Poll,
    /// The waker and the link.
    full: Poll,
    events: Events,
    watched: Vec<RawFd>,
    version: u64,
}

impl Descriptors {
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

    /// Sleeps for a tick; returns whether the waker was written.
    fn tick(&mut self) -> bool {
        sleep_on(&mut self.quiet, &mut self.events, Some(TICK))
    }

    /// Sleeps until packets come, too; returns whether the waker was written.
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
