//! The description of itself that a node sends to `trunkctl nodes` through its socket.
//!
//! The text has one line per fact, with the name and the values separated by tabs. Readers skip unknown lines, so
//! later versions may add lines. The node writes the text on the CM machine's thread, without involving its pollers.
#![forbid(unsafe_code)]

use super::{Histogram, MethodReport};
use crate::PeerKey;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use trunkline_softrdma::device::MAX_NODE_BYTES;
use trunkline_softrdma::link::ROCE_PORT;
use trunkline_verbs::QpPath;

/// The first line.
const MAGIC: &str = "trunkline-node 1";
/// Maximum length of a value that is not a number or an address, in bytes.
const LONGEST: usize = 256;
/// End of a value that was shortened.
const CUT: &str = "…";
/// Maximum number of methods that are read from one node.
const MAX_METHODS: usize = 512;
/// Space for the line that counts omitted peers.
const LAST_LINE: usize = 64;

/// Description of a running node, as reported by the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// First address that the node listens on.
    pub address: SocketAddr,
    /// UDP port of the node's device; the RoCEv2 port if the node's version does not report it.
    pub udp_port: u16,
    /// Number of the node's pollers.
    pub pollers: u16,
    /// Paths of the node's packets, such as `shm` or `shm+udp`; the device's link without a session.
    pub link: String,
    /// Kind of the node's connections: `xrc` or `rc`.
    pub connections: String,
    /// True while the node's device is removed.
    pub is_away: bool,
    /// True while the node drains.
    pub is_draining: bool,
    /// Number of packets that the device has retransmitted.
    pub retransmits: u64,
    /// Methods that the node serves and calls.
    pub methods: Vec<MethodStatus>,
    /// Number of omitted methods.
    pub methods_omitted: usize,
    /// Time of the description by the node's own clock, in nanoseconds.
    pub at_ns: u64,
    /// The node's peers, or as many as fit in the text.
    pub peers: Vec<PeerStatus>,
    /// Number of omitted peers.
    pub omitted: usize,
}

/// A method that a running node serves or calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodStatus {
    /// `server` or `client`.
    pub side: String,
    /// Name of the service.
    pub service: String,
    /// Name of the method.
    pub method: String,
    /// Number of failed calls. Excludes cancelled calls, which end in normal operation when a client leaves.
    pub failed: u64,
    /// Number of failed calls that were refused; see [`MethodReport::refused`].
    pub refused: u64,
    /// Number of calls that are running.
    pub running: u64,
    /// Durations of the calls that were not refused.
    pub latency: Histogram,
}

impl MethodStatus {
    /// Returns the status of a method that a report describes.
    #[must_use]
    pub fn of(side: &str, report: &MethodReport) -> Self {
        Self {
            side: side.to_owned(),
            service: report.service.to_owned(),
            method: report.method.to_owned(),
            failed: report.failed.iter().filter(|row| row.code != "CANCELLED").map(|row| row.calls).sum(),
            refused: report.refused,
            running: report.running,
            latency: report.latency.clone(),
        }
    }

    /// Returns the number of finished calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.refused.saturating_add(self.latency.count())
    }

    fn to_text(&self) -> String {
        let Self { side, service, method, failed, refused, running, latency } = self;
        let (service, method, latency) = (clean(service), clean(method), latency.to_text());
        format!("method\t{side}\t{service}\t{method}\t{failed}\t{refused}\t{running}\t{latency}\n")
    }
}

/// A peer of a running node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Address that the peer listens on, with the UDP port of its device if that is not this node's.
    pub address: PeerKey,
    /// True while there is a session with the peer.
    pub is_up: bool,
    /// Principal that the peer has proved in the session; `None` if the peer is unauthenticated.
    pub name: Option<String>,
    /// Level of the session: `encrypted`, `local` (in clear, with a process of the same user on this host) or `none`
    /// (in clear). `None` without a session, or if the node's version does not report it.
    pub level: Option<String>,
    /// Messages sent to the peer, on all pollers, since it was added.
    pub sent: u64,
    /// Messages received from the peer.
    pub received: u64,
    /// Paths of packets to the peer, with the number of QPs on each path.
    pub paths: Vec<PathStatus>,
}

/// A path to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathStatus {
    /// Path: `shm` for shared memory, or the link, such as `udp`.
    pub path: String,
    /// Reason why the path is not shared memory; empty if it is.
    pub why: String,
    /// Number of QPs that use the path.
    pub qps: u32,
}

impl PathStatus {
    pub(crate) fn of(qps: impl Iterator<Item = QpPath>) -> Vec<Self> {
        let mut paths = BTreeMap::<_, u32>::new();
        for path in qps {
            *paths.entry(path).or_default() += 1;
        }
        let status = |(path, qps): (QpPath, u32)| Self { path: path.name.into(), why: path.why.into(), qps };
        paths.into_iter().map(status).collect()
    }
}

impl NodeStatus {
    /// Returns the text form, at most [`MAX_NODE_BYTES`] long. Peers that do not fit are only counted.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{MAGIC}\naddress\t{}\nudp port\t{}\npollers\t{}\nlink\t{}\nconnections\t{}\naway\t{}\ndraining\t{}\nat\t{}\nretransmits\t{}\n",
            self.address,
            self.udp_port,
            self.pollers,
            clean(&self.link),
            clean(&self.connections),
            u8::from(self.is_away),
            u8::from(self.is_draining),
            self.at_ns,
            self.retransmits,
        );
        let mut methods_omitted = self.methods_omitted;
        for method in &self.methods {
            let line = method.to_text();
            if text.len() + line.len() > MAX_NODE_BYTES / 2 {
                methods_omitted += 1;
            } else {
                text += &line;
            }
        }
        // Writing to a string does not fail.
        let _written = writeln!(text, "methods omitted\t{methods_omitted}");
        let mut omitted = self.omitted;
        for (index, peer) in self.peers.iter().enumerate() {
            let lines = peer.to_text();
            if text.len() + lines.len() + LAST_LINE > MAX_NODE_BYTES {
                omitted += self.peers.len() - index;
                break;
            }
            text += &lines;
        }
        let _written = writeln!(text, "omitted\t{omitted}");
        text
    }

    /// Parses the text form. Returns `None` if it does not describe a node.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == MAGIC)?;
        let (mut address, mut pollers, mut unread) = (None, None, 0);
        let mut status = Self {
            address: SocketAddr::from(([0; 4], 0)),
            udp_port: ROCE_PORT,
            pollers: 0,
            link: String::new(),
            connections: String::new(),
            is_away: false,
            is_draining: false,
            at_ns: 0,
            retransmits: 0,
            methods: Vec::new(),
            methods_omitted: 0,
            peers: Vec::new(),
            omitted: 0,
        };
        for line in lines {
            let fields: Vec<_> = line.split('\t').collect();
            match *fields.as_slice() {
                ["address", text] => address = Some(text.parse().ok()?),
                ["udp port", text] => status.udp_port = text.parse().ok()?,
                ["pollers", text] => pollers = Some(text.parse().ok()?),
                ["link", text] => status.link = clean(text),
                ["connections", text] => status.connections = clean(text),
                ["away", text] => status.is_away = text == "1",
                ["draining", text] => status.is_draining = text == "1",
                ["at", text] => status.at_ns = text.parse().ok()?,
                ["retransmits", text] => status.retransmits = text.parse().ok()?,
                ["methods omitted", text] => status.methods_omitted = text.parse().ok()?,
                ["method", ..] if status.methods.len() == MAX_METHODS => unread += 1,
                ["method", side, service, method, failed, refused, running, latency] => {
                    status.methods.push(MethodStatus {
                        side: clean(side),
                        service: clean(service),
                        method: clean(method),
                        failed: failed.parse().ok()?,
                        refused: refused.parse().ok()?,
                        running: running.parse().ok()?,
                        latency: Histogram::parse(latency)?,
                    });
                }
                ["omitted", text] => status.omitted = text.parse().ok()?,
                ["peer", address, is_up, sent, received] => status.peers.push(PeerStatus {
                    address: address.parse().ok()?,
                    is_up: is_up == "1",
                    name: None,
                    level: None,
                    sent: sent.parse().ok()?,
                    received: received.parse().ok()?,
                    paths: Vec::new(),
                }),
                ["name", name] => status.peers.last_mut()?.name = Some(clean(name)),
                ["level", level] => status.peers.last_mut()?.level = Some(clean(level)),
                ["path", path, qps, why] => status.peers.last_mut()?.paths.push(PathStatus {
                    path: clean(path),
                    why: clean(why),
                    qps: qps.parse().ok()?,
                }),
                _ => {}
            }
        }
        (status.address, status.pollers) = (address?, pollers?);
        status.methods_omitted = status.methods_omitted.saturating_add(unread);
        Some(status)
    }
}

impl PeerStatus {
    fn to_text(&self) -> String {
        let Self { address, is_up, name, level, sent, received, paths } = self;
        let mut text = format!("peer\t{address}\t{}\t{sent}\t{received}\n", u8::from(*is_up));
        if let Some(name) = name {
            let _written = writeln!(text, "name\t{}", clean(name));
        }
        if let Some(level) = level {
            let _written = writeln!(text, "level\t{}", clean(level));
        }
        for PathStatus { path, why, qps } in paths {
            // Writing to a string does not fail.
            let _written = writeln!(text, "path\t{}\t{qps}\t{}", clean(path), clean(why));
        }
        text
    }
}

/// Shortens a value to [`LONGEST`], and replaces characters that would end a field, control a terminal, or change the
/// displayed order.
pub(super) fn clean(text: &str) -> String {
    clean_to(LONGEST, text)
}

/// Same as [`clean`], with another maximum length in bytes.
pub(super) fn clean_to(longest: usize, text: &str) -> String {
    let is_plain = |letter: char| letter == ' ' || letter.is_ascii_graphic();
    // The writer may have cut the value.
    let (text, was_cut) = text.strip_suffix(CUT).map_or((text, false), |text| (text, true));
    let letters = text.chars().take(longest + 1);
    let mut text: String = letters.map(|letter| if is_plain(letter) { letter } else { '?' }).collect();
    if was_cut || text.len() > longest {
        text.truncate(longest - CUT.len());
        text.push_str(CUT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FailedCalls;

    fn peer(port: u16) -> PeerStatus {
        let path = |path: &str, why: &str| PathStatus { path: path.into(), why: why.into(), qps: 2 };
        PeerStatus {
            address: format!("127.0.0.1:{port}/4792").parse().unwrap(),
            is_up: true,
            name: Some("spiffe://prod/shop".into()),
            level: Some("encrypted".into()),
            sent: 12,
            received: u64::MAX,
            paths: vec![path("shm", ""), path("udp", "the peer has TRUNKLINE_LINK=udp (or setting link)")],
        }
    }

    fn method(name: &str) -> MethodStatus {
        let mut latency = Histogram::default();
        for us in [0, 3, 3, 900] {
            latency.record(std::time::Duration::from_micros(us));
        }
        let (side, service) = ("server".into(), "Kv".into());
        MethodStatus { side, service, method: name.into(), failed: 2, refused: 1, running: 7, latency }
    }

    fn node(peers: u16) -> NodeStatus {
        NodeStatus {
            address: "[::1]:4000".parse().unwrap(),
            udp_port: 4793,
            pollers: 3,
            link: "udp".into(),
            connections: "xrc".into(),
            is_away: true,
            is_draining: true,
            at_ns: 17,
            retransmits: 4,
            methods: vec![method("get"), method("put")],
            methods_omitted: 0,
            peers: (1..=peers).map(peer).collect(),
            omitted: 0,
        }
    }

    #[test]
    fn status_text_round_trips() {
        for peers in [0, 1, 5] {
            assert_eq!(NodeStatus::parse(&node(peers).to_text()), Some(node(peers)));
        }
    }

    #[test]
    fn cancelled_calls_do_not_count_as_failed() {
        let rows = [("NOT_FOUND", 2), ("CANCELLED", 9), ("ERROR", 3)];
        let report = MethodReport {
            service: "Kv",
            method: "get",
            calls: 14,
            failed: rows.map(|(code, calls)| FailedCalls { code, calls }).into(),
            refused: 0,
            running: 0,
            latency: Histogram::default(),
            queued: Histogram::default(),
        };
        assert_eq!(MethodStatus::of("server", &report).failed, 5);
    }

    #[test]
    fn omitted_peers_are_counted() {
        let text = node(u16::MAX).to_text();
        assert!(text.len() <= MAX_NODE_BYTES, "{}", text.len());
        let read = NodeStatus::parse(&text).unwrap();
        assert!(
            read.omitted > 0 && read.peers.len() + read.omitted == usize::from(u16::MAX),
            "{}",
            read.omitted
        );
    }

    #[test]
    fn omitted_methods_are_counted_and_leave_room_for_peers() {
        let methods = (0..2000).map(|number| method(&format!("method{number}"))).collect();
        let status = NodeStatus { methods, ..node(1) };
        let text = status.to_text();
        assert!(text.len() <= MAX_NODE_BYTES, "{}", text.len());
        let read = NodeStatus::parse(&text).unwrap();
        assert_eq!((read.methods.len() + read.methods_omitted, read.peers), (2000, status.peers));
        // A process that claims to be a node may fill its answer with methods.
        let hostile = format!("{MAGIC}\naddress\t[::1]:1\npollers\t1\n{}", method("m").to_text().repeat(600));
        let read = NodeStatus::parse(&hostile).unwrap();
        assert_eq!((read.methods.len(), read.methods_omitted), (MAX_METHODS, 600 - MAX_METHODS));
        for latency in ["", "1,2", "1,9999:1", "1,0:-1", "x"] {
            assert!(Histogram::parse(latency).is_none(), "{latency}");
        }
    }

    #[test]
    fn foreign_status_texts_are_refused_and_unknown_lines_are_skipped() {
        let text = node(2).to_text();
        assert_eq!(NodeStatus::parse(&format!("{text}colour\tblue\n\t\t\n")), Some(node(2)));
        let earlier = NodeStatus::parse(&text.replace("udp port\t4793\n", ""));
        assert_eq!(earlier, Some(NodeStatus { udp_port: 4791, ..node(2) }));
        for length in 0..text.len() {
            // A truncated text may be parsed in part, or refused. Parsing never panics.
            let _read = NodeStatus::parse(&text[..length]);
        }
        let orphan = format!("{MAGIC}\naddress\t[::1]:1\npollers\t1\npath\tshm\t1\t\n");
        for other in ["", "trunkline-node 2\n", MAGIC, &orphan, &text.replace("\t12\t", "\t-12\t")] {
            assert_eq!(NodeStatus::parse(other), None, "{other}");
        }
        let escape = NodeStatus { link: "u\u{1b}[2Jdp\t\n".into(), ..node(0) };
        assert_eq!(NodeStatus::parse(&escape.to_text()).unwrap().link, "u?[2Jdp??");
    }

    /// Any process of the same user can claim to be a node.
    #[test]
    fn status_values_are_bounded_and_have_no_control_characters() {
        let long = "\u{1b}[31m".repeat(MAX_NODE_BYTES / 8);
        let head = format!("{MAGIC}\naddress\t[::1]:1\npollers\t1\n");
        let text = format!("{head}link\t{long}\nconnections\tx\u{202e}\u{2028}\u{85}rc\n");
        let read = NodeStatus::parse(&text).unwrap();
        assert_eq!((read.link.len(), read.connections.as_str()), (LONGEST, "x???rc"));
        assert!(read.link.starts_with("?[31m?[31m"), "{}", read.link);
    }
}
