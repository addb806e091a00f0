//! Round trips of generated calls between two processes, compared with those of a kernel TCP socket.
//!
//! Times on a shared machine drift, so both are measured in turns within one run and reported as a
//! ratio: each turn makes a number of socket round trips, then as many calls of the same size.

mod echo;
mod fair;
mod floor;
mod peer;
mod table;

use clap::{Parser, Subcommand};
use echo::EchoClient;
use floor::Socket;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use peer::Peer;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use table::Row;
use trunkline::{Bytes, Node, block_on};

/// Round-trip times of calls, as ratios to a TCP socket's in the same run.
#[derive(Debug, Parser)]
#[command(after_help = "Times in microseconds; 'x socket' is the call's median over the socket's.")]
struct Options {
    /// Message sizes in bytes, the same in both directions.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [8, 64, 1024, 4096, 65536, 1 << 20])]
    sizes: Vec<usize>,
    /// Turns per size.
    #[arg(long, value_name = "N", default_value_t = 20)]
    turns: u32,
    /// Round trips of each kind in a turn.
    #[arg(long, value_name = "N", default_value_t = 100)]
    trips: u32,
    /// Poller threads on each side.
    #[arg(long, value_name = "N", default_value_t = 1, global = true)]
    pollers: u16,
    /// Also write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Address of the other process.
    #[arg(long, value_name = "IP", default_value = "127.0.0.3", global = true)]
    peer_address: IpAddr,
    /// Own address.
    #[arg(long, value_name = "IP", default_value = "127.0.0.4")]
    address: IpAddr,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The other process; started by the program itself.
    #[command(hide = true)]
    Peer,
    /// Small calls next to large ones.
    Fair(fair::Load),
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if let Some(Role::Peer) = options.role {
        return peer::serve(options.peer_address, options.pollers);
    }
    let peer = Peer::start(options.peer_address, options.pollers)?;
    let node =
        Node::builder().listen(SocketAddr::new(options.address, 0)).pollers(options.pollers).start()?;
    let client = EchoClient::connect(&node, peer.service)?;
    if let Some(Role::Fair(load)) = &options.role {
        fair::measure(load, &client)?;
        node.shutdown();
        return Ok(());
    }
    let mut socket = Socket::connect(peer.socket)?;
    let bar = ProgressBar::new(options.sizes.len() as u64 * u64::from(options.turns))
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} eta {eta}")?);
    let mut rows = Vec::new();
    for &size in &options.sizes {
        rows.push(measure(&options, size, &client, &mut socket, &bar)?);
    }
    bar.finish_and_clear();
    table::print(&rows);
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    node.shutdown();
    Ok(())
}

fn measure(
    options: &Options,
    size: usize,
    client: &EchoClient,
    socket: &mut Socket,
    bar: &ProgressBar,
) -> Result<Row, Box<dyn Error>> {
    let payload = Bytes::from(vec![0x5a; size]);
    let mut floor = Histogram::<u64>::new(3)?;
    let mut calls = Histogram::<u64>::new(3)?;
    for turn in 0..=options.turns {
        for _ in 0..options.trips {
            let begin = Instant::now();
            socket.round_trip(&payload)?;
            // The first turn warms both up and does not count.
            if turn > 0 {
                floor.record(nanoseconds(begin.elapsed()))?;
            }
        }
        for _ in 0..options.trips {
            let begin = Instant::now();
            let answer = block_on(client.echo(payload.clone()))?;
            if turn > 0 {
                calls.record(nanoseconds(begin.elapsed()))?;
            }
            if answer.len() != size {
                return Err("the echo has another length".into());
            }
        }
        bar.inc(u64::from(turn > 0));
    }
    Ok(Row::new(size, &floor, &calls))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
