//! Queue pairs as programs see them: creating, opening, querying, changing, closing.
//!
//! Owns the device's addresses, since changing a QP may need them, and the TGTs shared between processes. The QPs
//! themselves belong to the shards.

use super::addresses::Addresses;
use crate::device::MAX_RD_ATOMIC;
use crate::device::counters::MemberCounters;
use crate::device::shard::{QpParts, ReceiveSide, Shard};
use crate::device::shards::reach::Reach;
use crate::device::sharing::{Due, ModifyProgress, ModifyRequest, ModifyTicket, Sharing};
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::domain_table::Domain;
use crate::device::tables::gid_table::GidTable;
use crate::host::MemberId;
use nix::unistd::geteuid;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_verbs::{
    Mtu, QpAttributes, QpModify, QpNumber, QpState, QpType, Time, VerbsError, check_transition,
};

/// QPs of a device, as programs see them.
#[derive(Debug)]
pub(in crate::device) struct Qps {
    addresses: Addresses,
    /// TGTs that processes share; `None` on an in-process network.
    sharing: Option<Sharing>,
    /// True if all peers are devices of this process.
    is_in_process: bool,
}

impl Qps {
    pub(super) fn new(addresses: Addresses, sharing: Option<Sharing>, is_in_process: bool) -> Self {
        Self { addresses, sharing, is_in_process }
    }

    /// Returns the device's addresses.
    pub(super) fn addresses(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    pub(in crate::device) fn gids(&self) -> &GidTable {
        self.addresses.gids()
    }

    /// Creates a QP in RESET in the shard `home`; a TGT that processes share is created in the first shard.
    /// Returns the QP's number and shard.
    pub(in crate::device) fn create(
        &mut self,
        shards: &mut Reach<'_>,
        home: ShardIndex,
        parts: QpParts,
    ) -> Result<(QpNumber, ShardIndex), VerbsError> {
        let sharing = &mut self.sharing;
        let is_taken = |number| sharing.as_ref().is_some_and(|sharing| sharing.is_taken(number));
        let is_shared = |side: &ReceiveSide| match side {
            ReceiveSide::Xrc { domain } => sharing.is_some() && domain.shared().is_some(),
            _ => false,
        };
        // Other processes assume that a shared TGT belongs to the first shard.
        let home = if is_shared(&parts.receive) { ShardIndex::FIRST } else { home };
        let number = shards.directory().take_number(home, is_taken)?;
        let shared = match (sharing, &parts.receive) {
            (Some(sharing), ReceiveSide::Xrc { domain }) => sharing.create(number, domain)?,
            _ => None,
        };
        shards.at(home, |shard| shard.create_qp(number, parts, shared));
        Ok((QpNumber::new(number), home))
    }

    /// Adds a handle to a TGT (contract C4).
    pub(in crate::device) fn open_tgt(
        &mut self,
        shards: &mut Reach<'_>,
        number: QpNumber,
        domain: &Arc<Domain>,
        now: Time,
    ) -> Result<(), VerbsError> {
        if let Some(sharing) = &mut self.sharing
            && sharing.open(number.get(), domain, now)?
        {
            return Ok(());
        }
        match shards.of_qp(number.get(), |shard| shard.open_handle(number.get(), domain.number())) {
            Some(true) => Ok(()),
            _ => Err(VerbsError::Invalid("no TGT of this number is in the XRC domain")),
        }
    }

    /// Closes a handle of a QP. Closing the last handle destroys the QP (contract C6).
    pub(in crate::device) fn close(&mut self, shards: &mut Reach<'_>, number: QpNumber) {
        let is_shared =
            self.sharing.as_mut().is_some_and(|sharing| sharing.close(shards.first(), number.get()));
        if !is_shared {
            shards.of_qp(number.get(), |shard| shard.close_handle(number.get()));
        }
    }

    /// Returns the attributes and state of a QP.
    pub(in crate::device) fn query(
        &self,
        shards: &mut Reach<'_>,
        number: QpNumber,
    ) -> Result<QpAttributes, VerbsError> {
        let own = shards.attributes(number);
        own.or_else(|| self.query_elsewhere(number)).ok_or(VerbsError::Gone)
    }

    /// Returns the attributes of a TGT that another process executes.
    fn query_elsewhere(&self, number: QpNumber) -> Option<QpAttributes> {
        self.sharing.as_ref()?.query(number.get(), self.addresses.gids())
    }

    /// Modifies a QP (contract E1 to E4).
    pub(in crate::device) fn modify(
        &mut self,
        shards: &mut Reach<'_>,
        number: QpNumber,
        change: &QpModify,
    ) -> Result<(), VerbsError> {
        let before = match shards.attributes(number) {
            Some(attributes) => attributes,
            // Programs with a handle request the change from the executor, but the connection manager cannot wait for
            // the answer.
            None if self.query_elsewhere(number).is_some() => {
                return Err(VerbsError::Invalid("another process executes this TGT; connect it there"));
            }
            None => return Err(VerbsError::Gone),
        };
        let state = check_transition(before.qp_type, before.state, change).map_err(|_| {
            VerbsError::Invalid("no such transition, or its attributes are not those it needs")
        })?;
        let change = without_dropped(before.qp_type, change);
        let mut after = if state == QpState::Reset { QpAttributes::new(before.qp_type) } else { before };
        after.apply(&change);
        after.state = state;
        check_attributes(&after, &change)?;
        let route = match change.address_vector {
            Some(vector) => {
                shards.first().check_path(vector.destination.ip())?;
                Some(self.addresses.open_route(shards, number, &after)?)
            }
            None => None,
        };
        let modified = shards.of_qp(number.get(), |shard| shard.modify(number.get(), &after, route));
        modified.ok_or(VerbsError::Gone)?
    }

    /// Requests a change to a TGT from its executor. Returns `None` if this process is the executor, or if the TGT is
    /// not shared.
    pub(in crate::device) fn ask_executor(
        &mut self,
        shards: &mut Reach<'_>,
        number: QpNumber,
        change: &QpModify,
    ) -> Option<Result<ModifyTicket, VerbsError>> {
        self.sharing.as_mut()?.ask_executor(shards.first(), self.addresses.gids(), number, change)
    }

    /// Returns the progress of a change requested from an executor.
    pub(in crate::device) fn modify_progress(
        &mut self,
        number: QpNumber,
        ticket: ModifyTicket,
    ) -> ModifyProgress {
        let sharing = self.sharing.as_mut();
        sharing.map_or(ModifyProgress::ExecutorGone, |sharing| sharing.modify_progress(number, ticket))
    }

    /// Drops a requested change whose outcome the caller no longer awaits.
    pub(in crate::device) fn forget_modify(&mut self, ticket: ModifyTicket) {
        if let Some(sharing) = &mut self.sharing {
            sharing.forget_modify(ticket);
        }
    }

    /// Applies a change to a TGT for another process.
    fn modify_for(&mut self, shards: &mut Reach<'_>, request: &ModifyRequest) {
        let Some(sharing) = &self.sharing else { return };
        let checked = sharing.checked(shards.first(), self.addresses.gids_mut(), request);
        let result = checked.and_then(|(number, change)| self.modify(shards, number, &change));
        if let Some(sharing) = &self.sharing {
            sharing.modified(shards.first(), request, result);
        }
    }

    /// Handles a message from another process.
    pub(super) fn handle_message(
        &mut self,
        shards: &mut Reach<'_>,
        from: MemberId,
        message: (u8, &[u8]),
        now: Time,
    ) {
        let Some(sharing) = &mut self.sharing else { return };
        if let Some(request) = sharing.handle_message(shards.first(), from, message, now) {
            self.modify_for(shards, &request);
        }
    }

    /// Records that the connection with a process ended. The process may have died.
    pub(super) fn member_gone(&mut self, member: MemberId, now: Time) {
        if let Some(sharing) = &mut self.sharing {
            sharing.member_gone(member, now);
        }
    }

    /// Takes over TGTs from processes that have died. Returns the dead processes, and the live processes whose
    /// connections ended.
    pub(super) fn work(&mut self, shards: &mut Reach<'_>, now: Time) -> Due {
        let sharing = self.sharing.as_mut();
        sharing
            .map_or_else(Due::default, |sharing| sharing.work(shards.first(), self.addresses.gids_mut(), now))
    }

    /// Returns the other process of this host that owns a peer's QP, if any.
    pub(super) fn member_of(&self, peer: QpNumber, at: IpAddr) -> Option<MemberId> {
        self.sharing.as_ref()?.member_of(peer, at)
    }

    /// Returns the uid of the process of this host that owns a peer's QP and sends from the port, if the uid is proven.
    pub(super) fn user_of(&self, peer: QpNumber, at: IpAddr, port: Option<u16>) -> Option<u32> {
        if self.is_in_process {
            return Some(geteuid().as_raw());
        }
        self.sharing.as_ref()?.user_of(peer, SocketAddr::new(at, port?))
    }

    /// Returns a live process with a handle on a shared TGT. That process owns the QP once the previous executor is
    /// dead.
    pub(super) fn heir_of(&self, tgt: QpNumber) -> Option<MemberId> {
        self.sharing.as_ref()?.heir_of(tgt)
    }

    /// Connects to a process so that its death is reported. Returns false if the process cannot be reached now.
    pub(super) fn watch(&self, member: MemberId) -> bool {
        self.sharing.as_ref().is_none_or(|sharing| sharing.watch(member))
    }

    /// Returns the time of the next [`Qps::work`].
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.sharing.as_ref().and_then(Sharing::next_timeout)
    }

    /// Returns the counters of take-overs and of messages from other processes.
    pub(super) fn counters(&self) -> MemberCounters {
        self.sharing.as_ref().map(Sharing::counters).unwrap_or_default()
    }

    /// Hands the shared TGTs of a removed device over to other processes, and notifies these processes. Afterwards,
    /// other processes cannot be reached.
    pub(super) fn leave(&mut self, shards: &mut Reach<'_>, now: Time) {
        if let Some(sharing) = &mut self.sharing {
            sharing.close_all(shards.first());
        }
        shards.each(Shard::leave_memory);
        shards.flush(now);
        if let Some(sharing) = &mut self.sharing {
            sharing.cut();
        }
    }
}

/// Returns the change without the attributes that the kernel silently drops for this QP type (contract E3).
fn without_dropped(qp_type: QpType, change: &QpModify) -> QpModify {
    match qp_type {
        QpType::Rc => *change,
        QpType::XrcIni => QpModify { max_dest_rd_atomic: None, min_rnr_timer: None, ..*change },
        QpType::XrcTgt => QpModify { max_rd_atomic: None, retry_count: None, rnr_retry: None, ..*change },
    }
}

/// Checks attribute values, which the transition tables do not cover (contract E4).
fn check_attributes(after: &QpAttributes, change: &QpModify) -> Result<(), VerbsError> {
    let rules = [
        (change.port.is_some_and(|port| port != 1), "the device has port 1 only"),
        (change.pkey_index.is_some_and(|index| index != 0), "the P_Key table has index 0 only"),
        (
            change.address_vector.is_some_and(|vector| vector.port != after.port),
            "the port of the address vector is not that of the QP",
        ),
        (change.timeout.is_some_and(|code| code > 31), "the ACK timeout is a code from 0 to 31"),
        (change.min_rnr_timer.is_some_and(|code| code > 31), "the RNR timer is a code from 0 to 31"),
        (change.retry_count.is_some_and(|count| count > 7), "retry_count is at most 7"),
        (change.rnr_retry.is_some_and(|count| count > 7), "rnr_retry is at most 7"),
        (
            change.max_rd_atomic.is_some_and(|count| count > MAX_RD_ATOMIC)
                || change.max_dest_rd_atomic.is_some_and(|count| count > MAX_RD_ATOMIC),
            "more READs and atomics at once than the device has room for",
        ),
        (change.path_mtu.is_some_and(|mtu| mtu > Mtu::Mtu4096), "the path MTU is larger than the port's"),
    ];
    rules.into_iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, why)| Err(VerbsError::Invalid(why)))
}
