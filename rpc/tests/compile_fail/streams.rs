//! Streams that no service can have: one case for each error.

use trunkline::{Bytes, Status, Stream, Streaming};

/// A type without serde's derives.
struct Plain;

#[trunkline::service]
trait Feed {
    async fn plain(&self) -> impl Stream<Item = Result<u8, Status>>;
    async fn bare(&self) -> Result<impl Stream<Item = u8>, Status>;
    async fn other(&self) -> Result<impl Stream<Item = Result<u8, String>>, Status>;
    async fn first(&self, items: Streaming<u8>, last: u8) -> u8;
    async fn borrowed(&self, items: Streaming<&str>) -> u8;
    #[oneway]
    async fn unheard(&self, items: Streaming<u8>);
    #[offload]
    async fn pooled(&self) -> Result<impl Stream<Item = Result<u8, Status>>, Status>;
}

#[trunkline::service]
trait Items {
    async fn watch(&self) -> Result<impl Stream<Item = Result<Plain, Status>>, Status>;
    async fn upload(&self, items: Streaming<Plain>) -> Result<(), Status>;
    async fn fine(&self, items: Streaming<Bytes>) -> Result<impl Stream<Item = Result<u8, Status>>, Status>;
}

fn main() {}
