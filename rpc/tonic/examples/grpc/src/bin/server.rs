//! Serves the greeter and the route guide until SIGTERM or SIGINT. Prints its listen address.

use std::error::Error;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::TcpListenerStream;
use trunkline::Node;
use trunkline_example_grpc::{Options, routes};

/// Grace period for running calls when the server shuts down.
const GRACE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let options = Options::parse()?;
    let (mut terminated, mut interrupted) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let ending = async move {
        tokio::select! {
            _ = terminated.recv() => (),
            _ = interrupted.recv() => (),
        }
    };
    if options.tcp {
        let listener = TcpListener::bind(options.address).await?;
        println!("listening {}", listener.local_addr()?);
        let server = tonic::transport::Server::builder().add_routes(routes());
        server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), ending).await?;
        return Ok(());
    }
    let service = trunkline_tonic::Server::new(routes()).runtime(Handle::current());
    let node = Node::builder().listen(options.address).grace(GRACE).serve(service).start_async().await?;
    println!("listening {}", node.local_address());
    ending.await;
    node.shutdown_async().await;
    Ok(())
}
