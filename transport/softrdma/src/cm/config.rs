//! What a machine is made with: its names, its times, its bounds.

/// Milliseconds in nanoseconds.
const MS: u64 = 1_000_000;

/// Names, times and bounds of a [`super::CmMachine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmConfig {
    /// The adapter's GUID, in every REQ and REP.
    pub ca_guid: u64,
    /// Comm ids and transaction ids start where this leads to. Give it true randomness: ids of
    /// an earlier incarnation of the process must not come again soon.
    pub seed: u64,
    /// The top 10 bits of every comm id, when several processes share an address and messages are
    /// handed on by comm id: see [`slot_of`].
    pub comm_id_slot: Option<u16>,
    /// Wait before a REQ, REP or DREQ is sent for the second time; doubles each time.
    pub first_retry_ns: u64,
    /// How often such a message is sent altogether.
    pub transmissions: u32,
    /// How long the program may take to accept a request, or to confirm a reply. So long, too, a
    /// question is asked, and its answer kept for repetitions.
    pub decision_ns: u64,
    /// How long a peer may put us off by MRA, altogether.
    pub patience_ns: u64,
    /// Least time in timewait.
    pub timewait_min_ns: u64,
    /// What we say of ourselves in a REP: 4.096 us * 2^n until a packet is acknowledged.
    pub ack_delay: u8,
    /// Connections at most, timewait included.
    pub connections: usize,
    /// Passive connections that are not established yet, at most, from one peer address.
    pub half_open_per_peer: usize,
    /// The same from all peers.
    pub half_open: usize,
    /// Answers to questions that are kept at most.
    pub answers: usize,
}

impl CmConfig {
    /// The defaults: five transmissions, 75 ms to 1.2 s apart, so that a peer that is down is
    /// seen after 2.3 s. The fields of a REQ that tell the peer how long we would wait carry
    /// the values that rdma_cm puts there (contract rocev2 12.1).
    #[must_use]
    pub const fn new(ca_guid: u64, seed: u64) -> Self {
        Self {
            ca_guid,
            seed,
            comm_id_slot: None,
            first_retry_ns: 75 * MS,
            transmissions: 5,
            decision_ns: 30_000 * MS,
            patience_ns: 60_000 * MS,
            timewait_min_ns: 100 * MS,
            ack_delay: 12,
            connections: 65_536,
            half_open_per_peer: 256,
            half_open: 4_096,
            answers: 4_096,
        }
    }
}

/// Bits of a comm id below the slot.
pub(super) const SLOT_SHIFT: u32 = 22;

/// The member whose comm id this is, by [`CmConfig::comm_id_slot`].
#[must_use]
pub const fn slot_of(comm_id: u32) -> u16 {
    let [_, _, low, high] = (comm_id >> SLOT_SHIFT).to_be_bytes();
    u16::from_be_bytes([low, high])
}

/// A time of the wire, 4.096 us * 2^code, in nanoseconds (contract rocev2 12.1).
pub(super) const fn wire_time_ns(code: u8) -> u64 {
    4_096 << (if code > 31 { 31 } else { code })
}
