//! Creation of a device's shards.
//!
//! Owns the sources of the shards' links and numbers. This module must never be called by a thread that is in a turn of
//! a shard.
#![forbid(unsafe_code)]

use super::lock::ShardLock;
use crate::device::objects::async_events::AsyncEvents;
use crate::device::shard::{LocalInit, Neighbours, Shard, ShardInit};
use crate::device::tables::Tables;
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::srqs::UnknownSrq;
use crate::device::threads::progress::Progress;
use crate::device::threads::wake_up::WakeUp;
use crate::host::Members;
use crate::link::Tap;
use std::fmt;
use std::sync::{Arc, Weak};
use trunkline_machine::{Runtime, Sleeper};
use trunkline_verbs::VerbsError;

/// Function that creates the link of a shard. Returns `None` if the device's link cannot be divided.
pub(in crate::device) type MakeLink = Box<dyn Fn() -> Result<Option<Tap>, VerbsError> + Send + Sync>;

/// Parts from which the shards of a device are created.
pub(in crate::device) struct ShardMaker {
    pub(in crate::device) make_link: MakeLink,
    pub(in crate::device) events: Arc<AsyncEvents>,
    pub(in crate::device) unknown_srq: UnknownSrq,
    pub(in crate::device) tables: Arc<Tables>,
    pub(in crate::device) neighbours: Arc<Neighbours>,
    pub(in crate::device) runtime: Runtime,
    /// Memory shared with other processes.
    pub(in crate::device) local: LocalInit,
    /// Messages to the other members of the host; dropped once the device has left.
    pub(in crate::device) members: Option<Weak<Members>>,
}

impl ShardMaker {
    /// Creates the first shard of a device, and the object on which its machine sleeps in a simulation.
    pub(in crate::device) fn first(
        &self,
        tap: Tap,
        members: Option<Arc<Members>>,
    ) -> std::io::Result<(ShardLock, Option<Sleeper>)> {
        self.shard(ShardIndex::FIRST, tap, members)
    }

    /// Creates a further shard. Returns `None` if the device's link cannot be divided.
    pub(in crate::device) fn make(
        &self,
        index: ShardIndex,
    ) -> Result<Option<(ShardLock, Option<Sleeper>)>, VerbsError> {
        match (self.make_link)()? {
            Some(tap) => {
                let members = self.members.as_ref().and_then(Weak::upgrade);
                Ok(Some(self.shard(index, tap, members)?))
            }
            None => Ok(None),
        }
    }

    fn shard(
        &self,
        index: ShardIndex,
        tap: Tap,
        members: Option<Arc<Members>>,
    ) -> std::io::Result<(ShardLock, Option<Sleeper>)> {
        let (waker, sleeper) = WakeUp::new(&self.runtime)?;
        let waker = Arc::new(waker);
        let shard = Shard::new(ShardInit {
            index,
            tap,
            events: Arc::clone(&self.events),
            unknown_srq: self.unknown_srq,
            tables: Arc::clone(&self.tables),
            neighbours: Arc::clone(&self.neighbours),
            members,
            local: self.local.clone(),
        });
        self.neighbours.add(index, Arc::clone(&waker));
        Ok((ShardLock::new(index, shard, Progress::new(waker)), sleeper))
    }
}

impl fmt::Debug for ShardMaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardMaker").finish_non_exhaustive()
    }
}
