//! tarpc with its bincode transport.

use crate::tokio_side::{self, Caller};
use crate::{Exchange, System, server};
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

/// Maximum length of a frame, in bytes.
const FRAME: usize = 65 << 20;

#[tarpc::service]
pub(crate) trait Echo {
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
    requests.for_each(|request| async { drop(tokio::spawn(request)) }).await;
}

/// Serves until standard input is closed.
///
/// # Errors
/// Returns an error of the operating system.
pub(crate) fn serve(exchange: &Exchange) -> Result<(), String> {
    tokio_side::serve(exchange, async {
        let named = |error: std::io::Error| error.to_string();
        if exchange.system == System::TarpcTcp {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(named)?;
            server::announce(&listener.local_addr().map_err(named)?.to_string())?;
            loop {
                let (stream, _) = listener.accept().await.map_err(named)?;
                stream.set_nodelay(true).map_err(named)?;
                tokio::spawn(serve_one(stream));
            }
        }
        let path = exchange.folder.clone().unwrap_or_default().join("tarpc");
        let listener = UnixListener::bind(&path).map_err(named)?;
        server::announce(&path.to_string_lossy())?;
        loop {
            tokio::spawn(serve_one(listener.accept().await.map_err(named)?.0));
        }
    })
}

/// Connects to a server.
///
/// # Errors
/// Returns an error if the server cannot be reached.
pub(crate) async fn connect(exchange: &Exchange, address: &str) -> Result<EchoClient, String> {
    fn client(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> EchoClient {
        let transport = serde_transport::new(framed(stream), Bincode::default());
        EchoClient::new(client::Config::default(), transport).spawn()
    }
    let named = |error: std::io::Error| format!("cannot connect: {error}");
    if exchange.system == System::TarpcTcp {
        let stream = TcpStream::connect(address).await.map_err(named)?;
        stream.set_nodelay(true).map_err(named)?;
        return Ok(client(stream));
    }
    Ok(client(UnixStream::connect(address).await.map_err(named)?))
}
