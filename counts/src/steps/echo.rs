//! Services that are called. Their generated stubs are included in the counts, as in any program.

use trunkline::{Bytes, Status, Stream, Streaming};

/// Service that returns its argument.
#[trunkline::service(name = "trunkline.counts.Echo", version = 1)]
pub(crate) trait Echo {
    /// Returns `payload`.
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;
}

/// Service with endless streams.
#[trunkline::service(name = "trunkline.counts.Feed", version = 1)]
pub(crate) trait Feed {
    /// Sends payloads without end.
    async fn watch(&self) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;

    /// Reads payloads without end.
    async fn upload(&self, items: Streaming<Bytes>) -> Result<(), Status>;
}
