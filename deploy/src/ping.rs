//! `trunkctl ping`: opens a session with a node, shows each step, and measures round trips.
//!
//! The steps are events that the node logs with the target `trunkline::setup`.

use crate::client::{ClientArguments, Failure, connect};
#[cfg(feature = "identity")]
use crate::keys::show::Certificate;
use crate::streams::finish;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber, subscriber};
use trunkline::health::HealthClient;
use trunkline::report::PeerKey;
use trunkline::{Channel, Origin, Reason, block_on};
use trunkline_softrdma::link::printable;
use trunkline_transport::PeerDown;

/// Find out why a node is not reached, and measure round trips
///
/// Prints the steps of the set-up, each with the time since the step before. If a step is not reached, the last
/// line has the cause. A round trip is a call of the health service; a node without that service answers as well.
/// Events of the set-up are in the log of every node, at level debug with the target trunkline::setup.
///
/// It also prints the level of the session, and the names, issuer and end of the certificate that the server has proved.
/// With --json a failure has the `code` and `reason` of a call's status beside its `cause`.
///
/// Exit status: 0 a session was made and every call was answered; 1 not; 2 the command line is invalid.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_help = STEPS)]
pub struct PingArguments {
    #[command(flatten)]
    client: ClientArguments,
    /// Number of calls
    #[arg(short = 'c', long, value_name = "N", default_value_t = 4)]
    count: u32,
    /// Time between two calls, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    interval_ms: u64,
    /// Time limit of the set-up, and of each call, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    timeout_ms: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const STEPS: &str = "\
Steps, and what it means if the next one is missing:
  names looked up   the name has addresses
  node started      this host has a device
  request sent      a route exists. A firewall drops the server's UDP port (4791, or the one after the slash in its address), the
                    server's process is stopped, or its host is down
  cookie received   packets go both ways: the server asks for proof of this address. A firewall drops later packets between the
                    UDP ports of the two nodes, or the server has ended or is stopped
  answered          the server accepts. Its connection back is blocked on the way, also in the UDP ports of the request
  dialled back      the server's connection arrived
  handshake begun   TLS messages are exchanged, if this node has an identity
  name proved       the server's certificate is valid
  session up        settings agree; calls can be made, if the server has proved the name that the client expects
Each server that the name leads to is tried, so steps can be repeated.";

/// Cause of a missing session with a server that has answered an earlier packet.
const SILENT_AFTER_ANSWER: &str = "the peer has answered, and its later packets did not arrive: a firewall drops packets between the UDP ports of \
     the two nodes, 4791 by default, or the peer has ended or is stopped";

/// A step of the set-up.
#[derive(Debug)]
struct Step {
    /// Address of the server; `None` in steps before the address is known.
    peer: Option<String>,
    name: String,
    detail: String,
    at: Instant,
}

/// Collects the steps logged by the node, and prints each as it happens.
#[derive(Debug)]
struct SetUpLog {
    steps: Mutex<Vec<Step>>,
    /// Leaf certificates proved by servers, DER, by address. Each is the end of a verified chain.
    certificates: Mutex<BTreeMap<String, Vec<u8>>>,
    began: Instant,
    is_printed: bool,
}

impl SetUpLog {
    /// Records a step, unless it repeats an earlier one with this server: every connection of the session takes the same
    /// steps.
    fn note(&self, peer: Option<String>, name: String, detail: &str) {
        let detail = printable(detail);
        let at = Instant::now();
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.iter().any(|step| step.peer == peer && step.name == name) {
            return;
        }
        let ms = since(steps.last().map_or(self.began, |step| step.at), at);
        if self.is_printed {
            let peer = peer.as_deref().unwrap_or_default();
            // The last line reports a failed write.
            let _unwritten = writeln!(io::stdout(), "  {name:<16} {ms:>9.3} ms   {peer} {detail}");
        }
        steps.push(Step { peer, name, detail, at });
    }

    /// Returns the identity of the last server with a session, if any.
    fn server(&self) -> Option<ServerIdentity> {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let up = steps.iter().rfind(|step| step.name == "session up")?;
        let certificates = self.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        Some(ServerIdentity::new(&up.detail, up.peer.as_ref().and_then(|peer| certificates.get(peer))))
    }

    /// Corrects a cause that states that a server does not answer, if the server has answered.
    fn corrected(&self, cause: &str) -> String {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = |names: &[&str]| {
            let named = steps.iter().filter(|step| names.contains(&&*step.name));
            named.filter_map(|step| step.peer.as_deref()).collect::<BTreeSet<_>>()
        };
        let (asked, answered) = (peers(&["request sent"]), peers(&["cookie received", "answered"]));
        let silent = PeerDown::Unreachable.to_string();
        if asked == answered {
            return cause.replace(&silent, SILENT_AFTER_ANSWER);
        }
        answered.iter().fold(cause.to_owned(), |cause, peer| {
            cause.replace(&format!("{peer}: {silent}"), &format!("{peer}: {SILENT_AFTER_ANSWER}"))
        })
    }

    fn json(&self) -> Value {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let before = [self.began].into_iter().chain(steps.iter().map(|step| step.at));
        let all = steps.iter().zip(before).map(|(step, before)| {
            json!({ "step": step.name, "server": step.peer, "detail": step.detail, "ms": since(before, step.at) })
        });
        all.collect()
    }
}

/// The proved identity of a session's server.
#[derive(Debug, Default, Serialize)]
struct ServerIdentity {
    /// Level of the session, as in `trunkctl nodes`.
    level: &'static str,
    /// Names in its certificate, the principal first.
    names: Vec<String>,
    issuer: Option<String>,
    not_after: Option<String>,
}

impl ServerIdentity {
    /// Creates the identity of a session from the detail of its step. `certificate` is the proved certificate.
    fn new(detail: &str, certificate: Option<&Vec<u8>>) -> Self {
        #[cfg(feature = "identity")]
        if let Some(Certificate { names, issuer, not_after, .. }) =
            certificate.and_then(|der| Certificate::parse(der))
        {
            let (issuer, not_after) = (Some(printable(&issuer)), Some(not_after));
            let names = names.iter().map(|name| printable(name)).collect();
            return Self { level: "encrypted", names, issuer, not_after };
        }
        let level = match certificate {
            Some(_) => "encrypted",
            None if detail.starts_with("local:") => "local",
            None => "none",
        };
        Self { level, ..Self::default() }
    }
}

impl fmt::Display for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.level)?;
        if let (Some(issuer), Some(not_after)) = (&self.issuer, &self.not_after) {
            write!(
                f,
                ", certificate of {} issued by {issuer}, valid until {not_after}",
                self.names.join(", ")
            )?;
        }
        Ok(())
    }
}

fn since(earlier: Instant, later: Instant) -> f64 {
    (later - earlier).as_secs_f64() * 1e3
}

/// Fields of an event of the set-up.
#[derive(Debug, Default)]
struct StepFields {
    peer: String,
    step: String,
    detail: String,
    certificate: Option<Vec<u8>>,
}

impl Visit for StepFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "peer" => self.peer = format!("{value:?}"),
            "detail" => self.detail = format!("{value:?}"),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "step" {
            value.clone_into(&mut self.step);
        }
    }

    fn record_bytes(&mut self, field: &Field, value: &[u8]) {
        if field.name() == "certificate" {
            self.certificate = Some(value.to_owned());
        }
    }
}

/// Subscriber for the events of the set-up.
#[derive(Debug)]
struct SetUpSubscriber(Arc<SetUpLog>);

impl Subscriber for SetUpSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "trunkline::setup"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = StepFields::default();
        event.record(&mut fields);
        match fields.certificate {
            Some(certificate) => {
                let mut certificates = self.0.certificates.lock().unwrap_or_else(PoisonError::into_inner);
                certificates.insert(fields.peer, certificate);
            }
            None => self.0.note(Some(fields.peer), fields.step, &fields.detail),
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Pings a node.
#[must_use]
pub fn run(arguments: &PingArguments) -> ExitCode {
    let is_printed = !arguments.json;
    let (steps, certificates) = Default::default();
    let log = Arc::new(SetUpLog { steps, certificates, began: Instant::now(), is_printed });
    // The call fails only if a subscriber is already set, as in tests.
    let _is_set = subscriber::set_global_default(SetUpSubscriber(Arc::clone(&log)));
    let mut trips = Vec::new();
    let failure = ping(arguments, &log, &mut trips).err();
    // The cause may contain texts of the server.
    let cause = failure.as_ref().map(|failure| printable(&log.corrected(&failure.cause)));
    let server = log.server();
    let last = log.steps.lock().unwrap_or_else(PoisonError::into_inner).last().map(|step| step.name.clone());
    let text = match (&cause, arguments.json) {
        (_, true) => json!({
            "address": arguments.client.address,
            "steps": log.json(),
            "failed_after": cause.as_ref().map(|_| last.as_deref().unwrap_or("start")),
            "cause": cause,
            "code": failure.as_ref().and_then(|failure| failure.code),
            "reason": failure.as_ref().and_then(Failure::reason_name),
            "server": server,
            "round_trips_us": trips.iter().map(|trip| trip.as_secs_f64() * 1e6).collect::<Vec<_>>(),
        })
        .to_string(),
        (None, false) => summary(&trips),
        (Some(cause), false) => {
            format!("failed after \"{}\": {cause}", last.as_deref().unwrap_or("start"))
        }
    };
    if let Some(server) = server.filter(|_| is_printed) {
        // The last line reports a failed write.
        let _unwritten = writeln!(io::stdout(), "  level            {server}");
    }
    finish(&text, u8::from(cause.is_some()))
}

/// Opens the session, and adds round trips.
///
/// # Errors
/// The cause of the missing session or of an unanswered call.
fn ping(arguments: &PingArguments, log: &SetUpLog, trips: &mut Vec<Duration>) -> Result<(), Failure> {
    let limit = Duration::from_millis(arguments.timeout_ms);
    let address = &arguments.client.address;
    if address.parse::<PeerKey>().is_err() {
        let found = arguments.client.addresses().map_err(|error| {
            format!(
                "{address} has no address: {error}; expected a host and a port, such as shop.example:7000"
            )
        })?;
        let found: Vec<_> = found.iter().map(SocketAddr::to_string).collect();
        log.note(None, "names looked up".to_owned(), &found.join(", "));
    }
    let node = arguments.client.start()?;
    let report = node.report();
    let started = format!("{} {}, {}", report.provider, report.device, report.address);
    log.note(None, "node started".to_owned(), &started);
    let channel = arguments.client.channel(&node);
    connect(&node, &channel, limit)?;
    for number in 0..arguments.count {
        if number > 0 {
            thread::sleep(Duration::from_millis(arguments.interval_ms));
        }
        trips.push(trip(&channel, limit)?);
        if !arguments.json
            && let Some(trip) = trips.last()
        {
            // The last line reports a failed write.
            let _unwritten =
                writeln!(io::stdout(), "  call {number:<11} {:>9.3} ms", trip.as_secs_f64() * 1e3);
        }
    }
    drop(node);
    Ok(())
}

/// Sends a call, which the server may refuse. Returns the time until the reply.
///
/// # Errors
/// There was no reply, or the node drains and refuses all calls.
fn trip(channel: &Channel, limit: Duration) -> Result<Duration, Failure> {
    let client = HealthClient::new(channel.clone()).with_timeout(limit);
    let began = Instant::now();
    match block_on(client.check(String::new())) {
        Err(status) if status.origin() == Origin::Local || status.reason() == Some(Reason::Draining) => {
            Err(status.into())
        }
        _ => Ok(began.elapsed()),
    }
}

fn summary(trips: &[Duration]) -> String {
    let mut sorted: Vec<_> = trips.iter().map(|trip| trip.as_secs_f64() * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    match (sorted.first(), sorted.get(sorted.len() / 2), sorted.last()) {
        (Some(least), Some(median), Some(most)) => {
            format!("{} calls: least {least:.3} ms, median {median:.3} ms, most {most:.3} ms", sorted.len())
        }
        _ => "a session was made; no calls".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_after_cookie_or_reply_states_that_server_answered() {
        let [one, two] = ["10.0.0.1:7000", "10.0.0.2:7000"];
        let silent = PeerDown::Unreachable;
        for step in ["cookie received", "answered"] {
            let (steps, certificates) = Default::default();
            let log = SetUpLog { steps, certificates, began: Instant::now(), is_printed: false };
            let note = |peer: &str, step: &str| log.note(Some(peer.to_owned()), step.to_owned(), "");
            note(one, "request sent");
            let cause = format!("no connection yet: {silent}");
            assert_eq!(log.corrected(&cause), cause);
            note(one, step);
            assert_eq!(log.corrected(&cause), format!("no connection yet: {SILENT_AFTER_ANSWER}"));
            note(two, "request sent");
            let corrected = log.corrected(&format!("{one}: {silent}; {two}: {silent}"));
            assert_eq!(corrected, format!("{one}: {SILENT_AFTER_ANSWER}; {two}: {silent}"));
        }
    }
}
