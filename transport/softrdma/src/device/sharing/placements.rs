//! Answers from other processes to requests of an executor in this process.
//!
//! Passes the answers to the shard, which executes the TGT.
#![forbid(unsafe_code)]

use super::executor::{Pending, executor_of};
use crate::device::shard::{RemoteOutcome, Shard, SharedTgt};
use crate::host::MemberId;
use trunkline_roce::wire::Packet;
use trunkline_verbs::{Psn, Time};

/// Handles the outcome of a placement, reported by another process.
pub(super) fn handle_placed(
    shard: &mut Shard,
    from: MemberId,
    tgt: u32,
    serial: u64,
    outcome: RemoteOutcome,
    now: Time,
) {
    let pending = executor_of(shard, tgt).and_then(|executor| executor.take_pending(from, Some(serial)));
    if let Some(pending) = pending {
        answer(shard, tgt, &pending, outcome, Some(from), now);
    }
}

/// Completes the pending placement, and handles the packets that arrived while it was pending. `owner` is
/// `None` if the owner has died.
fn answer(
    shard: &mut Shard,
    tgt: u32,
    pending: &Pending,
    outcome: RemoteOutcome,
    owner: Option<MemberId>,
    now: Time,
) {
    let Some(executor) = executor_of(shard, tgt) else { return };
    let outcome = executor.settle(pending, outcome);
    let holds_receive = shard.answer_placement(tgt, outcome);
    let Some(executor) = executor_of(shard, tgt) else { return };
    executor.set_message_at(owner.filter(|_| holds_receive));
    while let Some((packet, joined)) = executor_of(shard, tgt).and_then(|executor| executor.next_kept()) {
        let parsed = if joined { Packet::parse_joined(&packet) } else { Packet::parse(&packet) };
        if let Ok(packet) = parsed {
            shard.take_kept(tgt, &packet, joined, now);
        }
        if executor_of(shard, tgt).is_none_or(|executor| executor.is_waiting()) {
            break;
        }
    }
    shard.qps().mark_ready(tgt);
}

/// Handles bytes that were fetched for a READ.
pub(super) fn handle_read_bytes(
    shard: &mut Shard,
    from: MemberId,
    tgt: u32,
    start: (Psn, u32),
    bytes: Result<&[u8], RemoteOutcome>,
) {
    if executor_of(shard, tgt).is_some_and(|executor| executor.fetched(from, start, bytes)) {
        shard.qps().mark_ready(tgt);
    }
}

/// Completes the placements and READs that a TGT executed here has requested from a process that is now dead.
pub(super) fn abandon_requests_to(shard: &mut Shard, tgt: u32, dead: MemberId, now: Time) {
    let Some(executor) = executor_of(shard, tgt) else { return };
    if let Some(pending) = executor.forget_member(dead) {
        answer(shard, tgt, &pending, RemoteOutcome::UnknownSrq, None, now);
    }
    shard.qps().mark_ready(tgt);
}
