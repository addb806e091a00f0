//! Counters of a device.
//!
//! Owns the names of the counters, and the order in which programs see them. Each shard counts separately; sums are
//! computed on request.
#![forbid(unsafe_code)]

use trunkline_roce::engine::{RequesterCounters, ResponderCounters};
use trunkline_verbs::Counter;

/// Counters of a shard.
#[derive(Debug, Clone, Default)]
pub(super) struct ShardCounters {
    pub(super) packets_sent: u64,
    pub(super) packets_received: u64,
    pub(super) bad_icrc: u64,
    pub(super) unproven: u64,
    pub(super) malformed: u64,
    pub(super) unknown_qp: u64,
    pub(super) wrong_address: u64,
    pub(super) wrong_service: u64,
    pub(super) wrong_half: u64,
    pub(super) wrong_pkey: u64,
    pub(super) unknown_srq: u64,
    pub(super) cq_overflows: u64,
    pub(super) bad_mads: u64,
    /// Packets passed to the shard of their QP, and packets dropped because that shard's inbox was full.
    pub(super) handed_over: u64,
    pub(super) not_handed_over: u64,
    /// Number of times that a QP waited for room in the window of its path.
    pub(super) congestion_waits: u64,
    /// Received packets that the network marked (ECN), and echoes of such marks sent and received.
    pub(super) packets_marked: u64,
    pub(super) ecn_echoes_sent: u64,
    pub(super) ecn_echoes_received: u64,
}

impl ShardCounters {
    /// Adds the counts of another shard.
    pub(super) fn add(&mut self, from: &Self) {
        self.packets_sent += from.packets_sent;
        self.packets_received += from.packets_received;
        self.bad_icrc += from.bad_icrc;
        self.unproven += from.unproven;
        self.malformed += from.malformed;
        self.unknown_qp += from.unknown_qp;
        self.wrong_address += from.wrong_address;
        self.wrong_service += from.wrong_service;
        self.wrong_half += from.wrong_half;
        self.wrong_pkey += from.wrong_pkey;
        self.unknown_srq += from.unknown_srq;
        self.cq_overflows += from.cq_overflows;
        self.bad_mads += from.bad_mads;
        self.handed_over += from.handed_over;
        self.not_handed_over += from.not_handed_over;
        self.congestion_waits += from.congestion_waits;
        self.packets_marked += from.packets_marked;
        self.ecn_echoes_sent += from.ecn_echoes_sent;
        self.ecn_echoes_received += from.ecn_echoes_received;
    }
}

/// Counters of the work that processes of one host do for each other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MemberCounters {
    /// TGTs taken over from members that died.
    pub(super) taken_over: u64,
    /// Messages that could not be parsed.
    pub(super) unknown_messages: u64,
}

/// Sums of the counters of QPs.
#[derive(Debug, Clone, Default)]
pub(super) struct QpCounters {
    requester: RequesterCounters,
    responder: ResponderCounters,
}

impl QpCounters {
    /// Adds the sums of another shard's QPs.
    pub(super) fn merge(&mut self, from: &Self) {
        self.add(Some(&from.requester), Some(&from.responder));
    }

    /// Adds the counters of a QP.
    pub(super) fn add(
        &mut self,
        requester: Option<&RequesterCounters>,
        responder: Option<&ResponderCounters>,
    ) {
        if let Some(from) = requester {
            let into = &mut self.requester;
            into.packets += from.packets;
            into.retransmits += from.retransmits;
            into.timeouts += from.timeouts;
            into.probes += from.probes;
            into.rnr_naks += from.rnr_naks;
            into.sequence_naks += from.sequence_naks;
            into.implied_losses += from.implied_losses;
            into.stale += from.stale;
            into.unexpected += from.unexpected;
        }
        if let Some(from) = responder {
            let into = &mut self.responder;
            into.packets += from.packets;
            into.duplicates += from.duplicates;
            into.out_of_order += from.out_of_order;
            into.sequence_naks += from.sequence_naks;
            into.rnr_naks += from.rnr_naks;
            into.fatal_naks += from.fatal_naks;
            into.acks += from.acks;
            into.read_responses += from.read_responses;
            into.dropped_state += from.dropped_state;
            into.dropped_opcode += from.dropped_opcode;
            into.dropped_duplicate += from.dropped_duplicate;
            into.dropped_policy += from.dropped_policy;
        }
    }
}

/// Returns the counters by name, in the order in which programs see them.
pub(super) fn list(
    shard: &ShardCounters,
    qps: &QpCounters,
    members: MemberCounters,
    events_lost: u64,
) -> Vec<Counter> {
    let (requester, responder) = (&qps.requester, &qps.responder);
    [
        ("packets_sent", shard.packets_sent),
        ("packets_received", shard.packets_received),
        ("retransmits", requester.retransmits),
        ("rnr_nak_sent", responder.rnr_naks),
        ("rnr_nak_received", requester.rnr_naks),
        ("sequence_nak_sent", responder.sequence_naks),
        ("sequence_nak_received", requester.sequence_naks),
        ("fatal_nak_sent", responder.fatal_naks),
        ("ack_timeouts", requester.timeouts),
        ("tail_loss_probes", requester.probes),
        ("implied_losses", requester.implied_losses),
        ("acks_sent", responder.acks),
        ("read_responses_sent", responder.read_responses),
        ("requests_received", responder.packets),
        ("duplicate_requests", responder.duplicates),
        ("out_of_order_requests", responder.out_of_order),
        ("unknown_srq", shard.unknown_srq),
        ("cq_overflows", shard.cq_overflows),
        ("async_events_lost", events_lost),
        ("drop_bad_icrc", shard.bad_icrc),
        ("drop_unproven_identification", shard.unproven),
        ("drop_malformed", shard.malformed),
        ("drop_unknown_qp", shard.unknown_qp),
        ("drop_wrong_address", shard.wrong_address),
        ("drop_wrong_service", shard.wrong_service),
        ("drop_wrong_half", shard.wrong_half),
        ("drop_wrong_pkey", shard.wrong_pkey),
        ("drop_wrong_state", responder.dropped_state),
        ("drop_wrong_opcode", responder.dropped_opcode),
        ("drop_forgotten_duplicate", responder.dropped_duplicate),
        ("drop_unknown_srq", responder.dropped_policy),
        ("handed_to_shards", shard.handed_over),
        ("drop_not_handed_over", shard.not_handed_over),
        ("congestion_waits", shard.congestion_waits),
        ("packets_marked", shard.packets_marked),
        ("ecn_echoes_sent", shard.ecn_echoes_sent),
        ("ecn_echoes_received", shard.ecn_echoes_received),
        ("targets_taken_over", members.taken_over),
        ("drop_unknown_message", members.unknown_messages),
        ("drop_stale_psn", requester.stale),
        ("drop_unexpected_response", requester.unexpected),
    ]
    .into_iter()
    .map(|(name, value)| Counter { name, value })
    .collect()
}
