//! Serves a method until SIGTERM or Ctrl-C, and the node's numbers at `/metrics` over plain TCP.

use clap::Parser;
use std::error::Error;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use trunkline::{DeviceFlags, Node};
use trunkline_example_ops::{Ops, OpsServer, serve_scrapes};

/// A server that is watched. Prints its address and where to scrape it.
#[derive(Debug, Parser)]
struct Options {
    /// Address and port to listen on; port 0 picks a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7476")]
    listen: SocketAddr,
    /// Loopback address and port for scrapes; port 0 picks a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9476")]
    metrics: SocketAddr,
    #[command(flatten)]
    device: DeviceFlags,
}

struct Echo;

impl Ops for Echo {
    async fn echo(&self, text: String) -> String {
        text
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if !options.metrics.ip().is_loopback() {
        return Err(format!("invalid --metrics {}: expected a loopback address", options.metrics).into());
    }
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    let scrapes = TcpListener::bind(options.metrics)?;
    let metrics = scrapes.local_addr()?;
    let node = Node::builder()
        .listen(options.listen)
        .device_flags(&options.device)
        .serve(OpsServer::new(Echo))
        .start()?;
    let node = Arc::new(node);
    let watched = Arc::clone(&node);
    // This thread ends with the process.
    std::thread::spawn(move || serve_scrapes(&scrapes, &watched));
    let mut out = std::io::stdout();
    // Ignored: the output may be closed.
    let _closed = writeln!(out, "listening {}\nmetrics http://{metrics}/metrics", node.local_address());
    signals.forever().next();
    node.shutdown();
    Ok(())
}
