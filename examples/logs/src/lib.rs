//! The service that `logs-collect` offers and `logs-ship` calls.

use serde::{Deserialize, Serialize};
use trunkline::{Bytes, Status};

/// What a collector got from one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// The source's name.
    pub source: String,
    /// Lines that came.
    pub lines: u64,
    /// Lines of these that were given up because the collector's output was behind.
    pub dropped: u64,
}

/// Log lines of many programs, brought together.
#[trunkline::service(name = "trunkline.example.Logs", version = 1)]
pub trait Logs {
    /// Takes whole lines of a source. Nothing comes back: the call ends when the lines lie at the collector.
    #[oneway]
    async fn append(&self, source: String, lines: Bytes);

    /// What came so far, by source.
    async fn totals(&self) -> Result<Vec<Total>, Status>;
}
