//! A service that streams items, as its author writes it.

use trunkline::stub::Stream;
use trunkline::{Bytes, Status, Streaming};

/// Events and files.
#[trunkline::service]
pub trait Feed {
    /// Streams the events with a prefix.
    async fn watch(&self, prefix: String) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;

    /// Takes a file.
    async fn upload(&self, name: String, chunks: Streaming<Bytes>) -> Result<u64, Status>;

    /// Answers each item.
    async fn chat(&self, items: Streaming<String>) -> Result<impl Stream<Item = Result<Bytes, Status>>, u8>;
}
