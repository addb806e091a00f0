//! Handles on TGTs that another member may execute (contract C4 to C8, B10).
//!
//! Owns opening and closing, and changes on their way to the executor and back. Who asks waits outside
//! of the card's lock; the executor answers from its own thread, whatever its program does.
#![forbid(unsafe_code)]

use super::change::take_attributes;
use super::message::Message;
use super::{Executor, Opened, Sharing};
use crate::device::card::Card;
use crate::device::domain_table::Domain;
use crate::host::{Left, MemberId};
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, QpAttributes, QpModify, QpNumber, Time, VerbsError};

/// How often an executor that writes faster than we read is read.
const TRIES: usize = 1000;

/// A change that is on its way.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct ModifyTicket {
    ticket: u64,
    executor: MemberId,
}

/// Changes that are on their way.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    last: u64,
    /// What the executor answered: an errno, 0 for done.
    waiting: Vec<(u64, Option<i32>)>,
}

/// How far a change has got that the executing process was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum ModifyProgress {
    /// Nothing yet.
    Pending,
    /// It was carried out, or refused.
    Done(Result<(), VerbsError>),
    /// Another process has taken over the TGT, so the outcome is unknown. Query the state, then decide.
    ExecutorGone,
}

impl Card {
    /// Enters a new TGT of a domain that belongs to a file into the host's table.
    pub(in crate::device::card) fn share(
        &mut self,
        number: u32,
        domain: &Arc<Domain>,
    ) -> Result<Option<Box<Executor>>, VerbsError> {
        let (Some(sharing), Some(id)) = (&mut self.sharing, domain.shared()) else { return Ok(None) };
        let record = sharing.targets.create(number, id)?;
        sharing.opened.insert(number, Opened { record, domain: Arc::clone(domain), handles: 1 });
        Ok(Some(Box::new(Executor::new(record))))
    }

    /// Opens a handle on a TGT of a domain that belongs to a file.
    pub(in crate::device::card) fn open_shared(
        &mut self,
        number: u32,
        domain: &Arc<Domain>,
        now: Time,
    ) -> Result<Option<()>, VerbsError> {
        let Some(id) = domain.shared() else { return Ok(None) };
        let Some(sharing) = &mut self.sharing else { return Ok(None) };
        let joined = sharing.targets.join(number, id)?;
        let record = joined.ok_or(VerbsError::Invalid("no TGT of this number is in the XRC domain"))?;
        sharing
            .opened
            .get_or_insert_with(number, || Opened { record, domain: Arc::clone(domain), handles: 0 })
            .handles += 1;
        self.watch_executors(now);
        Ok(Some(()))
    }

    /// The numbers of shared TGTs that this member has handles on.
    pub(in crate::device::card) fn shared_handles(&self) -> Vec<u32> {
        self.sharing.as_ref().map(|sharing| sharing.opened.numbers()).unwrap_or_default()
    }

    /// Closes a handle on a shared TGT; `None` when it is not shared.
    pub(in crate::device::card) fn close_shared(&mut self, number: u32) -> Option<()> {
        let sharing = self.sharing.as_mut()?;
        let opened = sharing.opened.get_mut(number)?;
        opened.handles -= 1;
        let record = opened.record;
        if opened.handles == 0 {
            sharing.opened.remove(number);
        }
        match sharing.targets.leave(record) {
            Ok(Left::Others) => {}
            Ok(Left::Nobody(executor)) => {
                if let Some(executor) = executor {
                    sharing.outbox.push(executor, &Message::Closed { tgt: number });
                }
                self.remove_qp(number);
            }
            Err(error) => tracing::error!(%error, "a handle on a shared TGT could not be closed"),
        }
        Some(())
    }

    /// The executor of a TGT hears that nobody has a handle any more.
    pub(super) fn handle_closed(&mut self, tgt: u32) {
        let Some(sharing) = &self.sharing else { return };
        let Some(executor) = self.qps.get(tgt).and_then(|qp| qp.executor.as_ref()) else { return };
        if !sharing.targets.exists(executor.record) {
            self.end_remote_message(tgt, false);
            self.remove_qp(tgt);
        }
    }

    /// The attributes of a TGT that another member executes.
    pub(in crate::device::card) fn query_shared(&self, number: u32) -> Option<QpAttributes> {
        let sharing = self.sharing.as_ref()?;
        let opened = sharing.opened.get(number)?;
        let mut words = Vec::new();
        if !sharing.targets.image(opened.record).load(&mut words, TRIES) {
            return None;
        }
        let (mut attributes, source) = take_attributes(&words)?;
        if let (Some(vector), Some(source)) = (&mut attributes.address_vector, source) {
            let own = self.gids.addresses().iter().position(|address| *address == source);
            vector.source_gid_index = own.and_then(|index| u16::try_from(index).ok()).unwrap_or(0);
        }
        Some(attributes)
    }

    /// Asks the executor of a TGT for a change; `None` when this member is the executor, or the TGT is not
    /// shared.
    pub(in crate::device) fn ask_executor(
        &mut self,
        number: QpNumber,
        change: &QpModify,
    ) -> Option<Result<ModifyTicket, VerbsError>> {
        if self.qps.contains(number.get()) {
            return None;
        }
        let Self { sharing: Some(sharing), gids, .. } = self else { return None };
        let record = sharing.opened.get(number.get())?.record;
        let executor = sharing.targets.executor(record)?;
        let source = match change.address_vector {
            None => None,
            Some(vector) => match gids.at(vector.source_gid_index) {
                None => return Some(Err(VerbsError::Invalid("no such index in the GID table"))),
                source => source,
            },
        };
        sharing.tickets.last += 1;
        let ticket = sharing.tickets.last;
        let message = Message::Modify { tgt: number.get(), ticket, source, change: *change };
        if !sharing.outbox.push(executor, &message) {
            return Some(Err(VerbsError::OutOfResources("too many messages wait for other processes")));
        }
        sharing.tickets.waiting.push((ticket, None));
        Some(Ok(ModifyTicket { ticket, executor }))
    }

    /// How far a change has got.
    pub(in crate::device) fn modify_progress(
        &mut self,
        number: QpNumber,
        ticket: ModifyTicket,
    ) -> ModifyProgress {
        let Some(sharing) = &mut self.sharing else { return ModifyProgress::ExecutorGone };
        let waiting = &mut sharing.tickets.waiting;
        let Some(place) = waiting.iter().position(|(number, _)| *number == ticket.ticket) else {
            return ModifyProgress::ExecutorGone;
        };
        if let Some(errno) = waiting[place].1 {
            waiting.swap_remove(place);
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
        let executor = sharing.targets.executor_of(number.get());
        if executor == Some(ticket.executor) {
            return ModifyProgress::Pending;
        }
        waiting.swap_remove(place);
        ModifyProgress::ExecutorGone
    }

    /// Drops a change that nobody waits for any more.
    pub(in crate::device) fn forget_modify(&mut self, ticket: ModifyTicket) {
        if let Some(sharing) = &mut self.sharing {
            sharing.tickets.waiting.retain(|(number, _)| *number != ticket.ticket);
        }
    }

    pub(super) fn handle_modified(&mut self, ticket: u64, errno: i32) {
        let Some(sharing) = &mut self.sharing else { return };
        if let Some(waiting) = sharing.tickets.waiting.iter_mut().find(|(number, _)| *number == ticket) {
            waiting.1 = Some(errno);
        }
    }

    /// Carries out a change for a member that has a handle.
    pub(super) fn modify_for(
        &mut self,
        from: MemberId,
        tgt: u32,
        ticket: u64,
        source: Option<IpAddr>,
        mut change: QpModify,
    ) {
        let Self { sharing: Some(sharing), qps, gids, .. } = self else { return };
        let record = qps.get(tgt).and_then(|qp| qp.executor.as_ref()).map(|executor| executor.record);
        let holds = record.is_some_and(|record| sharing.targets.holders(record).contains(&from));
        let index = source.map(|source| gids.index_of(source));
        let result = match (&mut change.address_vector, index) {
            _ if !holds => Err(VerbsError::Invalid("no handle")),
            (Some(_), None | Some(None)) => Err(VerbsError::Invalid("not an address of this process")),
            (Some(vector), Some(Some(index))) => {
                vector.source_gid_index = index;
                Ok(())
            }
            (None, _) => Ok(()),
        };
        let result = result.and_then(|()| self.modify_qp(QpNumber::new(tgt), &change));
        let errno = result.map_or_else(VerbsError::errno, |()| 0);
        if let Some(sharing) = &mut self.sharing {
            sharing.outbox.push(from, &Message::Modified { ticket, errno });
        }
    }

    /// Something happened to a TGT that another member executes.
    pub(super) fn handle_event(&mut self, from: MemberId, tgt: u32, kind: AsyncEventKind) {
        let Some(sharing) = &self.sharing else { return };
        let Some(opened) = sharing.opened.get(tgt) else { return };
        if sharing.targets.executor(opened.record) == Some(from) {
            self.events.raise(kind, AsyncSubject::Qp(QpNumber::new(tgt)));
        }
    }

    /// A message of the kinds that belong to shared TGTs.
    pub(in crate::device::card) fn handle_shared(
        &mut self,
        from: MemberId,
        kind: u8,
        bytes: &[u8],
        now: Time,
    ) {
        let Some(message) = Message::read(kind, bytes) else {
            self.counters.unknown_messages += 1;
            return;
        };
        match message {
            Message::Place { tgt, serial, place } => self.place_for(from, tgt, serial, &place),
            Message::Placed { tgt, serial, outcome } => self.handle_placed(from, tgt, serial, outcome, now),
            Message::Read { tgt, piece } => self.read_for(from, tgt, &piece),
            Message::ReadBytes { tgt, psn, offset, bytes } => {
                self.handle_read_bytes(from, tgt, (psn, offset), bytes);
            }
            Message::Flush { tgt, is_error } => self.flush_for(from, tgt, is_error),
            Message::Modify { tgt, ticket, source, change } => {
                self.modify_for(from, tgt, ticket, source, change);
            }
            Message::Modified { ticket, errno } => self.handle_modified(ticket, errno),
            Message::Closed { tgt } => self.handle_closed(tgt),
            Message::Event { tgt, kind } => self.handle_event(from, tgt, kind),
        }
    }
}

impl Sharing {
    /// Whether another TGT of the host has the number.
    pub(in crate::device::card) fn is_taken(&self, number: u32) -> bool {
        self.targets.find(number).is_some()
    }
}
