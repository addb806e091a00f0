//! Unary gRPC calls over tonic. The flow-control windows are large enough for all calls in flight.

use crate::certificates::certificate;
use crate::tokio_side::{self, Caller};
use crate::{Exchange, System, server};
use bytes::Bytes;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig, Uri,
};
use tonic::{Request, Response, Status};

#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/trunkline.bench.Echo.rs"));
}

use generated::echo_client::EchoClient;
use generated::echo_server::{Echo, EchoServer};

/// Flow-control window of a stream, in bytes.
const WINDOW: u32 = 8 << 20;
/// Flow-control window of a connection, in bytes.
const WINDOWS: u32 = 4 * WINDOW;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    payload: Bytes,
    /// Size of the reply, in bytes. Set in requests only.
    #[prost(uint64, tag = "2")]
    reply: u64,
}

struct Mirror;

/// Server address for TCP connections.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns the identity of both sides, and the root certificate that both sides trust.
fn identity() -> (Identity, Certificate) {
    let [chain, key, root] = certificate(SERVER);
    (Identity::from_pem(chain, key), Certificate::from_pem(root))
}

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

/// Serves until standard input is closed.
///
/// # Errors
/// Returns an error of the operating system.
pub(crate) fn serve(exchange: &Exchange) -> Result<(), String> {
    let echo = EchoServer::new(Mirror).max_decoding_message_size(usize::MAX);
    let mut server = Server::builder();
    if exchange.system == System::TonicTls {
        let (identity, root) = identity();
        let tls = ServerTlsConfig::new().identity(identity).client_ca_root(root);
        server = server.tls_config(tls).map_err(|error| error.to_string())?;
    }
    let router =
        server.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOWS).add_service(echo);
    tokio_side::serve(exchange, async {
        let named = |error: std::io::Error| error.to_string();
        let served = if exchange.system != System::TonicUnix {
            let listener = TcpListener::bind((SERVER, 0)).await.map_err(named)?;
            server::announce(&listener.local_addr().map_err(named)?.to_string())?;
            // `Server::tcp_nodelay` does not affect an incoming stream of connections.
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
/// Returns an error if the server cannot be reached.
pub(crate) async fn connect(exchange: &Exchange, address: &str) -> Result<EchoClient<Channel>, String> {
    let to = match exchange.system {
        System::TonicUnix => "http://localhost".to_owned(),
        System::TonicTls => format!("https://{address}"),
        _ => format!("http://{address}"),
    };
    let mut endpoint = Endpoint::from_shared(to)
        .map_err(|error| error.to_string())?
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOWS);
    if exchange.system == System::TonicTls {
        let (identity, root) = identity();
        let tls = ClientTlsConfig::new().identity(identity).ca_certificate(root);
        endpoint = endpoint.tls_config(tls).map_err(|error| error.to_string())?;
    }
    let connected = if exchange.system != System::TonicUnix {
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
