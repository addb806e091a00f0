//! Measures echoes of one poller, alone and next to `#[blocking]` calls that block the workers of its node, and compares
//! the slow echoes of both.
//!
//! ```sh
//! cargo run --release -p trunkline --example blocking_beside_echoes
//! ```

#![expect(clippy::disallowed_methods, reason = "in real time")]

use clap::Parser;
use std::error::Error;
use std::time::{Duration, Instant};
use trunkline::{Bytes, InProcessNetwork, Node, NodeBuilder, Status, block_on};

/// Measures echoes in turn without and with blocking calls in flight, and prints the ratio of their 99th percentiles.
#[derive(Debug, Parser)]
struct Options {
    /// Echoes of each measurement.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..))]
    echoes: u32,
    /// Time for which each blocking call blocks its worker, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    block_ms: u64,
    /// Blocking calls in flight at once, each on a separate worker.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    blocked: u16,
    /// Measurements of each kind, in turn.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Let nodes be on a network in this process, in place of UDP.
    #[arg(long)]
    in_process: bool,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

#[trunkline::service]
trait Mixed {
    /// Returns the same bytes.
    async fn echo(&self, bytes: Bytes) -> Bytes;
    /// Blocks its thread.
    #[blocking]
    async fn block(&self, ms: u64);
}

struct Handler;

impl Mixed for Handler {
    async fn echo(&self, bytes: Bytes) -> Bytes {
        bytes
    }
    async fn block(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }
}

/// Returns the median and the 99th percentile of round trips, in nanoseconds.
fn measure(client: &MixedClient, echoes: u32) -> Result<(u64, u64), Status> {
    let bytes = Bytes::from_static(&[7; 64]);
    let mut times = Vec::new();
    for _ in 0..echoes {
        let began = Instant::now();
        block_on(client.echo(bytes.clone()))?;
        times.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], times[times.len() * 99 / 100]))
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let network = InProcessNetwork::new();
    let build = |address: &str| -> NodeBuilder {
        let node = Node::builder().listen(address);
        if options.in_process { node.in_process(&network) } else { node }
    };
    let server = build("127.0.0.7:0").workers(options.blocked).serve(MixedServer::new(Handler)).start()?;
    let caller = build("127.0.0.8:0").start()?;
    let timeout = Duration::from_millis(options.block_ms) + Duration::from_secs(30);
    let client = MixedClient::connect(&caller, server.local_address())?.with_timeout(timeout);
    measure(&client, options.echoes)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions {
        alone.push(measure(&client, options.echoes)?);
        let began = Instant::now();
        let blocked = (0..options.blocked).map(|_| client.block(options.block_ms)).collect::<Vec<_>>();
        beside.push(measure(&client, options.echoes)?);
        if began.elapsed() > Duration::from_millis(options.block_ms) {
            return Err("the blocking calls ended before the echoes: block for longer".into());
        }
        for call in blocked {
            block_on(call)?;
        }
    }
    let median = |of: &[(u64, u64)], which: fn(&(u64, u64)) -> u64| {
        let mut all = of.iter().map(which).collect::<Vec<_>>();
        all.sort_unstable();
        all[all.len() / 2]
    };
    let p50 = [&alone, &beside].map(|of| median(of, |(p50, _)| *p50));
    let p99 = [&alone, &beside].map(|of| median(of, |(_, p99)| *p99));
    let ratio = |[alone, beside]: [u64; 2]| {
        let hundredths = beside.saturating_mul(100) / alone.max(1);
        format!("{}.{:02}", hundredths / 100, hundredths % 100)
    };
    if options.json {
        println!(
            "{}",
            serde_json::json!({
                "echoes": options.echoes, "blocked": options.blocked, "block_ms": options.block_ms,
                "p50_ns": {"alone": p50[0], "beside": p50[1]}, "p99_ns": {"alone": p99[0], "beside": p99[1]},
            })
        );
    } else {
        println!("p50 {} and {} ns, ratio {}", p50[0], p50[1], ratio(p50));
        println!("p99 {} and {} ns, ratio {}", p99[0], p99[1], ratio(p99));
    }
    caller.shutdown();
    server.shutdown();
    Ok(())
}
