//! What happens when a member dies.
//!
//! Owns the members whose connection has ended and which may or may not be alive: a process that dies
//! closes its sockets at one time and releases its lock at another. Only a member that has lost its
//! lock is dead. Then:
//!
//! | the dead member was | what happens |
//! |---|---|
//! | the executor of a TGT that we have a handle on | the first to swap the record's executor goes on from the image |
//! | the owner of an SRQ that a placement waits for | the packet is acknowledged if it was placed, else answered by contract G7 |
//! | the last holder of handles on a TGT of ours | it is destroyed |
#![forbid(unsafe_code)]

use super::change::{ATTRIBUTE_WORDS, take_attributes};
use super::executor::Fetch;
use super::message::Outcome;
use super::{Executor, Sharing};
use crate::device::card::Card;
use crate::host::{Left, MemberId, TargetRecord};
use std::time::Duration;
use trunkline_verbs::{AsyncEventKind, QpAttributes, QpNumber, QpState, QpType, Time, VerbsError};

/// How often the lock of a member that may have died is tried.
const EVERY: Duration = Duration::from_millis(2);
/// How soon an executor that had no room for a connection is tried again.
const WATCH_AGAIN: Duration = Duration::from_millis(20);
/// After so many tries the member counts as alive, although its connection ended.
const TRIES: u32 = 250;

/// A member whose connection has ended: if it is dead, its work is taken over.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingTakeover {
    member: MemberId,
    tries: u32,
    again: Time,
}

impl Sharing {
    /// The connection with a member ended.
    pub(in crate::device::card) fn member_disconnected(&mut self, member: MemberId, now: Time) {
        if !self.pending_takeovers.iter().any(|pending| pending.member == member) {
            self.pending_takeovers.push(PendingTakeover { member, tries: 0, again: now });
        }
    }

    /// When the next lock is tried.
    pub(in crate::device::card) fn next_timeout(&self) -> Option<Time> {
        self.pending_takeovers.iter().map(|pending| pending.again).chain(self.watch_again).min()
    }
}

impl Card {
    /// Finds out which of the members whose connection ended are dead, and takes over from those.
    pub(in crate::device::card) fn serve_pending_takeovers(&mut self, now: Time) {
        let Some(sharing) = &mut self.sharing else { return };
        let mut dead: Vec<MemberId> = Vec::new();
        let mut alive: Vec<MemberId> = Vec::new();
        for pending in &mut sharing.pending_takeovers {
            if pending.again > now {
                continue;
            }
            pending.again = now + EVERY;
            pending.tries += 1;
            if !sharing.targets.host().is_alive(pending.member) {
                dead.push(pending.member);
            } else if pending.tries >= TRIES {
                alive.push(pending.member);
            }
        }
        sharing
            .pending_takeovers
            .retain(|pending| !dead.contains(&pending.member) && !alive.contains(&pending.member));
        for member in alive {
            tracing::debug!(?member, "the connection with a member ended, but it lives");
            sharing.watch_again = Some(now);
        }
        let watches = sharing.watch_again.is_some_and(|again| again <= now);
        for member in dead {
            self.take_over_from(member, now);
        }
        if watches {
            self.watch_executors(now);
        }
    }

    fn take_over_from(&mut self, dead: MemberId, now: Time) {
        let Some(sharing) = &self.sharing else { return };
        // From now on its QP and SRQ numbers belong to nobody.
        sharing.targets.host().sweep();
        let orphans: Vec<(u32, TargetRecord)> = sharing
            .opened
            .numbers()
            .into_iter()
            .filter_map(|number| Some((number, sharing.opened.get(number)?.record)))
            .filter(|(_, record)| sharing.targets.executor(*record) == Some(dead))
            .collect();
        for (number, record) in orphans {
            self.inherit(number, record, dead, now);
        }
        self.watch_executors(now);
        let executors: Vec<(u32, TargetRecord)> = self
            .qps
            .numbers()
            .into_iter()
            .filter_map(|number| Some((number, self.qps.get(number)?.executor.as_ref()?.record)))
            .collect();
        for (number, record) in executors {
            self.abandon_requests_to(number, dead, now);
            let Some(sharing) = &self.sharing else { return };
            if !sharing.targets.is_held_by(record, dead) {
                continue;
            }
            match sharing.targets.sweep(record) {
                Ok(Left::Others) => {}
                Ok(Left::Nobody(_)) => self.remove_qp(number),
                Err(error) => tracing::error!(%error, "handles of a dead process could not be dropped"),
            }
        }
    }

    /// Connects to every member that executes a TGT that we have a handle on, so that its death is noticed.
    pub(super) fn watch_executors(&mut self, now: Time) {
        let Self { sharing: Some(sharing), members: Some(members), .. } = self else { return };
        let me = sharing.targets.host().me();
        let opened = sharing.opened.numbers().into_iter().filter_map(|number| sharing.opened.get(number));
        let executors = opened.filter_map(|opened| sharing.targets.executor(opened.record));
        let mut connected = true;
        for executor in executors.filter(|executor| *executor != me) {
            connected &= members.watch(executor);
        }
        sharing.watch_again = (!connected).then(|| now + WATCH_AGAIN);
    }

    /// Ends the placements and READs of a TGT of ours that wait for the dead member.
    fn abandon_requests_to(&mut self, number: u32, dead: MemberId, now: Time) {
        let Some(executor) = self.qps.get_mut(number).and_then(|qp| qp.executor.as_mut()) else { return };
        executor.message_at.take_if(|owner| *owner == dead);
        if matches!(&executor.fetch, Fetch::Requested { owner, .. } if *owner == dead) {
            executor.fetch = Fetch::Refused(Outcome::UnknownSrq);
        }
        if let Some(pending) = executor.pending.take_if(|pending| pending.owner == dead) {
            self.answer_placement(number, &pending, Outcome::UnknownSrq, None, now);
        }
        self.mark_ready(number);
    }

    /// Continues to execute a TGT where the dead member stopped, unless another member already does.
    fn inherit(&mut self, number: u32, record: TargetRecord, dead: MemberId, now: Time) {
        let Some(sharing) = &mut self.sharing else { return };
        if !sharing.targets.take_over(record, dead) {
            return;
        }
        let Some(opened) = sharing.opened.get(number) else { return };
        let domain = std::sync::Arc::clone(&opened.domain);
        let mut words = Vec::new();
        let image = sharing.targets.image(record).load(&mut words, 1).then_some(&words[..]);
        let attributes = image.and_then(take_attributes);
        let number24 = QpNumber::new(number);
        let remote = sharing.receptions.remove(number);
        let (reception, last) = remote.map_or((None, None), |remote| (Some(remote.reception), remote.last));
        let state = words.get(ATTRIBUTE_WORDS..).unwrap_or(&[]);
        let mut executor = Executor::new(record);
        executor.inherited = last;
        let mut qp = self.qp_from_image(number24, state, domain, reception, Box::new(executor));
        let is_whole = attributes.is_some();
        let (attributes, source) = attributes.unwrap_or_else(|| (QpAttributes::new(QpType::XrcTgt), None));
        qp.attributes = attributes;
        let routed = match (source, &mut qp.attributes.address_vector) {
            (Some(source), Some(vector)) => match self.gids.index_of(source) {
                Some(index) => {
                    vector.source_gid_index = index;
                    self.open_route(&qp.attributes).map(Some)
                }
                None => Err(VerbsError::AddressNotAvailable("not an address of this process")),
            },
            _ => Ok(None),
        };
        let failed = !is_whole || routed.is_err();
        match routed {
            Ok(route) => qp.route = route,
            Err(error) => tracing::error!(%error, number, "a TGT was taken over, but not its address"),
        }
        if let (owner @ Some(_), Some(executor)) = (self.message_owner(&qp), &mut qp.executor) {
            executor.message_at = owner;
        }
        if failed && qp.attributes.state != QpState::Reset {
            qp.fail();
            qp.raise(AsyncEventKind::QpFatal, &self.events);
        }
        tracing::info!(number, ?dead, "took over a TGT");
        self.counters.taken_over += 1;
        self.qps.insert(number, qp);
        self.publish(number);
        self.mark_ready(number);
        // The member that the responder waits for may be the one that died.
        self.abandon_requests_to(number, dead, now);
    }

    /// Who holds the receive of the message in progress, if it is another member.
    fn message_owner(&self, qp: &crate::device::card::qp::Qp) -> Option<MemberId> {
        let srq = qp.responder.as_ref()?.message_srq()?;
        let host = self.sharing.as_ref()?.targets.host();
        host.owner_of(srq.get()).filter(|owner| *owner != host.me())
    }
}
