//! Measures generated calls, and the floors of the machine in the same run.
//!
//! | file | what it is |
//! |---|---|
//! | `cli`, `nodes`, `sizes` | the command line |
//! | `paths` | the path of packets to the server |
//! | `scenario` | what all scenarios share: options, repetitions in turn, files, and the end of a run |
//! | `drift`, `others` | dropped measurements, and other load of the machine |
//! | `run` | latency, rate and bandwidth, with floors and other systems |
//! | `session`, `servers`, `child` | the nodes, and the server's process |
//! | `client`, `worker`, `payload` | callers, exchanges and payloads |
//! | `echo`, `feed` | the called services |
//! | `floors` | the same exchanges without any middleware |
//! | `systems`, `figures` | the same exchanges over other systems, for `--peers` |
//! | `recorder`, `stopwatch`, `spread` | times and rates of one measurement, and medians over several |
//! | `point`, `table`, `machine` | results of a point, tables, and the machine |
//! | `fair` | small calls next to large ones |
//! | `across` | measurements between several hosts |
//! | `side_by_side` | Trunkline, other systems and floors in one table |
//! | `scale` | peers, pollers, services and sessions |
//! | `mixed` | sizes and kinds in a mix |
//! | `burst` | many calls at once, and their memory |
//! | `streams` | items of streams, and the memory of streams |
//! | `shared`, `load` | busy loops and CPU quotas |
//! | `rest`, `usage` | CPU time, context switches and memory of idle sides |
//! | `compare`, `saved` | changes between the files of two runs |
//! | `html`, `distribution` | a page with plots |
//! | `pin`, `failure`, `whole_file` | cores, exit codes, and files that are replaced as a whole |
//!
//! See also `trunkline-bench --help`.

#![forbid(unsafe_code)]

mod across;
mod burst;
mod child;
mod cli;
mod client;
mod compare;
mod distribution;
mod drift;
mod echo;
mod failure;
mod fair;
mod feed;
mod figures;
mod floors;
mod html;
mod load;
mod machine;
mod mixed;
mod nodes;
mod others;
mod paths;
mod payload;
mod pin;
mod point;
mod recorder;
mod rest;
mod run;
mod saved;
mod scale;
mod scenario;
mod servers;
mod session;
mod shared;
mod side_by_side;
mod sizes;
mod spread;
mod stopwatch;
mod streams;
mod systems;
mod table;
mod usage;
mod whole_file;
mod worker;

use clap::Parser;
use cli::{Cli, Command};
use point::Measure;
use std::process::ExitCode;
use trunkline_testkit::output;

/// Sizes without a subcommand.
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
