//! The client side of `trunkctl ping` and `trunkctl health`: its options and its node.

use crate::setup_log::SetUpLog;
use clap::Args;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
#[cfg(feature = "identity")]
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use trunkline::device::PathChoice;
use trunkline::report::{EventKind, PeerKey, RecordedEvent};
use trunkline::stub::CODES;
use trunkline::{Channel, Node, Reason, StartError, Status, Target, block_on};
use trunkline_verbs::headroom;

/// Maximum number of addresses of a name that are printed.
const MOST_NAMED: usize = 16;

/// The server, and the identities that the client proves and expects.
#[derive(Debug, Clone, Args)]
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
    /// Looks up the server, starts the client's node, and opens a session. Adds the steps to the log.
    ///
    /// # Errors
    /// The cause of the failure, or the last known one after the time limit.
    pub(crate) fn open(&self, limit: Duration, log: &SetUpLog) -> Result<(Node, Channel), Failure> {
        let began = Instant::now();
        let (address, _) = PeerKey::split_udp_port(&self.address).map_err(|error| error.to_string())?;
        let name = address.to_owned();
        let found = within(limit, move || Ok::<_, io::Error>(name.to_socket_addrs()?.collect::<Vec<_>>()))?
            .ok_or_else(|| {
                Failure::expired(format!("the name servers do not answer for {address} within {limit:?}"))
            })?
            .map_err(|error| {
                format!(
                    "{address} has no address: {error}; expected a host and a port, such as shop.example:7000"
                )
            })?;
        if address.parse::<SocketAddr>().is_err() {
            let mut named: Vec<_> = found.iter().take(MOST_NAMED).map(SocketAddr::to_string).collect();
            if found.len() > MOST_NAMED {
                named.push(format!("and {} more", found.len() - MOST_NAMED));
            }
            log.note(None, "names looked up".to_owned(), &named.join(", "));
        }
        log.set_servers(&found);
        let arguments = self.clone();
        let started = within(limit.saturating_sub(began.elapsed()), move || arguments.start(&found))?;
        let node = started.ok_or_else(|| {
            Failure::expired(format!(
                "the node did not start within {limit:?}: the file system of the runtime directory may be slow, or another user \
                 has created many folders `trunkline-…` next to it; TRUNKLINE_RUNTIME_DIR names another directory"
            ))
        })??;
        let report = node.report();
        let started = format!("{} {}, {}", report.provider, report.device, report.address);
        log.note(None, "node started".to_owned(), &started);
        let channel = self.channel(&node);
        let ready = channel.ready();
        match within(limit.saturating_sub(began.elapsed()), move || block_on(ready))? {
            Some(result) => result?,
            None => {
                let causes = last_causes(&node.record(), log);
                let (missing, cause) = match causes.is_empty() {
                    true if log.session().is_some() => ("answer", log.awaited()),
                    true => ("session", log.awaited()),
                    false => ("session", causes),
                };
                return Err(Failure::expired(format!("no {missing} after {limit:?}: {cause}")));
            }
        }
        Ok((node, channel))
    }

    /// Starts the client's node. The node listens at the addresses from which this host routes to the server on another
    /// host, since servers dial back to them.
    ///
    /// # Errors
    /// The node cannot start.
    fn start(&self, servers: &[SocketAddr]) -> Result<Node, String> {
        // The node serves nothing, so it may also use the address of TRUNKLINE_ADDRESS.
        let mut builder = Node::builder().pollers(1).allow_unauthenticated(true);
        if std::env::var_os("TRUNKLINE_ADDRESS").is_none_or(|address| address.is_empty()) {
            let sources: BTreeSet<_> = servers.iter().copied().filter_map(source).collect();
            for source in sources {
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

    /// Returns a channel to the server.
    fn channel(&self, node: &Node) -> Channel {
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
    /// Creates the failure of a time limit.
    fn expired(cause: String) -> Self {
        Self { cause, code: Some("DEADLINE_EXCEEDED"), reason: Some(Reason::Expired) }
    }

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

/// Returns the result of a function that may block, or `None` after a time limit.
///
/// # Errors
/// No thread could be started.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Failure> {
    let (sender, receiver) = mpsc::channel();
    // The thread ends with the process if the function outlasts the limit.
    let started = thread::Builder::new().spawn(move || sender.send(work()));
    started.map_err(|error| {
        format!("a thread cannot be started: {error}{}", headroom::remedy(error.raw_os_error()))
    })?;
    Ok(receiver.recv_timeout(limit).ok())
}

/// Returns the cause of the last failed attempt at each server; empty if no attempt has failed.
fn last_causes(events: &[RecordedEvent], log: &SetUpLog) -> String {
    let failed = events.iter().filter(|event| event.kind == EventKind::SessionNotMade);
    let causes: BTreeMap<_, _> =
        failed.filter_map(|event| Some((event.peer?.to_string(), &event.cause))).collect();
    let causes = causes.iter().filter(|(peer, _)| log.is_server(peer));
    causes.map(|(peer, cause)| format!("{peer}: {cause}")).collect::<Vec<_>>().join("; ")
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
            not_made("10.0.0.3:7000", "not requested"),
        ];
        let log = SetUpLog::new(false);
        log.set_servers(&[one, two].map(|server| server.parse().expect("an address")));
        assert_eq!(last_causes(&events, &log), format!("{one}: refused; {two}: no route"));
        assert_eq!(last_causes(&events[3..], &log), "");
    }
}
