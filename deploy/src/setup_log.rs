//! Steps of a session's set-up, and warnings, collected from the events of the node.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};
use trunkline_softrdma::link::printable;

/// Cause if nothing follows the last step.
const HELD: &str = "the session is up, and the server does not answer in it: a handler may hold the server's poller \
                    (\"poller held\" in `trunkctl record` on its host)";

/// Target of the events of the set-up.
const SET_UP: &str = "trunkline::setup";
/// Maximum number of warnings that are kept.
const MOST_WARNINGS: usize = 8;

/// A step of the set-up.
#[derive(Debug)]
struct Step {
    /// Address of the server; `None` in steps before the address is known.
    peer: Option<String>,
    name: String,
    detail: String,
    at: Instant,
}

/// Collects the steps logged by the node. Other nodes may connect to this node, so only steps and warnings that concern the
/// requested servers are kept.
#[derive(Debug)]
pub(crate) struct SetUpLog {
    /// Addresses and ports of the servers, after they have been looked up.
    servers: OnceLock<BTreeSet<(IpAddr, u16)>>,
    steps: Mutex<Vec<Step>>,
    /// Leaf certificates proved by servers, DER, by address. Each is the end of a verified chain.
    certificates: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Warnings and errors that the node has logged, without repetitions, at most [`MOST_WARNINGS`].
    warnings: Mutex<Vec<String>>,
    began: Instant,
    is_printed: bool,
}

impl SetUpLog {
    pub(crate) fn new(is_printed: bool) -> Self {
        let (servers, steps, certificates, warnings) = Default::default();
        Self { servers, steps, certificates, warnings, began: Instant::now(), is_printed }
    }

    /// Sets the addresses of the requested servers.
    pub(crate) fn set_servers(&self, servers: &[SocketAddr]) {
        let servers = servers.iter().map(|server| (server.ip().to_canonical(), server.port()));
        // Only the first addresses are used.
        let _is_first = self.servers.set(servers.collect());
    }

    /// Returns true if a peer is a requested server. `peer` may have a UDP port, as in `10.0.0.1:7000/4792`.
    pub(crate) fn is_server(&self, peer: &str) -> bool {
        let address = peer.split('/').next().and_then(|address| address.parse::<SocketAddr>().ok());
        let Some((servers, address)) = self.servers.get().zip(address) else { return true };
        servers.contains(&(address.ip().to_canonical(), address.port()))
    }

    /// Creates a log and subscribes it to the events of this process. Prints each step when it is reached if `is_printed`
    /// is true.
    pub(crate) fn subscribe(is_printed: bool) -> Arc<Self> {
        let log = Arc::new(Self::new(is_printed));
        // The call fails only if a subscriber is already set, as in tests.
        let _is_set = subscriber::set_global_default(SetUpSubscriber(Arc::clone(&log)));
        log
    }

    /// Records a step, unless it repeats an earlier one with this server: every connection of the session takes the same
    /// steps.
    pub(crate) fn note(&self, peer: Option<String>, name: String, detail: &str) {
        let detail = printable(detail);
        let at = Instant::now();
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.iter().any(|step| step.peer == peer && step.name == name) {
            return;
        }
        let ms = milliseconds(steps.last().map_or(self.began, |step| step.at), at);
        if self.is_printed {
            let peer = peer.as_deref().unwrap_or_default();
            // The last line reports a failed write.
            let _unwritten = writeln!(io::stdout(), "  {name:<16} {ms:>9.3} ms   {peer} {detail}");
        }
        steps.push(Step { peer, name, detail, at });
    }

    fn warn(&self, fields: &StepFields) {
        let StepFields { message, cause, remedy, .. } = fields;
        let parts = [("", message), (": ", cause), ("; remedy: ", remedy)].into_iter();
        let text: String =
            parts.filter(|(_, part)| !part.is_empty()).flat_map(|(before, part)| [before, part]).collect();
        let text = printable(&text);
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < MOST_WARNINGS && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Returns the warnings and errors that the node has logged.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the name of the last step; "start" before the first.
    pub(crate) fn last(&self) -> String {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.last().map_or_else(|| "start".to_owned(), |step| step.name.clone())
    }

    /// Returns the last step of each server with the time since, as the cause of a time limit that passes during the first
    /// attempt. Refusals, which repeat, and open sessions have no time. Before the first request, the result has the node's
    /// last step.
    pub(crate) fn awaited(&self) -> String {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let servers: BTreeMap<_, _> =
            steps.iter().filter_map(|step| Some((step.peer.as_ref()?, step))).collect();
        let own = steps.last().filter(|_| servers.is_empty()).map(|step| (String::new(), step));
        let of_servers = servers.into_iter().map(|(peer, step)| (format!("{peer}: "), step));
        let now = Instant::now();
        let texts = of_servers.chain(own).map(|(peer, step)| {
            if step.name == "refused" {
                return format!("{peer}{}", step.detail);
            }
            if step.name == "session up" {
                return format!("{peer}{HELD}");
            }
            format!("{peer}nothing for {:.0} ms after step \"{}\"", milliseconds(step.at, now), step.name)
        });
        texts.collect::<Vec<_>>().join("; ")
    }

    /// Returns the detail of the last "session up", and the certificate proved by its server.
    pub(crate) fn session(&self) -> Option<(String, Option<Vec<u8>>)> {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let up = steps.iter().rfind(|step| step.name == "session up")?;
        let certificates = self.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        let certificate = up.peer.as_ref().and_then(|peer| certificates.get(peer));
        Some((up.detail.clone(), certificate.cloned()))
    }

    pub(crate) fn json(&self) -> Value {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let before = [self.began].into_iter().chain(steps.iter().map(|step| step.at));
        let all = steps.iter().zip(before).map(|(step, before)| {
            json!({ "step": step.name, "server": step.peer, "detail": step.detail, "ms": milliseconds(before, step.at) })
        });
        all.collect()
    }
}

fn milliseconds(earlier: Instant, later: Instant) -> f64 {
    (later - earlier).as_secs_f64() * 1e3
}

/// Fields of an event of the set-up.
#[derive(Debug, Default)]
struct StepFields {
    peer: String,
    step: String,
    detail: String,
    certificate: Option<Vec<u8>>,
    message: String,
    cause: String,
    remedy: String,
}

impl StepFields {
    fn set(&mut self, field: &Field, value: String) {
        match field.name() {
            "peer" => self.peer = value,
            "step" => self.step = value,
            "detail" => self.detail = value,
            "message" => self.message = value,
            "cause" | "error" => self.cause = value,
            "remedy" => self.remedy = value,
            _ => {}
        }
    }
}

impl Visit for StepFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
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
        metadata.target() == SET_UP || *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = StepFields::default();
        event.record(&mut fields);
        if !self.0.is_server(&fields.peer) {
            return;
        }
        if event.metadata().target() != SET_UP {
            return self.0.warn(&fields);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_were_not_requested_are_left_out() {
        let log = SetUpLog::new(false);
        assert!(log.is_server("10.0.0.9:40000"), "before the addresses are known");
        log.set_servers(
            &["10.0.0.1:7000", "[fd00::1]:7000"].map(|server| server.parse().expect("an address")),
        );
        let peers =
            ["10.0.0.1:7000", "10.0.0.1:7000/4792", "[fd00::1]:7000", "", "10.0.0.1:7001", "10.0.0.9:7000"];
        assert_eq!(peers.map(|peer| log.is_server(peer)), [true, true, true, true, false, false]);
    }

    #[test]
    fn awaited_answer_is_named_by_last_step_of_each_server() {
        let log = SetUpLog::new(false);
        log.note(None, "node started".to_owned(), "");
        assert!(log.awaited().ends_with(" ms after step \"node started\""), "{}", log.awaited());
        for (peer, step) in [("a", "request sent"), ("b", "request sent"), ("a", "cookie received")] {
            log.note(Some(peer.to_owned()), step.to_owned(), "");
        }
        log.note(Some("c".to_owned()), "refused".to_owned(), "no room");
        log.note(Some("d".to_owned()), "session up".to_owned(), "");
        let awaited = log.awaited();
        let [a, b, c, d] = awaited.split("; ").collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((c, d), ("c: no room", &*format!("d: {HELD}")));
        assert!(a.starts_with("a: ") && a.ends_with("after step \"cookie received\""), "{a}");
        assert!(b.starts_with("b: ") && b.ends_with("after step \"request sent\""), "{b}");
    }
}
