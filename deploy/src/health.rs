//! `trunkctl health`: queries a node for the health of a service, for exec probes.

use crate::client::{ClientArguments, Failure};
use crate::setup_log::SetUpLog;
use crate::streams::finish;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use trunkline::health::{HealthClient, ServingStatus};
use trunkline::{Code, Reason, block_on};
use trunkline_softrdma::link::printable;

/// Ask a node for the health of a service
///
/// The node needs a health service: NodeBuilder::health. Nodes with gRPC services need it as well, beside
/// tonic-health's.
///
/// Exit status, as of grpc-health-probe: 0 the service takes calls; 1 the command line is invalid, or the
/// status cannot be written; 2 no session could be made; 3 the call failed; 4 the service takes no calls, or
/// the node shuts down.
///
/// With --json a failure has the `code` and `reason` of a call's status beside its `cause`.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct HealthArguments {
    #[command(flatten)]
    client: ClientArguments,
    /// Name of the service; empty for the node as a whole
    #[arg(value_name = "SERVICE", default_value = "")]
    service: String,
    /// Time limit of the set-up, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    connect_timeout_ms: u64,
    /// Time limit of the call, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    call_timeout_ms: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Queries the health.
#[must_use]
pub fn run(arguments: &HealthArguments) -> ExitCode {
    let (exit, status, failure) = match ask(arguments) {
        Ok(ServingStatus::Serving) => (0, Some("serving"), None),
        Ok(_) => (4, Some("not serving"), None),
        Err((_, failure)) if failure.reason == Some(Reason::Draining) => {
            (4, Some("not serving"), Some(failure))
        }
        Err((exit, failure)) => (exit, None, Some(failure)),
    };
    // The cause may contain texts of the server.
    let cause = failure.as_ref().map(|failure| printable(&failure.cause));
    let text = if arguments.json {
        json!({
            "address": arguments.client.address,
            "service": arguments.service,
            "status": status,
            "cause": cause,
            "code": failure.as_ref().and_then(|failure| failure.code),
            "reason": failure.as_ref().and_then(Failure::reason_name),
        })
        .to_string()
    } else {
        let status = status.unwrap_or("status unknown");
        cause.map_or_else(|| status.to_owned(), |cause| format!("{status}: {cause}"))
    };
    finish(&text, exit)
}

/// Returns the health.
///
/// # Errors
/// The exit status and the cause.
fn ask(arguments: &HealthArguments) -> Result<ServingStatus, (u8, Failure)> {
    let limit = Duration::from_millis(arguments.connect_timeout_ms);
    let (_node, channel) = arguments.client.open(limit, &SetUpLog::subscribe(false)).map_err(|failure| {
        let address = &arguments.client.address;
        let cause = format!("{}; `trunkctl ping {address}` shows the steps of the session", failure.cause);
        (2, Failure { cause, ..failure })
    })?;
    let client = HealthClient::new(channel).with_timeout(Duration::from_millis(arguments.call_timeout_ms));
    block_on(client.check(arguments.service.clone())).map_err(|status| {
        let is_missing = status.code() == Code::Unimplemented;
        let mut failure = Failure::from(status);
        if is_missing {
            failure.cause = "the node answers, and has no health service: NodeBuilder::health".to_owned();
        }
        (3, failure)
    })
}
