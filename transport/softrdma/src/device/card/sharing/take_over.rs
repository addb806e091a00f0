//! What follows when a member dies.
//!
//! Owns the members whose connection has ended and of whom it is not known whether they live: a
//! process that dies closes its sockets at some time and gives up its lock at another. Only who
//! has lost the lock is dead. Then:
//!
//! | the dead was | |
//! |---|---|
//! | the home of a TGT that we have a handle on | the first to swap the record's home goes on from the image |
//! | the owner of an SRQ that a placement waits for | the packet is answered as contract G7 says |
//! | the last holder of handles on a TGT of ours | it is destroyed |
#![forbid(unsafe_code)]

use super::change::{ATTRIBUTE_WORDS, take_attributes};
use super::home::Fetch;
use super::message::Outcome;
use super::{Home, Sharing};
use crate::device::card::Card;
use crate::host::{Left, MemberId, TargetRecord};
use crate::link::UdpLink;
use std::time::{Duration, Instant};
use trunkline_verbs::{AsyncEventKind, QpAttributes, QpNumber, QpState, QpType, VerbsError};

/// How often the lock of a suspect is tried.
const EVERY: Duration = Duration::from_millis(2);
/// How soon a home that had no room for a connection is tried again.
const WATCH_AGAIN: Duration = Duration::from_millis(20);
/// After so many times it lives, whatever became of the connection.
const TRIES: u32 = 250;

/// A member that may have died.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suspect {
    member: MemberId,
    tries: u32,
    again: Instant,
}

impl Sharing {
    /// The connection with a member ended.
    pub(in crate::device::card) fn suspect(&mut self, member: MemberId, now: Instant) {
        if !self.suspects.iter().any(|suspect| suspect.member == member) {
            self.suspects.push(Suspect { member, tries: 0, again: now });
        }
    }

    /// When the next lock is tried.
    pub(in crate::device::card) fn next_timeout(&self) -> Option<Instant> {
        self.suspects.iter().map(|suspect| suspect.again).chain(self.watch_again).min()
    }
}

impl Card {
    /// Looks whether suspects are dead.
    pub(in crate::device::card) fn serve_suspects(&mut self, now: Instant) {
        let Some(sharing) = &mut self.sharing else { return };
        let mut dead: Vec<MemberId> = Vec::new();
        let mut alive: Vec<MemberId> = Vec::new();
        for suspect in &mut sharing.suspects {
            if suspect.again > now {
                continue;
            }
            suspect.again = now + EVERY;
            suspect.tries += 1;
            if !sharing.targets.host().is_alive(suspect.member) {
                dead.push(suspect.member);
            } else if suspect.tries >= TRIES {
                alive.push(suspect.member);
            }
        }
        sharing
            .suspects
            .retain(|suspect| !dead.contains(&suspect.member) && !alive.contains(&suspect.member));
        for member in alive {
            tracing::debug!(?member, "the connection with a member ended, but it lives");
            sharing.watch_again = Some(now);
        }
        let watches = sharing.watch_again.is_some_and(|again| again <= now);
        for member in dead {
            self.bury(member, now);
        }
        if watches {
            self.watch_homes(now);
        }
    }

    fn bury(&mut self, dead: MemberId, now: Instant) {
        let Some(sharing) = &self.sharing else { return };
        // Its numbers lead nowhere from now on.
        sharing.targets.host().sweep();
        let orphans: Vec<(u32, TargetRecord)> = sharing
            .opened
            .iter()
            .filter(|(_, opened)| sharing.targets.home(opened.record) == Some(dead))
            .map(|(number, opened)| (*number, opened.record))
            .collect();
        for (number, record) in orphans {
            self.inherit(number, record, dead, now);
        }
        self.watch_homes(now);
        let homes: Vec<(u32, TargetRecord)> =
            self.qps.iter().filter_map(|(number, qp)| Some((*number, qp.home.as_ref()?.record))).collect();
        for (number, record) in homes {
            self.mourn(number, dead, now);
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

    /// Sees to it that the death of each home of a TGT that we have a handle on is told.
    pub(super) fn watch_homes(&mut self, now: Instant) {
        let Self { sharing: Some(sharing), link, .. } = self else { return };
        let Some(local) = link.udp().and_then(UdpLink::local) else { return };
        let me = sharing.targets.host().me();
        let homes = sharing.opened.values().filter_map(|opened| sharing.targets.home(opened.record));
        let mut connected = true;
        for home in homes.filter(|home| *home != me) {
            connected &= local.connect(home);
        }
        sharing.watch_again = (!connected).then(|| now + WATCH_AGAIN);
    }

    /// Ends what a TGT of ours waited for from the dead.
    fn mourn(&mut self, number: u32, dead: MemberId, now: Instant) {
        let Some(home) = self.qps.get_mut(&number).and_then(|qp| qp.home.as_mut()) else { return };
        home.message_at.take_if(|owner| *owner == dead);
        if matches!(&home.fetch, Fetch::Asked { owner, .. } if *owner == dead) {
            home.fetch = Fetch::Refused(Outcome::UnknownSrq);
        }
        let waited = home.pending.take_if(|pending| pending.owner == dead).is_some();
        if waited {
            self.answer_placement(number, Outcome::UnknownSrq, None, now);
        }
        self.mark_ready(number);
    }

    /// Goes on where a dead home ended, unless another member does.
    fn inherit(&mut self, number: u32, record: TargetRecord, dead: MemberId, now: Instant) {
        let Some(sharing) = &mut self.sharing else { return };
        if !sharing.targets.take_over(record, dead) {
            return;
        }
        let Some(opened) = sharing.opened.get(&number) else { return };
        let domain = std::sync::Arc::clone(&opened.domain);
        let mut words = Vec::new();
        let image = sharing.targets.image(record).load(&mut words, 1).then_some(&words[..]);
        let attributes = image.and_then(take_attributes);
        let number24 = QpNumber::new(number);
        let remote = sharing.receptions.remove(&number);
        let (reception, last) = remote.map_or((None, None), |remote| (Some(remote.reception), remote.last));
        let state = words.get(ATTRIBUTE_WORDS..).unwrap_or(&[]);
        let mut home = Home::new(record);
        home.inherited = last;
        let mut qp = self.qp_from_image(number24, state, domain, reception, Box::new(home));
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
        if let (owner @ Some(_), Some(home)) = (self.message_owner(&qp), &mut qp.home) {
            home.message_at = owner;
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
        // Whoever held what the responder waits for may be the one that died.
        self.mourn(number, dead, now);
    }

    /// Who holds the receive of the message in progress, if it is another member.
    fn message_owner(&self, qp: &crate::device::card::qp::Qp) -> Option<MemberId> {
        let srq = qp.responder.as_ref()?.message_srq()?;
        let host = self.sharing.as_ref()?.targets.host();
        host.owner_of(srq.get()).filter(|owner| *owner != host.me())
    }
}
