//! The background machine of a shard, which does the shard's work while no poller does.
//!
//! Owns the machine's steps, and the descriptors on which it sleeps. Outside of simulations, the machine is a thread,
//! which starts with the shard. It holds the shard's turn for one round of work, and never while it sleeps. The machine
//! of the first shard also does the work of control, and checks for stopped holders of the device's port before it
//! sleeps.
//!
//! | the machine | sleeps on | [`Watcher`] |
//! |---|---|---|
//! | leaves the work to a poller that is awake | the waker, for one tick | nobody; deadlines are met at most two ticks late |
//! | leaves the work to a poller that sleeps for the shard | the waker, for a tick that doubles | the poller |
//! | does the work | the waker and the descriptors | the machine, until the shard's next deadline |
//!
//! In a simulation threads do not wait on descriptors: a bell wakes the machine, and the simulation checks
//! for arrived datagrams.
#![forbid(unsafe_code)]

use super::wake_up::Watcher;
use crate::device::device_parts::DeviceParts;
use crate::device::shard::Shard;
use crate::device::shards::lock::ShardLock;
use crate::link::StoppedHolders;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::rings::handover::Duty;
use trunkline_machine::rings::shared::Wanted;
use trunkline_machine::{Machine, Running, Sleeper, Turn, WatchSet};
use trunkline_verbs::Time;
use trunkline_verbs::descriptors::above_stdio;

/// Minimum time without a poll after which the background machine takes over. It is longer than a time slice of the
/// scheduler, usually 4 ms, so that a poller that waits for its core keeps the work.
const TICK: Duration = Duration::from_millis(8);
/// Longest tick, reached by doubling while a poller sleeps for the shard. If the poller wakes and then stops polling,
/// the machine takes over after at most two such ticks, while peers still retry.
const LONGEST_TICK: Duration = Duration::from_millis(256);
const WAKER: Token = Token(0);

/// A running background machine.
#[derive(Debug)]
pub(in crate::device) struct Background {
    lock: Arc<ShardLock>,
    machine: Running,
}

impl Background {
    /// Starts the machine. In a simulation, it sleeps on `sleeper`.
    pub(in crate::device) fn start(
        parts: &Arc<DeviceParts>,
        lock: &Arc<ShardLock>,
        sleeper: Option<Sleeper>,
    ) -> io::Result<Self> {
        let runtime = parts.runtime().clone();
        let (parts, of_shard) = (Arc::clone(parts), Arc::clone(lock));
        let make = Box::new(move || {
            let means = match sleeper {
                Some(sleeper) => SleepMeans::Bell(sleeper),
                None => SleepMeans::Descriptors(Descriptors::new(of_shard.progress.waker())?),
            };
            let holders = parts.stopped_holders(&of_shard);
            Ok(Box::new(ShardMachine {
                parts,
                lock: of_shard,
                means,
                step: Step::Check,
                until: None,
                tick: TICK,
                holders,
            }) as Box<dyn Machine>)
        });
        Ok(Self { lock: Arc::clone(lock), machine: runtime.spawn("trunkline-card", make)? })
    }

    /// Returns true if the machine belongs to the shard of this lock.
    pub(in crate::device) fn is_of(&self, lock: &Arc<ShardLock>) -> bool {
        Arc::ptr_eq(&self.lock, lock)
    }

    /// Ends the machine. Does nothing in the child of a fork, where the machine does not exist.
    pub(in crate::device) fn stop(self) {
        if self.lock.progress.is_orphan() {
            return self.forget();
        }
        self.lock.progress.stop();
        // A panic of the machine is a bug, and has already been printed.
        let _panicked = self.machine.join();
    }

    /// Drops the handle in the child of a fork, since the thread exists only in the parent.
    pub(in crate::device) fn forget(self) {
        std::mem::forget(self.machine);
    }
}

/// The background machine.
struct ShardMachine {
    parts: Arc<DeviceParts>,
    lock: Arc<ShardLock>,
    means: SleepMeans,
    step: Step,
    /// Time at which the last [`Step::Sleep`] ends without a notification.
    until: Option<Time>,
    /// Length of the last [`Step::Tick`].
    tick: Duration,
    /// Check for stopped holders of the device's port; `None` unless the shard is the first.
    holders: Option<StoppedHolders>,
}

/// Step of the machine's cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Determines whether the machine or a poller has to do the work.
    Check,
    /// Does the shard's work.
    Work,
    /// Sleeps until the next tick, even if packets arrive.
    Tick,
    /// Sleeps until something arrives.
    Sleep,
}

/// Means of sleeping.
enum SleepMeans {
    Descriptors(Descriptors),
    /// Sleeper, in a simulation.
    Bell(Sleeper),
}

impl ShardMachine {
    /// Determines whether the machine or a poller has to do the work.
    fn check(&mut self) -> Turn {
        let progress = &self.lock.progress;
        if let SleepMeans::Bell(sleeper) = &self.means {
            // From here on, ringing the bell ends the next sleep, like the counter of an eventfd.
            sleeper.announce();
        }
        if progress.is_stopping() {
            return Turn::Done;
        }
        let (duty, is_unwatched) = progress.check();
        if is_unwatched {
            self.parts.woken(&self.lock, true);
        }
        match duty {
            Duty::Leave => {
                self.step = Step::Tick;
                self.tick = TICK;
                Turn::Sleep(Some(self.parts.now() + self.tick))
            }
            Duty::Watched => {
                self.step = Step::Tick;
                self.tick = (2 * self.tick).min(LONGEST_TICK);
                Turn::Sleep(Some(self.parts.now() + self.tick))
            }
            Duty::TakeOver => {
                self.step = Step::Work;
                self.tick = TICK;
                Turn::Again
            }
        }
    }

    /// Does the shard's work.
    fn work(&mut self) -> Turn {
        self.step = Step::Check;
        let (more, mut shard) = self.parts.work_and_stay(&self.lock, Shard::work_and_linger);
        if more || !self.lock.progress.has_handed_over() {
            // A poller may have gone to sleep for the shard since the last check.
            self.parts.worked(&self.lock, &mut shard, self.parts.now());
            // Yield to threads that wait for the shard, since its lock is not fair.
            return if more { Turn::Yield } else { Turn::Again };
        }
        if let SleepMeans::Descriptors(descriptors) = &mut self.means {
            let version = shard.link().descriptors_version();
            let all = || shard.link().descriptors().into_iter().chain(shard.bell()).collect();
            descriptors.watched.update(&descriptors.full, version, all);
        }
        let Some(deadline) = self.parts.fall_asleep(&self.lock, &mut shard, Watcher::Background, Wanted::All)
        else {
            return Turn::Again;
        };
        self.step = Step::Sleep;
        self.until = deadline;
        Turn::Sleep(deadline)
    }
}

impl Machine for ShardMachine {
    fn turn(&mut self) -> Turn {
        match self.step {
            Step::Work => self.work(),
            Step::Check | Step::Tick | Step::Sleep => self.check(),
        }
    }

    fn sleep(&mut self, until: Option<Time>) {
        let SleepMeans::Descriptors(descriptors) = &mut self.means else { return };
        if let Some(holders) = &mut self.holders {
            holders.look(self.parts.now());
        }
        let timeout = until.map(|until| until - self.parts.now());
        let woken = match self.step {
            Step::Sleep => descriptors.sleep(timeout),
            Step::Tick | Step::Check | Step::Work => descriptors.tick(timeout),
        };
        if woken {
            self.lock.progress.clear_waker();
        }
    }

    fn is_woken(&self) -> bool {
        let SleepMeans::Bell(sleeper) = &self.means else { return true };
        let arrived = || self.lock.shard.try_enter().is_none_or(|shard| shard.link().has_arrivals());
        sleeper.is_woken() || (self.step == Step::Sleep && arrived())
    }

    /// Returns true if the machine should be awake, because it waits for a tick although the work was handed to it, or
    /// because the shard has work without a pending wake-up.
    fn is_due(&self) -> bool {
        match self.step {
            Step::Tick => self.lock.progress.has_handed_over(),
            Step::Sleep => self.parts.is_due(&self.lock, self.until),
            Step::Check | Step::Work => false,
        }
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
    watched: WatchSet,
}

impl Descriptors {
    fn new(waker: RawFd) -> io::Result<Self> {
        let (quiet, full) = (above_stdio(Poll::new)?, above_stdio(Poll::new)?);
        for poll in [&quiet, &full] {
            poll.registry().register(&mut SourceFd(&waker), WAKER, Interest::READABLE)?;
        }
        Ok(Self { quiet, full, events: Events::with_capacity(16), watched: WatchSet::default() })
    }

    /// Sleeps for a tick. Returns true if the waker was written.
    fn tick(&mut self, timeout: Option<Duration>) -> bool {
        sleep_on(&mut self.quiet, &mut self.events, timeout)
    }

    /// Sleeps until the waker is written or packets arrive. Returns true if the waker was written.
    fn sleep(&mut self, timeout: Option<Duration>) -> bool {
        let timeout = self.watched.limit(timeout);
        sleep_on(&mut self.full, &mut self.events, timeout)
    }
}

fn sleep_on(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> bool {
    if let Err(error) = poll.poll(events, timeout)
        && error.kind() != io::ErrorKind::Interrupted
    {
        tracing::error!(%error, "shard thread could not wait for events");
        #[expect(clippy::disallowed_methods, reason = "only a shard's own real thread sleeps here")]
        std::thread::sleep(TICK);
    }
    events.iter().any(|event| event.token() == WAKER)
}
