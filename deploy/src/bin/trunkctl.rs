//! The operator tool. See `trunkctl --help`.

use clap::Parser;
use std::process::ExitCode;
use trunkline_deploy::cli::{self, Cli};

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => cli.run(),
        Err(error) => cli::refuse(&error),
    }
}
