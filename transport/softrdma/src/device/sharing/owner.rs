//! Placements for TGTs that other processes execute.
//!
//! Owns, for each such TGT, the receive that a message in progress holds in this process, and the outcome of the last
//! placement. An executor that has taken over a TGT may repeat the last request of the earlier executor. The new
//! executor then gets the stored outcome, and the packet is not placed twice.
#![forbid(unsafe_code)]

use super::Sharing;
use super::message::Message;
use crate::device::shard::{Reception, RemoteOutcome, Shard};
use crate::device::tables::domain_table::DomainNumber;
use crate::device::tables::numbers::NumberMap;
use crate::host::{MemberId, Targets};
use trunkline_roce::engine::{Placement, PlacementRequest, ReadOutcome, ReadPiece};
use trunkline_verbs::{QpNumber, SrqNumber};

/// Number of receive sides above which receive sides of destroyed TGTs are dropped.
const MANY: usize = 256;
/// Maximum number of bytes that one request fetches.
pub(super) const MAX_FETCH: u32 = 24 * 1024;

/// Decision on a requested placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// The request is the next one.
    Do,
    /// The request was already done, with this outcome.
    Done(RemoteOutcome),
    /// A later request was done, so the sender no longer executes the TGT.
    Overtaken,
}

/// The receive side of a TGT that another process executes.
#[derive(Debug)]
struct Remote {
    reception: Reception,
    /// Serial number and outcome of the last placement that changed state.
    last: Option<(u64, RemoteOutcome)>,
}

impl Remote {
    fn admit(&self, serial: u64) -> Admission {
        match self.last {
            Some((last, outcome)) if last == serial => Admission::Done(outcome),
            Some((last, _)) if last > serial => Admission::Overtaken,
            _ => Admission::Do,
        }
    }

    fn note(&mut self, serial: u64, outcome: RemoteOutcome) {
        // An RNR outcome leaves the state unchanged, so the request may be repeated.
        if outcome != RemoteOutcome::Done(Placement::Rnr) {
            self.last = Some((serial, outcome));
        }
    }
}

/// Receive sides, by TGT.
#[derive(Debug, Default)]
pub(super) struct Receptions(NumberMap<Remote>);

impl Receptions {
    /// Returns the receive side of a TGT, created on first use.
    fn of(&mut self, tgt: u32, domain: DomainNumber, targets: &Targets) -> &mut Remote {
        if self.0.len() >= MANY && !self.0.contains(tgt) {
            self.0.retain(|tgt, _| targets.find(tgt).is_some());
        }
        self.0.get_or_insert_with(tgt, || Remote { reception: Reception::of_domain(domain), last: None })
    }

    /// Removes the receive side, and the last placement, of a TGT that this process has taken over.
    pub(super) fn take(&mut self, tgt: u32) -> (Option<Reception>, Option<(u64, RemoteOutcome)>) {
        self.0.remove(tgt).map_or((None, None), |remote| (Some(remote.reception), remote.last))
    }
}

/// Reason for refusing a request from another process.
enum NotOurs {
    /// The sender does not execute the TGT.
    Stale,
    /// The domain does not contain the SRQ in this process.
    UnknownSrq,
}

impl Sharing {
    /// Returns the local number of the domain that contains both a TGT and an SRQ of this process, if the
    /// requesting process executes the TGT.
    fn common_domain(
        &self,
        shard: &mut Shard,
        from: MemberId,
        tgt: u32,
        srq: Option<SrqNumber>,
    ) -> Result<DomainNumber, NotOurs> {
        let record = self.targets.find(tgt).ok_or(NotOurs::Stale)?;
        if self.targets.executor(record) != Some(from) {
            return Err(NotOurs::Stale);
        }
        let domain = self.targets.domain(record).ok_or(NotOurs::Stale)?;
        let ours = srq.and_then(|srq| shard.domain_of(srq)).filter(|(_, shared)| *shared == Some(domain));
        Ok(ours.ok_or(NotOurs::UnknownSrq)?.0)
    }

    /// Places a packet that another process received.
    pub(super) fn place_for(
        &mut self,
        shard: &mut Shard,
        from: MemberId,
        tgt: u32,
        serial: u64,
        place: &PlacementRequest<'_>,
    ) {
        let Some(record) = self.targets.find(tgt) else { return };
        let outcome = match self.common_domain(shard, from, tgt, place.srq) {
            Err(NotOurs::Stale) => return,
            Err(NotOurs::UnknownSrq) => RemoteOutcome::UnknownSrq,
            Ok(domain) => {
                let remote = self.receptions.of(tgt, domain, &self.targets);
                match remote.admit(serial) {
                    Admission::Done(outcome) => outcome,
                    Admission::Overtaken => return,
                    Admission::Do => {
                        let note = || self.targets.note_placement(record, serial);
                        let tgt = QpNumber::new(tgt);
                        let placed = shard.place_for_member(tgt, &mut remote.reception, place, &note);
                        let outcome = RemoteOutcome::Done(placed);
                        remote.note(serial, outcome);
                        outcome
                    }
                }
            }
        };
        Message::Placed { tgt, serial, outcome }.send(shard.outbox(), from);
    }

    /// Fetches bytes for a READ that another process answers.
    pub(super) fn read_for(&mut self, shard: &mut Shard, from: MemberId, tgt: u32, piece: &ReadPiece) {
        let mut fetched = Vec::new();
        let bytes = match self.common_domain(shard, from, tgt, piece.srq) {
            Err(NotOurs::Stale) => return,
            Err(NotOurs::UnknownSrq) => Err(RemoteOutcome::UnknownSrq),
            Ok(_) if piece.length > MAX_FETCH => return,
            Ok(domain) => {
                let remote = self.receptions.of(tgt, domain, &self.targets);
                let number = QpNumber::new(tgt);
                match shard.read_for_member(number, &mut remote.reception, piece, &mut fetched) {
                    ReadOutcome::Read => Ok(&fetched[..]),
                    ReadOutcome::Nak(code) => Err(RemoteOutcome::Done(Placement::Nak(code))),
                    ReadOutcome::Later => Err(RemoteOutcome::UnknownSrq),
                }
            }
        };
        Message::ReadBytes { tgt, psn: piece.psn, offset: piece.offset, bytes }.send(shard.outbox(), from);
    }

    /// Drops the message in progress on a TGT that another process executes. If `is_error` is true, the message's
    /// receive completes with an error (contract I2).
    pub(super) fn flush_for(&mut self, shard: &mut Shard, from: MemberId, tgt: u32, is_error: bool) {
        let executor = self.targets.find(tgt).and_then(|record| self.targets.executor(record));
        if executor != Some(from) {
            return;
        }
        let Some(remote) = self.receptions.0.get_mut(tgt) else { return };
        if is_error {
            shard.flush_for_member(QpNumber::new(tgt), &mut remote.reception);
        } else {
            remote.reception.reset();
        }
    }
}

#[cfg(test)]
mod models;
