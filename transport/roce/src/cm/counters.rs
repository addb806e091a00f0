//! Counters of messages, and of dropped messages by cause.

use trunkline_verbs::RejectReason;

/// Cause of a dropped message. Duplicates are counted too, because they indicate loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum CmDrop {
    /// Not a CM message of the supported version.
    NotCm,
    /// An attribute that is not supported (LAP, APR).
    Unserved,
    /// An invalid field, such as an id of 0, or a QP number of 0 or 1.
    Malformed,
    /// The connection is unknown.
    UnknownConnection,
    /// The connection belongs to another address, or the ids are wrong.
    WrongPeer,
    /// A DREQ for another QP.
    WrongQp,
    /// The message does not fit the state.
    WrongState,
    /// A duplicate of an earlier message.
    Duplicate,
    /// The listener's backlog is full.
    Backlog,
    /// Too many half-open connections, or too many connections.
    Limit,
    /// The machine itself refused the request with a REJ or SIDR_REP.
    Refused,
    /// The queue of outgoing messages was full.
    TransmitQueueFull,
}

impl CmDrop {
    /// All causes with their names in metrics.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::NotCm, "cm_not_cm"),
        (Self::Unserved, "cm_unserved_attribute"),
        (Self::Malformed, "cm_malformed"),
        (Self::UnknownConnection, "cm_unknown_connection"),
        (Self::WrongPeer, "cm_wrong_peer"),
        (Self::WrongQp, "cm_wrong_qp"),
        (Self::WrongState, "cm_wrong_state"),
        (Self::Duplicate, "cm_duplicate"),
        (Self::Backlog, "cm_backlog_full"),
        (Self::Limit, "cm_limit"),
        (Self::Refused, "cm_refused"),
        (Self::TransmitQueueFull, "cm_transmit_queue_full"),
    ];
}

/// Reasons for which the machine itself refuses requests, with the names of their counters.
const REFUSALS: [(RejectReason, &str); 8] = [
    (RejectReason::NO_QP, "cm_refused_no_qp"),
    (RejectReason::UNSUPPORTED, "cm_refused_pkey"),
    (RejectReason::INVALID_SERVICE_ID, "cm_refused_service_id"),
    (RejectReason::INVALID_TRANSPORT_TYPE, "cm_refused_transport"),
    (RejectReason::STALE_CONNECTION, "cm_refused_stale"),
    (RejectReason::INVALID_PRIMARY_GID, "cm_refused_gid"),
    (RejectReason::INVALID_PATH_MTU, "cm_refused_mtu"),
    (RejectReason::CONSUMER, "cm_refused_consumer"),
];

/// Counters of messages received, sent and dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// Messages received.
    pub received: u64,
    /// Messages queued for sending, including retransmissions.
    pub sent: u64,
    /// Retransmissions.
    pub retransmitted: u64,
    dropped: [u64; CmDrop::ALL.len()],
    refused: [u64; REFUSALS.len()],
    other_kind: u64,
}

impl CmCounters {
    /// Returns the number of messages dropped for a cause.
    #[must_use]
    pub const fn dropped(&self, cause: CmDrop) -> u64 {
        self.dropped[cause as usize]
    }

    /// Returns the name and the number of refusals for each reason. The sum is the count of [`CmDrop::Refused`].
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let by_reason = REFUSALS.iter().zip(self.refused).map(|((_, name), count)| (*name, count));
        by_reason.chain([("cm_refused_other_kind", self.other_kind)])
    }

    pub(super) const fn count(&mut self, cause: CmDrop) {
        self.dropped[cause as usize] += 1;
    }

    /// Counts a refusal by the machine because the listener accepts only the other kind of connection.
    pub(super) const fn refuse_other_kind(&mut self) {
        self.count(CmDrop::Refused);
        self.other_kind += 1;
    }

    pub(super) fn refuse(&mut self, reason: RejectReason) {
        self.count(CmDrop::Refused);
        for ((known, _), count) in REFUSALS.iter().zip(&mut self.refused) {
            *count += u64::from(*known == reason);
        }
    }
}
