//! Runs the two programs as the README does.
//!
//! In real time: the programs are processes.

use std::net::Ipv4Addr;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use trunkline_testkit::{Process, fresh_ip, run};

/// A running collector at an address that only its shippers share.
struct Collector {
    process: Process,
    address: String,
    ip: Ipv4Addr,
}

impl Collector {
    fn start() -> Self {
        let ip = fresh_ip();
        let mut command = Command::new(env!("CARGO_BIN_EXE_logs-collect"));
        command.args(["--listen", &format!("{ip}:0")]);
        let mut process = Process::start("logs-collect", &mut command).expect("the collector starts");
        let address = process.after("listening ").expect("the address");
        Self { process, address, ip }
    }

    fn ship(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_logs-ship"));
        command.args(["--collector", &self.address, "--address", &self.ip.to_string()]);
        // The time limit suits a loaded machine.
        command.args(["--timeout-ms", "60000"]).args(args);
        run(&mut command, input).expect("the shipper runs")
    }

    /// Returns the output of `totals`. Polls until it is `wanted` or the time limit is over, because a
    /// one-way call ends before its handler has run.
    fn totals(&self, wanted: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let output = self.ship(&["totals"], b"");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if text == wanted || Instant::now() > until {
                return text;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_two_sources_arrive_in_order_and_are_counted() {
        let mut collector = Collector::start();
        let many: String = (0..5000).map(|number| format!("line {number} of five thousand\n")).collect();
        assert!(collector.ship(&["send", "mill"], many.as_bytes()).status.success());
        assert!(collector.ship(&["send", "lamp"], b"lit\nout").status.success());
        assert_eq!(collector.totals("lamp 2 0\nmill 5000 0\n"), "lamp 2 0\nmill 5000 0\n");
        for number in 0..5000 {
            let line = collector.process.line().expect("a line");
            assert_eq!(line, format!("mill: line {number} of five thousand"));
        }
        let last = [(); 2].map(|()| collector.process.line().expect("a line"));
        assert_eq!(last, ["lamp: lit", "lamp: out"]);
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let collector = Collector::start();
        assert!(collector.ship(&["send", "lamp"], b"lit\n").status.success());
        assert_eq!(collector.totals("lamp 1 0\n"), "lamp 1 0\n");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_logs-ship"));
        command.args(["--collector", &collector.address, "--address", &collector.ip.to_string(), "totals"]);
        let output = command.stdout(writer).output().expect("the shipper runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn a_shipper_without_a_collector_reports_an_error() {
        let mut collector = Collector::start();
        collector.process.kill().expect("it runs");
        let output = collector.ship(&["send", "lamp"], b"lit\n");
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("Unavailable") || error.contains("DeadlineExceeded"), "{error}");
    }
}
