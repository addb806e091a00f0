//! Sleeping without losing a wake-up.
//!
//! ```text
//! machine                                    source of work
//!   announce()                                 puts it into a queue
//!   looks into every queue once more           wake(): a system call only if the machine sleeps
//!   sleep(until)   -- or --   awake()
//!   awake()
//! ```
//!
//! A [`Sleeper`] also watches descriptors, such as the descriptor of a completion channel, and a [`WatchSet`], a set of
//! descriptors that changes. A simulation has neither descriptors nor system calls, and the machine checks its channels
//! instead.

use crate::rings::doorbell::Doorbell;
use crate::simulator::Bell;
use crate::simulator::Simulator;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::descriptors::{HeldStdio, above_stdio};
use trunkline_verbs::{Clock, Time};

const WAKER: Token = Token(0);
const WATCHED: Token = Token(1);
const CHANGING: Token = Token(2);

/// The half that the machine uses.
pub struct Sleeper {
    clock: Clock,
    half: SleeperHalf,
}

enum SleeperHalf {
    Thread { doorbell: Arc<ThreadBell>, poll: Poll, events: Events, changing: WatchSet },
    Simulated(Arc<Bell>),
}

/// The half that threads with work for the machine use. Clones wake the same machine.
#[derive(Clone)]
pub struct Waker(WakerHalf);

#[derive(Clone)]
enum WakerHalf {
    Thread(Arc<ThreadBell>),
    Simulated { bell: Arc<Bell>, simulator: Arc<dyn Simulator> },
}

struct ThreadBell {
    doorbell: Doorbell,
    waker: mio::Waker,
}

impl Sleeper {
    pub(crate) fn new(clock: &Clock, simulator: Option<&Arc<dyn Simulator>>) -> io::Result<(Self, Waker)> {
        let (half, waker) = match simulator {
            Some(simulator) => {
                let bell = Arc::new(Bell::default());
                let waker =
                    WakerHalf::Simulated { bell: Arc::clone(&bell), simulator: Arc::clone(simulator) };
                (SleeperHalf::Simulated(bell), waker)
            }
            None => {
                let poll = above_stdio(Poll::new)?;
                let held = HeldStdio::take()?;
                let waker = mio::Waker::new(poll.registry(), WAKER)?;
                drop(held);
                let doorbell = Arc::new(ThreadBell { doorbell: Doorbell::new(), waker });
                let waker = WakerHalf::Thread(Arc::clone(&doorbell));
                let events = Events::with_capacity(8);
                (SleeperHalf::Thread { doorbell, poll, events, changing: WatchSet::default() }, waker)
            }
        };
        Ok((Self { clock: clock.clone(), half }, Waker(waker)))
    }

    /// Watches a descriptor in edge-triggered mode, so that the machine wakes when it becomes readable. In a simulation,
    /// this has no effect and does not call `fd`.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn watch<'a>(&self, fd: impl FnOnce() -> BorrowedFd<'a>) -> io::Result<()> {
        match &self.half {
            SleeperHalf::Thread { .. } => self.watch_raw(fd().as_raw_fd()),
            SleeperHalf::Simulated(_) => Ok(()),
        }
    }

    /// Stops watching a descriptor. Has no effect in a simulation.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn unwatch<'a>(&self, fd: impl FnOnce() -> BorrowedFd<'a>) -> io::Result<()> {
        match &self.half {
            SleeperHalf::Thread { poll, .. } => poll.registry().deregister(&mut SourceFd(&fd().as_raw_fd())),
            SleeperHalf::Simulated(_) => Ok(()),
        }
    }

    /// Like [`Sleeper::watch`], for a raw descriptor, which must stay open until [`Sleeper::unwatch_raw`].
    ///
    /// # Errors
    /// The error of the system call.
    pub fn watch_raw(&self, fd: RawFd) -> io::Result<()> {
        match &self.half {
            SleeperHalf::Thread { poll, .. } => {
                poll.registry().register(&mut SourceFd(&fd), WATCHED, Interest::READABLE)
            }
            SleeperHalf::Simulated(_) => Ok(()),
        }
    }

    /// Stops watching a descriptor.
    pub fn unwatch_raw(&self, fd: RawFd) {
        if let SleeperHalf::Thread { poll, .. } = &self.half {
            // This fails only if the descriptor is closed, and closed descriptors are not watched.
            let _closed = poll.registry().deregister(&mut SourceFd(&fd));
        }
    }

    /// Watches these descriptors, in place of the previous set, in edge-triggered mode. The machine wakes when one of them
    /// becomes readable. `fds` is called only if `version` has changed or a descriptor of the set is not watched, and never
    /// in a simulation.
    pub fn watch_set(&mut self, version: u64, fds: impl FnOnce() -> Vec<RawFd>) {
        if let SleeperHalf::Thread { poll, changing, .. } = &mut self.half {
            changing.update(poll, version, fds);
        }
    }

    /// Announces that the machine is about to sleep. The machine must then check all its queues again, and
    /// either sleep or call [`Sleeper::awake`].
    pub fn announce(&self) {
        self.doorbell().prepare();
    }

    /// Records that the machine is awake, for whatever reason. The machine must then check its queues.
    pub fn awake(&self) {
        let _ringer_was_faster = self.doorbell().woken();
    }

    /// Returns true if the bell was rung after [`Sleeper::announce`]. For [`crate::Machine::is_woken`].
    #[must_use]
    pub fn is_woken(&self) -> bool {
        !self.doorbell().is_sleeping()
    }

    /// Blocks until the machine is woken, a watched descriptor is readable, or the time is reached. Returns
    /// false only if no descriptor of the [`Sleeper::watch_set`] is readable.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn sleep(&mut self, until: Option<Time>) -> io::Result<bool> {
        let timeout = until.map(|at| at - self.clock.now());
        let SleeperHalf::Thread { poll, events, changing, .. } = &mut self.half else { return Ok(true) };
        match poll.poll(events, changing.limit(timeout)) {
            Ok(()) => Ok(changing.is_incomplete || events.iter().any(|event| event.token() == CHANGING)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn doorbell(&self) -> &Doorbell {
        match &self.half {
            SleeperHalf::Thread { doorbell, .. } => &doorbell.doorbell,
            SleeperHalf::Simulated(bell) => bell.doorbell(),
        }
    }
}

/// A set of descriptors that changes, watched with a `Poll`.
#[derive(Debug, Default)]
pub struct WatchSet {
    watched: Vec<RawFd>,
    version: u64,
    /// True if the system refused to watch a descriptor.
    is_incomplete: bool,
}

impl WatchSet {
    /// Maximum wait while a descriptor is not watched.
    const INCOMPLETE: Duration = Duration::from_millis(1);

    /// Watches these descriptors in edge-triggered mode, in place of the previous set. Does nothing if `version` is
    /// unchanged and all descriptors of the set are watched.
    pub fn update(&mut self, poll: &Poll, version: u64, fds: impl FnOnce() -> Vec<RawFd>) {
        if version == self.version && !self.is_incomplete {
            return;
        }
        let was_incomplete = std::mem::take(&mut self.is_incomplete);
        for fd in self.watched.drain(..) {
            // The system has removed closed descriptors from the set.
            let _closed = poll.registry().deregister(&mut SourceFd(&fd));
        }
        for fd in fds() {
            match poll.registry().register(&mut SourceFd(&fd), CHANGING, Interest::READABLE) {
                Ok(()) => self.watched.push(fd),
                Err(error) => {
                    if !was_incomplete && !self.is_incomplete {
                        tracing::error!(%error, "device descriptor not added to epoll; its packets wait up to 1 ms");
                    }
                    self.is_incomplete = true;
                }
            }
        }
        self.version = version;
    }

    /// Returns the time to wait: `timeout`, or a short time while a descriptor is not watched.
    #[must_use]
    pub fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        if !self.is_incomplete {
            return timeout;
        }
        Some(timeout.map_or(Self::INCOMPLETE, |wanted| wanted.min(Self::INCOMPLETE)))
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper").field("doorbell", self.doorbell()).finish_non_exhaustive()
    }
}

impl Waker {
    /// Returns true if both wakers wake the same machine.
    #[must_use]
    pub fn wakes_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (WakerHalf::Thread(bell), WakerHalf::Thread(other)) => Arc::ptr_eq(bell, other),
            (WakerHalf::Simulated { bell, .. }, WakerHalf::Simulated { bell: other, .. }) => {
                Arc::ptr_eq(bell, other)
            }
            _ => false,
        }
    }

    /// Ensures that the machine checks its queues again, and takes everything that was pushed before this
    /// call. Makes a system call only if the machine sleeps.
    pub fn wake(&self) {
        match &self.0 {
            WakerHalf::Thread(bell) => {
                if bell.doorbell.ring() {
                    // Waking fails only after the sleeper and its eventfd are dropped.
                    let _gone = bell.waker.wake();
                }
            }
            WakerHalf::Simulated { bell, simulator } => simulator.ring(Arc::clone(bell)),
        }
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
