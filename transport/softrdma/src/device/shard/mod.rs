//! A shard, which is the data path of a device for one or more groups of CQs.
//!
//! Owns QPs, their timers and the shard's end of the link. A shard reads SRQs and keys, which all shards of the device
//! share. Threads that poll or post, the shard's background machine, and control call the shard in one of its turns. A
//! shard must never wait. It does not handle connections, and queues events for control in order as [`ControlEvent`].
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
//! | `qp_table`, `timers` | QPs by number, the service order of QPs, deadlines |
//! | `qp` | one QP: engine halves, attributes, addresses of its packets, its receives and memory |
//! | `resources` | resources shared by the QPs |
//! | `paths` | congestion control, by address |
//! | `peers` | kinds of peers, and the IPv4 identifications of their packets |
//! | `receive`, `transmit` | the receive path and the send path |
//! | `local` | memory shared with other processes, in place of the link |
//! | `outbox`, `neighbours` | output for control, for other processes, and for other shards |
//! | `shared_tgt`, `executing` | TGTs that processes share: calls out of the shard, calls into the shard |
#![forbid(unsafe_code)]

mod executing;
mod link_endpoint;
mod local;
mod neighbours;
mod no_link;
mod outbox;
mod paths;
mod peers;
mod qp;
mod qp_table;
mod receive;
mod resources;
mod shared_tgt;
mod timers;
mod transmit;

pub(super) use link_endpoint::LinkEndpoint;
pub use local::MAX_SHARED_BYTES;
pub(super) use local::{LocalInit, PathPolicy, Refusal};
pub(super) use neighbours::Neighbours;
pub(super) use outbox::ControlEvent;
pub(super) use outbox::{MemberOutbox, Reader};
pub(super) use qp::reception::Reception;
pub(super) use qp::route::Route;
pub(super) use qp::{QpParts, ReceiveSide, TgtRemains};
pub(super) use qp_table::QpTable;
pub(super) use shared_tgt::{RemoteCall, RemoteOutcome, SharedTgt};

use super::counters::{QpCounters, ShardCounters};
use super::objects::async_events::AsyncEvents;
use super::tables::Tables;
use super::tables::directory::ShardIndex;
use super::tables::domain_table::DomainNumber;
use super::tables::srqs::UnknownSrq;
use crate::host::Members;
use crate::link::Tap;
use local::LocalPaths;
use neighbours::HandedOver;
use paths::Paths;
use peers::Peers;
use qp::Qp;
use resources::Resources;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::{
    Counter, PostError, QpAttributes, QpNumber, QpState, ReadAllowance, ReceiveRequest, SendRequest,
    SrqNumber, Time, UdpPorts, VerbsError,
};

/// Delay before another attempt to send packets or messages for which there was no room.
const NO_ROOM_RETRY: Duration = Duration::from_micros(200);

/// The error for posting to a QP that does not exist.
const NO_QP: PostError = PostError { index: 0, cause: VerbsError::Gone };

/// Maximum number of batches received in one turn.
const BATCHES_IN_TURN: usize = 4;

/// Parts that a shard is created from.
#[derive(Debug)]
pub(super) struct ShardInit {
    pub(super) index: ShardIndex,
    pub(super) tap: Tap,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) unknown_srq: UnknownSrq,
    pub(super) tables: Arc<Tables>,
    pub(super) neighbours: Arc<Neighbours>,
    /// Messages to the other members of the host; `None` on an in-process network.
    pub(super) members: Option<Arc<Members>>,
    /// Memory that is shared with other processes.
    pub(super) local: LocalInit,
}

#[derive(Debug)]
pub(super) struct Shard {
    index: ShardIndex,
    qps: QpTable,
    resources: Resources,
    link: LinkEndpoint,
    local: LocalPaths,
    peers: Peers,
    neighbours: Arc<Neighbours>,
    /// Buffer for packets that other shards handed over.
    handed_over: Vec<HandedOver>,
    /// Buffer for one packet about to be written to shared memory.
    packet: Vec<u8>,
    /// Buffer for one packet from shared memory. The buffer never shrinks, so that its bytes are zeroed once.
    taken: Vec<u8>,
    /// Number of CQ overflows handled so far.
    overflows_served: u64,
}

impl Shard {
    pub(super) fn new(init: ShardInit) -> Self {
        let ShardInit { index, tap, events, unknown_srq, tables, neighbours, members, local } = init;
        let local = LocalPaths::new(local, index);
        let resources = Resources {
            index,
            reader: tables.reader(),
            tables,
            neighbours: Arc::clone(&neighbours),
            counters: ShardCounters::default(),
            events,
            unknown_srq,
            outbox: MemberOutbox::new(members),
            control_events: Vec::new(),
            image: Vec::new(),
            paths: Paths::default(),
        };
        Self {
            index,
            qps: QpTable::new(index, Arc::clone(&neighbours)),
            resources,
            link: LinkEndpoint::new(tap),
            local,
            peers: Peers::default(),
            neighbours,
            handed_over: Vec::new(),
            packet: Vec::new(),
            taken: Vec::new(),
            overflows_served: 0,
        }
    }

    /// Handles packets, timers and sends, for a thread that polls. While packets arrive through shared
    /// memory, the link is polled less often.
    pub(super) fn poll(&mut self, now: Time) {
        let is_quiet = self.link.take_quiet_wake();
        let polls_link = !is_quiet && (!self.local.is_active() || self.link.is_due(now));
        self.work_with(now, polls_link);
    }

    /// Handles packets, timers and sends, for a poller that is about to sleep. Returns true if more work is ready.
    pub(super) fn work_before_sleep(&mut self, now: Time) -> bool {
        let polls_link = self.link.must_poll();
        self.work_with(now, polls_link)
    }

    /// Handles packets, timers and sends, for the background machine. Returns true if more work is ready, or is
    /// expected soon.
    pub(super) fn work_and_linger(&mut self, now: Time) -> bool {
        self.work_with(now, true) || self.local.lingers(now)
    }

    fn work_with(&mut self, now: Time, polls_link: bool) -> bool {
        if polls_link {
            self.link.poll(now);
        }
        let mut more = false;
        for _ in 0..BATCHES_IN_TURN {
            self.receive_handed_over(now);
            more = self.receive_by_memory(now) | (polls_link && self.receive(now));
            self.flush(now);
            if !more {
                break;
            }
        }
        if self.has_messages() {
            self.link.note_use(now);
        }
        self.run_timers(now);
        self.flush(now);
        more || self.has_work()
    }

    /// Returns the time at which the shard needs its next turn if no packet arrives earlier; `None` if it does not need
    /// one. The time may be in the past.
    pub(super) fn deadline(&self, now: Time) -> Option<Time> {
        if !self.link.is_idle() || !self.resources.outbox.is_empty() || self.local.waits_for_room() {
            return Some(now + NO_ROOM_RETRY);
        }
        if self.qps.ready() > 0
            || self.resources.paths.has_released()
            || !self.resources.control_events.is_empty()
            || self.local.must_choose()
        {
            return Some(now);
        }
        self.qps.next_due().into_iter().chain(self.link.next_timeout()).min()
    }

    /// Returns true if events for control are queued.
    pub(super) fn has_control_events(&self) -> bool {
        !self.resources.control_events.is_empty()
    }

    /// Returns true if a message from another process is waiting for control.
    pub(super) fn has_messages(&self) -> bool {
        self.resources.outbox.has_messages()
    }

    /// Returns true if QPs are ready to send and all earlier packets have been sent.
    pub(super) fn has_work(&self) -> bool {
        (self.qps.ready() > 0 || self.resources.paths.has_released()) && self.link.is_idle()
    }

    /// Returns the link and its open addresses.
    pub(super) fn link(&self) -> &LinkEndpoint {
        &self.link
    }

    /// Returns the link and its open addresses.
    pub(in crate::device) fn link_mut(&mut self) -> &mut LinkEndpoint {
        &mut self.link
    }

    /// Takes the events for control, in order.
    pub(super) fn take_control_events(&mut self) -> Vec<ControlEvent> {
        std::mem::take(&mut self.resources.control_events)
    }

    /// Creates a route from a local address, and opens that address.
    pub(super) fn open_route(&mut self, source: IpAddr, destination: IpAddr) -> Result<Route, VerbsError> {
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(VerbsError::Invalid("the two GIDs are of different address families"));
        }
        self.link.open(source)?;
        let is_between_hosts = self.link.is_between_hosts(source, destination);
        let destination = SocketAddr::new(destination, self.link.port());
        Ok(Route::new(self.link.source(source), destination).between_hosts(is_between_hosts))
    }

    /// Sets the UDP ports of a QP's connection. `is_soft` is true if the peer has named itself a software device.
    pub(super) fn set_ports(&mut self, number: u32, ports: UdpPorts, is_soft: bool) {
        if let Some(qp) = self.qps.get_mut(number) {
            qp.set_ports(ports, is_soft);
        }
    }

    /// Returns the QPs by number.
    pub(super) fn qps(&mut self) -> &mut QpTable {
        &mut self.qps
    }

    /// Creates a QP in RESET.
    pub(super) fn create_qp(&mut self, number: u32, parts: QpParts, shared: Option<Box<dyn SharedTgt>>) {
        self.qps.insert(number, Qp::new(QpNumber::new(number), parts, shared));
        self.publish(number);
    }

    /// Takes over a TGT that another process executed. `is_whole` is false if the TGT's state or address is
    /// lost; the TGT then goes to ERR. Returns the SRQ whose receive the message in progress holds.
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

    /// Adds a handle to a TGT of the domain. Returns false if the domain does not contain the TGT.
    pub(super) fn open_handle(&mut self, number: u32, domain: DomainNumber) -> bool {
        self.qps.get_mut(number).is_some_and(|qp| qp.open_handle(domain))
    }

    /// Closes a handle of a QP. Closing the last handle destroys the QP (contract C6).
    pub(super) fn close_handle(&mut self, number: u32) {
        if self.qps.get_mut(number).is_some_and(Qp::close_handle) {
            self.remove_qp(number);
        }
    }

    pub(super) fn remove_qp(&mut self, number: u32) {
        self.send_final_ack(number);
        if let Some(qp) = self.qps.get_mut(number) {
            qp.leave_path(&mut self.resources);
        }
        self.qps.remove(number);
    }

    /// Returns the attributes and state of a QP.
    pub(super) fn attributes(&self, number: u32) -> Option<&QpAttributes> {
        self.qps.get(number).map(Qp::attributes)
    }

    /// Modifies a QP. The caller has checked the attributes.
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

    /// Sets whether the first packet at a QP is reported to control in place of the RTU of its connection.
    pub(super) fn await_rtu(&mut self, number: u32, awaits: bool) {
        if let Some(qp) = self.qps.get_mut(number) {
            qp.await_rtu(awaits);
        }
    }

    /// Returns the amount that new READs of a QP may request; `None` without congestion control.
    pub(super) fn read_allowance(&mut self, number: u32, now: Time) -> Option<ReadAllowance> {
        self.qps.get_mut(number)?.read_allowance(&mut self.resources.paths, now)
    }

    /// Posts sends and transmits them.
    pub(super) fn post_send(
        &mut self,
        number: u32,
        requests: &[SendRequest<'_>],
        now: Time,
    ) -> Result<(), PostError> {
        let (qp, mark) = self.qps.get_marked(number).ok_or(NO_QP)?;
        let result = qp.post_send(requests);
        mark.set();
        self.flush(now);
        result
    }

    /// Posts all sends, or none if any is refused.
    pub(super) fn post_send_whole(
        &mut self,
        number: u32,
        requests: &[SendRequest<'_>],
        now: Time,
    ) -> Result<(), PostError> {
        // A single request is checked when it is posted.
        if requests.len() > 1 {
            self.qps.get(number).ok_or(NO_QP)?.check_send(requests)?;
        }
        self.post_send(number, requests, now)
    }

    /// Posts receives on an RC QP with a separate queue.
    pub(super) fn post_receive(
        &mut self,
        number: u32,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let Self { qps, resources, .. } = self;
        qps.get_mut(number).ok_or(NO_QP)?.post_receive(requests, resources)
    }

    /// Returns the counters of the shard and of its QPs; appends its link's counters to `link`.
    pub(super) fn counters(&self, link: &mut Vec<Counter>) -> (&ShardCounters, QpCounters) {
        self.link.counters(link);
        (&self.resources.counters, self.qps.counters())
    }

    /// Shuts down the shard of a removed device: destroys all QPs and cuts the link.
    pub(super) fn shut_down(&mut self) {
        self.link.cut();
        self.resources.outbox.cut();
        for number in self.qps.numbers() {
            self.remove_qp(number);
        }
    }
}
