//! `ucx_perftest`, which measures UCP tag matching between two processes. Its latency is half a round trip. Its rate and
//! bandwidth count messages in one direction, with the same number of sends in flight.

use super::command::{HEAD_START, Running};
use super::{free_port, sides};
use crate::floors::Shape;
use crate::scenario::point::Measure;
use crate::systems::figures::Figures;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Number of iterations of the trial run, which determines the duration of an iteration.
const TRIAL: u64 = 1000;
/// Maximum number of iterations of a run.
const MOST: f64 = 5e7;
const PATIENCE: Duration = Duration::from_secs(30);

/// A line of the CSV output. It describes half round trips or sends.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    /// Requested percentile, in microseconds.
    percentile_us: f64,
    mean_us: f64,
    per_s: f64,
}

/// Measures messages over these transports.
///
/// # Errors
/// Returns an error if the program is not installed or prints no result.
pub(super) fn measure(measure: Measure, shape: &Shape, transports: &str) -> Result<Figures, String> {
    let run = |iterations: u64, rank: &str| run(measure, shape, transports, iterations, rank);
    let trial = run(TRIAL, "50")?;
    let seconds = shape.measured.as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let iterations = (seconds * 1e6 / trial.mean_us.max(1e-3)).clamp(100.0, MOST) as u64;
    let row = run(iterations, "50")?;
    if measure != Measure::Latency {
        return Ok(Figures { per_s: Some(row.per_s), ..Figures::default() });
    }
    let p99 = run(iterations, "99")?;
    let round_trip = |half_us: f64| Some(half_us * 2e3);
    Ok(Figures {
        p50_ns: round_trip(row.percentile_us),
        p99_ns: round_trip(p99.percentile_us),
        mean_ns: round_trip(row.mean_us),
        per_s: Some(row.per_s / 2.0),
    })
}

fn run(
    measure: Measure,
    shape: &Shape,
    transports: &str,
    iterations: u64,
    rank: &str,
) -> Result<Row, String> {
    let port = free_port()?.to_string();
    let program = || {
        let mut command = Command::new("ucx_perftest");
        command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "lo").args(["-p", &port]);
        if transports.starts_with("posix") {
            command.env_remove("UCX_NET_DEVICES");
        }
        command
    };
    let (client, server) = sides(shape.cores);
    let _server = Running::start(&mut program(), server)?;
    thread::sleep(HEAD_START);
    let mut command = program();
    command.args(["127.0.0.1", "-f", "-v", "-R", rank, "-s", &shape.size.to_string()]);
    command.args(["-n", &iterations.to_string(), "-w", &(iterations / 4).to_string()]);
    match measure {
        Measure::Latency => command.args(["-t", "tag_lat"]),
        _ => command.args(["-t", "tag_bw", "-O", &shape.outstanding.to_string()]),
    };
    Running::start(&mut command, client)?.first(shape.measured * 2 + PATIENCE, row)
}

/// Parses a line. The columns are iterations; percentile, mean and overall time in us; mean and overall MB/s; mean and
/// overall messages per second.
fn row(line: &str) -> Option<Row> {
    let columns = line.split(',').map(|column| column.trim().parse().ok()).collect::<Option<Vec<f64>>>()?;
    let &[_, percentile_us, mean_us, _, _, _, _, per_s] = &columns[..] else { return None };
    Some(Row { percentile_us, mean_us, per_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_rows_are_parsed_and_headers_are_skipped() {
        let line = " 100000,0.490,0.324,0.330,188.39,188.39,3086612,3086610";
        assert_eq!(row(line), Some(Row { percentile_us: 0.49, mean_us: 0.324, per_s: 3_086_610.0 }));
        let header = "iterations,99.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr";
        assert_eq!((row(header), row("1,2,3")), (None, None));
    }
}
