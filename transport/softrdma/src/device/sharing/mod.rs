//! TGTs that several processes of the host share through an XRC domain identified by a file.
//!
//! Owns the state of this process, a *member* of the host, for shared TGTs: the TGTs that it executes (as their
//! *executor*), the TGTs on which it has handles, and the receives that messages of other executors hold in its SRQs.
//! Other modules use this one only through two interfaces, so readers can skip it if they are not interested in devices
//! that several processes use:
//!
//! | interface | caller |
//! |---|---|
//! | [`Sharing`]: open, close, query or change a TGT; handle a message; handle the possible death of a member | control |
//! | the trait `SharedTgt`, implemented by [`Executor`]: place in another process, publish, raise events | the shard, for QPs that are shared |
//!
//! This module must never be called for a TGT of a private domain, so that sharing does not slow down such a TGT.
//!
//! ```text
//! peer --packet--> executor: responder --place (serial)--> owner of the SRQ: places, remembers the serial
//!                      |     ^---------- placed ---------'
//!                      | publishes its state, then answers
//!                      v
//!                    peer
//! ```
//! | part | what it owns |
//! |---|---|
//! | `message`, `attributes` | the encoding of messages and of published states |
//! | `executor` | a TGT's remote placements, one at a time, and a bounded queue of later packets |
//! | `placements` | the answers of other processes to an executor |
//! | `owner` | placements for executors in other processes |
//! | `handles` | opening, closing and querying TGTs that other processes execute |
//! | `modify` | changes requested from executors, and their answers |
//! | `take_over` | the consequences of a member's death |
//!
//! # Packets are neither lost nor placed twice when an executor dies
//! The executor publishes its state before it requests a placement, and again before it sends the response. The
//! published state is therefore at most one placement old, and the next executor starts from it. The peer retransmits
//! the packets that were not answered. The first of them has the serial number of the placement that may already be
//! done. If it is, the owner of the SRQ, which stores the last serial number and its outcome, returns the outcome and
//! does not place the packet again. This also holds for atomics. Serial numbers are not reused, even after a reset.
//!
//! The owner may also have exited. A process that places a SEND or a WRITE records the serial number in the shared
//! table before the message is visible to its program. The next executor then acknowledges the packet instead of
//! reporting an unknown SRQ.
#![forbid(unsafe_code)]

mod attributes;
mod executor;
mod handles;
mod message;
mod modify;
mod owner;
mod placements;
mod take_over;

pub(super) use modify::{ModifyProgress, ModifyRequest, ModifyTicket};
pub(super) use take_over::Due;

use super::counters::MemberCounters;
use super::shard::Shard;
use super::tables::gid_table::GidTable;
use crate::host::{MemberId, Members, Targets};
use handles::Handles;
use message::{KINDS, Message};
use modify::Tickets;
use nix::unistd::geteuid;
use owner::Receptions;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use take_over::Takeovers;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, QpNumber, Time};

/// Shared TGTs of this process.
#[derive(Debug)]
pub(super) struct Sharing {
    targets: Arc<Targets>,
    /// `None` after the device was removed.
    members: Option<Arc<Members>>,
    handles: Handles,
    receptions: Receptions,
    takeovers: Takeovers,
    tickets: Tickets,
    counters: MemberCounters,
}

impl Sharing {
    pub(super) fn new(targets: Arc<Targets>, members: Option<Arc<Members>>) -> Self {
        Self {
            targets,
            members,
            handles: Handles::default(),
            receptions: Receptions::default(),
            takeovers: Takeovers::default(),
            tickets: Tickets::default(),
            counters: MemberCounters::default(),
        }
    }

    /// Returns the counters of shared TGTs.
    pub(super) fn counters(&self) -> MemberCounters {
        self.counters
    }

    /// Disconnects from the other processes, since the device is removed.
    pub(super) fn cut(&mut self) {
        self.members = None;
    }

    /// Handles a message from another process. Returns the change that the message requests, if any. The caller applies
    /// the change and calls [`Sharing::modified`].
    pub(super) fn handle_message(
        &mut self,
        shard: &mut Shard,
        from: MemberId,
        (kind, bytes): (u8, &[u8]),
        now: Time,
    ) -> Option<ModifyRequest> {
        let message = if KINDS.contains(&kind) { Message::read(kind, bytes) } else { None };
        let Some(message) = message else {
            self.counters.unknown_messages += 1;
            tracing::debug!(
                member = ?from,
                kind,
                bytes = bytes.len(),
                "member message of unknown kind or form dropped"
            );
            return None;
        };
        match message {
            Message::Place { tgt, serial, place } => self.place_for(shard, from, tgt, serial, &place),
            Message::Placed { tgt, serial, outcome } => {
                placements::handle_placed(shard, from, tgt, serial, outcome, now);
            }
            Message::Read { tgt, piece } => self.read_for(shard, from, tgt, &piece),
            Message::ReadBytes { tgt, psn, offset, bytes } => {
                placements::handle_read_bytes(shard, from, tgt, (psn, offset), bytes);
            }
            Message::Flush { tgt, is_error } => self.flush_for(shard, from, tgt, is_error),
            Message::Modify { tgt, ticket, source, change } => {
                return Some(ModifyRequest { from, tgt: QpNumber::new(tgt), ticket, source, change });
            }
            Message::Modified { ticket, errno } => self.tickets.answer(ticket, errno),
            Message::Closed { tgt } => self.handle_closed(shard, tgt),
            Message::Event { tgt, kind } => self.handle_event(shard, from, tgt, kind),
        }
        None
    }

    /// Records that the connection with a process ended. The process may have died.
    pub(super) fn member_gone(&mut self, member: MemberId, now: Time) {
        self.takeovers.note_disconnect(member, now);
    }

    /// Returns the other process of this host that owns the QP with this number at an address. A shared TGT is owned by
    /// its executor.
    pub(super) fn member_of(&self, qp: QpNumber, at: IpAddr) -> Option<MemberId> {
        let host = self.targets.host();
        let member = self.process_with(qp)?;
        (member != host.me() && host.has_port_at(member, at)).then_some(member)
    }

    /// Returns the uid of the process of this host that owns a QP and a port, if the uid is proven.
    pub(super) fn user_of(&self, qp: QpNumber, from: SocketAddr) -> Option<u32> {
        let host = self.targets.host();
        let member = self.process_with(qp).filter(|member| host.has_port(*member, from))?;
        if member == host.me() { Some(geteuid().as_raw()) } else { self.members.as_ref()?.user_of(member) }
    }

    fn process_with(&self, qp: QpNumber) -> Option<MemberId> {
        self.targets.executor_of(qp.get()).or_else(|| self.targets.host().owner_of(qp.get()))
    }

    /// Returns a live process with a handle on a TGT.
    pub(super) fn heir_of(&self, tgt: QpNumber) -> Option<MemberId> {
        self.targets.living_holder(self.targets.find(tgt.get())?)
    }

    /// Connects to a process so that its death is reported. Returns false if the process cannot be reached now.
    pub(super) fn watch(&self, member: MemberId) -> bool {
        let (host, Some(members)) = (self.targets.host(), &self.members) else { return true };
        // A live member that cannot be reached, for example because it has changed its user, must not be reported as
        // lost.
        member == host.me() || members.connect(member) || !host.is_alive(member) && members.watch(member)
    }

    /// Takes over TGTs from processes that have died. Returns the dead processes, and the live processes whose
    /// connections ended.
    pub(super) fn work(&mut self, shard: &mut Shard, gids: &mut GidTable, now: Time) -> Due {
        let targets = Arc::clone(&self.targets);
        let due = self.takeovers.due(now, |member| targets.host().is_alive(member));
        for member in &due.dead {
            self.take_over_from(shard, gids, *member, now);
        }
        if due.watches {
            self.watch_executors(now);
        }
        due
    }

    /// Returns the time of the next [`Sharing::work`].
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.takeovers.next_timeout()
    }

    /// Handles an event of a TGT that another process executes.
    fn handle_event(&self, shard: &Shard, from: MemberId, tgt: u32, kind: AsyncEventKind) {
        let record = self.handles.record(tgt);
        if record.is_some_and(|record| self.targets.executor(record) == Some(from)) {
            shard.events().raise(kind, AsyncSubject::Qp(QpNumber::new(tgt)));
        }
    }
}
