//! A key-value store, as its author writes it.

use trunkline::stub::Stream;
use trunkline::{Bytes, Status};

/// Keys and values.
#[trunkline::service(name = "golden.Kv", version = 2)]
pub trait Kv {
    /// Sets a value, and returns the number of keys.
    #[blocking]
    async fn put(&self, key: String, value: Bytes) -> u64;

    /// Streams the values of the keys with a prefix.
    async fn values(&self, prefix: String) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;
}

/// Passed through.
pub fn other() {}
