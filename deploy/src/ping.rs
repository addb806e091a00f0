//! `trunkctl ping`: opens a session with a node, shows each step, and measures round trips.

use crate::client::{ClientArguments, Failure};
#[cfg(feature = "identity")]
use crate::keys::show::Certificate;
use crate::setup_log::SetUpLog;
use crate::streams::{finish, warn};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use trunkline::health::HealthClient;
use trunkline::{Channel, Origin, Reason, block_on};
use trunkline_softrdma::link::printable;

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
  refused           the server has no room for the session, or has yet to end an earlier one; further requests follow
  answered          the server accepts. Its connection back is blocked on the way, also in the UDP ports of the request
  dialled back      the server's connection arrived
  handshake begun   TLS messages are exchanged, if this node has an identity
  name proved       the server's certificate is valid
  session up        settings agree; calls can be made, if the server has proved the name that the client expects
Each server that the name leads to is tried, so steps can be repeated.";

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
    fn new(detail: &str, certificate: Option<&[u8]>) -> Self {
        #[cfg(feature = "identity")]
        if let Some(Certificate { names, issuer, not_after, .. }) = certificate.and_then(Certificate::parse) {
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

/// Pings a node.
#[must_use]
pub fn run(arguments: &PingArguments) -> ExitCode {
    let is_printed = !arguments.json;
    let log = SetUpLog::subscribe(is_printed);
    let mut trips = Vec::new();
    let failure = ping(arguments, &log, &mut trips).err();
    // The cause may contain texts of the server.
    let cause = failure.as_ref().map(|failure| printable(&failure.cause));
    let server =
        log.session().map(|(detail, certificate)| ServerIdentity::new(&detail, certificate.as_deref()));
    let last = log.last();
    let text = match (&cause, arguments.json) {
        (_, true) => json!({
            "address": arguments.client.address,
            "steps": log.json(),
            "failed_after": cause.as_ref().map(|_| last),
            "cause": cause,
            "warnings": log.warnings(),
            "code": failure.as_ref().and_then(|failure| failure.code),
            "reason": failure.as_ref().and_then(Failure::reason_name),
            "server": server,
            "round_trips_us": trips.iter().map(|trip| trip.as_secs_f64() * 1e6).collect::<Vec<_>>(),
        })
        .to_string(),
        (None, false) => summary(&trips),
        (Some(cause), false) => format!("failed after \"{last}\": {cause}"),
    };
    if let Some(server) = server.filter(|_| is_printed) {
        // The last line reports a failed write.
        let _unwritten = writeln!(io::stdout(), "  level            {server}");
    }
    if cause.is_some() && is_printed {
        log.warnings().into_iter().for_each(warn);
    }
    finish(&text, u8::from(cause.is_some()))
}

/// Opens the session, and adds round trips.
///
/// # Errors
/// The cause of the missing session or of an unanswered call.
fn ping(arguments: &PingArguments, log: &SetUpLog, trips: &mut Vec<Duration>) -> Result<(), Failure> {
    let limit = Duration::from_millis(arguments.timeout_ms);
    let (_node, channel) = arguments.client.open(limit, log)?;
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
