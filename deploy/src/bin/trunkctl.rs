//! The operator tool. `trunkctl --help` explains it.

use clap::Parser;
use std::process::ExitCode;
use trunkline_deploy::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run()
}
