//! The service that `feed-serve` offers and `feed` calls.

use serde::{Deserialize, Serialize};
use trunkline::{Bytes, Status, Stream, Streaming};

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Topic of the event.
    pub topic: String,
    /// Text of the event.
    pub text: String,
}

/// A file that was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of chunks received.
    pub chunks: u64,
}

/// Totals of one topic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// Name of the topic.
    pub topic: String,
    /// Number of events received.
    pub events: u64,
    /// Number of watchers dropped because they were too slow for an event.
    pub dropped: u64,
}

/// A feed of events.
#[trunkline::service(name = "trunkline.example.Feed", version = 1)]
pub trait Feed {
    /// Streams the events whose topic has a prefix, from now on.
    async fn watch(&self, prefix: String) -> Result<impl Stream<Item = Result<Event, Status>>, Status>;

    /// Publishes events. Returns the number of events.
    async fn publish(&self, events: Streaming<Event>) -> Result<u64, Status>;

    /// Publishes one event. The server sends no reply, and the call ends when the event is in the server's memory.
    #[oneway]
    async fn emit(&self, event: Event);

    /// Returns the totals so far, by topic.
    async fn totals(&self) -> Result<Vec<Total>, Status>;

    /// Takes a file, and streams the number of received bytes after each chunk.
    async fn upload(
        &self,
        name: String,
        chunks: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Summary, Status>>, Status>;
}
