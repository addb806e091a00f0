//! The called services. Their generated stubs are counted like the stubs of any program.

use trunkline::{Bytes, Status, Stream, Streaming};

/// Returns its argument.
#[trunkline::service(name = "trunkline.counts.Echo", version = 1)]
pub(crate) trait Echo {
    /// Returns `payload`.
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;
}

/// Endless streams.
#[trunkline::service(name = "trunkline.counts.Feed", version = 1)]
pub(crate) trait Feed {
    /// Sends payloads.
    async fn watch(&self) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;

    /// Reads payloads.
    async fn upload(&self, items: Streaming<Bytes>) -> Result<(), Status>;
}
