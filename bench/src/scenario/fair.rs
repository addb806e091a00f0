//! Small calls next to large calls, to the same poller of the same peer.

use crate::calls::client::CallerKind;
use crate::calls::echo::EchoClient;
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::session::Session;
use crate::meter::failure::Failure;
use crate::scenario::{Output, Scenario};
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use trunkline::{Bytes, CallOptions, block_on};

/// Number of bytes in four pieces, for which a small call may have to wait. Each piece is fetched by one READ.
const FOUR_PIECES: f64 = (4 << 20) as f64;
/// Time limit of a large call.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of large calls, and duration of the measurement.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Number of large calls in flight.
    #[arg(long, value_name = "N", default_value_t = 8)]
    large: usize,
    /// Size of a large call in bytes, the same in both directions.
    #[arg(long, value_name = "N", default_value_t = 60 << 20)]
    bytes: usize,
    /// Measured time of the small calls.
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    seconds: u64,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    nodes: Nodes,
}

/// Results in the format of the JSON file.
#[derive(Debug, Serialize)]
struct Results {
    large: usize,
    large_bytes: usize,
    large_failed: u64,
    /// Rate of the large calls, in both directions.
    bytes_per_s: f64,
    small_calls: u64,
    rtt_p50_ns: u64,
    rtt_p99_ns: u64,
    /// Transfer time of four 1 MiB pieces at this rate.
    four_pieces_ns: f64,
}

/// Measures small calls while large calls are in flight. Prints their times next to the transfer time of four pieces at
/// the bandwidth of the large calls.
///
/// # Errors
/// Returns an error if the nodes do not start or a small call fails.
pub(crate) fn measure(load: &Load) -> Result<(), Failure> {
    let scenario = Scenario::begin("fair", &load.output, None)?;
    // Many threads make these calls, so no thread is pinned.
    let session = Session::start(LinkFlag::Auto, &load.nodes, CallerKind::Thread, None)?;
    let results =
        run(load, session.client().sendable()).map_err(|error| session.servers().named(error.to_string()))?;
    let what = format!("{} small calls next to {} large ones", results.small_calls, results.large);
    scenario.end(Ok(()), &table(&results), &results, &what)
}

fn run(load: &Load, client: &EchoClient) -> Result<Results, Box<dyn Error>> {
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
    #[expect(clippy::cast_precision_loss, reason = "reported with a few digits")]
    let bytes_per_s = moved.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64();
    Ok(Results {
        large: load.large,
        large_bytes: load.bytes,
        large_failed: failed.load(Ordering::Relaxed),
        bytes_per_s,
        small_calls: small.len(),
        rtt_p50_ns: small.value_at_quantile(0.5),
        rtt_p99_ns: small.value_at_quantile(0.99),
        four_pieces_ns: FOUR_PIECES / bytes_per_s * 1e9,
    })
}

#[expect(clippy::cast_precision_loss, reason = "printed with two digits after the point")]
fn table(results: &Results) -> String {
    let Results { large, large_bytes, large_failed, small_calls, .. } = results;
    let in_ms = |ns: u64| ns as f64 / 1e6;
    let (p50, p99, four) =
        (in_ms(results.rtt_p50_ns), in_ms(results.rtt_p99_ns), results.four_pieces_ns / 1e6);
    [
        format!(
            "large calls       {large} of {large_bytes} bytes at a time, {:.0} MB/s",
            results.bytes_per_s / 1e6
        ),
        format!("large that failed {large_failed}"),
        format!("small calls       {small_calls}, p50 {p50:.2} ms, p99 {p99:.2} ms"),
        format!("four pieces       {four:.2} ms; p99 is {:.2} of that", p99 / four),
    ]
    .join("\n")
}
