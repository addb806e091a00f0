//! Runs the two programs as their README does.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A running collector; killed at the end of the test, however it ends.
struct Collector {
    child: Child,
    address: String,
    output: Lines<BufReader<ChildStdout>>,
    ip: String,
}

impl Collector {
    /// Each test has a number, and so an address of its own, which both programs share.
    fn start(test: u8) -> Self {
        let id = std::process::id().to_be_bytes();
        let ip = format!("127.{}.{}.{test}", 128 + id[2] % 64, id[3]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_logs-collect"))
            .args(["--listen", &format!("{ip}:0")])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the collector starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = output.next().expect("a line").expect("text");
        let address = line.strip_prefix("listening ").expect("the address").to_owned();
        Self { child, address, output, ip }
    }

    fn ship(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_logs-ship"))
            .args(["--collector", &self.address, "--address", &self.ip])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the shipper starts");
        let mut pipe = child.stdin.take().expect("piped");
        // A shipper that finds no collector does not read to the end.
        let _broken = pipe.write_all(input);
        drop(pipe);
        child.wait_with_output().expect("the shipper ends")
    }

    /// What `totals` prints once it says `wanted`, or at last. A one-way call ends before its handler has run.
    fn totals(&self, wanted: &str) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let output = self.ship(&["totals"], b"");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            if text == wanted || Instant::now() > until {
                return text;
            }
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_two_sources_arrive_in_order_and_are_counted() {
        let mut collector = Collector::start(1);
        let many: String = (0..5000).map(|number| format!("line {number} of five thousand\n")).collect();
        assert!(collector.ship(&["send", "mill"], many.as_bytes()).status.success());
        assert!(collector.ship(&["send", "lamp"], b"lit\nout").status.success());
        assert_eq!(collector.totals("lamp 2 0\nmill 5000 0\n"), "lamp 2 0\nmill 5000 0\n");
        for number in 0..5000 {
            let line = collector.output.next().expect("a line").expect("text");
            assert_eq!(line, format!("mill: line {number} of five thousand"));
        }
        let last: Vec<_> = collector.output.by_ref().take(2).map(|line| line.expect("text")).collect();
        assert_eq!(last, ["lamp: lit", "lamp: out"]);
    }

    #[test]
    fn a_shipper_without_a_collector_says_so() {
        let mut collector = Collector::start(2);
        collector.child.kill().expect("it runs");
        collector.child.wait().expect("it ends");
        let output = collector.ship(&["--timeout-ms", "3000", "send", "lamp"], b"lit\n");
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("Unavailable") || error.contains("DeadlineExceeded"), "{error}");
    }
}
