//! The service offered by `feed-serve` and called by `feed`.

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

/// Summary of a received file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of chunks received.
    pub chunks: u64,
}

/// Totals for one topic.
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
    /// Streams new events whose topic begins with a prefix.
    async fn watch(&self, prefix: String) -> Result<impl Stream<Item = Result<Event, Status>>, Status>;

    /// Publishes events. Returns their number.
    async fn publish(&self, events: Streaming<Event>) -> Result<u64, Status>;

    /// Publishes one event. There is no reply: the call ends when the event is in the server's memory.
    #[oneway]
    async fn emit(&self, event: Event);

    /// Returns the totals of all topics.
    async fn totals(&self) -> Result<Vec<Total>, Status>;

    /// Receives a file, and streams a summary of the received bytes after each chunk.
    async fn upload(
        &self,
        name: String,
        chunks: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Summary, Status>>, Status>;
}
