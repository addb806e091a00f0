//! Measures generated calls and, in the same run, the floors of the machine.
//!
//! | file | what it is |
//! |---|---|
//! | `cli`, `sizes` | the command line |
//! | `scenario` | one file per subcommand, and common parts: options, repetitions in turn, files, the end of a run |
//! | `calls` | the nodes, their services and their callers |
//! | `floors`, `systems` | the same exchanges without any middleware, and over other systems |
//! | `meter` | child processes, cores, load, times and rates |
//! | `results` | tables, files, pages, and changes between two files |
//!
//! See also `trunkline-bench --help`.

#![forbid(unsafe_code)]

mod calls;
mod cli;
mod floors;
mod meter;
mod results;
mod scenario;
mod sizes;
mod systems;

use clap::Parser;
use cli::{Cli, Command};
use results::{compare, html};
use scenario::point::Measure;
use scenario::{across, burst, fair, mixed, rest, run, scale, sealed, shared, side_by_side, streams};
use std::process::ExitCode;
use trunkline_testkit::output;

/// Payload sizes used without a subcommand, in bytes.
const SIZES: [usize; 6] = [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        None => run::measure(Measure::Latency, &cli.settings, &SIZES, 1),
        Some(Command::Latency(settings)) => run::measure(Measure::Latency, settings, &[64], 1),
        Some(Command::Rate(settings)) => run::measure(Measure::Rate, settings, &[64], 32),
        Some(Command::Bandwidth(settings)) => run::measure(Measure::Bandwidth, settings, &[1 << 20], 4),
        Some(Command::Table(table)) => side_by_side::measure(table),
        Some(Command::Fair(load)) => fair::measure(load),
        Some(Command::Node(host)) => across::serve(host),
        Some(Command::Run(orders)) => across::run(orders),
        Some(Command::Scale(scale)) => scale::measure(scale),
        Some(Command::Mixed(mixed)) => mixed::measure(mixed),
        Some(Command::Burst(burst)) => burst::measure(burst),
        Some(Command::Streams(streams)) => streams::measure(streams),
        Some(Command::Compare(files)) => compare::compare(files),
        Some(Command::Report(files)) => html::report(files),
        Some(Command::Sealed(sealed)) => sealed::measure(sealed),
        Some(Command::Shared(shared)) => shared::measure(shared),
        Some(Command::Rest(rest)) => rest::measure(rest),
        Some(Command::IdleNodes(nodes)) => nodes.run(),
        Some(Command::Helper(helper)) => {
            helper.run();
            Ok(())
        }
        Some(Command::Serve(fleet)) => fleet.serve(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::err(&format!("error: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}
