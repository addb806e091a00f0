//! The turns of a poller.
//!
//! ```text
//! round: poll the CQ and the rings -> messages to the upper half -> commands -> messages that those led to
//!        -> the upper half's own work -> flush sends -> timers
//! nothing for a while: arm the CQ | poll once more, announce | look at every queue | sleep
//!    or, on a device with its own wait:                announce | look at every queue, prepare the wait | sleep
//! ```
//!
//! A round is one turn, and so is each step of going to sleep, because any other machine may run between two
//! turns. A round takes several turns only in a simulation, when a handler was charged time. The machine does
//! nothing during that time, so its sends are flushed afterwards.
//!
//! Commands come before the upper half's own work. A call made after the end of its session is known waits
//! for the next session, instead of being staged on a trunk that ends in the same round.
#![forbid(unsafe_code)]

use super::Core;
use super::commands::CommandQueue;
use super::device::Queues;
use super::device::{Parted, part};
use super::idle::{Idle, Rest};
use super::peers::Peers;
use super::receives::{Batch, Queue, Take};
use super::sessions::Closings;
use super::shutdown::Shutdown;
use super::targets::Targets;
use super::trunks::Trunks;
use super::turns::Turns;
use crate::LogLimit;
use crate::command::{CmCommand, Command, PollerHandle};
use crate::node::incarnation::PollerDevice;
use crate::node::shared::{Alive, NodeShared};
use crate::peer::hash::PeerHash;
use crate::trunk::{Event, Resources, Trunk};
use crate::wire::frame::ANNOUNCEMENT;
use crate::{Carrier as _, Message, Origin, PeerKey, PollerIndex, Screening, Upper};
use std::any::Any;
use std::io;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_machine::{Machine, Sleeper, Turn};
use trunkline_verbs::Time;

/// Number of events after which staged work is flushed, so that a slow handler does not hold back earlier
/// replies. The messages of a bundle arrived together, and so their replies leave together.
const FLUSH_EVERY: usize = 16;

/// Number of events, or messages of a bundle, between two reads of the clock. If they take long, staged work
/// is flushed early.
const LOOK_EVERY: usize = 4;

/// Parts of a poller. The starting thread makes them, so that it can report failures.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) index: PollerIndex,
    pub(crate) handle: PollerHandle,
    pub(crate) sleeper: Sleeper,
    pub(crate) device: PollerDevice,
}

/// Parts that a poller shares with the rest of its node.
#[derive(Debug)]
pub(crate) struct OfNode {
    pub(crate) shared: Arc<NodeShared>,
    pub(crate) alive: Alive,
}

/// Step that the next turn performs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Begins a round.
    Poll,
    /// The rest of a round whose previous turn ended because time was charged.
    Deliver,
    Run,
    DeliverAgain,
    /// First step of going to sleep: later completions make the channel readable.
    Arm,
    /// Takes completions that came before the CQ was armed, and announces sleep.
    Announce,
    /// Looks at every queue once more.
    LookAgain,
    /// Was asleep.
    Asleep,
}

/// Marker: the turn ends here, because simulated time was charged.
struct Charged;

/// A poller with its upper half.
pub(crate) struct Poller<U> {
    core: Core,
    upper: U,
    idle: Idle,
    stage: Stage,
    /// Time until which the poller sleeps.
    asleep_until: Option<Time>,
    /// True if this round has done any work.
    worked: bool,
    /// Number of events delivered in this round.
    delivered: usize,
    _alive: Alive,
}

impl<U: Upper> Poller<U> {
    /// Prepares a poller to run.
    ///
    /// # Errors
    /// When the completion channel cannot be waited for.
    pub(crate) fn new(parts: Parts, node: OfNode, upper: U) -> io::Result<Self> {
        let OfNode { shared, alive } = node;
        let Parts { index, handle, sleeper, device } = parts;
        let idle =
            if shared.runtime.is_simulated() { Idle::simulated() } else { Idle::new(shared.limits.poll_for) };
        let Parted { queues: attached, rooms: (sends, receives, grants), crossings } = part(device);
        // A simulation exercises both ways to sleep.
        let sleeps_on_device = !shared.runtime.is_simulated() || shared.runtime.random() % 4 > 0;
        let mut queues = Queues::new(sleeper, handle.waker().clone(), sleeps_on_device);
        queues.attach(attached)?;
        let hash = PeerHash::new(&shared.runtime);
        let mut core = Core {
            res: Resources::new(index, shared, handle.waker().clone(), sends, receives, grants),
            queues,
            crossings,
            trunks: Trunks::default(),
            peers: Peers::new(hash),
            targets: Targets::default(),
            closings: Closings::default(),
            turns: Turns::default(),
            inbox: CommandQueue::new(handle),
            batch: Batch::default(),
            shutdown: Shutdown::default(),
            log: LogLimit::default(),
            scanned_ms: 0,
        };
        core.res.screens = upper.screens();
        Ok(Self {
            core,
            upper,
            idle,
            stage: Stage::Poll,
            asleep_until: None,
            worked: false,
            delivered: 0,
            _alive: alive,
        })
    }

    /// Runs a round, or the rest of one.
    fn round(&mut self) -> Turn {
        self.core.res.tick();
        let clock = self.core.res.shared.runtime.clock();
        self.idle.round(self.core.res.time.now(), || clock.thread_cpu_time());
        if self.stage == Stage::Poll {
            self.worked = self.poll_completions();
            self.worked |= self.core.take_crossed();
            self.stage = Stage::Deliver;
        }
        if self.ends_turn().and_then(|()| self.finish_round()).is_err() {
            return Turn::Again;
        }
        self.stage = Stage::Poll;
        self.core.trunks.complete_tails(&mut self.core.res);
        self.core.push_out();
        // Trunks with bytes left to copy get their next turn at once.
        self.worked |= !self.core.res.copies.is_empty();
        self.shut_down();
        self.core.timers(|| self.upper.awaited());
        if self.core.is_finished() {
            return Turn::Done;
        }
        let now = self.core.res.time.now();
        if self.worked {
            self.idle.event(now);
            return Turn::Again;
        }
        let transferring = || self.core.trunks.is_transferring(&self.core.res);
        match self.idle.empty_round(now, transferring) {
            Rest::Spin => Turn::Spin,
            Rest::Yield => Turn::Yield,
            Rest::Sleep => {
                self.stage = Stage::Arm;
                Turn::Again
            }
        }
    }

    /// Takes completions. Messages go to the upper half at once, unless earlier events wait for it.
    fn poll_completions(&mut self) -> bool {
        self.delivered = 0;
        let mut deliver = Deliver { upper: &mut self.upper, delivered: 0 };
        self.core.poll_completions(&mut deliver)
    }

    /// Runs the steps of a round that may call handlers.
    fn finish_round(&mut self) -> Result<(), Charged> {
        if self.stage == Stage::Deliver {
            self.deliver()?;
            self.worked |= self.core.commands();
            self.stage = Stage::Run;
        }
        if self.stage == Stage::Run {
            self.deliver()?;
            self.worked |= self.upper.run(&mut self.core);
            self.stage = Stage::DeliverAgain;
            self.ends_turn()?;
        }
        self.deliver()
    }

    /// Hands queued events to the upper half.
    fn deliver(&mut self) -> Result<(), Charged> {
        while let Some(event) = self.core.res.events.next() {
            self.worked = true;
            match event {
                Event::Message(origin, message) => self.upper.message(&mut self.core, origin, message),
                Event::Announced(origin) => self.screen(origin),
                Event::Sent(token, outcome) => self.upper.sent(&mut self.core, token, outcome),
                Event::Peer(peer, event) => self.upper.peer(&mut self.core, peer, event),
                Event::GivenUp(origin, frame, bytes) => {
                    self.upper.given_up(origin, frame.as_slice(), bytes);
                }
                Event::NotSent(to, head, cause) => self.upper.not_sent(&mut self.core, to, &head, cause),
            }
            self.ends_turn()?;
            self.delivered += 1;
            if self.delivered.is_multiple_of(FLUSH_EVERY) {
                self.core.flush_marked();
            }
            if self.delivered.is_multiple_of(LOOK_EVERY) && self.core.is_flush_overdue() {
                self.upper.flush(&mut self.core);
            }
        }
        Ok(())
    }

    /// Asks the upper half for a decision about a large message, before any of it is READ.
    #[cold]
    fn screen(&mut self, from: Origin) {
        let trunk = self.core.announcer(from);
        let Some((frame, header)) = trunk.and_then(Trunk::take_unscreened) else { return };
        let (header, rest) = frame.as_slice().split_at_checked(header).unwrap_or_default();
        let part = rest.get(ANNOUNCEMENT..).unwrap_or_default();
        let screening = self.upper.announced(&mut self.core, from, header, part);
        self.core.screened(from, frame, screening);
    }

    /// Fails if the upper half was charged time, in a simulation. Nothing may be flushed before that time has
    /// passed.
    fn ends_turn(&self) -> Result<(), Charged> {
        if self.core.is_charged() { Err(Charged) } else { Ok(()) }
    }

    fn shut_down(&mut self) {
        if self.core.shutdown.must_tell() {
            self.upper.shutdown(&mut self.core);
        }
        if self.core.shutdown.is_grace_over(self.core.res.time.now()) {
            let lingers = self.upper.grace_over(&mut self.core);
            self.core.shutdown.cut(lingers);
        }
        if self.core.shutdown.has_begun() {
            self.core.shutdown.upper_is(self.upper.is_drained());
            let (quiet, now) = (self.core.is_quiet(), self.core.res.time.now());
            self.settle_sessions();
            self.core.shutdown.settle(quiet, now);
        }
    }

    /// Notifies the upper half of sessions in which nothing is open or in flight. A peer that takes nothing
    /// does not delay others.
    fn settle_sessions(&mut self) {
        let now_ms = self.core.res.time.now_ms();
        if !self.core.res.events.is_empty() || !self.core.shutdown.looks_for_settled(now_ms) {
            return;
        }
        for (peer, number) in self.core.trunks.quiet_sessions() {
            if self.core.shutdown.is_untold((peer, number)) && self.upper.has_ended(peer) {
                self.core.shutdown.tell_session((peer, number));
                if !self.core.res.events.has_lost(peer) {
                    self.upper.settled(&mut self.core, peer);
                }
            }
        }
    }

    /// Asks for an event at the next completion.
    fn arm(&mut self) -> Turn {
        if self.core.queues.has_wait() {
            self.core.queues.announce();
            self.stage = Stage::LookAgain;
            return Turn::Again;
        }
        self.stage = Stage::Announce;
        if let Err(error) = self.core.queues.arm() {
            tracing::error!(%error, "arming the CQ");
            self.stage = Stage::Poll;
            return Turn::Yield;
        }
        Turn::Again
    }

    /// Polls the CQ once more, since a completion from before the arming raises no event, and announces
    /// sleep.
    fn announce(&mut self) -> Turn {
        if self.core.poll_completions(&mut Queue) {
            self.stage = Stage::Poll;
        } else {
            self.core.queues.announce();
            self.stage = Stage::LookAgain;
        }
        Turn::Again
    }

    /// Looks at every queue, then sleeps. Work that came before the announcement has not woken the poller.
    fn look_again(&mut self) -> Turn {
        self.stage = Stage::Asleep;
        if !mutant!(last_look_is_left_out) && self.is_brought_work() {
            return Turn::Again;
        }
        let awaits_acknowledgement = self.core.awaits_acknowledgement();
        let nap = if awaits_acknowledgement { self.core.nap() } else { None };
        let Some(device) = self.core.queues.prepare(awaits_acknowledgement, nap.is_some()) else {
            return Turn::Again;
        };
        let timers = [self.upper.next_timer(), self.core.next_timer(), nap.or(device)];
        self.asleep_until = timers.into_iter().flatten().min();
        Turn::Sleep(self.asleep_until)
    }

    /// Returns true if any queue holds work from another thread.
    fn is_brought_work(&self) -> bool {
        self.upper.is_ready() || self.core.inbox.has_any() || self.core.has_work()
    }

    fn wake_up(&mut self) {
        self.stage = Stage::Poll;
        self.core.queues.awake();
        if let Some(until) = self.asleep_until.take() {
            let shared = &self.core.res.shared;
            shared.stops.woke(until, shared.runtime.clock().now());
        }
    }
}

/// Passes messages to the upper half as they come.
struct Deliver<'a, U> {
    upper: &'a mut U,
    /// Number of messages since the last flush.
    delivered: usize,
}

impl<U: Upper> Deliver<'_, U> {
    fn flush_overdue(&mut self, core: &mut Core) {
        if core.is_flush_overdue() {
            self.upper.flush(core);
        }
    }
}

impl<U: Upper> Take for Deliver<'_, U> {
    #[inline]
    fn message(&mut self, core: &mut Core, from: Origin, message: Message) {
        if !core.res.events.is_empty() || core.is_charged() {
            return Queue.message(core, from, message);
        }
        self.upper.message(core, from, message);
        self.delivered += 1;
        if self.delivered.is_multiple_of(LOOK_EVERY) {
            self.flush_overdue(core);
        }
    }

    fn frame_ends(&mut self, core: &mut Core) {
        if self.delivered >= FLUSH_EVERY && !core.is_charged() {
            self.delivered = 0;
            core.flush_marked();
        }
    }

    fn must_wait(&self, _: PeerKey, is_before_turn: bool) -> bool {
        is_before_turn
    }

    fn takes_turns(&self) -> bool {
        true
    }
}

impl<U: Upper> Machine for Poller<U> {
    fn turn(&mut self) -> Turn {
        let _here = self.upper.enter();
        match self.stage {
            Stage::Arm => self.arm(),
            Stage::Announce => self.announce(),
            Stage::LookAgain => self.look_again(),
            Stage::Asleep => {
                self.wake_up();
                self.round()
            }
            Stage::Poll | Stage::Deliver | Stage::Run | Stage::DeliverAgain => self.round(),
        }
    }

    fn sleep(&mut self, until: Option<Time>) {
        if let Err(error) = self.core.queues.sleep(until) {
            tracing::error!(%error, "waiting for events");
        }
    }

    fn is_woken(&self) -> bool {
        self.core.queues.is_woken()
    }

    fn is_due(&self) -> bool {
        self.is_brought_work() || (self.stage == Stage::Asleep && self.core.queues.is_due())
    }

    fn inspect(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.core.ledger(self.upper.ledger())))
    }
}

impl<U> Drop for Poller<U> {
    /// Shuts the node down if its poller has panicked, so that its peers do not wait for it.
    fn drop(&mut self) {
        let shared = &self.core.res.shared;
        if std::thread::panicking() {
            tracing::error!("a poller has panicked; the node ends");
            shared.cm.command(CmCommand::Shutdown);
            let deadline = shared.runtime.clock().now();
            for poller in &shared.pollers {
                poller.command(Command::Shutdown { deadline });
            }
        }
    }
}

impl Core {
    /// Returns the trunk of the session that a message came through.
    fn announcer(&mut self, from: Origin) -> Option<&mut Trunk> {
        let slot = self.trunks.find(self.peers.trunk(from.peer), from.peer, from.session.0)?;
        self.trunks.get_mut(slot).filter(|trunk| trunk.is_live())
    }

    /// Takes a decision of the upper half, unless the session has ended in the meantime.
    fn screened(&mut self, from: Origin, frame: Message, screening: Screening) {
        let slot = self.trunks.find(self.peers.trunk(from.peer), from.peer, from.session.0);
        let trunk = slot.and_then(|slot| self.trunks.get_mut(slot));
        if let Some(trunk) = trunk.filter(|trunk| trunk.is_live()) {
            trunk.screened(&mut self.res, frame, screening);
        }
    }

    /// Returns true if the upper half was charged time in this turn, in a simulation.
    pub(super) fn is_charged(&self) -> bool {
        self.res.shared.runtime.clock().is_charged()
    }

    /// Returns true if the poller waits for the acknowledgement of something that it has sent.
    fn awaits_acknowledgement(&self) -> bool {
        self.shutdown.has_begun() || self.trunks.await_acknowledgement(&self.res)
    }

    /// Returns true if there is work for the next round.
    fn has_work(&self) -> bool {
        !self.res.events.is_empty()
            || !self.res.marked.is_empty()
            || !self.turns.is_empty()
            || self.crossings.has_any()
    }
}
