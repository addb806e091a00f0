//! The card: everything of a device that packets touch, behind one lock.
//!
//! Owns QPs, SRQs, keys, the connection manager and the link. Whoever polls, posts or connects
//! works on it in its own thread; the background thread does when nobody polls. It must never
//! wait: every call does what can be done now and says when it wants to be called again.
//!
//! ```text
//! link -> receive -> engine halves -> completions -> CQs
//!                        |  ^
//!                 answers|  |timers, posts
//!                        v  |
//!                 transmit -> link
//! ```

mod cm;
mod completions;
mod connect;
mod members;
mod memory;
mod overflow;
mod peers;
mod qp;
mod receive;
mod removal;
mod resolve;
mod route;
mod service;
mod sharing;
mod srq;
mod target;
mod timers;
mod transmit;

pub(super) use connect::{PendingCmEvent, PendingCmEventKind};
pub(super) use qp::{QpParts, ReceiveSide};
pub(super) use sharing::{ModifyProgress, ModifyTicket};
pub(super) use srq::XrcSide;

use super::async_events::AsyncEvents;
use super::counters::{self, CardCounters};
use super::gid_table::GidTable;
use super::keys::Keys;
use super::numbers::{NumberMap, Numbers};
use super::random::Random;
use super::unknown_srq::UnknownSrq;
use crate::host::{AwayFiles, Host, Members, Targets};
use crate::link::{Link, ReceiveBatch, SendBatch};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use trunkline_roce::engine::{Requester, ResponderState};
use trunkline_verbs::{Counter, Mtu, Time, VerbsError};

/// Datagrams taken off the link at once.
const RECEIVE_SLOTS: usize = 64;
/// Batches in one go, before whoever works looks after other things.
const BATCHES_IN_TURN: usize = 4;
/// When a link without room is tried again.
const NO_ROOM_RETRY: Duration = Duration::from_micros(200);

/// What a card is made with.
#[derive(Debug)]
pub(super) struct CardInit {
    pub(super) link: Box<dyn Link>,
    pub(super) gids: GidTable,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) unknown_srq: UnknownSrq,
    pub(super) random: Random,
    pub(super) guid: u64,
    /// Whether the host's routing may be asked for the way to a peer; a simulation has none.
    pub(super) asks_host: bool,
    /// The other devices of this user that share the addresses; none on a network in process.
    pub(super) host: Option<Arc<Host>>,
    /// Messages to and from them; none on a network in process.
    pub(super) members: Option<Arc<Members>>,
    /// TGTs that the members of the host share; none on a network in process.
    pub(super) targets: Option<Arc<Targets>>,
    /// What says that the device is away, if it is removable.
    pub(super) away: Option<AwayFiles>,
}

/// The card.
#[derive(Debug)]
pub(super) struct Card {
    /// Registered memory.
    pub(super) keys: Keys,
    srqs: NumberMap<srq::SrqState>,
    srq_numbers: Numbers,
    qps: NumberMap<Box<qp::Qp>>,
    qp_numbers: Numbers,
    gids: GidTable,
    link: Box<dyn Link>,
    outgoing: SendBatch,
    /// `None` only while a batch is being handled.
    received: Option<ReceiveBatch>,
    /// QPs that want service, each once.
    ready: VecDeque<u32>,
    timers: timers::Timers,
    cm: cm::CmSide,
    /// TGTs that processes share; `None` on a network in process.
    sharing: Option<sharing::Sharing>,
    peers: peers::Peers,
    counters: CardCounters,
    events: Arc<AsyncEvents>,
    /// CQs whose overflow the QPs know of.
    overflows_served: u64,
    unknown_srq: UnknownSrq,
    random: Random,
    /// Addresses at which packets reach us.
    opened: Vec<IpAddr>,
    /// The other devices of this user that share the addresses.
    host: Option<Arc<Host>>,
    asks_host: bool,
    /// Messages to and from them.
    members: Option<Arc<Members>>,
    /// Grows when we change the link's descriptors.
    descriptors_changed: u64,
    /// It was taken out of its slot.
    is_gone: bool,
    /// What says that it is to be, and when that is looked for next.
    away: Option<(AwayFiles, Time)>,
}

impl Card {
    pub(super) fn new(mut init: CardInit) -> Self {
        let random = &mut init.random;
        Self {
            keys: Keys::new(random),
            srqs: NumberMap::default(),
            srq_numbers: Numbers::new(random, init.host.as_ref()),
            qps: NumberMap::default(),
            qp_numbers: Numbers::new(random, init.host.as_ref()),
            gids: init.gids,
            link: init.link,
            outgoing: SendBatch::new(),
            received: Some(ReceiveBatch::new(RECEIVE_SLOTS)),
            ready: VecDeque::new(),
            timers: timers::Timers::default(),
            cm: cm::CmSide::new(init.guid, random, init.host.as_ref().map(|host| host.me().slot)),
            sharing: init.targets.map(sharing::Sharing::new),
            peers: peers::Peers::default(),
            counters: CardCounters::default(),
            overflows_served: 0,
            events: init.events,
            unknown_srq: init.unknown_srq,
            random: init.random,
            opened: Vec::new(),
            host: init.host,
            asks_host: init.asks_host,
            members: init.members,
            // The link may have descriptors from the start.
            descriptors_changed: 1,
            is_gone: false,
            away: init.away.map(|files| (files, Time(0))),
        }
    }

    /// Does the work that is due; returns whether more is due at once.
    pub(super) fn work(&mut self, now: Time) -> bool {
        if self.is_gone {
            return false;
        }
        if self.link.next_timeout().is_some_and(|when| when <= now) {
            self.link.poll(now);
        }
        let mut more = false;
        for _ in 0..BATCHES_IN_TURN {
            more = self.receive(now);
            self.serve_members(now);
            self.flush(now);
            if !more {
                break;
            }
        }
        self.run_timers(now);
        self.serve_cm(now);
        self.serve_pending_takeovers(now);
        self.look_for_removal(now);
        self.flush(now);
        more || (!self.ready.is_empty() && self.outgoing.is_empty())
    }

    /// When `work` wants to be called although nothing arrives; may have passed.
    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        if self.is_gone {
            return None;
        }
        let waits_for_members = self.sharing.as_ref().is_some_and(|sharing| !sharing.outbox.is_empty());
        if !self.outgoing.is_empty() || waits_for_members {
            return Some(now + NO_ROOM_RETRY);
        }
        if !self.ready.is_empty() {
            return Some(now);
        }
        let timers = self.timers.next();
        let cm = self.cm.next_timeout();
        let takeovers = self.sharing.as_ref().and_then(sharing::Sharing::next_timeout);
        let look = self.next_look();
        [timers, cm, takeovers, look, self.link.next_timeout()].into_iter().flatten().min()
    }

    /// Notifies the link that a thread is about to sleep on its descriptors; `true` when something
    /// waits already.
    pub(super) fn arm(&mut self) -> bool {
        self.link.arm()
    }

    /// Whether datagrams wait at the link.
    pub(super) fn has_arrivals(&self) -> bool {
        self.link.has_arrivals()
    }

    /// Whether receiving leaves the link armed.
    pub(super) fn stays_armed(&self) -> bool {
        self.link.stays_armed()
    }

    /// The link's descriptors, and a number that changes when they do.
    pub(super) fn descriptors(&self) -> (u64, Vec<RawFd>) {
        (self.descriptors_version(), self.link.fds().iter().map(AsRawFd::as_raw_fd).collect())
    }

    /// The number of [`Card::descriptors`] alone.
    pub(super) fn descriptors_version(&self) -> u64 {
        self.descriptors_changed + self.link.changes()
    }

    /// The GID table.
    pub(super) fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Opens an address of the link, the first time it is used.
    fn open_address(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        if !self.opened.contains(&address) {
            self.link.open(address)?;
            self.opened.push(address);
            self.descriptors_changed += 1;
        }
        Ok(())
    }

    /// The path MTU that the interface of an address allows.
    pub(super) fn mtu_of(&self, address: IpAddr) -> Mtu {
        let bytes = self.link.mtu(address).unwrap_or(1500);
        Mtu::for_link(bytes).unwrap_or(Mtu::Mtu256)
    }

    /// All counters.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let mut qps = self.counters.retired.clone();
        for qp in self.qps.values() {
            let responder = qp.responder.as_ref().map(ResponderState::counters);
            qps.add(qp.requester.as_ref().map(Requester::counters), responder);
        }
        let mut list = counters::list(&self.counters, &qps, self.events.lost());
        self.cm.counters(&mut list);
        self.link.counters(&mut list);
        list
    }
}
