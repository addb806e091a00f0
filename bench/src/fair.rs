//! Small calls next to large ones, to the same poller of the same peer.

use crate::client::Kind;
use crate::echo::EchoClient;
use crate::failure::Failure;
use crate::nodes::{LinkFlag, Nodes};
use crate::pin::Pin;
use crate::session::Session;
use clap::Args;
use hdrhistogram::Histogram;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use trunkline::{Bytes, CallOptions, block_on};

/// Bytes that a small call may wait for: four pieces of one READ each.
const FOUR_PIECES: f64 = (4 << 20) as f64;
/// Time limit of a large call.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many large calls, and for how long.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Large calls under way at a time.
    #[arg(long, value_name = "N", default_value_t = 8)]
    large: usize,
    /// Bytes of each, the same in both directions.
    #[arg(long, value_name = "N", default_value_t = 60 << 20)]
    bytes: usize,
    /// How long small calls are measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    seconds: u64,
    #[command(flatten)]
    nodes: Nodes,
}

/// Measures small calls while large ones are under way, and prints their times next to that of four pieces at the
/// bandwidth that the large ones had meanwhile.
///
/// # Errors
/// Why the nodes do not start, or a small call failed.
pub(crate) fn measure(load: &Load) -> Result<(), Failure> {
    // Many threads make these calls, so none is pinned.
    let cores = Pin::cores(Some(Pin::Off))?;
    let session = Session::start(LinkFlag::Auto, &load.nodes, Kind::Thread, cores)?;
    run(load, session.client().sendable())
        .map_err(|error| session.death().unwrap_or(Failure::Unmeasured(error.to_string())))
}

fn run(load: &Load, client: &EchoClient) -> Result<(), Box<dyn Error>> {
    let (done, moved, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut small = Histogram::<u64>::new(3)?;
    let mut elapsed = Duration::ZERO;
    thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        for _ in 0..load.large {
            scope.spawn(|| {
                let payload = Bytes::from(vec![0x5a; load.bytes]);
                while !done.load(Ordering::Relaxed) {
                    let options = CallOptions::new().timeout(PATIENCE);
                    match block_on(client.with(&options).echo(payload.clone())) {
                        Ok(echo) => moved.fetch_add(2 * echo.len() as u64, Ordering::Relaxed),
                        Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        let began = Instant::now();
        let payload = Bytes::from_static(&[0x5a; 64]);
        let outcome = (|| {
            while began.elapsed() < Duration::from_secs(load.seconds) {
                let call = Instant::now();
                block_on(client.echo(payload.clone()))?;
                small.record(u64::try_from(call.elapsed().as_nanos())?)?;
            }
            Ok(())
        })();
        elapsed = began.elapsed();
        done.store(true, Ordering::Relaxed);
        outcome
    })?;
    #[expect(clippy::cast_precision_loss, reason = "printed with three digits")]
    let (bytes, p99, p50) = (
        moved.load(Ordering::Relaxed) as f64,
        small.value_at_quantile(0.99) as f64 / 1e6,
        small.value_at_quantile(0.5) as f64 / 1e6,
    );
    let bandwidth = bytes / elapsed.as_secs_f64();
    let four = FOUR_PIECES / bandwidth * 1e3;
    println!(
        "large calls       {} of {} bytes at a time, {:.0} MB/s",
        load.large,
        load.bytes,
        bandwidth / 1e6
    );
    println!("large that failed {}", failed.load(Ordering::Relaxed));
    println!("small calls       {}, p50 {p50:.2} ms, p99 {p99:.2} ms", small.len());
    println!("four pieces       {four:.2} ms; p99 is {:.2} of that", p99 / four);
    Ok(())
}
