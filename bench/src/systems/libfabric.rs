//! `fi_pingpong` over libfabric's TCP provider. The program reports only means, and may not exit by itself.

use super::command::{HEAD_START, Running};
use super::{free_port, sides};
use crate::floors::Shape;
use crate::scenario::point::Measure;
use crate::systems::figures::Figures;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Number of round trips per run. The program has no option for a duration.
const TRIPS: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures round trips.
///
/// # Errors
/// Returns an error if the program is not installed, cannot measure the quantity, or prints no result.
pub(super) fn measure(measure: Measure, shape: &Shape) -> Result<Figures, String> {
    if measure != Measure::Latency {
        return Err("fi_pingpong has one message under way".to_owned());
    }
    let port = free_port()?.to_string();
    let program = || {
        let mut command = Command::new("fi_pingpong");
        command.args(["-p", "tcp", "-e", "msg", "-I", &TRIPS.to_string(), "-S", &shape.size.to_string()]);
        command
    };
    let (client, server) = sides(shape.cores);
    let _server = Running::start(program().args(["-B", &port]), server)?;
    thread::sleep(HEAD_START);
    let half_us =
        Running::start(program().args(["-P", &port, "127.0.0.1"]), client)?.first(PATIENCE, half_us)?;
    Ok(Figures { mean_ns: Some(half_us * 2e3), per_s: Some(5e5 / half_us), ..Figures::default() })
}

/// Parses half the round-trip time in a row. The columns are bytes, sent, acknowledged, total, time, MB/s, us, and
/// millions of transfers per second.
fn half_us(line: &str) -> Option<f64> {
    let columns = line.split_whitespace().collect::<Vec<_>>();
    let &[_, sent, _, _, _, _, us, _] = &columns[..] else { return None };
    sent.parse::<u32>().ok()?;
    us.parse().ok().filter(|us| *us > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_row_is_parsed_and_header_is_skipped() {
        assert_eq!(
            half_us("64      200     =200     25k         0.00s     14.32       4.47       0.22"),
            Some(4.47)
        );
        let header = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec";
        assert_eq!((half_us(header), half_us("64 200")), (None, None));
    }
}
