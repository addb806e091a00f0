//! `trunkctl doctor`: reports problems of this host that affect nodes, with a remedy for each.
//!
//! A check returns findings. The checks in `files` read /proc and /sys below `Host::root`, so that tests can supply files
//! with faults. The checks in `live` use the UDP ports and the runtime directory of the host, and make calls between
//! nodes in a temporary directory.

mod files;
mod live;

use crate::streams::{ascii, finish, warn};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use trunkline_softrdma::link::printable;
use trunkline_verbs::headroom;

/// Delay after which the progress bar is shown.
const SHOW_AFTER: Duration = Duration::from_secs(2);
/// Interval at which the progress bar is redrawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Causes of faults that no check covers.
const NOT_EXAMINED: &str = "firewalls towards other hosts, calls between hosts";

/// Tell why nodes would not run well on this host, with a remedy for each fault
///
/// Checks the device that a node gets, limits of the process and its control group, interfaces, UDP port 4791 of each
/// address (or that in TRUNKLINE_PORT), and the runtime directory. Then it makes calls between nodes in this process, at
/// loopback addresses, and at an address of the host whose port is free. Those nodes hold the port for a moment, and use a temporary
/// runtime directory. Run it as the user of the nodes, with their environment.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Print one JSON object: `verdict`, `not_examined`, and `findings`, each with `severity`, `subject`, `seen` and `remedy`
    #[arg(long)]
    json: bool,
    /// Make no calls, and bind no port
    #[arg(long)]
    no_calls: bool,
}

/// Severity of a finding, in increasing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Ok,
    /// Nodes run, but with lower performance or less memory.
    Warning,
    /// A node does not start or cannot be reached.
    Failure,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    severity: Severity,
    subject: String,
    seen: String,
    /// `None` if no action is needed.
    remedy: Option<String>,
}

impl Finding {
    fn ok(subject: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { severity: Severity::Ok, subject: subject.into(), seen: seen.into(), remedy: None }
    }

    fn warning(subject: impl Into<String>, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { severity: Severity::Warning, subject: subject.into(), seen: seen.into(), remedy }
    }

    fn failure(subject: impl Into<String>, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Failure, ..Self::warning(subject, seen, remedy) }
    }

    /// Returns a human-readable line, in which names of programs and devices are escaped.
    fn line(&self) -> String {
        let mark = match self.severity {
            Severity::Ok => "ok     ",
            Severity::Warning => "warning",
            Severity::Failure => "FAILURE",
        };
        let remedy = self.remedy.as_ref().map(|remedy| format!("; remedy: {remedy}")).unwrap_or_default();
        printable(&format!("{mark}  {}: {}{remedy}", self.subject, self.seen))
    }
}

#[derive(Debug)]
struct Host {
    /// Directory that is used as `/`.
    root: PathBuf,
    /// Addresses of interfaces that are up.
    addresses: Vec<HostAddress>,
    /// Addresses of interfaces that are down.
    down: Vec<HostAddress>,
}

/// An address of an interface.
#[derive(Debug, Clone)]
struct HostAddress {
    interface: String,
    ip: IpAddr,
    /// False if the other end of the interface is down or not connected.
    has_carrier: bool,
}

impl Host {
    /// Returns the trimmed text of a file, if it can be read.
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = std::fs::read(self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Returns the sorted names in a directory; empty if it cannot be read.
    fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// All findings, in order of increasing severity.
#[derive(Debug, Serialize)]
struct Diagnosis {
    verdict: Severity,
    findings: Vec<Finding>,
    not_examined: &'static str,
}

impl Diagnosis {
    fn new(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| finding.severity);
        let verdict = findings.last().map_or(Severity::Ok, |finding| finding.severity);
        Self { verdict, findings, not_examined: NOT_EXAMINED }
    }

    fn text(&self) -> String {
        let count = |severity| match self.findings.iter().filter(|found| found.severity == severity).count() {
            1 => format!("1 {}", if severity == Severity::Failure { "failure" } else { "warning" }),
            many => format!("{many} {}", if severity == Severity::Failure { "failures" } else { "warnings" }),
        };
        let (failures, warnings) = (count(Severity::Failure), count(Severity::Warning));
        let verdict = match self.verdict {
            Severity::Ok => "verdict: nodes run well on this host".to_owned(),
            Severity::Warning => format!("verdict: nodes run on this host, with {warnings}"),
            Severity::Failure => {
                format!("verdict: nodes do not run well on this host: {failures}, {warnings}")
            }
        };
        let verdict = format!("{verdict}; not examined: {NOT_EXAMINED}");
        let lines = self.findings.iter().map(Finding::line).chain([verdict]);
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Examines the host. Returns exit status 1 after a failure, or if the findings cannot be written.
#[must_use]
pub fn run(arguments: &DoctorArguments) -> ExitCode {
    let findings = match Host::this() {
        Ok(host) => examine(host, !arguments.no_calls),
        Err(error) => {
            warn(error);
            return ExitCode::FAILURE;
        }
    };
    let diagnosis = Diagnosis::new(findings);
    let text = if arguments.json {
        ascii(&serde_json::to_string(&diagnosis).expect("texts"))
    } else {
        diagnosis.text()
    };
    finish(&text, u8::from(diagnosis.verdict == Severity::Failure))
}

/// Runs all checks on another thread while a progress bar is shown on standard error.
fn examine(host: Host, with_calls: bool) -> Vec<Finding> {
    let checks: Vec<fn(&Host) -> Vec<Finding>> = match with_calls {
        true => [files::CHECKS, live::CHECKS, live::CALLS].concat(),
        false => [files::CHECKS, live::CHECKS].concat(),
    };
    let bar = ProgressBar::with_draw_target(Some(checks.len() as u64), ProgressDrawTarget::hidden());
    let (sender, results) = mpsc::channel();
    let began = Instant::now();
    let run = move || checks.into_iter().all(|check| sender.send(check(&host)).is_ok());
    let worker = match thread::Builder::new().spawn(run) {
        Ok(worker) => worker,
        Err(error) => {
            let limit = headroom::remedy(error.raw_os_error()).to_string();
            let remedy = limit.strip_prefix("; ").unwrap_or("raise the limits of this process");
            return vec![Finding::failure("threads", format!("a thread cannot be started: {error}"), remedy)];
        }
    };
    let mut findings = Vec::new();
    loop {
        match results.recv_timeout(DRAW_EVERY) {
            Ok(found) => {
                findings.extend(found);
                bar.inc(1);
            }
            Err(RecvTimeoutError::Timeout) => bar.tick(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if bar.is_hidden() && began.elapsed() > SHOW_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
    bar.finish_and_clear();
    if worker.join().is_err() {
        findings.push(Finding::failure("trunkctl doctor", "a check panicked", "report this as a bug"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_come_last_and_names_cannot_act_on_terminal() {
        let findings = vec![
            Finding::failure("UDP port 4791", "held by \u{1b}[2J\u{202e}x", "stop it"),
            Finding::ok("device", "softrdma"),
            Finding::warning("CPUs", "1", "allow more"),
        ];
        let diagnosis = Diagnosis::new(findings);
        let text = diagnosis.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["ok       device: softrdma", "warning  CPUs: 1; remedy: allow more"]);
        assert_eq!(lines[2], "FAILURE  UDP port 4791: held by \\u{1b}[2J\\u{202e}x; remedy: stop it");
        let verdict = "verdict: nodes do not run well on this host: 1 failure, 1 warning; not examined: firewalls towards other \
                       hosts, calls between hosts";
        assert_eq!(lines[3], verdict);
        let json = serde_json::to_value(&diagnosis).unwrap();
        assert_eq!(json["verdict"], "failure");
        assert_eq!(json["findings"][0]["remedy"], serde_json::Value::Null);
    }
}
