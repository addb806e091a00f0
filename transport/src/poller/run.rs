//! The loop of a poller.
//!
//! ```text
//! poll the CQ and the rings -> messages to the upper half -> its own work -> commands -> flush sends
//!   -> timers -> nothing for a while: arm, look once more, sleep
//! ```
#![forbid(unsafe_code)]

use super::command::Command;
use super::handle::PollerHandle;
use super::idle::{Idle, Rest};
use super::{Attached, Core, Event, Resources};
use crate::credit::Grants;
use crate::incarnation::PollerDevice;
use crate::log_limit::LogLimit;
use crate::shared::NodeShared;
use crate::{PollerIndex, Upper};
use mio::{Events, Poll, Token};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_verbs::Notify;

/// The waker's token; the completion channel has the other.
pub(crate) const WAKER: Token = Token(1);
/// Staged work is flushed after so many events, so that a slow handler does not hold back the
/// answers of those before it.
const FLUSH_EVERY: usize = 16;

/// What a poller is made of; everything was made by the starting thread, so that failures are
/// its to report.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) index: PollerIndex,
    pub(crate) handle: PollerHandle,
    pub(crate) poll: Poll,
    pub(crate) device: PollerDevice,
    /// It has its CPU for itself.
    pub(crate) alone: bool,
}

/// A poller with its upper half.
pub(crate) struct Poller<U> {
    core: Core,
    upper: U,
    wakeups: Events,
    idle: Idle,
}

impl<U: Upper> Poller<U> {
    /// Gets ready to run.
    ///
    /// # Errors
    /// When the completion channel cannot be waited for.
    pub(crate) fn new(parts: Parts, shared: Arc<NodeShared>, upper: U) -> io::Result<Self> {
        let now = Instant::now();
        let Parts { index, handle, poll, device, alone } = parts;
        let PollerDevice { channel, cq, srq, sends, receives, crossings, depth } = device;
        let mut res = Resources {
            index,
            shared,
            handle,
            poll,
            attached: None,
            max_outstanding: 0,
            sends,
            receives,
            low_water: 0,
            grants: Grants::new(0, 1),
            crossings,
            events: VecDeque::new(),
            started: now,
            now,
            now_ms: 0,
            untold: Vec::new(),
            spare: Vec::new(),
            ready: Vec::new(),
            marked: Vec::new(),
            outstanding: 0,
            log: LogLimit::default(),
        };
        res.watch(Attached { channel, cq, srq }, depth)?;
        let core = Core {
            res,
            trunks: Slab::new(),
            peers: HashMap::new(),
            targets: HashMap::new(),
            deferred: None,
            strays: Vec::new(),
            shutdown: None,
            scanned_ms: 0,
        };
        Ok(Self { core, upper, wakeups: Events::with_capacity(8), idle: Idle::new(alone) })
    }

    /// Runs until the node has shut down.
    pub(crate) fn run(mut self) {
        loop {
            self.core.res.tick();
            let mut worked = self.core.poll_completions();
            worked |= self.core.take_crossed();
            worked |= self.deliver();
            worked |= self.upper.run(&mut self.core);
            worked |= self.core.commands();
            worked |= self.deliver();
            self.core.push_out();
            self.shut_down();
            self.core.timers();
            if self.core.is_finished() {
                return;
            }
            if worked {
                self.idle.reset();
                continue;
            }
            match self.idle.empty_round(self.core.res.now, || self.core.is_transferring()) {
                Rest::Spin => std::hint::spin_loop(),
                Rest::Yield => std::thread::yield_now(),
                Rest::Sleep => self.sleep(),
            }
        }
    }

    /// Hands queued events to the upper half; answers whether there were any.
    fn deliver(&mut self) -> bool {
        let mut delivered = 0;
        while let Some(event) = self.core.res.events.pop_front() {
            match event {
                Event::Message(origin, message) => self.upper.message(&mut self.core, origin, message),
                Event::Sent(token, outcome) => self.upper.sent(&mut self.core, token, outcome),
                Event::Peer(peer, event) => self.upper.peer(&mut self.core, peer, event),
            }
            delivered += 1;
            if delivered % FLUSH_EVERY == 0 {
                self.core.flush_marked();
            }
        }
        delivered > 0
    }

    fn shut_down(&mut self) {
        let Some(shutdown) = &mut self.core.shutdown else { return };
        if !shutdown.told {
            shutdown.told = true;
            self.upper.shutdown(&mut self.core);
        }
        let idle = self.upper.is_drained();
        if let Some(shutdown) = &mut self.core.shutdown {
            shutdown.idle = idle;
        }
    }

    /// Sleeps until a completion, a wake or a timer. A completion or work that came while going
    /// to sleep is seen, because both are looked for after arming and announcing.
    fn sleep(&mut self) {
        self.idle.reset();
        let armed = self.core.res.attached.as_ref().map(|attached| attached.cq.request_notify(Notify::Any));
        if let Some(Err(error)) = armed {
            tracing::error!(%error, "arming the CQ");
            return;
        }
        if self.core.poll_completions() {
            return;
        }
        self.core.res.handle.announce_sleep();
        if !self.upper.is_ready() && !self.core.res.handle.has_commands() && !self.core.has_work() {
            let timeout = self.timeout();
            if let Err(error) = self.core.res.poll.poll(&mut self.wakeups, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "waiting for events");
            }
        }
        self.core.res.handle.awake();
        if let Some(attached) = &self.core.res.attached {
            while attached.channel.next_event().is_some() {}
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let timers = [self.upper.next_timer(), self.core.next_timer()];
        let next = timers.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(self.core.res.now))
    }
}

impl Core {
    /// Whether bytes of large messages are on their way in or out.
    fn is_transferring(&self) -> bool {
        self.trunks.iter().any(|(_, trunk)| trunk.reads_out > 0 || !trunk.sources.is_empty())
    }

    /// Whether something came up that the next round must see to.
    fn has_work(&self) -> bool {
        !self.res.events.is_empty() || !self.res.marked.is_empty() || self.res.crossings.has_any()
    }
}

/// Ends a node whose poller has panicked, instead of letting its peers wait for it.
pub(crate) struct Guard(pub(crate) Arc<NodeShared>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a poller has panicked; the node ends");
            self.0.cm.command(crate::session::cm_thread::CmCommand::Shutdown);
            for poller in &self.0.pollers {
                poller.command(Command::Shutdown { deadline: Instant::now() });
            }
        }
    }
}
