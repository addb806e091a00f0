//! The turns of a transport, run by its driver.
//!
//! ```text
//! round: poll_event: the CQ, the rings between pollers, commands, and the events of these
//!        | the driver's own work | poll_event | flush_round | end_turn: timers
//! nothing for a while: arm the CQ | poll once more, announce | look at every queue | sleep
//!    or, on a device with its own wait:                announce | look at every queue, prepare the wait | sleep
//! ```
//!
//! A round is one turn, and so is each step before a sleep, because other machines may run between two turns. A round
//! takes several turns only in a simulation, when the clock was charged the time of a handler. The machine is idle
//! during that time, so its sends are flushed afterwards.
//!
//! Commands are executed before the driver's own work. A call that is made after the end of a session was reported
//! therefore waits for the next session, and is not staged on a trunk that ends in the same round.
#![forbid(unsafe_code)]

use super::device::{Parted, Queues, part};
use super::idle::{Idle, Rest};
use super::services::LastSent;
use super::{Transport, commands::CommandQueue};
use crate::command::{CmCommand, Command, PollerHandle};
#[cfg(all(feature = "identity", debug_assertions))]
use crate::identity::off_poller;
use crate::node::incarnation::PollerDevice;
use crate::node::shared::{Alive, NodeShared};
use crate::peer::hash::PeerHash;
use crate::report::ledger::{DriverLedger, PollerLedger};
use crate::trunk::{Resources, Trunk};
use crate::{Announcement, Awaited, Event, Origin, PeerKey, PollerIndex, Screening};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_machine::{Sleeper, Turn};
use trunkline_verbs::Time;

/// Number of events after which staged work is flushed, so that a slow handler does not hold back earlier replies.
/// The messages of a bundle arrived together, so their replies are sent together.
const FLUSH_EVERY: usize = 16;

/// Number of events between two reads of the clock. If the events take long, staged work is flushed early.
const LOOK_EVERY: usize = 4;

/// Parts of a poller, created on the starting thread so that failures are reported there.
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

/// The poller's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Receive from the CQ.
    Receive,
    /// Execute commands.
    Command,
    /// Wait for the driver's own work.
    Work,
    /// Return the events of the driver's work.
    Finish,
    /// Arm the CQ, the first step before a sleep. Later completions make the channel readable.
    Arm,
    /// Take completions that arrived before the CQ was armed, and announce the sleep.
    Announce,
    /// Look at every queue once more.
    LookAgain,
    /// Resume after sleep.
    Asleep,
}

/// State of a turn that has begun.
#[derive(Debug)]
pub enum Begun {
    /// A round, or the continuation of one.
    Round,
    /// The last check before a sleep; call [`Transport::sleep_unless`].
    LookAgain,
    /// The turn is over, without work for the driver.
    Over(Turn),
}

impl Transport {
    /// Creates the transport of one poller.
    ///
    /// # Errors
    /// Returns an error if the sleeper cannot wait for the completion channel.
    pub(crate) fn new(parts: Parts, node: OfNode) -> io::Result<Self> {
        let OfNode { shared, alive } = node;
        let Parts { index, handle, sleeper, device } = parts;
        let idle =
            if shared.runtime.is_simulated() { Idle::simulated() } else { Idle::new(shared.limits.poll_for) };
        let Parted {
            queues: attached,
            rooms: (sends, receives, grants),
            crossings,
            #[cfg(feature = "identity")]
            handshakes,
        } = part(device);
        // A simulation exercises both ways to sleep.
        let sleeps_on_device = !shared.runtime.is_simulated() || shared.runtime.random() % 4 > 0;
        let mut queues = Queues::new(sleeper, handle.waker().clone(), sleeps_on_device);
        queues.attach(attached)?;
        let hash = super::Peers::new(PeerHash::new(&shared.runtime));
        Ok(Self {
            res: Resources::new(index, shared, handle.waker().clone(), sends, receives, grants),
            queues,
            crossings,
            trunks: super::Trunks::default(),
            peers: hash,
            targets: super::Targets::default(),
            closings: super::Closings::default(),
            #[cfg(feature = "identity")]
            handshakes,
            turns: super::Turns::default(),
            inbox: CommandQueue::new(handle),
            receiving: super::Receiving::default(),
            shutdown: super::Shutdown::default(),
            log: crate::LogLimit::default(),
            scanned_ms: 0,
            idle,
            stage: Stage::Receive,
            asleep_until: None,
            worked: false,
            delivered: 0,
            last_sent: LastSent::default(),
            _alive: alive,
        })
    }

    /// Requires a decision by the driver about each large message before the rest of it is READ; see
    /// [`Event::Announced`].
    pub fn screen_announced(&mut self) {
        self.res.screens = true;
    }

    /// Begins a turn.
    pub fn begin_turn(&mut self) -> Begun {
        match self.stage {
            Stage::Arm => return Begun::Over(self.arm()),
            Stage::Announce => return Begun::Over(self.announce()),
            Stage::LookAgain => return Begun::LookAgain,
            Stage::Asleep => self.wake_up(),
            Stage::Receive | Stage::Command | Stage::Work | Stage::Finish => {}
        }
        #[cfg(all(feature = "identity", debug_assertions))]
        off_poller::begin_turn();
        self.res.tick();
        let clock = self.res.shared.runtime.clock();
        self.idle.round(self.res.time.now(), || clock.thread_cpu_time());
        Begun::Round
    }

    /// Returns the next event of the round; `None` when the driver's own work is due, and at the end of the round.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.message_handled();
        if self.delivered >= FLUSH_EVERY && !self.receiving.is_amid_bundle() && !self.is_charged() {
            self.delivered = 0;
            self.flush_marked();
        }
        loop {
            let event = if !self.res.events.is_empty() {
                self.worked = true;
                self.res.events.next()
            } else if self.stage == Stage::Receive {
                self.receive()
            } else if self.stage == Stage::Command {
                self.worked |= self.commands();
                self.stage = Stage::Work;
                None
            } else {
                return None;
            };
            if event.is_some() {
                self.delivered += 1;
                return event;
            }
        }
    }

    /// Returns true if there are events, possibly caused by the driver's own work.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.res.events.is_empty()
    }

    /// Returns true if messages sent in this round should not wait for its end, because events took long to handle.
    /// Call this after each event, and call [`Self::flush`] if it returns true.
    #[inline]
    pub fn is_flush_due(&mut self) -> bool {
        self.delivered.is_multiple_of(LOOK_EVERY) && self.is_flush_overdue()
    }

    /// Returns true if a simulated clock was charged the time of a handler. The turn then ends, and the next turn
    /// continues the round, so that frames are flushed only after that time has passed.
    #[inline]
    #[must_use]
    pub fn is_charged(&self) -> bool {
        self.res.shared.runtime.clock().is_charged()
    }

    /// Returns true once per round, when the driver's own work is due.
    pub fn begin_work(&mut self) -> bool {
        let is_due = self.stage == Stage::Work;
        if is_due {
            self.stage = Stage::Finish;
        }
        is_due
    }

    /// Records whether the driver's own work did anything.
    pub fn note_work(&mut self, worked: bool) {
        self.worked |= worked;
    }

    /// Posts everything that was staged in the round.
    pub fn flush_round(&mut self) {
        self.stage = Stage::Receive;
        self.trunks.complete_tails(&mut self.res);
        self.push_out();
        // Trunks with bytes left to copy get their next turn at once.
        self.worked |= !self.res.copies.is_empty();
    }

    /// Ends the turn and runs the timers. `awaited` returns the kind of answer that the driver awaits from each peer;
    /// it is called only if a probe may be due.
    pub fn end_turn(&mut self, awaited: impl FnOnce() -> BTreeMap<PeerKey, Awaited>) -> Turn {
        self.timers(awaited);
        #[cfg(all(feature = "identity", debug_assertions))]
        off_poller::end_turn();
        if self.is_finished() {
            return Turn::Done;
        }
        let now = self.res.time.now();
        if std::mem::take(&mut self.worked) {
            self.idle.event(now);
            return Turn::Again;
        }
        let transferring = || self.trunks.is_transferring(&self.res);
        match self.idle.empty_round(now, transferring) {
            Rest::Spin => Turn::Spin,
            Rest::Yield => Turn::Yield,
            Rest::Sleep => {
                self.stage = Stage::Arm;
                Turn::Again
            }
        }
    }

    /// Requests an event at the next completion.
    fn arm(&mut self) -> Turn {
        if self.queues.has_wait() {
            self.queues.announce();
            self.stage = Stage::LookAgain;
            return Turn::Again;
        }
        self.stage = Stage::Announce;
        if let Err(error) = self.queues.arm() {
            tracing::error!(%error, "CQ not armed");
            self.stage = Stage::Receive;
            return Turn::Yield;
        }
        Turn::Again
    }

    /// Polls the CQ once more, since a completion that arrived before arming does not raise an event. Then announces
    /// the sleep.
    fn announce(&mut self) -> Turn {
        if self.take_all() {
            self.stage = Stage::Receive;
        } else {
            self.queues.announce();
            self.stage = Stage::LookAgain;
        }
        Turn::Again
    }

    /// Checks every queue, then sleeps until the driver's next timer at the latest. `is_ready` is true if the driver
    /// has work, since work queued before the announcement does not wake the poller.
    pub fn sleep_unless(&mut self, is_ready: bool, next_timer: Option<Time>) -> Turn {
        self.stage = Stage::Asleep;
        if !mutant!(last_look_is_left_out) && (is_ready || self.is_brought_work()) {
            return Turn::Again;
        }
        let awaits_acknowledgement = self.awaits_acknowledgement();
        let nap = if awaits_acknowledgement { self.nap() } else { None };
        let Some(device) = self.queues.prepare(awaits_acknowledgement, nap.is_some()) else {
            return Turn::Again;
        };
        let timers = [next_timer, self.next_timer(), nap.or(device)];
        self.asleep_until = timers.into_iter().flatten().min();
        Turn::Sleep(self.asleep_until)
    }

    /// Returns true if a queue contains work from another thread.
    fn is_brought_work(&self) -> bool {
        self.inbox.has_any()
            || !self.res.events.is_empty()
            || !self.res.marked.is_empty()
            || !self.turns.is_empty()
            || self.crossings.has_any()
    }

    fn wake_up(&mut self) {
        self.stage = Stage::Receive;
        self.queues.awake();
        if let Some(until) = self.asleep_until.take() {
            let shared = &self.res.shared;
            shared.stops.woke(until, shared.runtime.clock().now());
        }
    }

    /// Blocks the thread, as [`Machine::sleep`](trunkline_machine::Machine::sleep) must.
    pub fn sleep(&mut self, until: Option<Time>) {
        if let Err(error) = self.queues.sleep(until) {
            tracing::error!(%error, "poller could not wait for events");
        }
    }

    /// Returns true if a sleeping poller was woken.
    #[must_use]
    pub fn is_woken(&self) -> bool {
        self.queues.is_woken()
    }

    /// Returns true if a sleeping poller has work. `is_ready` is true if the driver has work.
    #[must_use]
    pub fn is_due(&self, is_ready: bool) -> bool {
        is_ready || self.is_brought_work() || (self.stage == Stage::Asleep && self.queues.is_due())
    }

    /// Returns the state of the transport and the driver, for a simulation.
    #[must_use]
    pub fn inspect(&self, driver: DriverLedger) -> PollerLedger {
        self.ledger(driver)
    }

    /// Takes an announced large message. Returns `None` if its session has ended.
    #[cold]
    pub fn announcement(&mut self, from: Origin) -> Option<Announcement> {
        let part = self.announcer(from)?.take_unscreened()?;
        Some(Announcement { from, part })
    }

    /// Applies the decision about an announced message, unless the session has ended in the meantime.
    pub fn screened(&mut self, announcement: Announcement, screening: Screening) {
        let Announcement { from, part } = announcement;
        let slot = self.trunks.find(self.peers.trunk(from.peer), from.peer, from.session.0);
        let trunk = slot.and_then(|slot| self.trunks.get_mut(slot));
        if let Some(trunk) = trunk.filter(|trunk| trunk.is_live()) {
            trunk.screened(&mut self.res, part, screening);
        }
    }

    /// Returns the trunk of the session through which a message arrived.
    fn announcer(&mut self, from: Origin) -> Option<&mut Trunk> {
        let slot = self.trunks.find(self.peers.trunk(from.peer), from.peer, from.session.0)?;
        self.trunks.get_mut(slot).filter(|trunk| trunk.is_live())
    }

    /// Returns true if the poller waits for an acknowledgement.
    fn awaits_acknowledgement(&self) -> bool {
        #[cfg(feature = "identity")]
        if self.handshakes.await_acknowledgement() {
            return true;
        }
        self.shutdown.has_begun() || self.trunks.await_acknowledgement(&self.res)
    }
}

impl Drop for Transport {
    /// Shuts the node down if this poller has panicked, so that the node's peers do not wait for it.
    fn drop(&mut self) {
        let shared = &self.res.shared;
        if std::thread::panicking() {
            tracing::error!("poller panicked; its node ends");
            shared.cm.command(CmCommand::Shutdown);
            let deadline = shared.runtime.clock().now();
            for poller in &shared.pollers {
                poller.command(Command::Shutdown { deadline });
            }
        }
    }
}
