//! The background machine of a shard, which does the shard's work when no thread polls.
//!
//! Owns the machine's steps and the descriptors it sleeps on; outside of simulations it is a thread. It
//! starts with the shard. It holds the shard's turn for one round of work, never while it sleeps. The machine
//! of the first shard does control's work, too.
//!
//! | machine | it sleeps on | `watching` | `sleeps_until_ns` |
//! |---|---|---|---|
//! | leaves the work to pollers | the waker, one tick | false | 0: no deadline is missed by more than two ticks, 5 ms |
//! | does the work | waker and descriptors | true | the shard's deadline when it fell asleep |
//!
//! In a simulation nothing waits on descriptors: a bell wakes the machine, and the simulation asks whether
//! datagrams have arrived.
#![forbid(unsafe_code)]

use super::card::Card;
use super::shard::Shard;
use super::shard_lock::ShardLock;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::{Machine, Running, Sleeper, Turn};
use trunkline_rings::handover::Duty;
use trunkline_verbs::Time;
use trunkline_verbs::descriptors::above_stdio;

/// Minimum time without a poll after which the background machine takes over.
const TICK: Duration = Duration::from_millis(1);
/// Tick that alternates with [`TICK`] while a thread polls: waking up takes the core from that thread.
const LONG_TICK: Duration = Duration::from_millis(4);
const WAKER: Token = Token(0);
const LINK: Token = Token(1);

/// A running background machine.
#[derive(Debug)]
pub(super) struct Background {
    lock: Arc<ShardLock>,
    machine: Running,
}

impl Background {
    /// Starts the machine. `sleeper` is the object that it sleeps on in a simulation.
    pub(super) fn start(
        card: &Arc<Card>,
        lock: &Arc<ShardLock>,
        sleeper: Option<Sleeper>,
    ) -> io::Result<Self> {
        let runtime = card.runtime().clone();
        let (card, of_shard) = (Arc::clone(card), Arc::clone(lock));
        let make = Box::new(move || {
            let rest = match sleeper {
                Some(sleeper) => Rest::Bell(sleeper),
                None => Rest::Descriptors(Descriptors::new(of_shard.progress.waker())?),
            };
            Ok(Box::new(ShardMachine {
                card,
                lock: of_shard,
                rest,
                step: Step::Check,
                until: None,
                tick: LONG_TICK,
                listens: false,
            }) as Box<dyn Machine>)
        });
        Ok(Self { lock: Arc::clone(lock), machine: runtime.spawn("trunkline-card", make)? })
    }

    /// Returns true if the machine belongs to that shard.
    pub(super) fn is_of(&self, lock: &Arc<ShardLock>) -> bool {
        Arc::ptr_eq(&self.lock, lock)
    }

    /// Ends the machine. The child of a fork has none.
    pub(super) fn stop(self) {
        if self.lock.progress.is_orphan() {
            return self.forget();
        }
        self.lock.progress.stop();
        // The machine panics only by a bug of ours, and the panic has been printed by then.
        let _panicked = self.machine.join();
    }

    /// Forgets the thread in the child of a fork, where it exists only in the parent.
    pub(super) fn forget(self) {
        std::mem::forget(self.machine);
    }
}

/// The background machine.
struct ShardMachine {
    card: Arc<Card>,
    lock: Arc<ShardLock>,
    rest: Rest,
    step: Step,
    /// Time at which the machine wakes by itself from its last [`Step::Sleep`].
    until: Option<Time>,
    /// Length of the last [`Step::Tick`]. Short and long ones alternate while a thread polls.
    tick: Duration,
    /// True while other shards wake the machine for packets that they hand over.
    listens: bool,
}

/// Step of the machine's cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Determines whether the machine or a poller does the work.
    Check,
    /// The machine does the work.
    Work,
    /// Sleeps until the next tick, even if packets arrive.
    Tick,
    /// Sleeps until something arrives.
    Sleep,
}

/// Means of sleeping.
enum Rest {
    Descriptors(Descriptors),
    /// Sleeper of a simulation.
    Bell(Sleeper),
}

impl ShardMachine {
    /// Determines whether the machine or a poller does the work.
    fn check(&mut self) -> Turn {
        if std::mem::take(&mut self.listens) {
            self.card.shards().neighbours().ignore(self.lock.index);
        }
        let progress = &self.lock.progress;
        if let Rest::Bell(sleeper) = &self.rest {
            // A bell that rings from here on ends the next sleep, as the count of an eventfd does.
            sleeper.announce();
        }
        if progress.is_stopping() {
            return Turn::Done;
        }
        match progress.check() {
            Duty::Leave => {
                self.step = Step::Tick;
                self.tick = if self.tick == TICK { LONG_TICK } else { TICK };
                Turn::Sleep(Some(self.card.now() + self.tick))
            }
            Duty::TakeOver => {
                self.step = Step::Work;
                self.tick = LONG_TICK;
                Turn::Again
            }
        }
    }

    /// Does the shard's work.
    fn work(&mut self) -> Turn {
        self.step = Step::Check;
        let (more, mut shard) = self.card.work_and_stay(&self.lock);
        if more {
            // Other threads wait for the shard, and its word is not fair.
            return Turn::Yield;
        }
        let progress = &self.lock.progress;
        if let Rest::Descriptors(descriptors) = &mut self.rest {
            descriptors.watch(&shard);
        }
        progress.watches(shard.link().descriptors_version());
        self.listens = true;
        if shard.arm() || self.card.shards().neighbours().listen(self.lock.index) {
            return Turn::Again;
        }
        let now = self.card.now();
        let deadline = self.card.deadline(&self.lock, &shard, now);
        if deadline.is_some_and(|when| when <= now) {
            return Turn::Again;
        }
        progress.falls_asleep(deadline);
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
        let Rest::Descriptors(descriptors) = &mut self.rest else { return };
        let timeout = until.map(|until| until - self.card.now());
        let woken = match self.step {
            Step::Sleep => descriptors.sleep(timeout),
            Step::Tick | Step::Check | Step::Work => descriptors.tick(timeout),
        };
        if woken {
            self.lock.progress.clear_waker();
        }
    }

    fn is_woken(&self) -> bool {
        let Rest::Bell(sleeper) = &self.rest else { return true };
        let arrived = || self.lock.shard.try_enter().is_none_or(|shard| shard.link().has_arrivals());
        sleeper.is_woken() || (self.step == Step::Sleep && arrived())
    }

    /// Returns true if the machine should not be asleep: it ticks although the work is its own, it sleeps
    /// past the shard's next deadline, or another shard has handed over packets.
    fn is_due(&self) -> bool {
        match self.step {
            Step::Tick => self.lock.progress.has_handed_over(),
            Step::Sleep => self.lock.shard.try_enter().is_some_and(|shard| {
                let next = self.card.deadline(&self.lock, &shard, self.card.now());
                self.card.shards().neighbours().has_packets(self.lock.index)
                    || next.is_some_and(|next| self.until.is_none_or(|until| next < until))
            }),
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
    watched: Vec<RawFd>,
    version: u64,
    /// True if the system has no room to watch a descriptor. The link is then polled every tick.
    is_incomplete: bool,
}

impl Descriptors {
    fn new(waker: RawFd) -> io::Result<Self> {
        let (quiet, full) = (above_stdio(Poll::new)?, above_stdio(Poll::new)?);
        for poll in [&quiet, &full] {
            poll.registry().register(&mut SourceFd(&waker), WAKER, Interest::READABLE)?;
        }
        Ok(Self {
            quiet,
            full,
            events: Events::with_capacity(16),
            watched: Vec::new(),
            version: 0,
            is_incomplete: false,
        })
    }

    /// Updates the watched descriptors if the link's have changed.
    fn watch(&mut self, shard: &Shard) {
        let version = shard.link().descriptors_version();
        if version == self.version && !self.is_incomplete {
            return;
        }
        let was_incomplete = std::mem::take(&mut self.is_incomplete);
        let fds = shard.link().descriptors();
        for fd in self.watched.drain(..) {
            // The system has already removed a closed descriptor from the set.
            let _closed = self.full.registry().deregister(&mut SourceFd(&fd));
        }
        for fd in fds {
            match self.full.registry().register(&mut SourceFd(&fd), LINK, Interest::READABLE) {
                Ok(()) => self.watched.push(fd),
                Err(error) => {
                    if !was_incomplete && !self.is_incomplete {
                        tracing::error!(%error, "a shard cannot watch a descriptor of its link; packets wait for a tick");
                    }
                    self.is_incomplete = true;
                }
            }
        }
        self.version = version;
    }

    /// Sleeps for a tick; returns true if the waker was written.
    fn tick(&mut self, timeout: Option<Duration>) -> bool {
        sleep_on(&mut self.quiet, &mut self.events, timeout)
    }

    /// Sleeps until the waker is written or packets arrive; returns true if the waker was written.
    fn sleep(&mut self, timeout: Option<Duration>) -> bool {
        let timeout =
            if self.is_incomplete { Some(timeout.map_or(TICK, |wanted| wanted.min(TICK))) } else { timeout };
        sleep_on(&mut self.full, &mut self.events, timeout)
    }
}

fn sleep_on(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> bool {
    if let Err(error) = poll.poll(events, timeout)
        && error.kind() != io::ErrorKind::Interrupted
    {
        tracing::error!(%error, "a shard's background thread cannot sleep");
        #[expect(clippy::disallowed_methods, reason = "only a shard's own real thread sleeps here")]
        std::thread::sleep(TICK);
    }
    events.iter().any(|event| event.token() == WAKER)
}
