//! `trunkctl nodes`: lists this user's running nodes with their peers.
//!
//! The CM thread of a node answers the query, so nodes with blocked handlers answer too. Stopped processes delay the list
//! by at most one second per 64 nodes, or two seconds if rates are measured.

use crate::streams::{ascii, fail, finish, warn};
use clap::Args;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use trunkline_softrdma::device::{
    DeviceList, FoundNode, HostError, MAX_NODES, NodeRequest, ask_nodes, list_devices,
};
use trunkline_softrdma::link::{Owner, PortOwner, printable};
use trunkline_transport::{NodeStatus, PathStatus, PeerStatus, host_has, utc};

/// Maximum time to wait for answers from 64 nodes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Clock ticks per second in `/proc`, on all architectures that Rust supports.
const USER_HZ: u64 = 100;
/// Note about nodes that do not appear in the list.
pub(crate) const NOT_VISIBLE: &str = "not visible: nodes on NICs, in-process nodes, and those of another user, network namespace or runtime directory";

/// List the running nodes of this user and network namespace: address, process, pollers, the path and the message
/// rate of each peer, and the processes that hold and use the UDP port of each address
///
/// Exit status: 0 all nodes answered, or there are none; 1 a process does not answer, the runtime directory cannot be used, or
/// the list cannot be written; 2 the command line is invalid.
#[derive(Debug, Args)]
pub struct NodesArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Time over which rates are measured, in milliseconds; 0 lists without rates
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    interval_ms: u64,
}

/// The nodes found.
#[derive(Debug)]
struct Listing {
    nodes: Vec<ListedNode>,
    /// UDP ports on which these nodes receive, by address.
    ports: Vec<UdpPort>,
    /// Processes whose nodes do not answer, because they are stopped, busy or ending, or because their version differs.
    silent_pids: Vec<Option<u32>>,
    /// True if there are more nodes than were queried.
    is_cut: bool,
}

#[derive(Debug)]
struct ListedNode {
    /// Process ID. `None` if the PID namespace of the process is not visible.
    pid: Option<u32>,
    /// Status of the node. It includes peers that the node still remembers, such as clients that have ended.
    status: NodeStatus,
    /// Rates of messages sent to and received from each peer, per second. `None` if they were not measured.
    rates: Vec<[Option<f64>; 2]>,
}

/// UDP port of the nodes at an address.
#[derive(Debug)]
pub(crate) struct UdpPort {
    at: SocketAddr,
    /// `None` if unknown.
    holder: Option<Holder>,
    /// Other processes with devices at the address. The holder forwards their packets to them.
    senders: BTreeSet<u32>,
}

/// Owner of a UDP port.
#[derive(Debug)]
struct Holder {
    owner: PortOwner,
    uid: Option<u32>,
    /// Start time of the process, in UTC.
    since: Option<String>,
    /// True if the process is stopped, for example by SIGSTOP. No node at the address then receives packets over UDP.
    is_stopped: bool,
}

impl Holder {
    /// Creates the holder from the owner of a port. Only processes in `silent`, whose nodes do not answer, are checked
    /// for being stopped.
    fn new(owner: PortOwner, silent: &[Option<u32>]) -> Self {
        let at = SocketAddr::new(owner.address, owner.port);
        let is_stopped = match owner.who {
            Owner::Process { pid, .. } => {
                silent.contains(&Some(pid)) && PortOwner::stopped_at(at) == Some(pid)
            }
            _ => false,
        };
        let (uid, since) = match &owner.who {
            Owner::Process { pid, .. } => {
                let process = Path::new("/proc").join(pid.to_string());
                (fs::metadata(&process).ok().map(|process| process.uid()), began(&process))
            }
            Owner::Hidden { uid } => (Some(*uid), None),
            Owner::Kernel => (None, None),
        };
        Self { owner, uid, since, is_stopped }
    }

    /// Returns the process ID and the name of the program, if they are known.
    fn process(&self) -> Option<(u32, &str)> {
        let Owner::Process { pid, program, .. } = &self.owner.who else { return None };
        Some((*pid, program))
    }
}

impl UdpPort {
    pub(crate) fn json(&self) -> Value {
        let Self { at, holder, senders } = self;
        let process = holder.as_ref().and_then(Holder::process);
        json!({
            "address": at.ip(),
            "port": at.port(),
            "pid": process.map(|(pid, _)| pid),
            "program": process.map(|(_, program)| program),
            "uid": holder.as_ref().and_then(|holder| holder.uid),
            "since": holder.as_ref().and_then(|holder| holder.since.as_ref()),
            "is_stopped": holder.as_ref().is_some_and(|holder| holder.is_stopped),
            "senders": senders,
        })
    }
}

impl fmt::Display for UdpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP port {} at {}: ", self.at.port(), self.at.ip())?;
        match &self.holder {
            Some(holder) => {
                match holder.process() {
                    Some((pid, program)) => write!(f, "process {pid} ({})", printable(program))?,
                    None => holder.owner.fmt(f)?,
                }
                if let (Some(uid), Some(since)) = (holder.uid, &holder.since) {
                    write!(f, ", user {uid}, since {since}")?;
                }
            }
            None => f.write_str("its process is unknown")?,
        }
        if !self.senders.is_empty() {
            let senders: Vec<_> = self.senders.iter().map(u32::to_string).collect();
            write!(f, "; used by {}", senders.join(", "))?;
        }
        if let Some(holder) = self.holder.as_ref().filter(|holder| holder.is_stopped)
            && let Some((pid, _)) = holder.process()
        {
            write!(f, "; is stopped: kill -CONT {pid}, or end it")?;
        }
        Ok(())
    }
}

/// Returns the start time of a process, in UTC.
fn began(process: &Path) -> Option<String> {
    let stat = fs::read(process.join("stat")).ok()?;
    // The name in parentheses, which is the second field, may contain any bytes.
    let fields = str::from_utf8(stat.rsplit(|byte| *byte == b')').next()?).ok()?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let began = Duration::from_secs(booted) + Duration::from_millis(ticks.checked_mul(1000 / USER_HZ)?);
    let mut text = utc(SystemTime::UNIX_EPOCH.checked_add(began)?);
    text.truncate("2027-01-31T18:05:00".len());
    Some(text + "Z")
}

/// Returns the UDP ports of the nodes that answered, and the ports held by silent processes. `devices` lists the devices
/// in the same runtime directory.
fn udp_ports(nodes: &[ListedNode], silent: &[Option<u32>], devices: &DeviceList) -> Vec<UdpPort> {
    let mut all: BTreeSet<_> = nodes
        .iter()
        .map(|node| SocketAddr::new(node.status.address.ip().to_canonical(), node.status.udp_port))
        .collect();
    if !silent.is_empty() {
        // A silent node does not report its port. Each device has registered its ports, the lowest of which is usually
        // the receiving port.
        let first = |(ip, devices): (&IpAddr, &Vec<BTreeSet<u16>>)| {
            let first = devices.iter().filter_map(|ports| ports.first());
            first.map(|port| SocketAddr::new(*ip, *port)).collect::<Vec<_>>()
        };
        let unlisted: Vec<_> = devices.ports.iter().flat_map(first).filter(|at| !all.contains(at)).collect();
        let held = |owner: &PortOwner| match owner.who {
            Owner::Process { pid, .. } => silent.contains(&Some(pid)),
            _ => false,
        };
        let owners = PortOwner::find_all(&unlisted).into_iter();
        all.extend(owners.filter(|(_, owner)| held(owner)).map(|(at, _)| at));
    }
    let others = |at: &SocketAddr| {
        let devices = devices.ports.get(&at.ip()).into_iter().flatten();
        let receives = |port: &u16| all.contains(&SocketAddr::new(at.ip(), *port));
        let first = devices.filter(|ports| !ports.iter().any(receives)).filter_map(|ports| ports.first());
        first.map(|port| SocketAddr::new(at.ip(), *port)).collect::<Vec<_>>()
    };
    let places: Vec<_> = all.iter().flat_map(|at| others(at).into_iter().chain([*at])).collect();
    let mut owners = PortOwner::find_all(&places);
    let port = |at: SocketAddr| {
        let holder = owners.remove(&at).map(|owner| Holder::new(owner, silent));
        let own = holder.as_ref().and_then(Holder::process).map(|(pid, _)| pid);
        let pid = |at| match owners.get(&at)?.who {
            Owner::Process { pid, .. } => Some(pid).filter(|pid| Some(*pid) != own),
            _ => None,
        };
        let senders = others(&at).into_iter().filter_map(pid).collect();
        UdpPort { at, holder, senders }
    };
    all.iter().copied().map(port).collect()
}

/// Returns the UDP ports held by processes whose nodes do not answer.
pub(crate) fn ports_of_silent(silent_pids: &[Option<u32>]) -> Vec<UdpPort> {
    if silent_pids.is_empty() {
        return Vec::new();
    }
    udp_ports(&[], silent_pids, &list_devices(None).unwrap_or_default())
}

/// Queries the nodes in the default runtime directory. If the directory does not exist, the result is empty, and a note
/// is written to standard error if `is_first` is true.
///
/// # Errors
/// Reports the error, also as JSON if `is_json` is true, and returns the exit status of the program if the directory
/// cannot be used.
pub(crate) fn ask(request: NodeRequest, is_first: bool, is_json: bool) -> Result<Vec<FoundNode>, ExitCode> {
    let found = unless_absent(ask_nodes(None, request, PATIENCE), is_first, Vec::new);
    found.map_err(|error| fail(error, is_json, 1))
}

/// Replaces the error for an absent runtime directory with the value of `none`. Writes a note to standard error if
/// `is_noted` is true.
///
/// # Errors
/// Returns all other errors.
pub(crate) fn unless_absent<T>(
    result: Result<T, HostError>,
    is_noted: bool,
    none: impl FnOnce() -> T,
) -> Result<T, HostError> {
    match result {
        Err(absent @ HostError::Absent { .. }) => {
            if is_noted {
                warn(absent);
            }
            Ok(none())
        }
        result => result,
    }
}

/// Lists the nodes. If the runtime directory does not exist, the list is empty, and a note is written to standard error.
/// Returns exit status 1 if a process does not answer, the directory cannot be used, or the list cannot be written.
#[must_use]
pub fn run(arguments: &NodesArguments) -> ExitCode {
    let listing = listing(None, Duration::from_millis(arguments.interval_ms));
    let listing = match unless_absent(listing, true, || list(&[], &BTreeMap::new())) {
        Ok(listing) => listing,
        Err(error) => return fail(error, arguments.json, 1),
    };
    let text = if arguments.json { ascii(&json(&listing)) } else { table(&listing) };
    finish(&text, u8::from(!listing.silent_pids.is_empty()))
}

fn listing(directory: Option<&Path>, interval: Duration) -> Result<Listing, HostError> {
    let mut earlier = BTreeMap::new();
    if !interval.is_zero() {
        let statuses = ask_nodes(directory, NodeRequest::Status, PATIENCE)?.into_iter();
        earlier = statuses.filter_map(|node| Some((node.name.clone(), status(&node)?))).collect();
        std::thread::sleep(interval);
    }
    let mut listing = list(&ask_nodes(directory, NodeRequest::Status, PATIENCE)?, &earlier);
    if !listing.nodes.is_empty() || !listing.silent_pids.is_empty() {
        // The holders of the ports are known even if the registry is full.
        let devices = list_devices(directory).unwrap_or_default();
        listing.ports = udp_ports(&listing.nodes, &listing.silent_pids, &devices);
    }
    Ok(listing)
}

pub(crate) fn status(node: &FoundNode) -> Option<NodeStatus> {
    NodeStatus::parse(node.answer.as_deref()?)
}

/// Returns the nodes found. Rates are computed from earlier answers, which are matched by node name.
fn list(found: &[FoundNode], earlier: &BTreeMap<String, NodeStatus>) -> Listing {
    let mut listing = Listing {
        nodes: Vec::new(),
        ports: Vec::new(),
        silent_pids: Vec::new(),
        is_cut: found.len() >= MAX_NODES,
    };
    for node in found {
        match status(node) {
            Some(status) => {
                let rates = status.peers.iter().map(|peer| rates(&status, peer, earlier.get(&node.name)));
                listing.nodes.push(ListedNode { pid: node.pid, rates: rates.collect(), status });
            }
            None => listing.silent_pids.push(node.pid),
        }
    }
    listing.nodes.sort_by_key(|node| (node.status.address.to_string(), node.pid));
    listing
}

/// Returns the time between two statuses of a node, in seconds.
pub(crate) fn seconds(now: &NodeStatus, earlier: &NodeStatus) -> Option<f64> {
    let passed_ns = now.at_ns.checked_sub(earlier.at_ns).filter(|passed_ns| *passed_ns > 0)?;
    Some(passed_ns as f64 / 1e9)
}

/// Returns the number of messages per second sent to and received from a peer since the earlier status of the node.
pub(crate) fn rates(now: &NodeStatus, peer: &PeerStatus, earlier: Option<&NodeStatus>) -> [Option<f64>; 2] {
    let since = |of: fn(&PeerStatus) -> u64| {
        let earlier = earlier?;
        let before = earlier.peers.iter().find(|before| before.address == peer.address)?;
        // The counters of a peer that was forgotten in the meantime restart at 0.
        Some(of(peer).checked_sub(of(before))? as f64 / seconds(now, earlier)?)
    };
    [since(|peer| peer.sent), since(|peer| peer.received)]
}

fn json(listing: &Listing) -> String {
    let path = |PathStatus { path, why, qps }: &PathStatus| json!({ "path": path, "why": why, "qps": qps });
    let peer = |(peer, rates): (&PeerStatus, &[Option<f64>; 2])| {
        json!({
            "address": peer.address.to_string(),
            "is_up": peer.is_up,
            "name": peer.name,
            "level": peer.level,
            "paths": peer.paths.iter().map(path).collect::<Vec<_>>(),
            "sent": peer.sent,
            "received": peer.received,
            "sent_per_s": rates[0],
            "received_per_s": rates[1],
        })
    };
    let node = |ListedNode { pid, status, rates }: &ListedNode| {
        json!({
            "address": status.address.to_string(),
            "pid": pid,
            "pollers": status.pollers,
            "link": status.link,
            "connections": status.connections,
            "is_device_removed": status.is_away,
            "is_draining": status.is_draining,
            "is_address_missing": !host_has(status.address.ip()),
            "peers": status.peers.iter().zip(rates).map(peer).collect::<Vec<_>>(),
            "peers_omitted": status.omitted,
        })
    };
    let document = json!({
        "nodes": listing.nodes.iter().map(node).collect::<Vec<_>>(),
        "ports": listing.ports.iter().map(UdpPort::json).collect::<Vec<_>>(),
        "silent_pids": listing.silent_pids,
        "is_cut": listing.is_cut,
        "not_visible": NOT_VISIBLE,
    });
    format!("{document:#}")
}

/// Returns a table with one line per node and one per path to a peer.
fn table(listing: &Listing) -> String {
    let mut text =
        format!("{:<45} {:>8} {:>7} {:>4} {:>8}\n", "ADDRESS", "PID", "POLLERS", "KIND", "SESSIONS");
    for ListedNode { pid: own, status: node, rates } in &listing.nodes {
        let sessions = node.peers.iter().filter(|peer| peer.is_up).count();
        // Omitted peers may have sessions, so the count is a lower bound.
        let sessions = format!("{sessions}{}", if node.omitted > 0 { "+" } else { "" });
        let state = state(node);
        line(
            &mut text,
            format_args!(
                "{:<45} {:>8} {:>7} {:>4} {sessions:>8}{state}",
                node.address.to_string(),
                pid(*own),
                node.pollers,
                node.connections
            ),
        );
        for (peer, rates) in node.peers.iter().zip(rates) {
            line(&mut text, format_args!("  {}", peer_line(peer, rates)));
        }
        if node.omitted > 0 {
            line(&mut text, format_args!("  and {} more peers", node.omitted));
        }
    }
    for port in &listing.ports {
        line(&mut text, format_args!("{port}"));
    }
    silent_lines(&mut text, &listing.silent_pids);
    if listing.is_cut {
        line(&mut text, format_args!("more than {MAX_NODES} nodes run; the others are not listed"));
    }
    text + NOT_VISIBLE
}

/// Returns notes for a node that drains, or whose device or address is gone.
pub(crate) fn state(node: &NodeStatus) -> String {
    let mut notes = String::new();
    if node.is_away {
        notes += "  device removed";
    }
    if node.is_draining {
        notes += "  draining";
    }
    if !host_has(node.address.ip()) {
        notes += "  its address is on no interface of this host";
    }
    notes
}

/// Appends one line for each process that does not answer.
pub(crate) fn silent_lines(text: &mut String, silent_pids: &[Option<u32>]) {
    for silent in silent_pids {
        let why = "it is stopped, too busy, ending, or of another version";
        line(text, format_args!("process {} does not answer: {why}", pid(*silent)));
    }
}

/// Formats a process ID; `-` if it is unknown.
pub(crate) fn pid(pid: Option<u32>) -> String {
    pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())
}

/// Appends a line. It is escaped, because names and causes may come from peers.
pub(crate) fn line(text: &mut String, line: fmt::Arguments<'_>) {
    text.push_str(&printable(&line.to_string()));
    text.push('\n');
}

pub(crate) fn peer_line(peer: &PeerStatus, rates: &[Option<f64>; 2]) -> String {
    let path = |PathStatus { path, why, qps }: &PathStatus| {
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        format!("{path} ({qps} QPs{why})")
    };
    let paths: Vec<_> = peer.paths.iter().map(path).collect();
    let paths = match (peer.is_up, paths.is_empty()) {
        (false, _) => "no session".to_owned(),
        (true, true) => "path unknown".to_owned(),
        (true, false) => paths.join(", "),
    };
    let rate = |name: &str, count: u64, per_s: Option<f64>| {
        let per_s = per_s.map_or_else(String::new, |per_s| format!(" ({per_s:.0}/s)"));
        format!("{count} {name}{per_s}")
    };
    let (sent, received) = (rate("sent", peer.sent, rates[0]), rate("received", peer.received, rates[1]));
    let facts = [&peer.name, &peer.level].into_iter().flatten().map(|fact| format!("{fact}; "));
    let facts: String = facts.collect();
    format!("{:<43} {facts}{sent}, {received}; {paths}", peer.address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(at_ns: u64, sent: u64) -> NodeStatus {
        let path = |path: &str, why: &str| PathStatus { path: path.into(), why: why.into(), qps: 2 };
        NodeStatus {
            address: "127.0.0.1:4000".parse().expect("an address"),
            udp_port: 4792,
            pollers: 2,
            link: "udp".into(),
            connections: "xrc".into(),
            is_away: false,
            is_draining: false,
            at_ns,
            retransmits: 0,
            methods: Vec::new(),
            methods_omitted: 0,
            peers: vec![PeerStatus {
                address: "127.0.0.1:4001".parse().expect("an address"),
                is_up: true,
                name: Some("shop.example".into()),
                level: Some("encrypted".into()),
                sent,
                received: 5,
                paths: vec![path("shm", ""), path("udp", "the peer has TRUNKLINE_LINK=udp")],
            }],
            omitted: 3,
        }
    }

    fn found(name: &str, pid: u32, answer: Option<String>) -> FoundNode {
        FoundNode::new(name.to_owned(), Some(pid), answer)
    }

    #[test]
    fn ports_name_their_holders_and_users() {
        let at: SocketAddr = "127.0.0.1:4792".parse().expect("an address");
        let port = |holder: Option<(Owner, Option<u32>)>, senders: &[u32]| {
            let holder = holder.map(|(who, uid)| Holder {
                owner: PortOwner { address: at.ip(), port: at.port(), who },
                uid,
                since: uid.map(|_| "2027-01-31T18:05:00Z".to_owned()),
                is_stopped: false,
            });
            UdpPort { at, holder, senders: senders.iter().copied().collect() }
        };
        let process = Owner::Process { pid: 17, program: "a\u{1b}b".into(), runtime_directory: None };
        let ports = vec![
            port(Some((process, Some(7))), &[19, 18]),
            port(Some((Owner::Hidden { uid: 5 }, None)), &[]),
            port(None, &[]),
        ];
        let texts: Vec<_> = ports.iter().map(ToString::to_string).collect();
        let expected = "UDP port 4792 at 127.0.0.1: process 17 (a\\u{1b}b), user 7, since 2027-01-31T18:05:00Z; used by 18, 19";
        assert_eq!(texts[0], expected);
        assert!(texts[1].contains("a process of user 5") && texts[2].ends_with("is unknown"), "{texts:?}");
        let listing = Listing { ports, ..list(&[], &BTreeMap::new()) };
        assert!(table(&listing).contains(expected));
        let json: Value = serde_json::from_str(&json(&listing)).expect("JSON");
        let expected = json!({
            "address": "127.0.0.1", "port": 4792, "pid": 17, "program": "a\u{1b}b", "uid": 7,
            "since": "2027-01-31T18:05:00Z", "is_stopped": false, "senders": [18, 19],
        });
        assert_eq!(json["ports"][0], expected);
        assert!(json["ports"][1]["pid"].is_null(), "{json}");
    }

    #[test]
    fn nodes_are_listed_with_paths_reasons_and_rates() {
        let earlier = BTreeMap::from([("a".to_owned(), node(1_000_000_000, 100))]);
        let now = NodeStatus { is_draining: true, ..node(3_000_000_000, 700) };
        let listing = list(&[found("a", 17, Some(now.to_text())), found("b", 18, None)], &earlier);
        assert_eq!(listing.nodes[0].rates, [[Some(300.0), Some(0.0)]]);
        let text = table(&listing);
        for part in [
            "127.0.0.1:4000",
            "17",
            "  draining",
            "shop.example; encrypted; 700 sent (300/s), 5 received (0/s); shm (2 QPs), udp (2 QPs: the peer has TRUNKLINE_LINK=udp)",
            "and 3 more peers",
            "process 18 does not answer: it is stopped, too busy, ending, or of another version",
            "not visible: nodes on NICs, in-process nodes",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json: Value = serde_json::from_str(&json(&listing)).expect("JSON");
        assert_eq!(json["nodes"][0]["peers"][0]["paths"][1]["why"], "the peer has TRUNKLINE_LINK=udp");
        assert_eq!(json["nodes"][0]["is_draining"], true);
        assert_eq!(json["nodes"][0]["peers"][0]["name"], "shop.example");
        assert_eq!(json["nodes"][0]["peers"][0]["level"], "encrypted");
        assert_eq!((&json["nodes"][0]["pid"], &json["silent_pids"][0]), (&17.into(), &18.into()));
    }

    #[test]
    fn node_with_removed_address_is_noted() {
        let address = "192.0.2.1:4000".parse().expect("a documentation address");
        assert_eq!(
            state(&NodeStatus { address, ..node(1, 0) }),
            "  its address is on no interface of this host"
        );
        assert_eq!(state(&node(1, 0)), "");
    }

    /// A node remembers an ended client for some time.
    #[test]
    fn peers_without_session_are_not_counted_as_sessions() {
        let mut status = NodeStatus { omitted: 0, ..node(1, 0) };
        let ended = PeerStatus { is_up: false, paths: Vec::new(), ..status.peers[0].clone() };
        status.peers.extend([ended.clone(), ended]);
        let count = |status: NodeStatus| {
            let text = table(&list(&[found("a", 17, Some(status.to_text()))], &BTreeMap::new()));
            let node = text.lines().nth(1).and_then(|line| line.split_whitespace().last()).map(str::to_owned);
            (node, text.matches("no session").count())
        };
        assert_eq!(count(status.clone()), (Some("1".to_owned()), 2));
        assert_eq!(count(NodeStatus { omitted: 3, ..status }), (Some("1+".to_owned()), 2));
    }

    /// Any process of the user can claim to be a node.
    #[test]
    fn numbers_of_hostile_node_are_shown_unchanged() {
        let hostile = NodeStatus { omitted: usize::MAX, at_ns: u64::MAX, ..node(0, u64::MAX) };
        let earlier = BTreeMap::from([("a".to_owned(), node(1, 0))]);
        let listing = list(&[found("a", u32::MAX, Some(hostile.to_text()))], &earlier);
        assert!(table(&listing).contains(&format!("and {} more peers", usize::MAX)), "{listing:?}");
        assert!(json(&listing).contains("peers_omitted"));
    }

    /// A counter or clock that went backwards, for example after a restart under the same name, gives no rate.
    #[test]
    fn incomparable_counters_have_no_rate() {
        for earlier in [node(1, 900), node(9, 100), node(5, 100)] {
            let earlier = BTreeMap::from([("a".to_owned(), earlier)]);
            let listing = list(&[found("a", 17, Some(node(5, 700).to_text()))], &earlier);
            assert_eq!(listing.nodes[0].rates[0][0], None);
        }
        let listing = list(&[found("a", 17, Some("nonsense".to_owned()))], &BTreeMap::new());
        assert_eq!((listing.nodes.len(), listing.silent_pids), (0, vec![Some(17)]));
    }
}
