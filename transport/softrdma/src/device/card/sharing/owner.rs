//! Placements for TGTs that other members execute.
//!
//! Owns the receive that a half-arrived message of each such TGT holds here, and what became of
//! its last placement: an executor that took over asks once more for what its predecessor may have had
//! done, and is told instead of served twice.
#![forbid(unsafe_code)]

use super::Sharing;
use super::executor::PlacementNote;
use super::message::{Message, Outcome};
use crate::device::card::Card;
use crate::device::card::completions::Completer;
use crate::device::card::srq::SrqState;
use crate::device::card::target::{QpTarget, ReceiveSource, Reception};
use crate::device::domain_table::DomainNumber;
use crate::device::numbers::NumberMap;
use crate::host::MemberId;
use std::sync::Arc;
use trunkline_roce::engine::{Place, Placement, ReadOutcome, ReadPiece, Target};
use trunkline_verbs::{QpNumber, SrqNumber};

/// What is to be done with a placement that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// It is the next.
    Do,
    /// It was done: this became of it.
    Done(Outcome),
    /// A later one was done: who asks is an executor of the past.
    Overtaken,
}

impl Remote {
    fn admit(&self, serial: u64) -> Admission {
        match self.last {
            Some((last, outcome)) if last == serial => Admission::Done(outcome),
            Some((last, _)) if last > serial => Admission::Overtaken,
            _ => Admission::Do,
        }
    }

    fn note(&mut self, serial: u64, outcome: Outcome) {
        // Nothing was done where no receive was posted, so it may be asked again.
        if outcome != Outcome::Done(Placement::Rnr) {
            self.last = Some((serial, outcome));
        }
    }
}

/// TGTs of others with a reception here; beyond that, those that no longer exist are forgotten.
const MANY: usize = 256;
/// Bytes fetched at once.
pub(super) const MAX_FETCH: u32 = 24 * 1024;

/// The receive side of a TGT that another member executes.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) reception: Reception,
    /// The last placement that changed something.
    pub(super) last: Option<(u64, Outcome)>,
}

impl Sharing {
    /// The local name of the domain that a TGT and an SRQ of ours have in common, if the TGT is
    /// executed by the member that asks.
    fn common_domain(
        &self,
        srqs: &NumberMap<SrqState>,
        from: MemberId,
        tgt: u32,
        srq: Option<SrqNumber>,
    ) -> Result<DomainNumber, NotOurs> {
        let record = self.targets.find(tgt).ok_or(NotOurs::Stale)?;
        if self.targets.executor(record) != Some(from) {
            return Err(NotOurs::Stale);
        }
        let domain = self.targets.domain(record).ok_or(NotOurs::Stale)?;
        let side = srq.and_then(|srq| srqs.get(srq.get())).and_then(|srq| srq.xrc.as_ref());
        let side = side.filter(|side| side.domain.shared() == Some(domain)).ok_or(NotOurs::UnknownSrq)?;
        Ok(side.domain.number())
    }

    fn remote(&mut self, tgt: u32, domain: DomainNumber) -> &mut Remote {
        if self.receptions.len() >= MANY && !self.receptions.contains(tgt) {
            let targets = &self.targets;
            self.receptions.retain(|tgt, _| targets.find(tgt).is_some());
        }
        self.receptions.get_or_insert_with(tgt, || Remote {
            reception: Reception::new(ReceiveSource::Xrc { domain }),
            last: None,
        })
    }
}

/// Why a request of another member is not carried out.
enum NotOurs {
    /// Whoever asks does not execute the TGT, or no longer.
    Stale,
    /// The domain has no such SRQ here.
    UnknownSrq,
}

impl Card {
    /// Carries out a packet that another member took.
    pub(super) fn place_for(&mut self, from: MemberId, tgt: u32, serial: u64, place: &Place<'_>) {
        let Self { sharing: Some(sharing), keys, srqs, events, counters, unknown_srq, .. } = self else {
            return;
        };
        let targets = Arc::clone(&sharing.targets);
        let Some(record) = targets.find(tgt) else { return };
        let outcome = match sharing.common_domain(srqs, from, tgt, place.srq) {
            Err(NotOurs::Stale) => return,
            Err(NotOurs::UnknownSrq) => Outcome::UnknownSrq,
            Ok(domain) => {
                let remote = sharing.remote(tgt, domain);
                match remote.admit(serial) {
                    Admission::Done(outcome) => outcome,
                    Admission::Overtaken => return,
                    Admission::Do => {
                        let mut target = QpTarget {
                            number: QpNumber::new(tgt),
                            keys,
                            srqs,
                            reception: &mut remote.reception,
                            completer: Completer { events, counters },
                            unknown_srq: *unknown_srq,
                            remote: None,
                            note: Some(PlacementNote { targets: &targets, record, serial }),
                        };
                        let outcome = Outcome::Done(target.place(place));
                        remote.note(serial, outcome);
                        outcome
                    }
                }
            }
        };
        sharing.outbox.push(from, &Message::Placed { tgt, serial, outcome });
    }

    /// Fetches bytes for a READ that another member answers.
    pub(super) fn read_for(&mut self, from: MemberId, tgt: u32, piece: &ReadPiece) {
        let Self { sharing: Some(sharing), keys, srqs, events, counters, unknown_srq, .. } = self else {
            return;
        };
        let mut fetched = Vec::new();
        let bytes = match sharing.common_domain(srqs, from, tgt, piece.srq) {
            Err(NotOurs::Stale) => return,
            Err(NotOurs::UnknownSrq) => Err(Outcome::UnknownSrq),
            Ok(_) if piece.length > MAX_FETCH => return,
            Ok(domain) => {
                let remote = sharing.remote(tgt, domain);
                let mut target = QpTarget {
                    number: QpNumber::new(tgt),
                    keys,
                    srqs,
                    reception: &mut remote.reception,
                    completer: Completer { events, counters },
                    unknown_srq: *unknown_srq,
                    remote: None,
                    note: None,
                };
                match target.read(piece, &mut fetched) {
                    ReadOutcome::Read => Ok(&fetched[..]),
                    ReadOutcome::Nak(code) => Err(Outcome::Done(Placement::Nak(code))),
                    ReadOutcome::Later => Err(Outcome::UnknownSrq),
                }
            }
        };
        let answer = Message::ReadBytes { tgt, psn: piece.psn, offset: piece.offset, bytes };
        sharing.outbox.push(from, &answer);
    }

    /// Ends what a TGT of another member has begun here (contract I2).
    pub(super) fn flush_for(&mut self, from: MemberId, tgt: u32, is_error: bool) {
        let Self { sharing: Some(sharing), srqs, events, counters, .. } = self else { return };
        let executor = sharing.targets.find(tgt).and_then(|record| sharing.targets.executor(record));
        if executor != Some(from) {
            return;
        }
        let Some(remote) = sharing.receptions.get_mut(tgt) else { return };
        if is_error {
            remote.reception.flush(QpNumber::new(tgt), srqs, &mut Completer { events, counters });
        } else {
            remote.reception.reset();
        }
    }
}

#[cfg(test)]
mod models;
