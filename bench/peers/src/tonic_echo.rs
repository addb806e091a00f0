//! gRPC by tonic: unary calls, with windows that hold the calls under way.

use crate::tokio_side::{self, Caller};
use crate::{Exchange, System, server};
use bytes::Bytes;
use std::path::PathBuf;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status};

#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/trunkline.bench.Echo.rs"));
}

use generated::echo_client::EchoClient;
use generated::echo_server::{Echo, EchoServer};

/// Flow-control window of a stream and of a connection, in bytes.
const WINDOW: u32 = 8 << 20;
const WINDOWS: u32 = 4 * WINDOW;

/// A request or a reply.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    payload: Bytes,
    /// Bytes of the reply, in a request.
    #[prost(uint64, tag = "2")]
    reply: u64,
}

struct Mirror;

#[tonic::async_trait]
impl Echo for Mirror {
    async fn call(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        let Message { mut payload, reply } = request.into_inner();
        payload.truncate(usize::try_from(reply).unwrap_or(usize::MAX));
        Ok(Response::new(Message { payload, reply: 0 }))
    }
}

impl Caller for EchoClient<Channel> {
    async fn call(&mut self, payload: Bytes, reply: usize) -> Result<usize, String> {
        let replied = Self::call(self, Message { payload, reply: reply as u64 }).await;
        Ok(replied.map_err(|status| status.to_string())?.into_inner().payload.len())
    }
}

/// Serves until the end of standard input.
///
/// # Errors
/// Fails with the error of the operating system.
pub(crate) fn serve(exchange: &Exchange) -> Result<(), String> {
    let echo = EchoServer::new(Mirror).max_decoding_message_size(usize::MAX);
    let router = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOWS)
        .add_service(echo);
    tokio_side::serve(exchange, async {
        let named = |error: std::io::Error| error.to_string();
        let served = if exchange.system == System::TonicTcp {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(named)?;
            server::announce(&listener.local_addr().map_err(named)?.to_string())?;
            // `Server::tcp_nodelay` has no effect on incoming connections passed in.
            router.serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))).await
        } else {
            let path = exchange.folder.clone().unwrap_or_default().join("tonic");
            let listener = UnixListener::bind(&path).map_err(named)?;
            server::announce(&path.to_string_lossy())?;
            router.serve_with_incoming(UnixListenerStream::new(listener)).await
        };
        served.map_err(|error| error.to_string())
    })
}

/// Connects to a server.
///
/// # Errors
/// Fails with the reason if it cannot be reached.
pub(crate) async fn connect(exchange: &Exchange, address: &str) -> Result<EchoClient<Channel>, String> {
    let to = if exchange.system == System::TonicTcp { address } else { "localhost" };
    let endpoint = Endpoint::from_shared(format!("http://{to}"))
        .map_err(|error| error.to_string())?
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOWS);
    let connected = if exchange.system == System::TonicTcp {
        endpoint.connect().await
    } else {
        let path = PathBuf::from(address);
        endpoint
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async { UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
            }))
            .await
    };
    let channel = connected.map_err(|error| format!("cannot connect: {error}"))?;
    Ok(EchoClient::new(channel).max_decoding_message_size(usize::MAX))
}
