//! Control, the part of a device outside the data path.
//!
//! Owns connections, addresses, handles and attributes of QPs, removal, and the device's messages to and from other
//! processes of the host. Control has a separate lock. Operations that concern packets get access to the shards through
//! [`Reach`], and the shards' events arrive as plain values ([`ControlEvent`]). Control must never wait for the
//! network.
//!
//! | part | what it owns |
//! |---|---|
//! | `endpoint`, `connections` | endpoints of connections, and the machine that connects them |
//! | `addresses` | the GID table, the addresses of endpoints, claims on services |
//! | `following` | the schedule for reading the host's addresses again |
//! | `resolve`, `listen`, `connect` | the operations of programs on endpoints |
//! | `requests` | peers' requests that wait for the machine |
//! | `cm_events` | events of the machine, and management datagrams |
//! | `attach` | the QP of an endpoint |
//! | `peer_processes` | connections with processes of this host, which end when the process dies |
//! | `qps` | creating, changing and closing QPs; QPs that other processes execute |
//! | `removal` | the removal of a device from its slot |
#![forbid(unsafe_code)]

mod addresses;
mod attach;
mod cm_events;
mod connect;
mod connections;
mod endpoint;
mod following;
mod listen;
mod peer_processes;
mod qps;
mod removal;
mod requests;
mod resolve;

pub(super) use addresses::{is_of_this_host, owner_of};
pub(super) use connections::Connections;
pub(super) use endpoint::{PendingCmEvent, PendingCmEventKind};
pub(super) use qps::Qps;

use super::counters;
use super::objects::async_events::AsyncEvents;
use super::shard::ControlEvent;
use super::shards::reach::Reach;
use super::sharing::Sharing;
use super::tables::gid_table::GidTable;
use super::tables::random::Random;
use crate::host::{AwayFiles, Host, MemberMessage, Members, Targets};
use addresses::Addresses;
use following::Following;
use removal::Removal;
use requests::{Received, Requests};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_roce::cm::{MadSource, UnreachableReport, is_request};
use trunkline_roce::wire::{IpUdp, Mad, icrc};
use trunkline_verbs::{AddressOwner, Counter, PeerView, Time, UnreachableCause};

/// Parts from which control is created.
#[derive(Debug)]
pub(super) struct ControlInit {
    pub(super) gids: GidTable,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) random: Random,
    pub(super) guid: u64,
    /// UDP port at which the device receives.
    pub(super) udp_port: u16,
    /// True if the host's routing may be queried for routes to peers; false in a simulation.
    pub(super) asks_host: bool,
    /// True if all peers are devices of this process.
    pub(super) is_in_process: bool,
    /// Registry of the devices that share the addresses; `None` on an in-process network.
    pub(super) host: Option<Arc<Host>>,
    /// Messages to and from the other members of the host; `None` on an in-process network.
    pub(super) members: Option<Arc<Members>>,
    /// TGTs that the members of the host share; `None` on an in-process network.
    pub(super) targets: Option<Arc<Targets>>,
    /// Files that request the device's removal; `None` if the device is not removable.
    pub(super) away: Option<AwayFiles>,
}

/// Control of a device.
#[derive(Debug)]
pub(super) struct Control {
    connections: Connections,
    requests: Requests,
    qps: Qps,
    /// Messages from the other members of the host.
    members: Option<Arc<Members>>,
    removal: Removal,
    following: Following,
    events: Arc<AsyncEvents>,
}

impl Control {
    pub(super) fn new(init: ControlInit) -> Self {
        let ControlInit {
            gids,
            events,
            mut random,
            guid,
            udp_port,
            asks_host,
            is_in_process,
            host,
            members,
            targets,
            away,
        } = init;
        let comm_ids = host.as_ref().map(|host| host.comm_ids());
        let sharing = targets.map(|targets| Sharing::new(targets, members.clone()));
        Self {
            connections: Connections::new(guid, udp_port, random.branch(), comm_ids),
            requests: Requests::default(),
            qps: Qps::new(Addresses::new(gids, host, asks_host, random), sharing, is_in_process),
            members,
            removal: Removal::new(away),
            following: Following::default(),
            events,
        }
    }

    /// Handles the messages from other processes of the host.
    fn serve_members(&mut self, shards: &mut Reach<'_>, now: Time) {
        let Some(members) = self.members.clone() else { return };
        while let Some(message) = members.next_message() {
            match message {
                // The link handles the loss of the process that held the device's port.
                MemberMessage::Lost(member) => {
                    tracing::debug!(?member, "connection with a member ended");
                    shards.each(|shard| shard.member_gone(member, now));
                    self.qps.member_gone(member, now);
                }
                MemberMessage::Message { from, kind, bytes } => {
                    if !shards.handle_memory_message(from, (kind, &bytes), None) {
                        self.qps.handle_message(shards, from, (kind, &bytes), now);
                    }
                    members.reuse(bytes);
                }
                MemberMessage::Handover { from, kind, bytes, area } => {
                    shards.handle_memory_message(from, (kind, &bytes), Some(area));
                }
            }
        }
    }

    /// Does all pending work, and sends the resulting packets.
    pub(super) fn work(&mut self, shards: &mut Reach<'_>, now: Time) {
        self.serve_members(shards, now);
        self.serve_cm(shards, now);
        let lost = self.qps.work(shards, now);
        self.serve_peer_processes(shards, &lost, now);
        self.follow_addresses(shards, now);
        if self.removal.is_due(now) {
            self.remove(shards, now);
        }
        shards.flush(now);
    }

    /// Returns the time of the next [`Control::work`].
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let own = [self.removal.next_look(), self.following.next_look(), self.requests.next_timeout()];
        let of_connections = [self.connections.next_timeout(), self.connections.next_look_at_processes()];
        of_connections.into_iter().chain([self.qps.next_timeout()]).chain(own).flatten().min()
    }

    /// Handles the events from the shards.
    fn take_control_events(&mut self, shards: &mut Reach<'_>, now: Time) {
        for event in shards.take_control_events() {
            match event {
                ControlEvent::Mad { from, is_member, to, difference, mad } => {
                    let Ok(view) = self.check_mad((from, to), difference, &mad) else {
                        shards.first().count_bad_icrc();
                        continue;
                    };
                    let received = Received { from, is_member, to, view, mad };
                    if is_request(&received.mad) {
                        self.requests.add(received);
                    } else {
                        self.handle_mad(&received, AddressOwner::OtherHost, now);
                    }
                }
                ControlEvent::Unreachable(report) => self.handle_unreachable(&report, now),
                ControlEvent::FirstPacket(qp) => self.connections.machine().communication_established(qp),
                ControlEvent::OwnMessage { me, kind, bytes, area } => {
                    shards.handle_memory_message(me, (kind, &bytes), area);
                }
                ControlEvent::MemberGone(member) => {
                    shards.each(|shard| shard.member_gone(member, now));
                    self.qps.member_gone(member, now);
                }
            }
        }
        while let Some(request) = self.requests.next(now) {
            // Query the owner only for requests, since the query takes system calls.
            let owner = self.qps.addresses().owner_of(request.from.ip().to_canonical(), now);
            self.handle_mad(&request, owner, now);
        }
    }

    fn handle_unreachable(&mut self, report: &UnreachableReport, now: Time) {
        // Check this first, since the next check reads the table of all members' ports.
        if !self.connections.machine().expects_unreachable(report) {
            return;
        }
        let is_being_taken_over =
            report.cause == UnreachableCause::Port && self.qps.addresses().has_member(report.to);
        if !is_being_taken_over && self.connections.machine().handle_unreachable(now.0, report) {
            let UnreachableReport { from, to, transaction, cause } = report;
            tracing::debug!(%from, peer = %to, ?cause, is_proven = transaction.is_some(), "connection request not delivered");
        }
    }

    /// Checks the ICRC of a management datagram. Returns the addresses covered by the ICRC if they differ from the
    /// datagram's source and destination, or an error if the ICRC is wrong.
    fn check_mad(
        &mut self,
        (from, to): (SocketAddr, SocketAddr),
        difference: u32,
        mad: &Mad,
    ) -> Result<Option<PeerView>, ()> {
        if difference == 0 {
            return Ok(None);
        }
        let view = self.connections.machine().view_of(from.ip(), to.ip(), mad).ok_or(())?;
        let covered = IpUdp::new(view.peer, view.own);
        let is_right = icrc::mad_difference(&IpUdp::new(from, to), &covered) == difference;
        is_right.then_some(Some(view)).ok_or(())
    }

    fn handle_mad(&mut self, received: &Received, owner: AddressOwner, now: Time) {
        let Received { from, is_member, to, view, mad } = received;
        let (ports, local_port) = ((to.port(), from.port()), is_member.then(|| from.port()));
        let source = MadSource { address: from.ip(), ports, owner, local_port, view: *view };
        self.connections.machine().handle_mad(now.0, source, to.ip(), mad);
    }

    /// Returns the messages to and from other members; `None` on an in-process network and after the removal.
    pub(super) fn members(&self) -> Option<&Arc<Members>> {
        self.members.as_ref()
    }

    /// Returns the QPs as programs see them.
    pub(super) fn qps(&mut self) -> &mut Qps {
        &mut self.qps
    }

    pub(super) fn gids(&self) -> &GidTable {
        self.qps.gids()
    }

    pub(super) fn connections(&mut self) -> &mut Connections {
        &mut self.connections
    }

    /// Returns all counters of the device. Packets that the shards have received for control are handled
    /// first, so that the counters include their effects.
    pub(super) fn counters(&mut self, shards: &mut Reach<'_>, now: Time) -> Vec<Counter> {
        if !self.is_removed() {
            self.work(shards, now);
        }
        let (counted, qps, link) = shards.counters();
        let mut list = counters::list(&counted, &qps, self.qps.counters(), self.events.lost());
        self.connections.counters(counted.bad_mads, &mut list);
        list.push(Counter { name: "cm_requests_crowded", value: self.requests.dropped() });
        list.push(Counter { name: "addresses_left_out", value: self.qps.gids().left_out_count() });
        list.extend(link);
        list
    }
}
