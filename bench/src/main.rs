//! Measures generated calls, and the floors of the machine in the same run.
//!
//! | file | what it is |
//! |---|---|
//! | `cli`, `nodes`, `sizes`, `quantities` | the command line |
//! | `paths` | the path of packets to the server |
//! | `run`, `drift`, `others` | the order of measurements, dropped measurements, and other load of the machine |
//! | `session`, `servers`, `child` | the nodes, and the server's process |
//! | `client`, `worker`, `payload` | callers, exchanges and payloads |
//! | `echo`, `feed` | the called services |
//! | `floors` | the same exchanges without any middleware |
//! | `systems`, `figures` | the same exchanges over other systems, for `--peers` |
//! | `recorder`, `stopwatch`, `spread` | times and rates of one measurement, and medians over several |
//! | `point`, `report`, `table`, `machine` | results, as JSON and as a table |
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
//! | `pin`, `failure`, `whole_file`, `progress` | cores, exit codes, and files that are replaced as a whole |
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
mod progress;
mod quantities;
mod recorder;
mod report;
mod rest;
mod run;
mod saved;
mod scale;
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
use cli::{Cli, Command, Settings};
use failure::Failure;
use indicatif::ProgressBar;
use machine::Machine;
use others::Others;
use point::{Measure, Point};
use report::Report;
use run::Run;
use session::Session;
use std::process::ExitCode;
use std::time::Instant;
use trunkline_testkit::output;

/// Sizes without a subcommand.
const SIZES: [usize; 6] = [8, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
/// Duration of a run, in seconds, from which it has a progress bar.
const LONG_S: f64 = 2.0;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        None => act(Measure::Latency, &cli.settings, &SIZES, 1),
        Some(Command::Latency(settings)) => act(Measure::Latency, settings, &[64], 1),
        Some(Command::Rate(settings)) => act(Measure::Rate, settings, &[64], 32),
        Some(Command::Bandwidth(settings)) => act(Measure::Bandwidth, settings, &[1 << 20], 4),
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

/// Measures, and reports the results even if a later measurement fails.
fn act(measure: Measure, settings: &Settings, sizes: &[usize], outstanding: usize) -> Result<(), Failure> {
    settings.check()?;
    whole_file::check(settings.json.iter().chain(&settings.html))?;
    let began = Instant::now();
    let (link, link_why) = Session::link(settings.link, &settings.nodes, settings.quiet)?;
    let settings = &Settings { link, link_why, ..settings.clone() };
    let mut run = Run::new(measure, settings, sizes, outstanding)?;
    // A pinned thread sees one core only, so the machine is described first.
    let machine = Machine::here();
    let bar = bar(settings, run.steps());
    let others = Others::watch();
    let measured = run.measure(&bar);
    let others = others.cores();
    bar.finish_and_clear();
    let results: Vec<_> = run.points.iter().filter_map(Point::results).collect();
    if !settings.quiet && !results.is_empty() {
        output::out(&table::table(measure, &results))?;
    }
    let summary = table::summary(measure, &results, settings.repetitions);
    let error = measured.as_ref().err().map(ToString::to_string);
    let written = Report::new(measure, settings, (machine, run.cores, others), results, error).save(settings);
    if let (Err(_), Err(why)) = (&measured, &written) {
        output::err(&format!("error: {why}"));
    }
    // The reason for which the measurement ended early decides the exit code.
    measured.and(written.map_err(Failure::Unwritten))?;
    progress::end(settings.quiet, &summary, began, settings.json.iter().chain(&settings.html))
}

/// Returns a bar that is drawn only on a terminal, and only for long runs.
fn bar(settings: &Settings, steps: u64) -> ProgressBar {
    #[expect(clippy::cast_precision_loss, reason = "a number of measurements")]
    let is_long = steps as f64 * settings.seconds > LONG_S;
    if settings.quiet || !is_long {
        return ProgressBar::hidden();
    }
    progress::bar(false, steps)
}
