//! Ships the lines of standard input to a collector.

use clap::{Parser, Subcommand};
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline::{Bytes, DeviceFlags, Node};
use trunkline_example_logs::LogsClient;

/// A log shipper.
#[derive(Debug, Parser)]
struct Options {
    /// Address and port of the collector.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7472")]
    collector: SocketAddr,
    /// This shipper's address; it may be the same as the collector's.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Time limit of each call, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
    /// Use an address other than loopback although peers are not authenticated.
    #[arg(long)]
    allow_unauthenticated: bool,
    #[command(flatten)]
    device: DeviceFlags,
    #[command(subcommand)]
    request: Request,
}

#[derive(Debug, Subcommand)]
enum Request {
    /// Send the lines of standard input under the name of a source.
    Send { source: String },
    /// Print what the collector received so far: source, lines, lines dropped.
    Totals,
}

/// Lines are sent once this many bytes of them have been read, or when no further input is buffered.
const BLOCK_BYTES: usize = 8 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let node = Node::builder()
        .listen(SocketAddr::new(options.address, 0))
        .allow_unauthenticated(options.allow_unauthenticated)
        .device_flags(&options.device)
        .start()?;
    let client = LogsClient::new(node.channel(options.collector))
        .with_timeout(Duration::from_millis(options.timeout_ms));
    match options.request {
        Request::Send { source } => send(&client, &source)?,
        Request::Totals => {
            let mut out = std::io::stdout().lock();
            for total in trunkline::block_on(client.totals())? {
                match writeln!(out, "{} {} {}", total.source, total.lines, total.dropped) {
                    // A reader that has closed the pipe, such as `head`, is not an error.
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
                    written => written?,
                }
            }
        }
    }
    node.shutdown();
    Ok(())
}

fn send(client: &LogsClient, source: &str) -> Result<(), Box<dyn Error>> {
    let mut input = BufReader::new(std::io::stdin());
    let (mut block, mut is_open) = (Vec::new(), true);
    while is_open {
        is_open = input.read_until(b'\n', &mut block)? > 0;
        let is_due = !is_open || block.len() >= BLOCK_BYTES || input.buffer().is_empty();
        if is_due && !block.is_empty() {
            let lines = Bytes::from(std::mem::take(&mut block));
            trunkline::block_on(client.append(source.to_owned(), lines))?;
        }
    }
    Ok(())
}
