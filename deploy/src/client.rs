//! The client side of `trunkctl ping` and `trunkctl health`: its options and its node.

use clap::Args;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
#[cfg(feature = "identity")]
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use trunkline::device::PathChoice;
use trunkline::report::{EventKind, PeerKey, RecordedEvent};
use trunkline::stub::CODES;
use trunkline::{Channel, Node, Reason, StartError, Status, Target, block_on};

/// Cause of a time limit that passes before the first attempt has an outcome.
const NO_OUTCOME: &str =
    "the first attempt to connect has no outcome yet: a longer time limit gives the cause";

/// The server, and the identities that the client proves and expects.
#[derive(Debug, Args)]
pub struct ClientArguments {
    /// Server: a host name or an IP address, and a port; with a slash and a UDP port after it if the server's software device has
    /// another than this node's, such as shop.example:7000/4792
    #[arg(value_name = "ADDRESS", value_parser = host_and_port)]
    pub(crate) address: String,
    /// Certificates of this client, PEM; without them it has no identity
    #[cfg(feature = "identity")]
    #[arg(long, value_name = "FILE", requires_all = ["key", "trust"])]
    identity: Option<PathBuf>,
    /// Private key of this client, PEM
    #[cfg(feature = "identity")]
    #[arg(long, value_name = "FILE", requires = "identity")]
    key: Option<PathBuf>,
    /// Roots of the server's certificate, PEM
    #[cfg(feature = "identity")]
    #[arg(long, value_name = "FILE", requires = "identity")]
    trust: Option<PathBuf>,
    /// Name that the server must prove [default: the host of ADDRESS]
    #[cfg(feature = "identity")]
    #[arg(long, value_name = "NAME", requires = "identity")]
    name: Option<String>,
    /// Prove names to processes of this user as well, which otherwise need none
    #[cfg(feature = "identity")]
    #[arg(long, requires = "identity")]
    no_exemption: bool,
    /// Path to processes of this host: auto, udp or shm
    #[arg(long, value_name = "PATH")]
    link: Option<PathChoice>,
}

impl ClientArguments {
    /// Starts the client's node.
    ///
    /// # Errors
    /// The node cannot start.
    pub(crate) fn start(&self) -> Result<Node, String> {
        // The node serves nothing, so it may also use the address of TRUNKLINE_ADDRESS.
        let mut builder = Node::builder().pollers(1).allow_unauthenticated(true);
        if std::env::var_os("TRUNKLINE_ADDRESS").is_none_or(|address| address.is_empty()) {
            for source in self.sources() {
                builder = builder.listen((source, 0));
            }
        }
        if let Some(path) = self.link {
            builder = builder.link(path);
        }
        #[cfg(feature = "identity")]
        if let (Some(identity), Some(key), Some(trust)) = (&self.identity, &self.key, &self.trust) {
            builder = builder.identity_files(identity, key).trust_files(trust);
            builder = builder.exempt_local_user(!self.no_exemption);
        }
        builder.start().map_err(|error| match error {
            StartError::BadAddress { .. } => {
                format!("{error}. The server connects back to this address; TRUNKLINE_ADDRESS names another one of this host")
            }
            error => error.to_string(),
        })
    }

    /// Returns the addresses from which this host routes to the server on another host. Servers dial back to them.
    fn sources(&self) -> BTreeSet<IpAddr> {
        self.addresses().into_iter().flatten().filter_map(source).collect()
    }

    /// Looks up the addresses of the server, without its UDP port.
    ///
    /// # Errors
    /// The lookup failed.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let (address, _) = PeerKey::split_udp_port(&self.address).map_err(io::Error::other)?;
        Ok(address.to_socket_addrs()?.collect())
    }

    /// Returns a channel to the server.
    pub(crate) fn channel(&self, node: &Node) -> Channel {
        let target = Target::from(self.address.as_str());
        #[cfg(feature = "identity")]
        let target = match &self.name {
            Some(name) => target.named(name),
            None => target,
        };
        node.channel(target)
    }
}

/// Returns the address from which this host routes to a server on another host. `None` leaves the choice to the node, which
/// uses a loopback address.
fn source(server: SocketAddr) -> Option<IpAddr> {
    let (any, loopback) = match server {
        SocketAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), None),
        // The node would choose an IPv4 address by default, so choose an IPv6 address here.
        SocketAddr::V6(_) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), Some(IpAddr::V6(Ipv6Addr::LOCALHOST))),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    if socket.connect(server).is_err() {
        // The node reports the cause when it dials.
        return loopback;
    }
    let source = socket.local_addr().ok()?.ip();
    if source == server.ip() || source.is_loopback() { loopback } else { Some(source) }
}

/// Checks that an address has a host and a port.
fn host_and_port(text: &str) -> Result<String, String> {
    let (address, _) = PeerKey::split_udp_port(text).map_err(|error| error.to_string())?;
    let parts = address.rsplit_once(':');
    let port = parts.and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
    if port.is_none() || address.parse::<IpAddr>().is_ok() {
        return Err("expected a host and a port, such as shop.example:7000 or [fd00::7]:7000".to_owned());
    }
    Ok(text.to_owned())
}

/// Failure of a step or of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Cause, which may contain texts of the server.
    pub(crate) cause: String,
    /// Code and reason of a call's status, with the names used by `trunkctl record`.
    pub(crate) code: Option<&'static str>,
    pub(crate) reason: Option<Reason>,
}

impl From<String> for Failure {
    fn from(cause: String) -> Self {
        Self { cause, code: None, reason: None }
    }
}

impl Failure {
    /// Returns the name of the reason for JSON.
    pub(crate) fn reason_name(&self) -> Option<String> {
        Some(format!("{:?}", self.reason?))
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let code = CODES.get(usize::from(status.code().number())).copied();
        Self { cause: status.to_string(), code, reason: status.reason() }
    }
}

/// Waits for a channel's session.
///
/// # Errors
/// The cause of the failure, or the last known one after the time limit.
pub(crate) fn connect(node: &Node, channel: &Channel, limit: Duration) -> Result<(), Failure> {
    let (sender, receiver) = mpsc::channel();
    let ready = channel.ready();
    // The thread ends with the process if the attempt outlasts the limit.
    thread::spawn(move || sender.send(block_on(ready)));
    if let Ok(result) = receiver.recv_timeout(limit) {
        return Ok(result?);
    }
    Err(Failure {
        cause: format!("no session after {limit:?}: {}", last_causes(&node.record())),
        code: Some("DEADLINE_EXCEEDED"),
        reason: Some(Reason::Expired),
    })
}

/// Returns the cause of the last failed attempt at each server.
fn last_causes(events: &[RecordedEvent]) -> String {
    let failed = events.iter().filter(|event| event.kind == EventKind::SessionNotMade);
    let causes: BTreeMap<_, _> =
        failed.filter_map(|event| Some((event.peer?.to_string(), &event.cause))).collect();
    if causes.is_empty() {
        return NO_OUTCOME.to_owned();
    }
    causes.iter().map(|(peer, cause)| format!("{peer}: {cause}")).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::Time;

    #[test]
    fn time_limit_has_last_cause_of_each_server() {
        let event = |kind, peer: &str, cause: &str| {
            let mut event = RecordedEvent::new(kind, Time(0));
            (event.peer, event.cause) = (Some(peer.parse().expect("an address")), cause.to_owned());
            event
        };
        let [one, two] = ["10.0.0.1:7000", "10.0.0.2:7000"];
        let not_made = |peer, cause| event(EventKind::SessionNotMade, peer, cause);
        let events = [
            not_made(one, "silent"),
            not_made(one, "refused"),
            not_made(two, "no route"),
            event(EventKind::CallFailed, one, "expired"),
        ];
        assert_eq!(last_causes(&events), format!("{one}: refused; {two}: no route"));
        assert_eq!(last_causes(&events[3..]), NO_OUTCOME);
    }
}
