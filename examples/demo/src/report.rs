//! Report of the demo, as text and as JSON.

use crate::service::Wire;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;
use trunkline::{NodeReport, PathReport};

/// Report on the measurements of both sides.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) node: NodeReport,
    pub(crate) files: u64,
    /// Total size of the files in bytes.
    pub(crate) bytes: u64,
    /// Number of files whose SHA-256 differs from the SHA-256 of the file on disk.
    pub(crate) mismatches: u64,
    /// Time to fetch all files.
    pub(crate) fetch: Duration,
    /// Latencies of the small calls, in nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) called: Duration,
    /// Number of concurrent small calls.
    pub(crate) in_flight: u32,
    /// Number of pollers on each side.
    pub(crate) pollers: u16,
    /// Counters of the server's device.
    pub(crate) wire: Wire,
    /// Faults injected on each side, in the format of `TRUNKLINE_FAULTS`.
    pub(crate) faults: Option<String>,
}

impl Report {
    fn calls_per_s(&self) -> f64 {
        self.latencies.len() as f64 / self.called.as_secs_f64()
    }

    /// Returns the total numbers of RNR NAKs and of retransmitted packets on both sides.
    fn wire(&self) -> [u64; 2] {
        [self.node.rnr + self.wire.rnr, self.node.retransmits + self.wire.retransmits]
    }

    /// Returns the report as JSON. Times are in nanoseconds.
    pub(crate) fn json(&self) -> Value {
        let (node, [rnr, retransmits]) = (&self.node, self.wire());
        let quantile = |share| self.latencies.value_at_quantile(share);
        // One entry represents all QPs of the client's node with the same path and remote address.
        let paths = node.paths.iter().map(|path| {
            let PathReport { address, path, why, qps, .. } = path;
            json!({ "address": address.to_string(), "path": path, "why": why, "qps": qps })
        });
        // One entry represents a client poller, which owns the trunk, and a server poller.
        let messages = node.traffic.iter().map(|lane| {
            let (trunk, to_poller) = (lane.local.0, lane.remote.0);
            json!({ "trunk": trunk, "to_poller": to_poller, "sent": lane.sent, "received": lane.received })
        });
        json!({
            "provider": node.provider.to_string(),
            "link": node.link,
            "device": node.device,
            "address": node.address.to_string(),
            "gid_index": node.gid_index,
            "reason": node.why,
            "connections": node.connections,
            "connections_reason": node.connections_why,
            "paths": paths.collect::<Vec<_>>(),
            "files": self.files,
            "bytes": self.bytes,
            "mismatches": self.mismatches,
            "fetch_ns": u64::try_from(self.fetch.as_nanos()).unwrap_or(u64::MAX),
            "calls": self.latencies.len(),
            "p50_ns": quantile(0.5),
            "p99_ns": quantile(0.99),
            "p999_ns": quantile(0.999),
            "calls_per_s": self.calls_per_s(),
            "in_flight": self.in_flight,
            "pollers": self.pollers,
            "qps_per_node": node.qps(),
            "ini_qps": node.ini,
            "tgt_qps": node.tgt,
            "srqs": node.srqs,
            "rnr": rnr,
            "retransmits": retransmits,
            // True if the client has more pollers than CPUs that they may use.
            "oversubscribed": node.oversubscribed,
            "faults": self.faults,
            "messages": messages.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, [rnr, retransmits]) = (&self.node, self.wire());
        let us = |share| self.latencies.value_at_quantile(share) as f64 / 1e3;
        writeln!(f, "provider   {} over {} ({})", node.provider, node.link, node.why)?;
        writeln!(f, "connections {} ({})", node.connections, node.connections_why)?;
        for PathReport { address, path, why, qps, .. } in &node.paths {
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            writeln!(f, "path       {path} to {address}, {qps} QPs{why}")?;
        }
        let gid = node.gid_index.map_or("no GID".to_owned(), |index| format!("GID {index}"));
        writeln!(f, "device     {} at {}, {gid}", node.device, node.address)?;
        let (files, bytes, mismatches) = (self.files, self.bytes, self.mismatches);
        let seconds = self.fetch.as_secs_f64();
        writeln!(f, "files      {files} files, {bytes} bytes in {seconds:.2} s, {mismatches} mismatches")?;
        writeln!(
            f,
            "calls      {} ({} under way at once): p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, {:.0} calls/s",
            self.latencies.len(),
            self.in_flight,
            us(0.5),
            us(0.99),
            us(0.999),
            self.calls_per_s()
        )?;
        writeln!(
            f,
            "queues     {} pollers a side: {} QPs per node ({} INI, {} TGT), {} SRQs",
            self.pollers,
            node.qps(),
            node.ini,
            node.tgt,
            node.srqs
        )?;
        for lane in &node.traffic {
            writeln!(
                f,
                "trunk {}    to the server's poller {}: {} messages, {} back",
                lane.local.0, lane.remote.0, lane.sent, lane.received
            )?;
        }
        writeln!(f, "wire       {rnr} RNR NAKs, {retransmits} retransmissions")?;
        if let Some(faults) = &self.faults {
            writeln!(f, "faults     {faults} (on each side)")?;
        }
        let cpus = if node.oversubscribed { "yes: more pollers than CPUs" } else { "no" };
        write!(f, "oversubscribed: {cpus}")
    }
}
