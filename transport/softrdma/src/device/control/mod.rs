//! Control: everything of a device that is slow.
//!
//! Owns connections, addresses, handles and attributes of QPs, removal, and what other processes of the
//! host have to do with the device. Called under the card's lock; every operation that touches packets
//! gets the shard, and what the shard has found comes as plain values ([`Found`]). It must never wait.
//!
//! | part | what it owns |
//! |---|---|
//! | `endpoint`, `connections` | endpoints of connections, and the machine that connects them |
//! | `addresses` | the GID table, which address an endpoint gets, claims on services |
//! | `resolve`, `listen`, `connect`, `accept`, `disconnect` | what programs ask of endpoints |
//! | `service` | the same in port space UDP |
//! | `cm_events` | what the machine reports, and management datagrams |
//! | `attach` | the QP of an endpoint |
//! | `qps` | making, changing and closing QPs; which of them other processes execute |
//! | `removal` | a device that is taken out of its slot |
#![forbid(unsafe_code)]

mod accept;
mod addresses;
mod attach;
mod cm_events;
mod connect;
mod connections;
mod disconnect;
mod endpoint;
mod listen;
mod qps;
mod removal;
mod resolve;
mod service;

pub(super) use connections::Connections;
pub(super) use endpoint::{PendingCmEvent, PendingCmEventKind};
pub(super) use qps::Qps;

use super::async_events::AsyncEvents;
use super::counters;
use super::gid_table::GidTable;
use super::random::Random;
use super::shard::{Found, Shard};
use super::sharing::Sharing;
use crate::host::{AwayFiles, Host, MemberMessage, Members, Targets};
use addresses::Addresses;
use removal::Removal;
use std::sync::Arc;
use trunkline_verbs::{Counter, Time};

/// What control is made with.
#[derive(Debug)]
pub(super) struct ControlInit {
    pub(super) gids: GidTable,
    pub(super) events: Arc<AsyncEvents>,
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
    /// What shows that the device is away, if it is removable.
    pub(super) away: Option<AwayFiles>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Control {
    connections: Connections,
    qps: Qps,
    /// Messages from the other members of the host.
    members: Option<Arc<Members>>,
    removal: Removal,
    events: Arc<AsyncEvents>,
}

impl Control {
    pub(super) fn new(init: ControlInit) -> Self {
        let ControlInit { gids, events, mut random, guid, asks_host, host, members, targets, away } = init;
        let comm_ids = host.as_ref().map(|host| host.comm_ids());
        let sharing = targets.map(|targets| Sharing::new(targets, members.clone()));
        Self {
            connections: Connections::new(guid, random.branch(), comm_ids),
            qps: Qps::new(Addresses::new(gids, host, asks_host, random), sharing),
            members,
            removal: Removal::new(away),
            events,
        }
    }

    /// Takes what other processes of the host have sent.
    pub(super) fn serve_members(&mut self, shard: &mut Shard, now: Time) {
        while let Some(message) = self.members.as_ref().and_then(|members| members.next_message()) {
            match message {
                // The link replaces a process that held port 4791.
                MemberMessage::Lost(member) => {
                    tracing::debug!(?member, "the connection with a member ended");
                    self.qps.member_gone(member, now);
                }
                MemberMessage::Message { from, kind, bytes } => {
                    self.qps.handle_message(shard, from, (kind, &bytes), now);
                }
            }
        }
    }

    /// Does what is due.
    pub(super) fn work(&mut self, shard: &mut Shard, now: Time) {
        self.serve_cm(shard, now);
        self.qps.work(shard, now);
        if self.removal.is_due(now) {
            self.remove(shard, now);
        }
    }

    /// When [`Control::work`] wants to be called.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        [self.connections.next_timeout(), self.qps.next_timeout(), self.removal.next_look()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes what the shard has found.
    fn take_found(&mut self, shard: &mut Shard, now: Time) {
        for found in shard.take_found() {
            match found {
                Found::Mad { from, to, mad } => {
                    self.connections.machine().handle_mad(now.0, from, to, &mad);
                }
                Found::FirstPacket(qp) => self.connections.machine().communication_established(qp),
                Found::MemberGone(member) => self.qps.member_gone(member, now),
            }
        }
    }

    /// QPs as programs see them.
    pub(super) fn qps(&mut self) -> &mut Qps {
        &mut self.qps
    }

    /// The GID table.
    pub(super) fn gids(&self) -> &GidTable {
        self.qps.gids()
    }

    /// The endpoints, for what concerns nothing else.
    pub(super) fn connections(&mut self) -> &mut Connections {
        &mut self.connections
    }

    /// All counters of the device.
    pub(super) fn counters(&self, shard: &Shard) -> Vec<Counter> {
        let (counted, qps) = shard.counters();
        let mut list = counters::list(counted, &qps, self.qps.counters(), self.events.lost());
        self.connections.counters(counted.bad_mads, &mut list);
        shard.link().counters(&mut list);
        list
    }
}
