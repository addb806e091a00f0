//! `trunkctl top`: shows rates and latencies of the running nodes' methods and peers, and updates them at an interval.

use crate::nodes::{
    NOT_VISIBLE, UdpPort, ask, line, peer_line, pid, ports_of_silent, rates, seconds, silent_lines, state,
    status,
};
use crate::streams::{ascii, print};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use trunkline_softrdma::device::{FoundNode, NodeRequest};
use trunkline_transport::{MethodStatus, NodeStatus, host_has};

/// Maximum number of methods and of peers per node in the table. The busiest are shown.
const MOST_LINES: usize = 12;
/// Escape sequence that clears a terminal and moves the cursor to the top.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show what the nodes of this user do: calls/s, latencies and errors of each method, messages/s and path of each
/// peer
///
/// Rates and latencies are those of the last interval. Latencies are the longest time of a bucket, at most a quarter
/// too long. A client's time is until the reply, a server's from the start of the handler to its end. Streams count
/// when they end. Press Ctrl-C to end.
///
/// Exit status: 0 all nodes answered in the last interval, or there are none; 1 a process does not answer, the runtime
/// directory cannot be used, or the output cannot be written; 2 the command line is invalid.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct TopArguments {
    /// Print one JSON object per interval, each on a line
    #[arg(long)]
    json: bool,
    /// Number of intervals; without it, until Ctrl-C
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Length of an interval, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    interval_ms: u64,
}

/// Rates and latencies of a method over an interval.
#[derive(Debug)]
struct MethodRates<'a> {
    method: &'a MethodStatus,
    /// `None` if there is no earlier status of the node.
    calls_per_s: Option<f64>,
    failed_per_s: Option<f64>,
    p50: Option<Duration>,
    p99: Option<Duration>,
}

/// Shows the nodes. Returns exit status 1 if a process does not answer in the last interval, the directory cannot be
/// used, or the output cannot be written.
#[must_use]
pub fn run(arguments: &TopArguments) -> ExitCode {
    let clears = !arguments.json && io::stdout().is_terminal();
    let (mut earlier, mut is_first) = (BTreeMap::new(), true);
    let mut left = arguments.count.map(|count| count.saturating_add(1));
    loop {
        let found = match ask(NodeRequest::Status, is_first, arguments.json) {
            Ok(found) => found,
            Err(exit) => return exit,
        };
        is_first = false;
        let silent: Vec<_> =
            found.iter().filter(|node| status(node).is_none()).map(|node| node.pid).collect();
        let ports = ports_of_silent(&silent);
        // All figures are rates, so nothing is printed before the second answers.
        if !earlier.is_empty() || left.is_none_or(|left| left <= arguments.count.unwrap_or(0)) {
            let text = if arguments.json {
                ascii(&json(&found, &earlier, &silent, &ports).to_string())
            } else {
                table(&found, &earlier, &silent, &ports)
            };
            let clear = if clears { CLEAR } else { "" };
            if let Err(exit) = print(&format!("{clear}{text}")) {
                return exit.into();
            }
        }
        earlier = found.iter().filter_map(|node| Some((node.name.clone(), status(node)?))).collect();
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return ExitCode::from(u8::from(!silent.is_empty()));
        }
        thread::sleep(Duration::from_millis(arguments.interval_ms));
    }
}

/// Returns the activity of each method since the earlier status, with the busiest first.
fn methods<'a>(now: &'a NodeStatus, earlier: Option<&NodeStatus>) -> Vec<MethodRates<'a>> {
    let since = earlier.and_then(|earlier| Some((earlier, seconds(now, earlier)?)));
    let rates = |method: &'a MethodStatus| {
        let same = |other: &&MethodStatus| {
            (&other.side, &other.service, &other.method) == (&method.side, &method.service, &method.method)
        };
        let Some((earlier, seconds)) = since else {
            return MethodRates { method, calls_per_s: None, failed_per_s: None, p50: None, p99: None };
        };
        let before = earlier.methods.iter().find(same);
        let per_s = |of: fn(&MethodStatus) -> u64| {
            Some(of(method).saturating_sub(before.map_or(0, of)) as f64 / seconds)
        };
        let latency =
            before.map_or_else(|| method.latency.clone(), |before| method.latency.since(&before.latency));
        let [p50, p99] = [0.5, 0.99].map(|q| latency.quantile(q));
        MethodRates {
            method,
            calls_per_s: per_s(MethodStatus::calls),
            failed_per_s: per_s(|method| method.failed),
            p50,
            p99,
        }
    };
    let mut all: Vec<_> = now.methods.iter().map(rates).collect();
    all.sort_by(|a, b| b.calls_per_s.unwrap_or(0.0).total_cmp(&a.calls_per_s.unwrap_or(0.0)));
    all
}

fn retransmits_per_s(now: &NodeStatus, earlier: Option<&NodeStatus>) -> Option<f64> {
    let earlier = earlier?;
    Some(now.retransmits.saturating_sub(earlier.retransmits) as f64 / seconds(now, earlier)?)
}

fn json(
    found: &[FoundNode],
    earlier: &BTreeMap<String, NodeStatus>,
    silent: &[Option<u32>],
    ports: &[UdpPort],
) -> Value {
    let us = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e6);
    let node = |found: &FoundNode| {
        let status = status(found)?;
        let before = earlier.get(&found.name);
        let method = |rates: &MethodRates<'_>| {
            let MethodStatus { side, service, method, running, .. } = rates.method;
            json!({
                "side": side, "service": service, "method": method, "running": running,
                "calls_per_s": rates.calls_per_s, "failed_per_s": rates.failed_per_s,
                "p50_us": us(rates.p50), "p99_us": us(rates.p99),
            })
        };
        let peers = status.peers.iter().map(|peer| {
            let [sent, received] = rates(&status, peer, before);
            let paths: Vec<_> = peer.paths.iter().map(|path| &path.path).collect();
            json!({
                "address": peer.address.to_string(), "is_up": peer.is_up, "name": peer.name, "level": peer.level,
                "sent_per_s": sent, "received_per_s": received, "paths": paths,
            })
        });
        Some(json!({
            "address": status.address.to_string(),
            "pid": found.pid,
            "is_device_removed": status.is_away,
            "is_draining": status.is_draining,
            "is_address_missing": !host_has(status.address.ip()),
            "retransmits_per_s": retransmits_per_s(&status, before),
            "methods": methods(&status, before).iter().map(method).collect::<Vec<_>>(),
            "methods_omitted": status.methods_omitted,
            "peers": peers.collect::<Vec<_>>(),
            "peers_omitted": status.omitted,
        }))
    };
    json!({
        "nodes": found.iter().filter_map(node).collect::<Vec<_>>(),
        "ports": ports.iter().map(UdpPort::json).collect::<Vec<_>>(),
        "silent_pids": silent,
        "not_visible": NOT_VISIBLE,
    })
}

/// Returns a table with one line per node, method and peer.
fn table(
    found: &[FoundNode],
    earlier: &BTreeMap<String, NodeStatus>,
    silent: &[Option<u32>],
    ports: &[UdpPort],
) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
    let us = |time: Option<Duration>| number(time.map(|time| time.as_secs_f64() * 1e6));
    let mut text = String::new();
    for node in found {
        let Some(status) = status(node) else { continue };
        let before = earlier.get(&node.name);
        let retransmits = number(retransmits_per_s(&status, before));
        let address = status.address.to_string();
        let pid = pid(node.pid);
        let state = state(&status);
        line(&mut text, format_args!("{address}  process {pid}, retransmissions/s {retransmits}{state}"));
        let methods = methods(&status, before);
        if !methods.is_empty() {
            line(
                &mut text,
                format_args!(
                    "  {:<44} {:<6} {:>10} {:>9} {:>9} {:>9} {:>8}",
                    "METHOD", "SIDE", "CALLS/S", "P50 US", "P99 US", "FAILED/S", "RUNNING"
                ),
            );
        }
        for rates in methods.iter().take(MOST_LINES) {
            let MethodStatus { side, service, method, running, .. } = rates.method;
            line(
                &mut text,
                format_args!(
                    "  {:<44} {side:<6} {:>10} {:>9} {:>9} {:>9} {running:>8}",
                    format!("{service}/{method}"),
                    number(rates.calls_per_s),
                    us(rates.p50),
                    us(rates.p99),
                    number(rates.failed_per_s),
                ),
            );
        }
        let more = methods.len().saturating_sub(MOST_LINES).saturating_add(status.methods_omitted);
        if more > 0 {
            line(&mut text, format_args!("  and {more} more methods"));
        }
        let mut peers: Vec<_> =
            status.peers.iter().map(|peer| (peer, rates(&status, peer, before))).collect();
        let sum = |rates: &[Option<f64>; 2]| rates.iter().flatten().sum::<f64>();
        peers.sort_by(|a, b| sum(&b.1).total_cmp(&sum(&a.1)));
        for (peer, rates) in peers.iter().take(MOST_LINES) {
            line(&mut text, format_args!("  {}", peer_line(peer, rates)));
        }
        let more = peers.len().saturating_sub(MOST_LINES).saturating_add(status.omitted);
        if more > 0 {
            line(&mut text, format_args!("  and {more} more peers"));
        }
    }
    for port in ports {
        line(&mut text, format_args!("{port}"));
    }
    silent_lines(&mut text, silent);
    if found.is_empty() {
        line(&mut text, format_args!("no node of this user runs here"));
    }
    text + NOT_VISIBLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_softrdma::device::MAX_NODE_BYTES;

    /// Any process of the user can claim to be a node.
    #[test]
    fn largest_numbers_of_node_are_shown() {
        let max = u64::MAX;
        let mut answer = format!(
            "trunkline-node 1\naddress\t[::1]:1\npollers\t1\nmethods omitted\t{max}\nomitted\t{max}\n"
        );
        for number in 0..=MOST_LINES {
            answer += &format!("method\tserver\tKv\tm{number}\t{max}\t{max}\t{max}\t{max},0:{max},1:{max}\n");
            answer += &format!("peer\t[::1]:{number}\t1\t{max}\t{max}\n");
        }
        assert!(answer.len() < MAX_NODE_BYTES);
        let earlier = NodeStatus::parse(&answer.replace(&format!("\t{max}"), "\t0")).expect("a node");
        let found = [FoundNode::new("a".to_owned(), None, Some(format!("{answer}at\t1\n")))];
        for earlier in [BTreeMap::new(), BTreeMap::from([("a".to_owned(), earlier)])] {
            let text = table(&found, &earlier, &[], &[]);
            assert!(text.contains(&format!("and {max} more methods")), "{text}");
            assert!(text.contains(&format!("and {max} more peers")), "{text}");
            assert_eq!(json(&found, &earlier, &[], &[])["nodes"][0]["methods_omitted"], max);
        }
    }
}
