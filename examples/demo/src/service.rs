//! The service between the two halves.

use serde::{Deserialize, Serialize};
use trunkline::{Bytes, Status};

/// Most bytes of one [`Tree::read`]; also the step of the client.
pub(crate) const PIECE: u32 = 4 << 20;

/// One file of the served tree. Its number is its place in the listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Path below the root, as the operating system's bytes.
    pub(crate) path: Vec<u8>,
    /// Size when the tree was walked.
    pub(crate) bytes: u64,
}

/// Counters of the server's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wire {
    /// RNR NAKs received.
    pub(crate) rnr: u64,
    /// Packets sent again.
    pub(crate) retransmits: u64,
}

/// A directory tree.
#[trunkline::service(name = "trunkline.demo.Tree", version = 1)]
pub(crate) trait Tree {
    /// Files of the listing from number `first` on, as many as fit one answer; empty at its end.
    async fn list(&self, first: u32) -> Result<Vec<Entry>, Status>;

    /// Up to `length` bytes of a file from `offset`.
    async fn read(&self, file: u32, offset: u64, length: u32) -> Result<Bytes, Status>;

    /// The small call: answers the number itself.
    async fn ping(&self, number: u64) -> Result<u64, Status>;

    /// What the server's device counted.
    async fn wire(&self) -> Result<Wire, Status>;
}
