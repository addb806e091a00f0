//! The service that is called. Its generated stubs count as those of any program.

use trunkline::{Bytes, Status};

/// Returns its argument.
#[trunkline::service(name = "trunkline.counts.Echo", version = 1)]
pub(crate) trait Echo {
    /// Returns `payload`.
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;
}
