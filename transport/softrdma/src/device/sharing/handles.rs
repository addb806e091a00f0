//! Handles on TGTs that another process may execute (contract C4 to C8, B10).
//!
//! Owns the number of handles that this process has on each TGT.
#![forbid(unsafe_code)]

use super::Sharing;
use super::attributes::take_attributes;
use super::executor::{Executor, executor_of};
use super::message::Message;
use crate::device::shard::{Shard, SharedTgt};
use crate::device::tables::domain_table::Domain;
use crate::device::tables::gid_table::GidTable;
use crate::device::tables::numbers::NumberMap;
use crate::host::{Left, TargetRecord};
use std::sync::Arc;
use trunkline_verbs::{QpAttributes, Time, VerbsError};

/// Maximum number of attempts to read the state of a TGT while its executor writes it.
const TRIES: usize = 1000;

/// Handles of this process on one TGT.
#[derive(Debug)]
struct Opened {
    record: TargetRecord,
    domain: Arc<Domain>,
    handles: usize,
}

/// Handles of this process, by TGT.
#[derive(Debug, Default)]
pub(super) struct Handles(NumberMap<Opened>);

impl Handles {
    fn open(&mut self, number: u32, record: TargetRecord, domain: &Arc<Domain>) {
        let opened =
            self.0.get_or_insert_with(number, || Opened { record, domain: Arc::clone(domain), handles: 0 });
        opened.handles += 1;
    }

    /// Removes a handle. Returns the TGT's record, or `None` if this process does not have a handle.
    fn close(&mut self, number: u32) -> Option<TargetRecord> {
        let opened = self.0.get_mut(number)?;
        opened.handles -= 1;
        let record = opened.record;
        if opened.handles == 0 {
            self.0.remove(number);
        }
        Some(record)
    }

    /// Returns the record of a TGT if this process has a handle on it.
    pub(super) fn record(&self, number: u32) -> Option<TargetRecord> {
        self.0.get(number).map(|opened| opened.record)
    }

    /// Returns the TGT's domain.
    pub(super) fn domain(&self, number: u32) -> Option<&Arc<Domain>> {
        self.0.get(number).map(|opened| &opened.domain)
    }

    /// Returns all TGTs on which this process has a handle, ordered by number.
    pub(super) fn records(&self) -> Vec<(u32, TargetRecord)> {
        let numbers = self.0.numbers().into_iter();
        numbers.filter_map(|number| Some((number, self.record(number)?))).collect()
    }
}

impl Sharing {
    /// Returns true if a TGT of the host has the number. A TGT that outlives its creator may have a number
    /// from a block that was assigned again.
    pub(in crate::device) fn is_taken(&self, number: u32) -> bool {
        self.targets.find(number).is_some()
    }

    /// Adds a new TGT to the host's table. Returns `None` for a TGT of a private domain.
    pub(in crate::device) fn create(
        &mut self,
        number: u32,
        domain: &Arc<Domain>,
    ) -> Result<Option<Box<dyn SharedTgt>>, VerbsError> {
        let Some(id) = domain.shared() else { return Ok(None) };
        let entered = self.targets.create(number, id);
        let record = entered.inspect_err(|error| tracing::warn!(qp = number, %error, "TGT not shared"))?;
        self.handles.open(number, record, domain);
        Ok(Some(Box::new(Executor::new(Arc::clone(&self.targets), record))))
    }

    /// Opens a handle on a TGT. Returns false for a TGT of a private domain.
    pub(in crate::device) fn open(
        &mut self,
        number: u32,
        domain: &Arc<Domain>,
        now: Time,
    ) -> Result<bool, VerbsError> {
        let Some(id) = domain.shared() else { return Ok(false) };
        let joined = self.targets.join(number, id)?;
        let record = joined.ok_or(VerbsError::Invalid("no TGT of this number is in the XRC domain"))?;
        self.handles.open(number, record, domain);
        self.watch_executors(now);
        Ok(true)
    }

    /// Closes a handle. Returns false if the TGT is not shared.
    pub(in crate::device) fn close(&mut self, shard: &mut Shard, number: u32) -> bool {
        let Some(record) = self.handles.close(number) else { return false };
        match self.targets.leave(record) {
            Ok(Left::Others) => {}
            Ok(Left::Nobody(executor)) => {
                if let Some(executor) = executor {
                    Message::Closed { tgt: number }.send(shard.outbox(), executor);
                }
                shard.remove_qp(number);
            }
            Err(error) => tracing::error!(qp = number, %error, "handle on a shared TGT not closed"),
        }
        true
    }

    /// Closes all handles. The TGTs continue in other processes.
    pub(in crate::device) fn close_all(&mut self, shard: &mut Shard) {
        for (number, _) in self.handles.records() {
            while self.close(shard, number) {}
        }
    }

    /// Destroys a TGT that this process executes if its last handle was closed.
    pub(super) fn handle_closed(&self, shard: &mut Shard, tgt: u32) {
        let Some(record) = executor_of(shard, tgt).map(|executor| executor.record()) else { return };
        if !self.targets.exists(record) {
            shard.end_remote_message(tgt, false);
            shard.remove_qp(tgt);
        }
    }

    /// Returns the attributes of a TGT that another process executes.
    pub(in crate::device) fn query(&self, number: u32, gids: &GidTable) -> Option<QpAttributes> {
        let mut words = Vec::new();
        if !self.targets.image(self.handles.record(number)?).load(&mut words, TRIES) {
            return None;
        }
        let (mut attributes, source) = take_attributes(&words)?;
        if let (Some(vector), Some(source)) = (&mut attributes.address_vector, source) {
            let own = gids.addresses().iter().position(|address| *address == source);
            vector.source_gid_index = own.and_then(|index| u16::try_from(index).ok()).unwrap_or(0);
        }
        Some(attributes)
    }
}
