//! Paths: those that a device may use, and the one that a QP uses.

use super::Refusal;

/// Paths that a device may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum PathPolicy {
    /// Memory where it can be shared, else the network.
    Either,
    /// The network only, and why.
    Network(Refusal),
    /// Memory only.
    Memory,
}

/// The path that a QP may use now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::shard) struct Choice {
    /// The pair that its peer's packets may come from.
    pub(in crate::device::shard) pair: Option<usize>,
    /// True if the QP sends by it, too.
    pub(in crate::device::shard) is_used: bool,
    /// Why not, if not.
    pub(in crate::device::shard) why: &'static str,
    /// True if that will not change while the peer's process lives.
    pub(in crate::device::shard) is_final: bool,
}

impl Choice {
    /// The network, and why.
    pub(super) fn network(why: &'static str) -> Self {
        Self { pair: None, is_used: false, why, is_final: false }
    }
}

/// The path of a QP, and whether it was chosen by what is known now.
#[derive(Debug)]
pub(in crate::device::shard) struct QpPath {
    /// Time of the choice; 0 is never.
    pub(in crate::device::shard) epoch: u64,
    pub(in crate::device::shard) choice: Choice,
}

impl Default for QpPath {
    fn default() -> Self {
        Self { epoch: 0, choice: Choice::network("not connected yet") }
    }
}
