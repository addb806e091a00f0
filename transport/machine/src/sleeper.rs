//! Going to sleep without losing a wake-up.
//!
//! ```text
//! machine                                    source of work
//!   announce()                                 puts it into a queue
//!   looks into every queue once more           wake(): a system call only if the machine sleeps
//!   sleep(until)   -- or --   awake()
//!   awake()
//! ```
//!
//! A [`Sleeper`] also watches descriptors, such as a completion channel's. In a simulation
//! there are neither descriptors nor system calls: the machine asks its channels itself.

use crate::bell::Bell;
use crate::simulator::Simulator;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use trunkline_rings::doorbell::Doorbell;
use trunkline_verbs::descriptors::{HeldStdio, above_stdio};
use trunkline_verbs::{Clock, Time};

const WAKER: Token = Token(0);
const WATCHED: Token = Token(1);

/// The machine's half.
pub struct Sleeper {
    clock: Clock,
    half: SleeperHalf,
}

enum SleeperHalf {
    Thread { doorbell: Arc<ThreadBell>, poll: Poll, events: Events },
    Simulated(Arc<Bell>),
}

/// The half of the threads that bring work. Clones wake the same machine.
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
                (SleeperHalf::Thread { doorbell, poll, events: Events::with_capacity(8) }, waker)
            }
        };
        Ok((Self { clock: clock.clone(), half }, Waker(waker)))
    }

    /// Also wakes the machine when the descriptor becomes readable, edge-triggered. Does nothing in a
    /// simulation, where `fd` is not called.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn watch<'a>(&self, fd: impl FnOnce() -> BorrowedFd<'a>) -> io::Result<()> {
        match &self.half {
            SleeperHalf::Thread { poll, .. } => {
                poll.registry().register(&mut SourceFd(&fd().as_raw_fd()), WATCHED, Interest::READABLE)
            }
            SleeperHalf::Simulated(_) => Ok(()),
        }
    }

    /// Stops watching a descriptor. Does nothing in a simulation.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn unwatch<'a>(&self, fd: impl FnOnce() -> BorrowedFd<'a>) -> io::Result<()> {
        match &self.half {
            SleeperHalf::Thread { poll, .. } => poll.registry().deregister(&mut SourceFd(&fd().as_raw_fd())),
            SleeperHalf::Simulated(_) => Ok(()),
        }
    }

    /// Announces that the machine is about to sleep. It must look into all its queues once more after this, and
    /// then sleep or call [`Sleeper::awake`].
    pub fn announce(&self) {
        self.doorbell().prepare();
    }

    /// Notes that the machine is awake, for any reason. It must look into its queues after this.
    pub fn awake(&self) {
        let _ringer_was_faster = self.doorbell().woken();
    }

    /// Returns true if the bell was rung since [`Sleeper::announce`]. For [`crate::Machine::is_woken`].
    #[must_use]
    pub fn is_woken(&self) -> bool {
        !self.doorbell().is_sleeping()
    }

    /// Blocks until the machine is woken, a watched descriptor is readable, or the time has come.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn sleep(&mut self, until: Option<Time>) -> io::Result<()> {
        let timeout = until.map(|at| at - self.clock.now());
        let SleeperHalf::Thread { poll, events, .. } = &mut self.half else { return Ok(()) };
        match poll.poll(events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            outcome => outcome,
        }
    }

    fn doorbell(&self) -> &Doorbell {
        match &self.half {
            SleeperHalf::Thread { doorbell, .. } => &doorbell.doorbell,
            SleeperHalf::Simulated(bell) => bell.doorbell(),
        }
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

    /// Makes sure that the machine looks at its queues again, and sees everything pushed before this call.
    /// Makes a system call only if the machine sleeps.
    pub fn wake(&self) {
        match &self.0 {
            WakerHalf::Thread(bell) => {
                if bell.doorbell.ring() {
                    // It fails only when the eventfd is gone, and with it the sleeper.
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
