//! Counts the cost of one call in units that do not depend on the machine's speed: instructions, allocations, system calls,
//! bytes.
//!
//! | file | what it is |
//! |---|---|
//! | `steps` | the measured program: two nodes, stepped in one thread |
//! | `measure` | runs the program under valgrind, and combines both sets of counts |
//! | `callgrind`, `layers` | callgrind's output, and the layer of each instruction |
//! | `system_calls` | system calls by side |
//! | `toolchain`, `record` | the versions that counts depend on; counts as JSON, and their growth |
//! | `side` | links, shapes and sides |
//! | `cli`, `table` | the command line, and the printed table |
//!
//! See also `cargo counts --help`.

#![forbid(unsafe_code)]

mod callgrind;
mod cli;
mod layers;
mod measure;
mod record;
mod side;
mod steps;
mod system_calls;
mod table;
mod toolchain;

use clap::Parser;
use cli::{Cli, Command};
use indicatif::{ProgressBar, ProgressStyle};
use measure::{RUNS, measure};
use record::{LinkCounts, Links, Record, Verdict};
use side::{Linked, SHAPES, Shape, Side};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use steps::Steps;
use toolchain::Toolchain;
use trunkline_testkit::output;

/// Exit code: success; counts have not grown.
const COUNTED: u8 = 0;
/// Exit code: a count has grown.
const GROWN: u8 = 1;
/// Exit code: wrong usage, valgrind is missing, or something cannot be run or written.
const WRONG: u8 = 2;

/// Number of calls over which each count is averaged.
const CALLS: u64 = 4096;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Steps(steps)) => step(steps),
        None => act(&cli),
    };
    ExitCode::from(done.unwrap_or_else(|error| {
        output::err(&format!("error: {error}"));
        WRONG
    }))
}

fn step(steps: Steps) -> Result<u8, String> {
    let totals = steps::run(steps)?;
    output::out(&serde_json::to_string(&totals).map_err(|error| error.to_string())?)?;
    Ok(COUNTED)
}

/// Counts, and then prints, checks or writes the counts as requested. Returns the exit code.
fn act(cli: &Cli) -> Result<u8, String> {
    let toolchain = Toolchain::here()?;
    // Read the record first, so that an unreadable record is reported before the measurement, which takes minutes.
    let before = if cli.check { Some(read(&cli.record())?) } else { None };
    let record = count(toolchain)?;
    output::out(&table::table(&record))?;
    if let Some(path) = &cli.json {
        write(path, &record)?;
    }
    if cli.bless {
        write(&cli.record(), &record)?;
    }
    before.map_or(Ok(COUNTED), |before| judge(&record, &before))
}

fn judge(record: &Record, before: &Record) -> Result<u8, String> {
    match record::check(record, before) {
        Verdict::Same => {
            output::out("pass counts")?;
            Ok(COUNTED)
        }
        Verdict::OtherToolchain(differences) => {
            // CI repeats lines that begin with `skip` at the end of its output.
            output::out(&format!(
                "skip counts: the record is of another toolchain ({differences}); `cargo counts --bless` renews it"
            ))?;
            Ok(COUNTED)
        }
        Verdict::Grown(grown) => {
            for line in grown {
                output::out(&format!("fail counts: {line}"))?;
            }
            output::err(
                "if that is worth it, `cargo counts --bless` renews the record; commit it with the reason",
            );
            Ok(GROWN)
        }
    }
}

fn count(toolchain: Toolchain) -> Result<Record, String> {
    let style =
        ProgressStyle::with_template("{bar:20} {pos}/{len} {msg}").map_err(|error| error.to_string())?;
    let bar = ProgressBar::new(2 * (RUNS.len() + SHAPES.len()) as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    let mut counted = Vec::new();
    let plain = RUNS.map(|(linked, outstanding)| (Shape::Plain, linked, outstanding));
    let shaped = SHAPES.map(|shape| (shape, Linked::InProcess, shape.outstanding()));
    for (shape, linked, outstanding) in plain.into_iter().chain(shaped) {
        for side in [Side::Client, Side::Server] {
            let (linked_by, shape_name) = (linked.name(), shape.name());
            bar.set_message(format!("{linked_by}, {outstanding} outstanding, {shape_name}, {side:?}"));
            counted.push(measure(Steps { linked, outstanding, calls: CALLS, shape }, side)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let link =
        |at: usize| LinkCounts { client: counted[2 * at].0.clone(), server: counted[2 * at + 1].0.clone() };
    Ok(Record {
        toolchain,
        payload_bytes: side::PAYLOAD_BYTES as u64,
        calls: CALLS,
        // With one call in flight, no frame contains more than one message.
        request_header_bytes: counted[0].1,
        reply_header_bytes: counted[1].1,
        outstanding_32: Links { in_process: link(1), udp: link(3), shm: link(5) },
        one_outstanding: Links { in_process: link(0), udp: link(2), shm: link(4) },
        shapes: (RUNS.len()..).zip(SHAPES).map(|(at, shape)| (shape.name().to_owned(), link(at))).collect(),
    })
}

fn read(path: &Path) -> Result<Record, String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!("cannot read the record {}: {error}; `cargo counts --bless` writes it", path.display())
    })?;
    serde_json::from_str(&text).map_err(|error| format!("invalid record {}: {error}", path.display()))
}

fn write(path: &Path, record: &Record) -> Result<(), String> {
    let text = serde_json::to_string_pretty(record).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("cannot write {}: {error}", path.display()))
}
