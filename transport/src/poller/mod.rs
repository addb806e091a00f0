//! A poller: a machine that owns a CQ, an SRQ, the INIs of its trunks, their buffers and
//! timers, and an upper half. It runs everything to completion and never blocks but to sleep.
//!
//! | file | role |
//! |---|---|
//! | [`run`](self) `run.rs` | its turns |
//! | `idle.rs` | when to yield, when to sleep |
//! | `sends.rs` | from queues to posted work, and its completions |
//! | `receives.rs` | from completions to messages, and reposting |
//! | `crossing.rs`, `closings.rs` | what came to one poller and is for another, over RC |
//! | `large.rs` | rendezvous, both sides |
//! | `peers.rs` | sessions coming up and going down |
//! | `timers.rs` | deadlines, keepalive, credit that decays |
//! | `attach.rs` | taking a device, and letting go of one that was removed |
//! | `carrier.rs` | what the upper half can ask for |
//!
//! Nothing here is shared but what [`crate::shared::NodeShared`] holds and the rings of [`crate::crossings`]. A call
//! takes the lock of the directory of peers, and a poll that of the CQ.

mod attach;
mod carrier;
mod closings;
mod crossing;
mod idle;
mod large;
mod peers;
mod receives;
mod run;
mod sends;
mod timers;

pub(crate) use run::{OfNode, Parts, Poller};

use crate::buffer::{ReceiveSlots, Received, SendSlots};
use crate::command::{Command, PollerHandle, SessionUp};
use crate::credit::{GrantId, Grants};
use crate::crossings::Crossings;
use crate::log_limit::LogLimit;
use crate::shared::NodeShared;
use crate::trunk::{Outbound, Trunk};
use crate::{Message, Origin, PeerEvent, PeerKey, PollerIndex, SendOutcome, Token};
use closings::Closings;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_machine::Sleeper;
use trunkline_verbs::{CompletionChannel, CompletionQueue, QpNumber, SharedReceiveQueue, Time};

/// What the upper half is to be told, in order.
#[derive(Debug)]
enum Event {
    Message(Origin, Message),
    Sent(Token, SendOutcome),
    Peer(PeerKey, PeerEvent),
}

/// The poller's own objects on the device.
#[derive(Debug)]
struct Attached {
    channel: Arc<dyn CompletionChannel>,
    cq: Arc<dyn CompletionQueue>,
    srq: Arc<dyn SharedReceiveQueue>,
}

/// What trunks need of their poller.
#[derive(Debug)]
pub(crate) struct Resources {
    index: PollerIndex,
    shared: Arc<NodeShared>,
    handle: PollerHandle,
    sleeper: Sleeper,
    /// `None` while the device is away; then nothing is posted, because there is no trunk.
    attached: Option<Attached>,
    sends: SendSlots,
    receives: ReceiveSlots,
    /// Below this many free receive slots messages are copied instead of lent.
    low_water: usize,
    grants: Grants,
    /// To and from the other pollers.
    crossings: Crossings,
    events: VecDeque<Event>,
    started: Time,
    now: Time,
    now_ms: u64,
    /// Targets whose spender may have to be told of credit.
    untold: Vec<QpNumber>,
    /// An empty list with room, to change places with `untold`.
    spare: Vec<QpNumber>,
    /// What a flush is about to post; empty in between, for its room.
    ready: Vec<sends::Ready>,
    /// Trunks to pump and flush.
    marked: Vec<usize>,
    /// Completions that posted sends may still produce; bounded by the CQ.
    outstanding: usize,
    max_outstanding: usize,
    /// For lines about peers that misbehave.
    log: LogLimit,
}

impl Resources {
    fn tick(&mut self) {
        self.now = self.shared.runtime.clock().now();
        self.now_ms =
            u64::try_from(self.now.saturating_duration_since(self.started).as_millis()).unwrap_or(u64::MAX);
    }

    fn mark(&mut self, trunk: &mut Trunk) {
        if !trunk.marked {
            trunk.marked = true;
            self.marked.push(trunk.slot);
        }
    }
}

/// A TGT whose messages may be for us.
#[derive(Debug)]
struct Target {
    peer: PeerKey,
    number: u32,
    /// The peer's poller behind it.
    poller: u16,
    pair: GrantId,
    /// Frames that came before we heard that the session is up.
    held: Vec<Received>,
    /// Its peer broke the rules: nothing of it is looked at until the TGT is destroyed.
    broken: bool,
}

/// A peer as this poller knows it.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    /// The upper half knows the key, by its address.
    named: bool,
    /// Messages for the next session.
    waiting: VecDeque<Outbound>,
    /// The CM machine was asked for a session.
    asked: bool,
    trunk: Option<usize>,
    /// Trunks of earlier sessions that are being taken down.
    dying: usize,
    /// A session that came up meanwhile.
    pending: Option<Box<SessionUp>>,
    forgotten: bool,
}

/// All of a poller but its upper half, which borrows it as a [`crate::Carrier`].
#[derive(Debug)]
pub(crate) struct Core {
    res: Resources,
    trunks: Slab<Trunk>,
    peers: BTreeMap<PeerKey, Peer>,
    targets: BTreeMap<QpNumber, Target>,
    /// Sessions that end, and wait for what other pollers hand on.
    closings: Closings,
    /// Taken from the queue, but it cannot be carried out yet.
    deferred: Option<Command>,
    /// Frames of TGTs that are not known yet: a command after `deferred` may announce them.
    unknown_target_frames: Vec<(QpNumber, Received)>,
    shutdown: Option<Shutdown>,
    scanned_ms: u64,
}

/// How far shutting down has come.
#[derive(Debug)]
struct Shutdown {
    deadline: Time,
    /// The upper half was told.
    told: bool,
    /// It has nothing open any more.
    idle: bool,
    /// The CM machine was told that nothing is under way any more.
    drained: bool,
    /// The CM machine has closed all sessions.
    ended: bool,
}
