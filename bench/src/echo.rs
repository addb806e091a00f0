//! The service that is measured.

use trunkline::{Bytes, Status};

/// Returns its argument.
#[trunkline::service(name = "trunkline.bench.Echo", version = 1)]
pub(crate) trait Echo {
    /// Returns `payload`.
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;
}

/// The handler.
#[derive(Debug)]
pub(crate) struct Mirror;

impl Echo for Mirror {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
        Ok(payload)
    }
}
