//! A service whose methods run in the worker pool, as its author writes it.

use trunkline::{Bytes, Context, Status};

/// Images.
#[trunkline::service(name = "golden.Images")]
pub trait Images {
    /// A smaller image.
    #[offload]
    async fn thumbnail(&self, cx: &Context, image: Bytes) -> Result<Bytes, Status>;

    /// Stores an image.
    #[blocking]
    async fn store(&self, name: String, image: Bytes) -> Result<u64, Status>;
}
