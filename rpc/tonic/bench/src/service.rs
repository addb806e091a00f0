//! The measured service: a unary echo, an endless stream, and an upload.

use bytes::Bytes;
use std::pin::Pin;
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/trunkline.bench.Echo.rs"));
}

pub(crate) use generated::echo_client::EchoClient;
use generated::echo_server::{Echo, EchoServer};

/// A request, a reply or an item.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) payload: Bytes,
}

struct Mirror;

#[tonic::async_trait]
impl Echo for Mirror {
    async fn call(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type FeedStream = Pin<Box<dyn Stream<Item = Result<Message, Status>> + Send>>;

    async fn feed(&self, request: Request<Message>) -> Result<Response<Self::FeedStream>, Status> {
        let item = request.into_inner();
        let items = std::iter::repeat_with(move || Ok(item.clone()));
        Ok(Response::new(Box::pin(tokio_stream::iter(items))))
    }

    /// Returns the total size of the received payloads, as an 8-byte integer.
    async fn upload(&self, request: Request<Streaming<Message>>) -> Result<Response<Message>, Status> {
        let (mut items, mut bytes) = (request.into_inner(), 0);
        while let Some(item) = items.message().await? {
            bytes += item.payload.len() as u64;
        }
        Ok(Response::new(Message { payload: Bytes::copy_from_slice(&bytes.to_le_bytes()) }))
    }
}

/// Returns the routes of the service, which accepts messages of any size.
pub(crate) fn routes() -> Routes {
    Routes::new(EchoServer::new(Mirror).max_decoding_message_size(usize::MAX))
}
