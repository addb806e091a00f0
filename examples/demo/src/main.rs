//! `cargo demo`: Trunkline's main job in one command.
//!
//! Without a subcommand this program starts itself twice, as the server and as the client; each
//! half can also be started by hand.

mod cli;
mod client;
mod failure;
mod node;
mod progress;
mod report;
mod server;
mod service;
mod signals;
mod supervisor;
mod tree;

use clap::Parser as _;
use cli::{Cli, Half};
use failure::Failure;
use signals::Stop;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = log_to_stderr() {
        eprintln!("demo: TRUNKLINE_LOG: {error}");
        return ExitCode::from(2);
    }
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let role = match cli.half {
                None => "demo",
                Some(Half::Server) => "demo server",
                Some(Half::Client { .. }) => "demo client",
            };
            eprintln!("{role}: {failure}");
            ExitCode::from(1)
        }
    }
}

/// Logs to standard error: warnings, or what `TRUNKLINE_LOG` selects, such as `info` or
/// `trunkline_transport=debug`.
fn log_to_stderr() -> Result<(), ParseError> {
    let filter = match std::env::var("TRUNKLINE_LOG") {
        Ok(text) => text.parse::<Targets>()?,
        Err(_) => Targets::new().with_default(LevelFilter::WARN),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}

fn run(cli: &Cli) -> Result<u8, Failure> {
    let stop = Stop::on_signals()?;
    if cli.demo.supervised {
        stop.at_end_of_input()?;
    }
    match &cli.half {
        None => supervisor::run(&stop),
        Some(Half::Server) => server::run(&cli.demo, &stop),
        Some(Half::Client { server }) => client::run(&cli.demo, *server, &stop),
    }
}
