//! Measures one gRPC service over tonic's transports and over Trunkline in one run.
//!
//! | file | contents |
//! |---|---|
//! | `service` | the measured service |
//! | `transport`, `server` | the transports, and the server process |
//! | `measure`, `table` | the measurements, and the tables of results |

#![forbid(unsafe_code)]

mod measure;
#[path = "../../../../bench/src/meter/mod.rs"]
#[expect(dead_code, reason = "shared with trunkline-bench, which uses all of it")]
mod meter;
mod server;
mod service;
mod table;
mod transport;

use clap::{Args, Parser, Subcommand};
use measure::Point;
use meter::load::{Helper, Load, Neighbours, Quota};
use meter::pin::{self, Pin};
use server::Server;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use table::Report;
use transport::{Failure, Runtime, Transport};

/// Measures one gRPC service over tonic's own transports and over Trunkline in one run, and prints a table.
///
/// tonic generates the service, and only the transport differs: HTTP/2 over TCP, HTTP/2 over a Unix socket, and Trunkline.
/// Trunkline is measured twice: with handlers as tasks in a tokio runtime, and with handlers on the node's poller. The
/// server is a second process, which the program starts itself. Each side runs all its threads on one core, which --pin
/// selects.
///
/// Each repetition starts a new server for each transport. It measures unary calls with 64 B (1 and 32 outstanding), 64 KiB
/// (8 outstanding) and 1 MiB (1 outstanding), a server stream with items of 64 B, and an upload in items of 64 KiB. The
/// first table contains medians over the repetitions, the second their ratios to tonic over TCP. The warm-up of a
/// measurement takes an additional quarter of its time. Call rates are medians over slices of 1 ms, and stream rates are
/// means.
///
/// If each side has a separate core, the runtimes of tonic's transports poll instead of sleeping, which is faster.
/// Trunkline's pollers also poll while they have work. Trunkline's runtimes sleep when idle, because a poller shares their
/// core.
///
/// With --pin off, one core for both sides, --neighbours or --quota, all runtimes are ordinary multi-threaded runtimes that
/// sleep, as in a service. They have two workers if nothing is pinned, and one otherwise. With --neighbours or --quota, call
/// rates are also means, so that the time taken by other programs is included. If a --quota cannot be set, the program
/// prints a line that begins with `skip:` and exits with code 0.
///
/// Examples:
///   trunkline-tonic-bench                        the table, in about a minute
///   trunkline-tonic-bench --json out.json        the values of all repetitions too
///   trunkline-tonic-bench --seconds 0.1 --repetitions 3     a quick look
///   trunkline-tonic-bench --pin 2,3              client on core 2, server on core 3
///   trunkline-tonic-bench --pin 0,0              both sides on one core
///   trunkline-tonic-bench --pin off --neighbours 2    beside two busy loops
///   trunkline-tonic-bench --pin off --quota 0.5       half a core for each side
///   TRUNKLINE_LINK=udp trunkline-tonic-bench     Trunkline over UDP, not over shared memory
///
/// Use a release build, and an otherwise idle machine.
#[derive(Debug, Parser)]
#[command(
    name = "trunkline-tonic-bench",
    version,
    verbatim_doc_comment,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the server process, which the program starts itself.
    #[command(hide = true)]
    Serve {
        #[arg(value_enum)]
        transport: Transport,
        /// Directory for a socket.
        folder: PathBuf,
        #[arg(long)]
        core: Option<usize>,
        #[arg(long, value_enum)]
        runtime: Runtime,
    },
    #[command(flatten)]
    Helper(Helper),
}

#[derive(Debug, Args)]
struct Run {
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    seconds: f64,
    /// Number of repetitions.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Cores of client and server, such as 0,1, or `off`. Default: the first two that the process may use.
    #[arg(long)]
    pin: Option<Pin>,
    #[command(flatten)]
    load: Load,
    /// Transports to measure; may be repeated. Default: all.
    #[arg(long, value_enum)]
    transport: Vec<Transport>,
    /// Write all values to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=60.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0.001 to 60".to_owned())
}

fn main() -> ExitCode {
    let Cli { command, run } = Cli::parse();
    let done = match command {
        Some(Command::Serve { transport, folder, core, runtime }) => serve(transport, &folder, core, runtime),
        Some(Command::Helper(helper)) => {
            helper.run();
            Ok(())
        }
        None => measure_all(&run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _unwritten = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve(
    transport: Transport,
    folder: &std::path::Path,
    core: Option<usize>,
    runtime: Runtime,
) -> Result<(), Failure> {
    core.map_or(Ok(()), pin::to)?;
    transport.run(runtime, transport.serve(folder))
}

fn measure_all(run: &Run) -> Result<(), Failure> {
    let cores = Pin::cores(run.pin)?;
    // Create the file before the measurement, so that an error is reported early.
    let json = run
        .json
        .as_ref()
        .map(|path| File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display())));
    let json = json.transpose()?;
    let runtime = Runtime::choose(cores, run.load.is_any());
    let cores_used = cores.map(|cores| [cores.client, cores.server]);
    let mut report = Report::new(run.seconds, cores_used, run.load, runtime);
    let _neighbours = Neighbours::start(run.load.neighbours)?;
    let quota = match run.load.quota.map(Quota::start).transpose() {
        Ok(quota) => quota,
        Err(why) => {
            println!("skip: {why}");
            return Ok(());
        }
    };
    // The report counts the machine's cores, and neighbours may use all of them. Both therefore precede pinning.
    cores.map_or(Ok(()), |cores| pin::to(cores.client))?;
    for repetition in 1..=run.repetitions {
        let is_chosen = |of: &Transport| run.transport.is_empty() || run.transport.contains(of);
        for transport in Transport::ALL.into_iter().filter(is_chosen) {
            let _unwritten = writeln!(
                io::stderr(),
                "repetition {repetition} of {}: {}",
                run.repetitions,
                transport.title()
            );
            let folder = tempfile::tempdir()?;
            let server = Server::start(
                transport,
                folder.path(),
                cores.map(|cores| cores.server),
                runtime,
                quota.as_ref(),
            )?;
            transport.run(runtime, measure(transport, &server.address, run, &mut report))?;
        }
    }
    println!("{}\n\n{}", report.table(), report.ratios());
    if let Some(mut file) = json {
        serde_json::to_writer_pretty(&file, &report)?;
        writeln!(file)?;
    }
    Ok(())
}

/// Runs all measurements over one connection.
async fn measure(transport: Transport, address: &str, run: &Run, report: &mut Report) -> Result<(), Failure> {
    let connection = transport.connect(address).await?;
    for point in Point::ALL {
        let time = Duration::from_secs_f64(run.seconds);
        // A neighbour's time slice takes 3 to 4 ms, so a median over slices of 1 ms would exclude it.
        let is_mean = report.cores.is_none() || run.load.is_any();
        let sample = point.measure(&connection, time, is_mean).await;
        let sample = sample.map_err(|error| format!("{}, {}: {error}", transport.title(), point.title()))?;
        report.add(point, transport, &sample);
    }
    connection.end().await;
    Ok(())
}
