//! The service that `feed-serve` offers and `feed` calls.

use serde::{Deserialize, Serialize};
use trunkline::{Bytes, Status, Stream, Streaming};

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its topic.
    pub topic: String,
    /// Its text.
    pub text: String,
}

/// A file that was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Its size in bytes.
    pub bytes: u64,
    /// The chunks in which it came.
    pub chunks: u64,
}

/// A feed of events.
#[trunkline::service(name = "trunkline.example.Feed", version = 1)]
pub trait Feed {
    /// Streams the events whose topic has a prefix, from now on.
    async fn watch(&self, prefix: String) -> Result<impl Stream<Item = Result<Event, Status>>, Status>;

    /// Publishes events. Returns the number of events.
    async fn publish(&self, events: Streaming<Event>) -> Result<u64, Status>;

    /// Takes a file, and streams the number of received bytes after each chunk.
    async fn upload(
        &self,
        name: String,
        chunks: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Summary, Status>>, Status>;
}
