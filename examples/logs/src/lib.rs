//! The service that `logs-collect` offers and `logs-ship` calls.

use serde::{Deserialize, Serialize};
use trunkline::{Bytes, Status};

/// Totals of the lines from one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// Name of the source.
    pub source: String,
    /// Number of lines received.
    pub lines: u64,
    /// Number of received lines that were dropped because the collector's output was too slow.
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
