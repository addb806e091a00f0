//! The demo's report, as text and as JSON.

use serde::Serialize;
use std::fmt;

/// The report. The JSON keys are the field names; times are in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// Family of the device: softrdma or rdma-core.
    pub(crate) provider: String,
    /// Link of the device's packets, such as udp.
    pub(crate) link: String,
    /// Name of the device.
    pub(crate) device: String,
    /// The client's address.
    pub(crate) address: String,
    /// Index of that address in the device's GID table.
    pub(crate) gid_index: Option<u16>,
    /// Why this provider and this device were chosen.
    pub(crate) reason: String,
    /// Kind of the connections: xrc or rc.
    pub(crate) connections: String,
    /// Reason for the kind of connections.
    pub(crate) connections_reason: String,
    /// Paths of packets to the server, by QPs.
    pub(crate) paths: Vec<PeerPath>,
    /// Number of files fetched.
    pub(crate) files: u64,
    /// Total size of the files in bytes.
    pub(crate) bytes: u64,
    /// Files whose SHA-256 differs from the SHA-256 of the file on disk.
    pub(crate) mismatches: u64,
    /// Time to fetch all files.
    pub(crate) fetch_ns: u64,
    /// Number of small calls made.
    pub(crate) calls: u64,
    /// Median latency of the small calls.
    pub(crate) p50_ns: u64,
    /// 99th percentile of their latency.
    pub(crate) p99_ns: u64,
    /// 99.9th percentile of their latency.
    pub(crate) p999_ns: u64,
    /// Small calls per second.
    pub(crate) calls_per_s: f64,
    /// Number of small calls in flight at once.
    pub(crate) in_flight: u32,
    /// Number of pollers on each side.
    pub(crate) pollers: u16,
    /// Number of QPs of the client's node: INI and TGT, or RC.
    pub(crate) qps_per_node: u32,
    /// Number of QPs that send.
    pub(crate) ini_qps: u32,
    /// Number of QPs that receive.
    pub(crate) tgt_qps: u32,
    /// Number of SRQs of the client's node.
    pub(crate) srqs: u32,
    /// Number of RNR NAKs that both sides sent and received.
    pub(crate) rnr: u64,
    /// Number of packets that both sides retransmitted.
    pub(crate) retransmits: u64,
    /// True if the client's pollers outnumbered the CPUs that they may use.
    pub(crate) oversubscribed: bool,
    /// Faults injected on each side, in the form of `TRUNKLINE_FAULTS`.
    pub(crate) faults: Option<String>,
    /// Messages from each of the client's pollers (its trunk to the server) to each poller of
    /// the server.
    pub(crate) messages: Vec<Messages>,
}

/// QPs of the client's node that take the same path to the same address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PeerPath {
    /// Address of the peer.
    pub(crate) address: String,
    /// Path: shm for shared memory, otherwise the link.
    pub(crate) path: &'static str,
    /// Reason why it is not shared memory.
    pub(crate) why: &'static str,
    /// Number of QPs.
    pub(crate) qps: u32,
}

/// Messages between one poller of the client and one of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Messages {
    /// Index of the client's poller, which owns the trunk.
    pub(crate) trunk: u16,
    /// Index of the server's poller.
    pub(crate) to_poller: u16,
    /// Number of messages that the client sent.
    pub(crate) sent: u64,
    /// Number of messages that the client received from that poller.
    pub(crate) received: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        writeln!(f, "provider   {} over {} ({})", self.provider, self.link, self.reason)?;
        writeln!(f, "connections {} ({})", self.connections, self.connections_reason)?;
        for PeerPath { address, path, why, qps } in &self.paths {
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            writeln!(f, "path       {path} to {address}, {qps} QPs{why}")?;
        }
        let gid = self.gid_index.map_or("no GID".to_owned(), |index| format!("GID {index}"));
        writeln!(f, "device     {} at {}, {gid}", self.device, self.address)?;
        writeln!(
            f,
            "files      {} files, {} bytes in {:.2} s, {} mismatches",
            self.files,
            self.bytes,
            self.fetch_ns as f64 / 1e9,
            self.mismatches
        )?;
        writeln!(
            f,
            "calls      {} ({} under way at once): p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, {:.0} calls/s",
            self.calls,
            self.in_flight,
            us(self.p50_ns),
            us(self.p99_ns),
            us(self.p999_ns),
            self.calls_per_s
        )?;
        writeln!(
            f,
            "queues     {} pollers a side: {} QPs per node ({} INI, {} TGT), {} SRQs",
            self.pollers, self.qps_per_node, self.ini_qps, self.tgt_qps, self.srqs
        )?;
        for way in &self.messages {
            writeln!(
                f,
                "trunk {}    to the server's poller {}: {} messages, {} back",
                way.trunk, way.to_poller, way.sent, way.received
            )?;
        }
        writeln!(f, "wire       {} RNR NAKs, {} retransmissions", self.rnr, self.retransmits)?;
        if let Some(faults) = &self.faults {
            writeln!(f, "faults     {faults} (on each side)")?;
        }
        let cpus = if self.oversubscribed { "yes: more pollers than CPUs" } else { "no" };
        write!(f, "oversubscribed: {cpus}")
    }
}
