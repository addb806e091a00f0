//! `trunkctl health`: queries a node for the health of a service, for exec probes.

use crate::client::{ClientArguments, connect};
use crate::streams::finish;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use trunkline::health::{HealthClient, ServingStatus};
use trunkline::{Code, block_on};
use trunkline_softrdma::link::printable;

/// Ask a node for the health of a service
///
/// The node needs a health service: NodeBuilder::health. Nodes with gRPC services need it as well, beside
/// tonic-health's.
///
/// Exit status, as of grpc-health-probe: 0 the service takes calls; 1 the command line is invalid, or the
/// status cannot be written; 2 no session could be made; 3 the call failed; 4 the service takes no calls.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct HealthArguments {
    #[command(flatten)]
    client: ClientArguments,
    /// Name of the service; empty for the node as a whole
    #[arg(value_name = "SERVICE", default_value = "")]
    service: String,
    /// Time limit of the set-up, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    connect_timeout_ms: u64,
    /// Time limit of the call, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    call_timeout_ms: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Queries the health.
#[must_use]
pub fn run(arguments: &HealthArguments) -> ExitCode {
    let (exit, status, cause) = match ask(arguments) {
        Ok(ServingStatus::Serving) => (0, Some("serving"), None),
        Ok(_) => (4, Some("not serving"), None),
        // The cause may contain texts of the server.
        Err((exit, cause)) => (exit, None, Some(printable(&cause))),
    };
    let text = if arguments.json {
        json!({ "address": arguments.client.address, "service": arguments.service, "status": status, "cause": cause })
            .to_string()
    } else {
        status.map_or_else(|| format!("status unknown: {}", cause.unwrap_or_default()), str::to_owned)
    };
    finish(&text, exit)
}

/// Returns the health.
///
/// # Errors
/// The exit status and the cause.
fn ask(arguments: &HealthArguments) -> Result<ServingStatus, (u8, String)> {
    let node = arguments.client.start().map_err(|error| (2, error))?;
    let channel = arguments.client.channel(&node);
    let limit = Duration::from_millis(arguments.connect_timeout_ms);
    connect(&channel, limit).map_err(|failure| {
        let address = &arguments.client.address;
        (2, format!("{}; `trunkctl ping {address}` shows the steps of the session", failure.cause))
    })?;
    let client = HealthClient::new(channel).with_timeout(Duration::from_millis(arguments.call_timeout_ms));
    block_on(client.check(arguments.service.clone())).map_err(|status| match status.code() {
        Code::Unimplemented => {
            (3, "the node answers, and has no health service: NodeBuilder::health".to_owned())
        }
        _ => (3, status.to_string()),
    })
}
