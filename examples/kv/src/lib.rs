//! The key-value service offered by `kv-server` and called by `kv-client`.

use trunkline::{Bytes, Status};

/// A map from text to bytes.
#[trunkline::service(name = "trunkline.example.Kv", version = 1)]
pub trait Kv {
    /// Returns the value of a key, or `None` if the key does not exist.
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status>;

    /// Sets the value of a key. Returns true if the key already existed.
    async fn put(&self, key: String, value: Bytes) -> Result<bool, Status>;

    /// Removes a key. Returns true if the key existed.
    async fn delete(&self, key: String) -> Result<bool, Status>;

    /// Returns the first `limit` keys that begin with `prefix`, sorted.
    async fn list(&self, prefix: String, limit: u32) -> Result<Vec<String>, Status>;
}
