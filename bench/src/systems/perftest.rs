//! `ib_send_lat` and `ib_send_bw` from the perftest package, over XRC on a NIC of the machine. The reported latency is
//! half a round trip.

use super::command::{HEAD_START, Running};
use super::{free_port, sides};
use crate::floors::Shape;
use crate::scenario::point::Measure;
use crate::systems::figures::Figures;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Number of sends per run.
const ITERATIONS: u32 = 5000;
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures sends.
///
/// # Errors
/// Returns an error if the program is not installed, or prints no result, for example because there is no NIC.
pub(super) fn measure(measure: Measure, shape: &Shape) -> Result<Figures, String> {
    let port = free_port()?.to_string();
    let name = if measure == Measure::Latency { "ib_send_lat" } else { "ib_send_bw" };
    let depth = shape.outstanding.max(2).to_string();
    let program = || {
        let mut command = Command::new(name);
        command.args(["-c", "XRC", "-F", "-p", &port, "-s", &shape.size.to_string()]);
        command.args(["-n", &ITERATIONS.to_string()]);
        if measure != Measure::Latency {
            command.args(["-t", &depth]);
        }
        command
    };
    let (client, server) = sides(shape.cores);
    let mut server = Running::start(&mut program(), server)?;
    thread::sleep(HEAD_START);
    let measured =
        Running::start(program().arg("127.0.0.1"), client)?.first(PATIENCE, |line| row(measure, line));
    // The server's reason takes precedence, because the client only reports that the server is missing.
    measured.or_else(|why| {
        server
            .first(HEAD_START, |line| row(measure, line))
            .map_err(|of_server| if of_server.contains("no result after") { why } else { of_server })
    })
}

/// Parses a row. For latency, the columns are bytes, iterations, and in us: minimum, maximum, typical, mean, deviation,
/// 99 %, 99.9 %. For bandwidth, the columns are bytes, iterations, peak and mean MiB/s, and millions of messages per
/// second.
fn row(measure: Measure, line: &str) -> Option<Figures> {
    let columns = line.split_whitespace().map(|column| column.parse().ok()).collect::<Option<Vec<f64>>>()?;
    let round_trip = |half_us: f64| Some(half_us * 2e3);
    match (measure, &columns[..]) {
        (Measure::Latency, &[_, _, _, _, typical, mean, _, p99, _]) => Some(Figures {
            p50_ns: round_trip(typical),
            p99_ns: round_trip(p99),
            mean_ns: round_trip(mean),
            per_s: Some(5e5 / mean),
        }),
        (Measure::Rate | Measure::Bandwidth, &[_, _, _, _, million]) => {
            Some(Figures { per_s: Some(million * 1e6), ..Figures::default() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_rows_are_parsed_and_other_lines_are_skipped() {
        let latency = row(
            Measure::Latency,
            " 64      1000          1.20           5.10         1.30      1.50   0.10  2.00  5.00",
        );
        assert_eq!(latency.unwrap().p50_ns, Some(2600.0));
        let bandwidth =
            row(Measure::Bandwidth, " 65536      5000             9000.10            8999.90   0.144");
        assert_eq!(bandwidth.unwrap().per_s, Some(144_000.0));
        for line in ["", "---", " #bytes #iterations BW peak[MB/sec]", " local address: LID 0000 QPN 0x0a5b"]
        {
            assert_eq!(row(Measure::Rate, line), None, "{line}");
        }
    }
}
