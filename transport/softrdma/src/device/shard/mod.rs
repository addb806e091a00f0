//! The shard: the data path of a device.
//!
//! Owns QPs, SRQs, keys, timers and the shard's end of the link. Called under the card's lock by
//! threads that poll or post, by the background machine, and by control. It must never wait, and knows
//! nothing of connections: what is control's business it queues as [`Found`], in order, until control
//! takes it.
//!
//! ```text
//! link -> receive -> engine halves -> completions -> CQs
//!                        |  ^
//!                 answers|  |timers, posts
//!                        v  |
//!                 transmit -> link
//! ```
//! | part | what it owns |
//! |---|---|
//! | `link_endpoint`, `no_link` | the link, datagrams in and out, open addresses |
//! | `qp_table`, `timers` | QPs by number, whose turn it is, deadlines |
//! | `qp`, `route` | one QP: engine halves, attributes, where its packets go |
//! | `reception`, `target`, `memory` | what a QP's halves reach: receives, registered memory |
//! | `srq_table` | SRQs |
//! | `resources` | what the QPs share |
//! | `peers` | whose ICRC may be solved for |
//! | `receive`, `transmit` | the ways in and out |
//! | `found`, `outbox` | what leaves for control, and for other processes |
//! | `shared_tgt`, `executing` | the seam to TGTs that processes share: from the shard, to the shard |
#![forbid(unsafe_code)]

mod executing;
mod found;
mod link_endpoint;
mod memory;
mod no_link;
mod outbox;
mod peers;
mod qp;
mod qp_table;
mod receive;
mod reception;
mod resources;
mod route;
mod shared_tgt;
mod srq_table;
mod target;
mod timers;
mod transmit;

pub(super) use found::Found;
pub(super) use link_endpoint::LinkEndpoint;
pub(super) use outbox::MemberOutbox;
pub(super) use qp::{QpParts, ReceiveSide, TgtRemains};
pub(super) use qp_table::QpTable;
pub(super) use reception::Reception;
pub(super) use route::Route;
pub(super) use shared_tgt::{RemoteCall, RemoteOutcome, SharedTgt};
pub(super) use srq_table::{SrqTable, XrcSide};

use super::async_events::AsyncEvents;
use super::counters::{QpCounters, ShardCounters};
use super::domain_table::DomainNumber;
use super::keys::Keys;
use super::numbers::Numbers;
use super::random::Random;
use super::unknown_srq::UnknownSrq;
use crate::host::{Host, Members};
use crate::link::Link;
use peers::Peers;
use qp::Qp;
use resources::Resources;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::{
    PostError, QpAttributes, QpNumber, QpState, ReceiveRequest, SendRequest, SrqNumber, Time, VerbsError,
};

/// When a link without room is tried again.
const NO_ROOM_RETRY: Duration = Duration::from_micros(200);

/// The error of posting to a QP that does not exist.
const NO_QP: PostError = PostError { index: 0, cause: VerbsError::Gone };

/// What a shard is made with.
#[derive(Debug)]
pub(super) struct ShardInit<'a> {
    pub(super) link: Box<dyn Link>,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) unknown_srq: UnknownSrq,
    pub(super) max_regions: u32,
    pub(super) random: &'a mut Random,
    /// Where QP and SRQ numbers come from; none on a network in process.
    pub(super) host: Option<&'a Arc<Host>>,
    /// Messages to the other members of the host; none on a network in process.
    pub(super) members: Option<Arc<Members>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shard {
    qps: QpTable,
    resources: Resources,
    link: LinkEndpoint,
    peers: Peers,
    /// CQs whose overflow the QPs know of.
    overflows_served: u64,
}

impl Shard {
    pub(super) fn new(init: ShardInit<'_>) -> Self {
        let ShardInit { link, events, unknown_srq, max_regions, random, host, members } = init;
        let resources = Resources {
            keys: Keys::new(random, max_regions),
            srqs: SrqTable::new(Numbers::new(random, host)),
            counters: ShardCounters::default(),
            events,
            unknown_srq,
            outbox: MemberOutbox::new(members),
            found: Vec::new(),
            image: Vec::new(),
        };
        Self {
            qps: QpTable::new(Numbers::new(random, host)),
            resources,
            link: LinkEndpoint::new(link),
            peers: Peers::default(),
            overflows_served: 0,
        }
    }

    /// When it wants to be called although nothing arrives; may have passed.
    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        if !self.link.is_idle() || !self.resources.outbox.is_empty() {
            return Some(now + NO_ROOM_RETRY);
        }
        if self.qps.ready() > 0 || !self.resources.found.is_empty() {
            return Some(now);
        }
        self.qps.next_due().into_iter().chain(self.link.next_timeout()).min()
    }

    /// Whether QPs want service and the link has room.
    pub(super) fn has_work(&self) -> bool {
        self.qps.ready() > 0 && self.link.is_idle()
    }

    /// The link, and the addresses that are open on it.
    pub(super) fn link(&self) -> &LinkEndpoint {
        &self.link
    }

    /// The link, and the addresses that are open on it.
    pub(super) fn link_mut(&mut self) -> &mut LinkEndpoint {
        &mut self.link
    }

    /// Takes what is control's business, in the order in which it was found.
    pub(super) fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.resources.found)
    }

    /// Registered memory.
    pub(super) fn keys(&mut self) -> &mut Keys {
        &mut self.resources.keys
    }

    /// The SRQs.
    pub(super) fn srqs(&mut self) -> &mut SrqTable {
        &mut self.resources.srqs
    }

    /// A route from an address of ours, which is open afterwards.
    pub(super) fn open_route(&mut self, source: IpAddr, destination: IpAddr) -> Result<Route, VerbsError> {
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(VerbsError::Invalid("the two GIDs are of different address families"));
        }
        self.link.open(source)?;
        Ok(Route::new(self.link.source(source), destination))
    }

    /// The QPs, by number.
    pub(super) fn qps(&mut self) -> &mut QpTable {
        &mut self.qps
    }

    /// Makes a QP in RESET.
    pub(super) fn create_qp(&mut self, number: u32, parts: QpParts, shared: Option<Box<dyn SharedTgt>>) {
        self.qps.insert(number, Qp::new(QpNumber::new(number), parts, shared));
        self.publish(number);
    }

    /// Goes on with a TGT that another process executed. `is_whole` is `false` when its state or its
    /// address is lost. Returns the SRQ whose receive the message in progress holds.
    pub(super) fn revive_tgt(
        &mut self,
        number: u32,
        remains: TgtRemains<'_>,
        is_whole: bool,
    ) -> Option<SrqNumber> {
        let mut qp = Qp::from_remains(QpNumber::new(number), remains);
        let message = qp.message_srq();
        if !is_whole {
            qp.abandon(&self.resources.events);
        }
        self.qps.insert(number, qp);
        message
    }

    /// Counts one more handle on a TGT of the domain; returns whether there is one.
    pub(super) fn open_handle(&mut self, number: u32, domain: DomainNumber) -> bool {
        self.qps.get_mut(number).is_some_and(|qp| qp.open_handle(domain))
    }

    /// Closes a handle, and with the last one the QP (contract C6).
    pub(super) fn close_handle(&mut self, number: u32) {
        if self.qps.get_mut(number).is_some_and(Qp::close_handle) {
            self.remove_qp(number);
        }
    }

    /// Destroys a QP.
    pub(super) fn remove_qp(&mut self, number: u32) {
        self.send_final_ack(number);
        self.qps.remove(number);
    }

    /// Attributes and state of a QP.
    pub(super) fn attributes(&self, number: u32) -> Option<&QpAttributes> {
        self.qps.get(number).map(Qp::attributes)
    }

    /// Changes a QP by attributes that were checked.
    pub(super) fn modify(
        &mut self,
        number: u32,
        after: &QpAttributes,
        route: Option<Route>,
    ) -> Result<(), VerbsError> {
        let before = self.attributes(number).ok_or(VerbsError::Gone)?.state;
        if before != after.state && matches!(after.state, QpState::Error | QpState::Reset) {
            self.send_final_ack(number);
        }
        if let Some(qp) = self.qps.get_mut(number) {
            qp.apply(after, route, &mut self.resources);
        }
        self.qps.mark_ready(number);
        Ok(())
    }

    /// Whether the first packet at a QP stands in for the RTU of its connection.
    pub(super) fn await_rtu(&mut self, number: u32, awaits: bool) {
        if let Some(qp) = self.qps.get_mut(number) {
            qp.await_rtu(awaits);
        }
    }

    /// Posts sends and lets them leave.
    pub(super) fn post_send(
        &mut self,
        number: u32,
        requests: &[SendRequest<'_>],
        now: Time,
    ) -> Result<(), PostError> {
        let result = self.qps.get_mut(number).ok_or(NO_QP)?.post_send(requests);
        self.qps.mark_ready(number);
        self.flush(now);
        result
    }

    /// Posts all sends or, when one is refused, none.
    pub(super) fn post_send_whole(
        &mut self,
        number: u32,
        requests: &[SendRequest<'_>],
        now: Time,
    ) -> Result<(), PostError> {
        self.qps.get(number).ok_or(NO_QP)?.check_send(requests)?;
        self.post_send(number, requests, now)
    }

    /// Posts receives on an RC QP with a queue of its own.
    pub(super) fn post_receive(
        &mut self,
        number: u32,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let Self { qps, resources, .. } = self;
        qps.get_mut(number).ok_or(NO_QP)?.post_receive(requests, resources)
    }

    /// Its own counts, and those of its QPs.
    pub(super) fn counters(&self) -> (&ShardCounters, QpCounters) {
        (&self.resources.counters, self.qps.counters())
    }

    /// The device is removed: nothing arrives or leaves from now on, and all tables are empty.
    pub(super) fn shut_down(&mut self) {
        self.link.cut();
        self.resources.outbox.cut();
        for number in self.qps.numbers() {
            self.remove_qp(number);
        }
        self.resources.srqs.clear();
        self.resources.keys.clear();
    }
}
