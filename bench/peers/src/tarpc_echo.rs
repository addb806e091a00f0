//! tarpc with its bincode transport.

use crate::recorder::Sample;
use crate::tokio_side::{self, Caller};
use crate::{Exchange, System, child};
use bytes::Bytes;
use futures::StreamExt as _;
use serde_bytes::ByteBuf;
use tarpc::server::{BaseChannel, Channel as _};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::Framed;
use tarpc::tokio_util::codec::length_delimited::LengthDelimitedCodec;
use tarpc::{client, context, serde_transport};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::spawn_local;

/// Maximum length of a frame, in bytes.
const FRAME: usize = 65 << 20;

#[tarpc::service]
trait Echo {
    async fn call(payload: ByteBuf, reply: usize) -> ByteBuf;
}

#[derive(Clone)]
struct Mirror;

impl Echo for Mirror {
    async fn call(self, _: context::Context, mut payload: ByteBuf, reply: usize) -> ByteBuf {
        payload.truncate(reply);
        payload
    }
}

impl Caller for EchoClient {
    async fn call(&mut self, payload: Bytes, reply: usize) -> Result<usize, String> {
        let payload = ByteBuf::from(payload.to_vec());
        let replied = Self::call(self, context::current(), payload, reply).await;
        replied.map(|reply| reply.len()).map_err(|error| error.to_string())
    }
}

fn framed<S: AsyncRead + AsyncWrite>(stream: S) -> Framed<S, LengthDelimitedCodec> {
    LengthDelimitedCodec::builder().max_frame_length(FRAME).new_framed(stream)
}

async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let transport = serde_transport::new(framed(stream), Bincode::default());
    let requests = BaseChannel::with_defaults(transport).execute(Mirror.serve());
    requests.for_each(|request| async { drop(spawn_local(request)) }).await;
}

/// Serves until the end of standard input.
///
/// # Errors
/// Fails with the error of the operating system.
pub(crate) fn serve(exchange: &Exchange) -> Result<(), String> {
    tokio_side::serve(exchange, async {
        let named = |error: std::io::Error| error.to_string();
        if exchange.system == System::TarpcTcp {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(named)?;
            child::announce(&listener.local_addr().map_err(named)?.to_string())?;
            let (stream, _) = listener.accept().await.map_err(named)?;
            stream.set_nodelay(true).map_err(named)?;
            serve_one(stream).await;
        } else {
            let path = exchange.folder.clone().unwrap_or_default().join("tarpc");
            let listener = UnixListener::bind(&path).map_err(named)?;
            child::announce(&path.to_string_lossy())?;
            serve_one(listener.accept().await.map_err(named)?.0).await;
        }
        Ok(())
    })
}

/// Measures calls to a server.
///
/// # Errors
/// Fails with the reason if a call fails.
pub(crate) fn measure(exchange: &Exchange, address: &str) -> Result<Sample, String> {
    fn client(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> EchoClient {
        let transport = serde_transport::new(framed(stream), Bincode::default());
        let client::NewClient { client, dispatch } = EchoClient::new(client::Config::default(), transport);
        drop(spawn_local(dispatch));
        client
    }
    tokio_side::run(async {
        let named = |error: std::io::Error| format!("cannot connect: {error}");
        let client = if exchange.system == System::TarpcTcp {
            let stream = TcpStream::connect(address).await.map_err(named)?;
            stream.set_nodelay(true).map_err(named)?;
            client(stream)
        } else {
            client(UnixStream::connect(address).await.map_err(named)?)
        };
        tokio_side::measure(client, exchange).await
    })
}
