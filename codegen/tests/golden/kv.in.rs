//! A key-value store, as its author writes it.

use trunkline::{Bytes, Status};

/// Keys and values.
#[trunkline::service(name = "golden.Kv", version = 2)]
pub trait Kv {
    /// The value of a key.
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status>;

    /// Sets a value.
    async fn put(&self, key: String, value: Bytes) -> Result<(), Status>;

    /// Returns the number of keys.
    async fn count(&self) -> u64;

    /// The key will not be needed soon.
    #[oneway]
    async fn forget(&self, r#type: u8, key: String);
}

/// Passed through.
pub fn other() {}
