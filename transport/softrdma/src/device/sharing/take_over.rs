//! Consequences of a member's death.
//!
//! Owns the list of members whose connections ended. Such a member may be alive or dead, since a process that dies
//! closes its sockets and releases its lock at different times. A member is dead only if its lock is free.
//! The consequences of a death are:
//!
//! | role of the dead member | consequence |
//! |---|---|
//! | executor of a TGT on which this process has a handle | the first process to swap the record's executor continues from the published state |
//! | owner of an SRQ for which a placement is pending | the packet is acknowledged if it was placed, otherwise answered by contract G7 |
//! | last process with handles on a TGT executed here | the TGT is destroyed |
#![forbid(unsafe_code)]

use super::Sharing;
use super::attributes::{ATTRIBUTE_WORDS, take_attributes};
use super::executor::{Executor, executor_of};
use super::placements::abandon_requests_to;
use crate::device::shard::{Route, Shard, TgtRemains};
use crate::device::tables::gid_table::GidTable;
use crate::host::{Left, MemberId, TargetRecord};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::{QpAttributes, QpType, Time, VerbsError};

/// Interval at which the lock of a member that may have died is checked.
const EVERY: Duration = Duration::from_millis(2);
/// Delay before another attempt to connect to an executor, if there was no room for the connection.
const WATCH_AGAIN: Duration = Duration::from_millis(20);
/// Number of checks after which a member whose connection ended counts as alive.
const TRIES: u32 = 250;

/// A member whose connection ended. If it is dead, its TGTs are taken over.
#[derive(Debug, Clone, Copy)]
struct PendingTakeover {
    member: MemberId,
    tries: u32,
    again: Time,
}

/// Members that may have died, and the time for connecting to executors again.
#[derive(Debug, Default)]
pub(super) struct Takeovers {
    pending: Vec<PendingTakeover>,
    /// Time of the next attempt to connect to the executors of TGTs on which this process has a handle.
    watch_again: Option<Time>,
}

/// Result of [`Takeovers::due`].
#[derive(Debug, Default)]
pub(in crate::device) struct Due {
    /// Members that have died.
    pub(in crate::device) dead: Vec<MemberId>,
    /// Members that live, but whose death would not be reported.
    pub(in crate::device) alive: Vec<MemberId>,
    /// True if this process has to connect to executors of TGTs on which it has a handle.
    pub(super) watches: bool,
}

impl Takeovers {
    /// Records that the connection with a member ended.
    pub(super) fn note_disconnect(&mut self, member: MemberId, now: Time) {
        if !self.pending.iter().any(|pending| pending.member == member) {
            self.pending.push(PendingTakeover { member, tries: 0, again: now });
        }
    }

    /// Returns the time of the next [`Takeovers::due`].
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.pending.iter().map(|pending| pending.again).chain(self.watch_again).min()
    }

    /// Determines which members whose connections ended are dead.
    pub(super) fn due(&mut self, now: Time, is_alive: impl Fn(MemberId) -> bool) -> Due {
        let (mut dead, mut alive) = (Vec::new(), Vec::new());
        for pending in &mut self.pending {
            if pending.again > now {
                continue;
            }
            pending.again = now + EVERY;
            pending.tries += 1;
            if !is_alive(pending.member) {
                dead.push(pending.member);
            } else if pending.tries >= TRIES {
                alive.push(pending.member);
            }
        }
        self.pending.retain(|pending| !dead.contains(&pending.member) && !alive.contains(&pending.member));
        for member in &alive {
            tracing::debug!(?member, "member alive after its connection ended");
            self.watch_again = Some(now);
        }
        let watches = self.watch_again.is_some_and(|again| again <= now);
        Due { dead, alive, watches }
    }
}

impl Sharing {
    /// Takes over the TGTs of a dead member, completes the placements that the member has not answered, and closes the
    /// member's handles.
    pub(super) fn take_over_from(
        &mut self,
        shard: &mut Shard,
        gids: &mut GidTable,
        dead: MemberId,
        now: Time,
    ) {
        // Release the QP and SRQ numbers of the dead member.
        self.targets.host().sweep();
        for (number, record) in self.handles.records() {
            if self.targets.executor(record) == Some(dead) {
                self.inherit(shard, gids, number, record, dead, now);
            }
        }
        self.watch_executors(now);
        for number in shard.qps().numbers() {
            let Some(executor) = executor_of(shard, number) else { continue };
            let record = executor.record();
            abandon_requests_to(shard, number, dead, now);
            if !self.targets.is_held_by(record, dead) {
                continue;
            }
            match self.targets.sweep(record) {
                Ok(Left::Others) => {}
                Ok(Left::Nobody(_)) => shard.remove_qp(number),
                Err(error) => tracing::error!(qp = number, %error, "handles of a dead process not dropped"),
            }
        }
    }

    /// Connects to the executor of each TGT on which this process has a handle, so that the executor's death is
    /// detected.
    pub(super) fn watch_executors(&mut self, now: Time) {
        let Some(members) = &self.members else { return };
        let me = self.targets.host().me();
        let opened = self.handles.records().into_iter();
        let executors = opened.filter_map(|(_, record)| self.targets.executor(record));
        let mut connected = true;
        for executor in executors.filter(|executor| *executor != me) {
            connected &= members.watch(executor);
        }
        self.takeovers.watch_again = (!connected).then(|| now + WATCH_AGAIN);
    }

    /// Continues a TGT from the state published by the dead member, unless another member has taken it over.
    fn inherit(
        &mut self,
        shard: &mut Shard,
        gids: &mut GidTable,
        number: u32,
        record: TargetRecord,
        dead: MemberId,
        now: Time,
    ) {
        if !self.targets.take_over(record, dead) {
            return;
        }
        let Some(domain) = self.handles.domain(number).map(Arc::clone) else { return };
        let mut words = Vec::new();
        let image = self.targets.image(record).load(&mut words, 1).then_some(&words[..]);
        let attributes = image.and_then(take_attributes);
        let mut is_whole = attributes.is_some();
        let (mut attributes, source) =
            attributes.unwrap_or_else(|| (QpAttributes::new(QpType::XrcTgt), None));
        let (reception, last) = self.receptions.take(number);
        let executor = Executor::heir(Arc::clone(&self.targets), record, last);
        let route = open_route(shard, gids, &mut attributes, source).unwrap_or_else(|error| {
            tracing::error!(qp = number, %error, "address of a shared TGT not taken over");
            is_whole = false;
            None
        });
        let responder = words.get(ATTRIBUTE_WORDS..).unwrap_or(&[]);
        let shared = Box::new(executor);
        let remains = TgtRemains { attributes, responder, domain, reception, route, shared };
        let message = shard.revive_tgt(number, remains, is_whole);
        let host = self.targets.host();
        let owner = message.and_then(|srq| host.owner_of(srq.get())).filter(|owner| *owner != host.me());
        if let (Some(_), Some(executor)) = (owner, executor_of(shard, number)) {
            executor.set_message_at(owner);
        }
        tracing::info!(qp = number, member = ?dead, "TGT taken over from a dead process");
        self.counters.taken_over += 1;
        shard.publish(number);
        shard.qps().mark_ready(number);
        // The responder may be waiting for an answer from the dead member.
        abandon_requests_to(shard, number, dead, now);
    }
}

/// Opens the route for a TGT that another process executed, if the TGT is connected. The index of the route's source is
/// looked up in this device's GID table.
fn open_route(
    shard: &mut Shard,
    gids: &mut GidTable,
    attributes: &mut QpAttributes,
    source: Option<IpAddr>,
) -> Result<Option<Route>, VerbsError> {
    let (Some(source), Some(vector)) = (source, &mut attributes.address_vector) else { return Ok(None) };
    let index = gids.index_of(source);
    vector.source_gid_index =
        index.ok_or(VerbsError::AddressNotAvailable("not an address of this process"))?;
    shard.open_route(source, vector.destination.ip()).map(Some)
}
