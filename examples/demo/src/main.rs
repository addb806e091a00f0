//! `cargo demo`: shows the main use of Trunkline in one command.
//!
//! Without a subcommand, the program starts itself twice, as the server and as the client. Each side can also be started
//! separately.

mod cli;
mod client;
mod failure;
mod log;
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
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = log::to_stderr() {
        log::line(format_args!("demo: TRUNKLINE_LOG: {error}"));
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
            log::line(format_args!("{role}: {failure}"));
            ExitCode::from(1)
        }
    }
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
