//! Changes to a TGT that are requested from its executor.
//!
//! Owns the tickets for changes requested from other processes. A caller does not hold the device's lock while it waits
//! for the outcome. The executor answers from its background thread, independently of its program.
#![forbid(unsafe_code)]

use super::Sharing;
use super::executor::executor_of;
use super::message::Message;
use crate::device::shard::Shard;
use crate::device::tables::gid_table::GidTable;
use crate::host::MemberId;
use std::net::IpAddr;
use trunkline_verbs::{QpModify, QpNumber, VerbsError};

/// Identifies a pending change.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct ModifyTicket {
    ticket: u64,
    executor: MemberId,
}

/// A change requested by another process.
#[derive(Debug)]
pub(in crate::device) struct ModifyRequest {
    pub(super) from: MemberId,
    pub(super) tgt: QpNumber,
    pub(super) ticket: u64,
    pub(super) source: Option<IpAddr>,
    pub(super) change: QpModify,
}

/// Progress of a change requested from the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum ModifyProgress {
    /// The executor has not answered yet.
    Pending,
    /// The change was applied or refused.
    Done(Result<(), VerbsError>),
    /// Another process has taken over the TGT, so the outcome is unknown. The caller repeats the request.
    ExecutorGone,
}

/// Pending changes.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    last: u64,
    /// Ticket numbers with the executor's answers: 0 if the change was applied, else an errno.
    waiting: Vec<(u64, Option<i32>)>,
}

impl Tickets {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn open(&mut self, ticket: u64) {
        self.waiting.push((ticket, None));
    }

    /// Records the executor's answer.
    pub(super) fn answer(&mut self, ticket: u64, errno: i32) {
        if let Some(waiting) = self.waiting.iter_mut().find(|(number, _)| *number == ticket) {
            waiting.1 = Some(errno);
        }
    }

    /// Takes the answer to a ticket. Returns `Ok(None)` if the answer has not arrived yet, and `Err` if the ticket is
    /// not pending.
    fn take(&mut self, ticket: u64) -> Result<Option<i32>, VerbsError> {
        let place = self.waiting.iter().position(|(number, _)| *number == ticket).ok_or(VerbsError::Gone)?;
        let answer = self.waiting[place].1;
        if answer.is_some() {
            self.waiting.swap_remove(place);
        }
        Ok(answer)
    }

    fn forget(&mut self, ticket: u64) {
        self.waiting.retain(|(number, _)| *number != ticket);
    }
}

impl Sharing {
    /// Requests a change to a TGT from its executor. Returns `None` if this process is the executor, or if the TGT is
    /// not shared.
    pub(in crate::device) fn ask_executor(
        &mut self,
        shard: &mut Shard,
        gids: &GidTable,
        number: QpNumber,
        change: &QpModify,
    ) -> Option<Result<ModifyTicket, VerbsError>> {
        if shard.attributes(number.get()).is_some() {
            return None;
        }
        let record = self.handles.record(number.get())?;
        let executor = self.targets.executor(record)?;
        let source = match change.address_vector {
            None => None,
            Some(vector) => match gids.at(vector.source_gid_index) {
                None => return Some(Err(VerbsError::Invalid("no such index in the GID table"))),
                source => source,
            },
        };
        let ticket = self.tickets.next();
        let message = Message::Modify { tgt: number.get(), ticket, source, change: *change };
        if !message.send(shard.outbox(), executor) {
            return Some(Err(VerbsError::OutOfResources("too many messages wait for other processes")));
        }
        self.tickets.open(ticket);
        Some(Ok(ModifyTicket { ticket, executor }))
    }

    /// Returns the progress of a change.
    pub(in crate::device) fn modify_progress(
        &mut self,
        number: QpNumber,
        ticket: ModifyTicket,
    ) -> ModifyProgress {
        match self.tickets.take(ticket.ticket) {
            Err(_) => return ModifyProgress::ExecutorGone,
            Ok(Some(errno)) => {
                return ModifyProgress::Done(match errno {
                    0 => Ok(()),
                    22 => Err(VerbsError::Invalid(
                        "the process that executes the TGT refused the change: no such transition now, or its \
                         attributes are not those it needs",
                    )),
                    5 => Err(VerbsError::Gone),
                    errno => Err(VerbsError::Os(errno)),
                });
            }
            Ok(None) => {}
        }
        if self.targets.executor_of(number.get()) == Some(ticket.executor) {
            return ModifyProgress::Pending;
        }
        self.tickets.forget(ticket.ticket);
        ModifyProgress::ExecutorGone
    }

    /// Drops a change whose outcome the caller no longer awaits.
    pub(in crate::device) fn forget_modify(&mut self, ticket: ModifyTicket) {
        self.tickets.forget(ticket.ticket);
    }

    /// Returns the TGT and the requested change, with a GID index of this device, if the requesting process
    /// has a handle.
    pub(in crate::device) fn checked(
        &self,
        shard: &mut Shard,
        gids: &mut GidTable,
        request: &ModifyRequest,
    ) -> Result<(QpNumber, QpModify), VerbsError> {
        let record = executor_of(shard, request.tgt.get()).map(|executor| executor.record());
        if !record.is_some_and(|record| self.targets.holders(record).contains(&request.from)) {
            return Err(VerbsError::Invalid("no handle"));
        }
        let mut change = request.change;
        let index = request.source.map(|source| gids.index_of(source));
        if let Some(vector) = &mut change.address_vector {
            let index = index.flatten();
            vector.source_gid_index = index.ok_or(VerbsError::Invalid("not an address of this process"))?;
        }
        Ok((request.tgt, change))
    }

    /// Reports the outcome of a change to the process that requested it.
    pub(in crate::device) fn modified(
        &self,
        shard: &mut Shard,
        request: &ModifyRequest,
        result: Result<(), VerbsError>,
    ) {
        let errno = result.map_or_else(VerbsError::errno, |()| 0);
        Message::Modified { ticket: request.ticket, errno }.send(shard.outbox(), request.from);
    }
}
