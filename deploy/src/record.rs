//! `trunkctl record`: prints the last events of this user's running nodes.
//!
//! A node always records these events. Its CM thread answers the query, so nodes with blocked handlers answer too.

use crate::nodes::{NOT_VISIBLE, ask, line, pid};
use crate::streams::{ascii, print, warn};
use clap::Args;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::ExitCode;
use trunkline_softrdma::device::{FoundNode, NodeRequest};
use trunkline_transport::{NodeRecord, RecordedEvent, utc};

/// Print the last events of the nodes of this user: failed and refused calls, sampled calls, sessions, drains, the device
///
/// Each poller keeps its last 512 failures and 512 sampled calls, one in 64 of each method; the node keeps 512 other
/// events. An answer has at most 64 KiB: of what does not fit, sampled calls are left out first. The times are UTC.
///
/// Exit status: 0 all nodes, or the node at ADDRESS, gave a record; 1 one did not, the runtime directory cannot be used, or the
/// output cannot be written; 2 the command line is invalid.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecordArguments {
    /// Address of the node, as `trunkctl nodes` lists it; without it, all nodes
    address: Option<SocketAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the records. Returns exit status 1 if there is no such node, a node returns no record, the directory cannot be
/// used, or the output cannot be written.
#[must_use]
pub fn run(arguments: &RecordArguments) -> ExitCode {
    let found = match ask(NodeRequest::Record, true, arguments.json) {
        Ok(found) => found,
        Err(exit) => return exit,
    };
    let asked = |record: &NodeRecord| arguments.address.is_none_or(|address| record.address == address);
    let records: Vec<_> = found.iter().filter_map(|node| Some((node, record(node)?))).collect();
    let records: Vec<_> = records.into_iter().filter(|(_, record)| asked(record)).collect();
    let silent = found.iter().filter(|node| record(node).is_none()).map(|node| node.pid).collect::<Vec<_>>();
    let is_complete = if arguments.address.is_some() { !records.is_empty() } else { silent.is_empty() };
    let missing = arguments.address.filter(|_| !is_complete);
    let error = missing
        .map(|address| format!("no node at {address} gives a record: `trunkctl nodes` lists those that run"));
    let text = if arguments.json {
        let mut document = json(&records, &silent);
        if let Some(error) = &error {
            document["error"] = error.as_str().into();
        }
        ascii(&format!("{document:#}"))
    } else {
        table(&records, &silent)
    };
    if let Err(exit) = print(&text) {
        return exit.into();
    }
    if is_complete {
        return ExitCode::SUCCESS;
    }
    if let Some(error) = error {
        warn(error);
    }
    ExitCode::FAILURE
}

fn record(node: &FoundNode) -> Option<NodeRecord> {
    NodeRecord::parse(node.answer.as_deref()?)
}

fn json(records: &[(&FoundNode, NodeRecord)], silent: &[Option<u32>]) -> Value {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let event = |event: &RecordedEvent| {
        json!({
            "at_ns": event.at_ns,
            "time": utc(event.time),
            "poller": event.poller,
            "event": event.kind.name(),
            "side": some(&event.side),
            "method": some(&event.method),
            "peer": event.peer.map(|peer| peer.to_string()),
            "code": some(&event.code),
            "took_us": event.took.map(|took| took.as_secs_f64() * 1e6),
            "cause": some(&event.cause),
        })
    };
    let node = |(node, record): &(&FoundNode, NodeRecord)| {
        json!({
            "address": record.address.to_string(),
            "pid": node.pid,
            "events": record.events.iter().map(event).collect::<Vec<_>>(),
            "events_omitted": record.omitted,
        })
    };
    json!({
        "nodes": records.iter().map(node).collect::<Vec<_>>(),
        "silent_pids": silent,
        "not_visible": NOT_VISIBLE,
    })
}

/// Returns a table with one line per node and event.
fn table(records: &[(&FoundNode, NodeRecord)], silent: &[Option<u32>]) -> String {
    let mut text = String::new();
    for (node, record) in records {
        line(&mut text, format_args!("{}  process {}", record.address, pid(node.pid)));
        for event in &record.events {
            line(&mut text, format_args!("  {}  {event}", utc(event.time)));
        }
        if record.omitted > 0 {
            line(&mut text, format_args!("  and {} more events", record.omitted));
        }
    }
    for silent in silent {
        let pid = pid(*silent);
        line(
            &mut text,
            format_args!(
                "process {pid} gives no record: it is stopped, too busy, ending, or of an earlier version"
            ),
        );
    }
    text + NOT_VISIBLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use trunkline_transport::EventKind;
    use trunkline_verbs::Time;

    #[test]
    fn call_without_latency_is_printed_without_time() {
        let event = |took| {
            let mut event = RecordedEvent::new(EventKind::CallFailed, Time(0));
            event.took = Some(took);
            event
        };
        let events = [Duration::ZERO, Duration::from_micros(7)].map(event).to_vec();
        let record =
            NodeRecord { address: "127.0.0.1:7000".parse().expect("an address"), events, omitted: 0 };
        let text = table(&[(&FoundNode::new("a".to_owned(), None, None), record)], &[]);
        assert!(!text.contains("0.0ns") && text.contains(", 7.0µs"), "{text}");
    }
}
