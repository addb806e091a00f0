//! Configuration of a machine, with its identity, times and limits.

use crate::Permutation;
use crate::wire::ROCE_PORT;

const MS: u64 = 1_000_000;

/// Identity, times and limits of a [`super::CmMachine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmConfig {
    /// The adapter's GUID, sent in every REQ and REP.
    pub ca_guid: u64,
    /// Seed of the first comm id and transaction id. It must be random outside simulations, so that the ids of an earlier
    /// run of the process are not soon used again.
    pub seed: u64,
    /// Numbering of comm ids.
    pub comm_ids: CommIds,
    /// Wait before the second transmission of a REQ, REP or DREQ, in nanoseconds. The wait doubles with each transmission,
    /// up to `longest_retry_ns`.
    pub first_retry_ns: u64,
    /// Maximum wait between two transmissions of a REQ, REP or DREQ, in nanoseconds.
    pub longest_retry_ns: u64,
    /// Maximum number of transmissions of a REQ, REP or DREQ. A DREQ is sent more often if the program waits for the
    /// outcome; see [`super::CmMachine::disconnect`].
    pub transmissions: u32,
    /// Time in nanoseconds within which the program must accept a request or confirm a reply. It is also the time for which
    /// a SIDR request is repeated, and for which its answer is kept for repetitions.
    pub decision_ns: u64,
    /// Maximum total time, in nanoseconds, for which a peer may delay this side by MRAs.
    pub patience_ns: u64,
    /// Minimum time in timewait, in nanoseconds.
    pub timewait_min_ns: u64,
    /// UDP port on which this side's device receives.
    pub udp_port: u16,
    /// Exponent n of this side's target ACK delay, 4.096 us * 2^n, from 0 to 31. It is sent in a REP.
    pub ack_delay: u8,
    /// Maximum number of connections, including connections in timewait.
    pub connections: usize,
    /// Maximum number of passive connections from one [`PeerHost`](trunkline_verbs::PeerHost) that are not
    /// established yet.
    pub half_open_per_host: usize,
    /// Maximum number of passive connections from all hosts together that are not established yet.
    pub half_open: usize,
    /// Maximum number of answers to SIDR requests that are kept.
    pub answers: usize,
}

impl CmConfig {
    /// Creates the default configuration, with six transmissions that are 75 to 600 ms apart. A peer that is down is
    /// detected after 2.3 s, and a peer that starts before then soon gets a REQ. The timeout fields of a REQ have rdma_cm's
    /// values (contract rocev2 12.1).
    #[must_use]
    pub const fn new(ca_guid: u64, seed: u64) -> Self {
        Self {
            ca_guid,
            seed,
            comm_ids: CommIds::new([seed, ca_guid]),
            first_retry_ns: 75 * MS,
            longest_retry_ns: 600 * MS,
            transmissions: 6,
            decision_ns: 30_000 * MS,
            patience_ns: 60_000 * MS,
            timewait_min_ns: 100 * MS,
            udp_port: ROCE_PORT,
            ack_delay: 12,
            connections: 65_536,
            half_open_per_host: 256,
            half_open: 4_096,
            answers: 4_096,
        }
    }
}

/// Number of bits below the slot in the index of a comm id.
const SLOT_SHIFT: u32 = 22;

/// Numbering of comm ids, which are successive indices permuted with a key. If several processes share an address, they
/// share the key, and the top 10 bits of the index are the process's slot, so that messages can be forwarded by comm id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommIds {
    slot: Option<u16>,
    permutation: Permutation,
}

impl CommIds {
    /// Creates the numbering of a process that does not share its addresses.
    #[must_use]
    pub const fn new(keys: [u64; 2]) -> Self {
        Self { slot: None, permutation: Permutation::new(32, keys) }
    }

    /// Returns the numbering of the process in `slot`, which has 10 bits.
    #[must_use]
    pub const fn of_slot(self, slot: u16) -> Self {
        Self { slot: Some(slot), ..self }
    }

    /// Returns the comm id of an index. A process with a slot has 2^22 indices.
    #[must_use]
    pub fn number_of(&self, index: u32) -> u32 {
        let index = match self.slot {
            Some(slot) => u32::from(slot) << SLOT_SHIFT | index & ((1 << SLOT_SHIFT) - 1),
            None => index,
        };
        self.permutation.number_of(index)
    }

    /// Returns the slot of the process that owns the comm id.
    #[must_use]
    pub fn slot_of(&self, comm_id: u32) -> u16 {
        let [_, _, low, high] = (self.permutation.index_of(comm_id) >> SLOT_SHIFT).to_be_bytes();
        u16::from_be_bytes([low, high])
    }
}

/// Minimum time between two checks whether a connection still exists at the peer, in nanoseconds.
pub(super) const DOUBT_EVERY_NS: u64 = 100 * MS;

/// CM response timeout and number of repetitions that rdma_cm puts into a REQ, and packet life time of its paths (contract
/// rocev2 12.1).
pub(super) const RESPONSE_TIMEOUT: u8 = 20;
pub(super) const MAX_CM_RETRIES: u8 = 15;
const PACKET_LIFE_TIME: u8 = 18;

/// Converts a time in a CM message to nanoseconds, 2^(code - 8) ms, as the kernel's CM does.
const fn cm_time_ns(code: u8) -> u64 {
    MS << (if code > 31 { 31 } else { code }).saturating_sub(8)
}

/// Time for which the kernel's active side repeats a DREQ, in nanoseconds, 16 times 6.144 s.
pub(super) const CLOSING_NS: u64 =
    (1 + MAX_CM_RETRIES as u64) * (2 * cm_time_ns(PACKET_LIFE_TIME) + cm_time_ns(RESPONSE_TIMEOUT));
/// Maximum time between two of these repetitions, in nanoseconds.
pub(super) const CLOSING_RETRY_NS: u64 = CLOSING_NS / (1 + MAX_CM_RETRIES as u64);

/// Returns the time for which the kernel's passive side repeats a DREQ, from two fields of the REQ. It is
/// capped at [`CLOSING_NS`], the active side's time, even if the peer requests more.
pub(super) const fn closing_ns(local_timeout: u8, max_cm_retries: u8) -> u64 {
    let asked = cm_time_ns(local_timeout).saturating_mul(1 + max_cm_retries as u64);
    if asked < CLOSING_NS { asked } else { CLOSING_NS }
}

/// Converts the code of a time in a message to nanoseconds, 4.096 us * 2^code (contract rocev2 12.1).
pub(super) const fn wire_time_ns(code: u8) -> u64 {
    4_096 << (if code > 31 { 31 } else { code })
}
