//! The measured transports, with their servers and clients.

use crate::meter::pin::Cores;
use crate::server::{announce, at_end};
use crate::service::{self, EchoClient};
use clap::ValueEnum;
use serde::Serialize;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::task::yield_now;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tower::ServiceExt as _;
use tower::util::BoxCloneService;
use trunkline::Node;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// HTTP/2 flow-control window of a stream, in bytes.
const WINDOW: u32 = 8 << 20;
const WINDOWS: u32 = 4 * WINDOW;

/// A transport for calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// HTTP/2 over TCP.
    Tcp,
    /// HTTP/2 over a Unix socket.
    Unix,
    /// Trunkline, with handlers in a tokio runtime.
    Trunkline,
    /// Trunkline, with handlers on the pollers.
    OnPollers,
}

/// The kind of tokio runtime on each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Runtime {
    /// A single-threaded runtime. With tonic's own transports, it polls instead of sleeping.
    Polling,
    /// An ordinary runtime with one worker, which sleeps when idle.
    OneWorker,
    /// An ordinary runtime with two workers.
    TwoWorkers,
}

impl Runtime {
    /// Chooses the runtime of both sides. A runtime may poll only if each side has a separate core.
    pub(crate) fn choose(cores: Option<Cores>, is_loaded: bool) -> Self {
        match cores {
            None => Self::TwoWorkers,
            Some(cores) if is_loaded || cores.client == cores.server => Self::OneWorker,
            Some(_) => Self::Polling,
        }
    }

    /// Returns the name used as an argument.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A client over any transport.
pub(crate) type Client = EchoClient<
    BoxCloneService<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, io::Error>,
>;

/// A client, with the node that it needs.
pub(crate) struct Connection {
    pub(crate) client: Client,
    node: Option<Node>,
}

impl Transport {
    pub(crate) const ALL: [Self; 4] = [Self::Tcp, Self::Unix, Self::Trunkline, Self::OnPollers];

    /// Returns the column title in the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Tcp => "tonic, TCP",
            Self::Unix => "tonic, Unix socket",
            Self::Trunkline => "Trunkline",
            Self::OnPollers => "Trunkline, on pollers",
        }
    }

    /// Returns the name used as an argument.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Runs a future to completion in the given kind of runtime.
    pub(crate) fn run<T>(
        self,
        runtime: Runtime,
        side: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let workers = match runtime {
            Runtime::Polling => return self.run_polling(side),
            Runtime::OneWorker => 1,
            Runtime::TwoWorkers => 2,
        };
        Builder::new_multi_thread().worker_threads(workers).enable_all().build()?.block_on(side)
    }

    /// Runs a future in a single-threaded runtime. For tonic's own transports, the runtime polls instead of sleeping, as
    /// Trunkline's pollers do while they have work.
    fn run_polling<T>(self, side: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let is_polling = matches!(self, Self::Tcp | Self::Unix);
        Builder::new_current_thread().enable_all().build()?.block_on(async {
            if is_polling {
                tokio::spawn(async {
                    loop {
                        yield_now().await;
                    }
                });
            }
            side.await
        })
    }

    /// Runs the server until standard input is closed.
    pub(crate) async fn serve(self, folder: &Path) -> Result<(), Failure> {
        let router = Server::builder()
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOWS)
            .add_routes(service::routes());
        let services = trunkline_tonic::Server::new(service::routes());
        match self {
            Self::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                announce(&listener.local_addr()?.to_string())?;
                // The server's `tcp_nodelay` setting does not apply to a listener that is passed in.
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                router.serve_with_incoming_shutdown(incoming, at_end()).await?;
            }
            Self::Unix => {
                let path = folder.join("socket");
                let listener = UnixListener::bind(&path)?;
                announce(&path.to_string_lossy())?;
                router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), at_end()).await?;
            }
            Self::Trunkline => serve_node(services.runtime(Handle::current())).await?,
            Self::OnPollers => serve_node(services.on_pollers()).await?,
        }
        Ok(())
    }

    /// Connects to a server.
    pub(crate) async fn connect(self, address: &str) -> Result<Connection, Failure> {
        let endpoint = |uri: String| {
            Ok::<_, Failure>(
                Endpoint::from_shared(uri)?
                    .tcp_nodelay(true)
                    .initial_stream_window_size(WINDOW)
                    .initial_connection_window_size(WINDOWS),
            )
        };
        let (service, node) = match self {
            Self::Tcp => (boxed(endpoint(format!("http://{address}"))?.connect().await?), None),
            Self::Unix => {
                let path = PathBuf::from(address);
                let connector = tower::service_fn(move |_: Uri| {
                    let path = path.clone();
                    async { UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
                });
                let endpoint = endpoint("http://localhost".to_owned())?;
                (boxed(endpoint.connect_with_connector(connector).await?), None)
            }
            Self::Trunkline | Self::OnPollers => {
                let node = Node::builder().listen("127.0.0.1:0").pollers(1).start_async().await?;
                let channel = trunkline_tonic::Channel::new(&node, address);
                (BoxCloneService::new(channel.map_err(io::Error::other)), Some(node))
            }
        };
        let client = EchoClient::new(service).max_decoding_message_size(usize::MAX);
        Ok(Connection { client, node })
    }
}

fn boxed(
    channel: Channel,
) -> BoxCloneService<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, io::Error> {
    BoxCloneService::new(channel.map_err(io::Error::other))
}

async fn serve_node(service: trunkline::stub::Service) -> Result<(), Failure> {
    let node = Node::builder().listen("127.0.0.1:0").pollers(1).tokio(Handle::current()).serve(service);
    let node = node.start_async().await?;
    announce(&node.local_address().to_string())?;
    at_end().await;
    node.shutdown_async().await;
    Ok(())
}

impl Connection {
    pub(crate) async fn end(self) {
        drop(self.client);
        if let Some(node) = self.node {
            node.shutdown_async().await;
        }
    }
}
