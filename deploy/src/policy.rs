//! `trunkctl policy check`: parses a policy, lists its rules, and evaluates it for a call.

use crate::streams::{ascii, fail, print, warn};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use trunkline::policy::{AccessPolicy, CallPattern, DenialCause, PeerPattern, PolicyDecision, Rule};
use trunkline_softrdma::link::printable;

/// Check a policy: which peers may make which calls
///
/// Lists the rules of the file, and warns of those that decide no call because other rules decide all calls
/// that they match. With --peer and --call it also prints the decision about a call, and the line of the rule
/// that decides.
///
/// Exit status: 0 the policy is valid, or allows the call; 1 it denies the call; 2 the file cannot be read or is
/// invalid, or the command line is invalid.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_help = FORMAT)]
pub struct CheckArguments {
    /// The policy
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the peer that makes a call: a SPIFFE URI, a DNS name, an IP address, `local:UID` or `unproven`;
    /// repeated for a peer with several names
    #[arg(long = "peer", value_name = "NAME", requires = "call", value_parser = peer)]
    peers: Vec<PeerPattern>,
    /// Path of the call, as `/service/method`
    #[arg(long, value_name = "PATH", requires = "peers", value_parser = call)]
    call: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const FORMAT: &str = r#"The file is TOML:
  [[allow]]
  peers = ["spiffe://prod/shop/*", "*.internal.example", "10.1.0.7", "local:1000"]
  calls = ["/shop.Orders/*", "/shop.Stock/get"]

  [[deny]]
  peers = ["spiffe://prod/shop/guest"]
  calls = ["*"]

A call is allowed if a rule [[allow]] matches it and no rule [[deny]] does. One name of a peer is enough for a match.
  peers   a SPIFFE URI, whose last part may be `*` for any rest; a DNS name, whose first label may be `*`; an IP
          address; `local` for all users of the host, or `local:UID`; `unproven` for peers without a proven name
  calls   `/service/method`, `/service/*` or `*`; calls of gRPC too"#;

fn peer(text: &str) -> Result<PeerPattern, String> {
    let pattern: PeerPattern = text.parse()?;
    match pattern.as_peer() {
        Some(_) => Ok(pattern),
        None => {
            Err("expected the name of one peer, without `*`; a user of the host is `local:UID`".to_owned())
        }
    }
}

fn call(text: &str) -> Result<String, String> {
    let pattern: CallPattern = text.parse()?;
    if pattern.to_string().ends_with('*') {
        return Err("expected the path of one call, as `/service/method`".to_owned());
    }
    Ok(text.to_owned())
}

/// Checks the policy. Returns exit status 0 if the policy is valid or allows the call, 1 if it denies the call, and 2 if
/// it is invalid or the result cannot be written.
#[must_use]
pub fn run(arguments: &CheckArguments) -> ExitCode {
    let policy = match AccessPolicy::read(&arguments.file) {
        Ok(policy) => policy,
        Err(error) => return fail(error, arguments.json, 2),
    };
    let peers = arguments.peers.iter().filter_map(PeerPattern::as_peer);
    let decision = arguments.call.as_ref().map(|call| policy.decide(peers, call));
    let shadowed = policy.shadowed();
    let text = if arguments.json {
        ascii(&json(&policy, &shadowed, decision))
    } else {
        for (rule, by) in &shadowed {
            warn(format_args!("warning: {}", warning(rule, by)));
        }
        table(&policy, decision)
    };
    match print(&text) {
        Err(1..) => ExitCode::from(2),
        _ if matches!(decision, Some(PolicyDecision::Denied(_))) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn join<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn warning(rule: &Rule, by: &BTreeSet<usize>) -> String {
    let (by, s) = (join(by), if by.len() == 1 { "" } else { "s" });
    format!(
        "line {}: this rule decides no call; the calls that it matches are decided at line{s} {by}",
        rule.line
    )
}

/// Returns the rule that decides, or the reason for a denial without such a rule.
fn deciding(decision: PolicyDecision<'_>) -> Result<&Rule, String> {
    match decision {
        PolicyDecision::Allowed(rule) | PolicyDecision::Denied(DenialCause::Rule(rule)) => Ok(rule),
        PolicyDecision::Denied(cause) => Err(cause.to_string()),
    }
}

fn table(policy: &AccessPolicy, decision: Option<PolicyDecision<'_>>) -> String {
    let mut text = format!("{:>6}  {:<6}  {:<50}  CALLS", "LINE", "EFFECT", "PEERS");
    for Rule { line, effect, peers, calls } in policy.rules() {
        let (effect, peers) = (effect.to_string(), join(peers));
        // Writing to a string cannot fail.
        let _written = write!(text, "\n{line:>6}  {effect:<6}  {peers:<50}  {}", printable(&join(calls)));
    }
    let decision = decision.map(|decision| match (decision, deciding(decision)) {
        (PolicyDecision::Allowed(rule), _) => format!("\nallowed by the rule at line {}", rule.line),
        (_, Ok(rule)) => format!("\ndenied by the rule at line {}", rule.line),
        (_, Err(cause)) => format!("\ndenied: {cause}"),
    });
    text + decision.as_deref().unwrap_or_default()
}

fn json(
    policy: &AccessPolicy,
    shadowed: &[(&Rule, BTreeSet<usize>)],
    decision: Option<PolicyDecision<'_>>,
) -> String {
    let texts = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>();
    let rule = |rule: &Rule| {
        json!({
            "line": rule.line,
            "effect": rule.effect.to_string(),
            "peers": texts(&mut rule.peers.iter().map(ToString::to_string)),
            "calls": texts(&mut rule.calls.iter().map(ToString::to_string)),
        })
    };
    let warning = |(rule, by): &(&Rule, BTreeSet<usize>)| json!({ "line": rule.line, "decided_at": by });
    let decision = decision.map(|decision| {
        json!({
            "is_allowed": matches!(decision, PolicyDecision::Allowed(_)),
            "line": deciding(decision).map(|rule| rule.line).ok(),
        })
    });
    let document: Value = json!({
        "rules": policy.rules().iter().map(rule).collect::<Vec<_>>(),
        "warnings": shadowed.iter().map(warning).collect::<Vec<_>>(),
        "decision": decision,
    });
    format!("{document:#}")
}
