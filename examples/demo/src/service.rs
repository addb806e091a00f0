//! Service between the two sides.

use serde::{Deserialize, Serialize};
use trunkline::{Bytes, Status};

/// Maximum length of one [`Tree::read`], in bytes. The client requests pieces of this length.
pub(crate) const PIECE: u32 = 4 << 20;

/// A file in the served tree. Its number is its position in the listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Path relative to the root, in the encoding of the operating system.
    pub(crate) path: Vec<u8>,
    /// Size in bytes at the time of the walk.
    pub(crate) bytes: u64,
}

/// Counters of the server's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wire {
    /// Number of RNR NAKs sent and received.
    pub(crate) rnr: u64,
    /// Number of packets retransmitted.
    pub(crate) retransmits: u64,
}

/// A directory tree.
#[trunkline::service(name = "trunkline.demo.Tree", version = 1)]
pub(crate) trait Tree {
    /// Returns a page of the listing, beginning with file number `first`. The page is empty at the end of the listing.
    async fn list(&self, first: u32) -> Result<Vec<Entry>, Status>;

    /// Returns up to `length` bytes of a file, starting at `offset`. Returns fewer at the end of the file.
    async fn read(&self, file: u32, offset: u64, length: u32) -> Result<Bytes, Status>;

    /// Returns `number`. This is the small call of the demo.
    async fn ping(&self, number: u64) -> Result<u64, Status>;

    /// Returns the counters of the server's device.
    async fn wire(&self) -> Result<Wire, Status>;
}
