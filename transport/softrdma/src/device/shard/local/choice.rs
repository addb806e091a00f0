//! Paths that a device allows, through memory or the network, and the path of a QP.

use super::Refusal;

/// Paths that a device allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum PathPolicy {
    /// Memory where it can be shared, otherwise the network.
    Either,
    /// The network only, for this reason.
    Network(Refusal),
    /// Memory only.
    Memory,
}

/// Current path of a QP's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::shard) struct Choice {
    /// The pair through which the peer's packets may arrive.
    pub(in crate::device::shard) pair: Option<usize>,
    /// Number of this side's area, which identifies the pair; 0 without a pair.
    pub(super) area: u64,
    /// True if the QP also sends through the pair.
    pub(in crate::device::shard) is_used: bool,
    /// Reason why the pair is not used.
    pub(in crate::device::shard) why: &'static str,
    /// True if the choice cannot change while the peer's process lives.
    pub(in crate::device::shard) is_final: bool,
}

impl Choice {
    /// Chooses the network, for the given reason.
    pub(super) fn network(why: &'static str) -> Self {
        Self { pair: None, area: 0, is_used: false, why, is_final: false }
    }
}

/// A QP's path, and the epoch of the choice.
#[derive(Debug)]
pub(in crate::device::shard) struct QpPath {
    /// Epoch of [`LocalPaths`](super::LocalPaths) at the time of the choice; 0 before the first choice.
    pub(in crate::device::shard) epoch: u64,
    pub(in crate::device::shard) choice: Choice,
}

impl Default for QpPath {
    fn default() -> Self {
        Self { epoch: 0, choice: Choice::network("not connected yet") }
    }
}
