//! The service that `logs-collect` offers and `logs-ship` calls.

use serde::{Deserialize, Serialize};
use trunkline::{Bytes, Status};

/// Totals that a collector received from one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// The source's name.
    pub source: String,
    /// Lines received.
    pub lines: u64,
    /// Those of them that were dropped because the collector's output was too slow.
    pub dropped: u64,
}

/// A collector of the log lines of many programs.
#[trunkline::service(name = "trunkline.example.Logs", version = 1)]
pub trait Logs {
    /// Appends whole lines of a source. No reply is sent: the call ends when the lines are in the
    /// collector's memory.
    #[oneway]
    async fn append(&self, source: String, lines: Bytes);

    /// Returns the totals so far, by source.
    async fn totals(&self) -> Result<Vec<Total>, Status>;
}
