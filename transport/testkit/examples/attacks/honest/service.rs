//! The service that honest nodes provide to each other.

use trunkline::stream::channel;
use trunkline::{Bytes, Status, Stream};

/// The service that honest nodes provide to each other.
#[trunkline::service(name = "trunkline.attacks.Honest", version = 1)]
pub(crate) trait Honest {
    /// Returns the number.
    #[idempotent]
    async fn echo(&self, number: u64) -> Result<u64, Status>;

    /// Returns the bytes. Large messages are READ in both directions.
    #[idempotent]
    async fn mirror(&self, bytes: Bytes) -> Result<Bytes, Status>;

    /// Returns the number of texts.
    async fn count(&self, texts: Vec<String>) -> Result<u64, Status>;

    /// Sends one item.
    async fn one(&self) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;

    /// Runs until its deadline or until its caller is gone.
    async fn hold(&self) -> Result<(), Status>;
}

/// Implementation of the service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handler;

impl Honest for Handler {
    async fn echo(&self, number: u64) -> Result<u64, Status> {
        Ok(number)
    }

    async fn mirror(&self, bytes: Bytes) -> Result<Bytes, Status> {
        Ok(bytes)
    }

    async fn count(&self, texts: Vec<String>) -> Result<u64, Status> {
        Ok(texts.len() as u64)
    }

    async fn one(&self) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        let (sender, items) = channel(1);
        let _room = sender.try_send(Ok(1));
        sender.finish();
        Ok(items)
    }

    async fn hold(&self) -> Result<(), Status> {
        std::future::pending().await
    }
}
