//! Many calls at once, each by a task of tokio: their total time and their memory.
//!
//! The measurement has two parts: the calls, and the same number of tasks that wait for a timer instead. Each part runs in a
//! separate process, so that their memory does not mix.

use crate::child::{Child, await_parent};
use crate::client::Kind;
use crate::failure::Failure;
use crate::machine::{Machine, Stamp, memory};
use crate::nodes::{LinkFlag, Nodes};
use crate::progress;
use crate::session::Session;
use crate::whole_file;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use trunkline::{Bytes, CallOptions, Code};
use trunkline_testkit::output;

/// Payload in both directions.
const PAYLOAD: &[u8] = &[0x5a; 64];
/// Duration of the timer that replaces a call.
const TIMER: Duration = Duration::from_secs(1);

/// Number of calls, and their settings.
#[derive(Debug, Args)]
pub(crate) struct Burst {
    /// Number of calls made at once, 64 bytes there and back.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    calls: u32,
    /// Time limit of each call.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Path of the packets; with `process`, memory includes client and server.
    #[arg(long, value_enum, default_value_t = LinkFlag::Process)]
    link: LinkFlag,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
    /// Part of the measurement to run, set when the program starts itself.
    #[arg(long, hide = true, value_enum)]
    part: Option<Part>,
    #[command(flatten)]
    nodes: Nodes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Calls,
    Timers,
}

/// Output of one part, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    succeeded: u32,
    /// Failed calls, by the name of the status.
    failed: Vec<(String, u32)>,
    seconds: f64,
    grown_bytes: u64,
}

/// Contents of the file.
#[derive(Debug, Serialize)]
struct Results {
    command: &'static str,
    #[serde(flatten)]
    stamp: Stamp,
    machine: Machine,
    calls: u32,
    succeeded: u32,
    failed: u32,
    seconds: f64,
    calls_per_s: f64,
    /// Growth of resident memory from the start to its peak.
    grown_bytes: u64,
    /// The same for tasks with a timer.
    timer_grown_bytes: u64,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if a part cannot be measured or the file cannot be written.
pub(crate) fn measure(burst: &Burst) -> Result<(), Failure> {
    if burst.part.is_some() {
        thread::spawn(|| {
            await_parent();
            std::process::exit(2);
        });
    }
    match burst.part {
        Some(Part::Calls) => say(&calls(burst)?),
        Some(Part::Timers) => say(&timers(burst)?),
        None => both(burst),
    }
}

fn say(outcome: &Outcome) -> Result<(), Failure> {
    let text = serde_json::to_string(outcome).map_err(|error| error.to_string())?;
    Ok(output::out(&text)?)
}

fn both(burst: &Burst) -> Result<(), Failure> {
    whole_file::check(&burst.json)?;
    let began = Instant::now();
    let bar = bar(burst.quiet);
    bar.set_message("timers");
    let timers = run(burst, Part::Timers)?;
    bar.set_message("calls");
    let calls = run(burst, Part::Calls)?;
    bar.finish_and_clear();
    let results = Results {
        command: "burst",
        stamp: Stamp::now(),
        machine: Machine::here(),
        calls: burst.calls,
        succeeded: calls.succeeded,
        failed: burst.calls - calls.succeeded,
        seconds: calls.seconds,
        calls_per_s: f64::from(burst.calls) / calls.seconds,
        grown_bytes: calls.grown_bytes,
        timer_grown_bytes: timers.grown_bytes,
    };
    if !burst.quiet {
        output::out(&table(&results, &calls.failed))?;
    }
    let written = burst.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &results));
    written.map_err(Failure::Unwritten)?;
    let what = format!("burst: {} of {} calls succeeded", results.succeeded, results.calls);
    progress::end(burst.quiet, &what, began, &burst.json)
}

#[expect(clippy::cast_precision_loss, reason = "printed with one digit after the point")]
fn table(results: &Results, failed: &[(String, u32)]) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let Results { calls, succeeded, seconds, calls_per_s, .. } = results;
    let mut lines = vec![
        format!("calls at once  {calls}, of which {succeeded} succeeded"),
        format!("time           {seconds:.2} s, {calls_per_s:.0} calls/s"),
        format!("memory         {:.1} MB more at its peak", mb(results.grown_bytes)),
        format!("timers instead {:.1} MB more", mb(results.timer_grown_bytes)),
    ];
    lines.extend(failed.iter().map(|(code, count)| format!("failed         {count}: {code}")));
    lines.join("\n")
}

/// Runs this program again for one part.
fn run(burst: &Burst, part: Part) -> Result<Outcome, Failure> {
    let mut arguments =
        ["burst", "--part", &name(part), "--link", burst.link.name()].map(str::to_owned).to_vec();
    let Nodes { pollers, address, peer_address } = burst.nodes;
    for (option, value) in [
        ("--calls", Some(burst.calls.to_string())),
        ("--limit", Some(burst.limit.to_string())),
        ("--pollers", Some(pollers.to_string())),
        ("--address", address.map(|address| address.to_string())),
        ("--peer-address", peer_address.map(|address| address.to_string())),
    ] {
        arguments.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
    }
    // The child has printed the reason if it fails.
    let line =
        Child::start(arguments)?.read_line().map_err(|why| format!("the part {}: {why}", name(part)))?;
    let parsed = serde_json::from_str(&line);
    Ok(parsed.map_err(|error| format!("the part {} has no result: {error}", name(part)))?)
}

/// Returns the name on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |word| word.get_name().to_owned())
}

fn bar(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}");
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn runtime() -> Result<Runtime, String> {
    let built = Builder::new_multi_thread().worker_threads(2).enable_time().build();
    built.map_err(|error| format!("cannot start tokio: {error}"))
}

fn calls(burst: &Burst) -> Result<Outcome, Failure> {
    let session = Session::start(burst.link, &burst.nodes, Kind::Tokio, None)?;
    let options = CallOptions::new().timeout(Duration::from_secs(burst.limit));
    let client = session.client().sendable();
    let ends = grow(burst.calls, || {
        let (client, options) = (client.clone(), options.clone());
        async move {
            let ended = client.with(&options).echo(Bytes::from_static(PAYLOAD)).await;
            ended.map(drop).map_err(|status| status.code())
        }
    })?;
    session.servers().death().map_or(Ok(ends), Err)
}

fn timers(burst: &Burst) -> Result<Outcome, Failure> {
    let ends = grow(burst.calls, || async {
        tokio::time::sleep(TIMER).await;
        Ok(())
    });
    Ok(ends?)
}

/// Starts the tasks at once. Returns their outcomes and the growth of the process.
fn grow<F>(tasks: u32, task: impl Fn() -> F) -> Result<Outcome, String>
where
    F: Future<Output = Result<(), Code>> + Send + 'static,
{
    let runtime = runtime()?;
    let before = memory("VmRSS:")?;
    let began = Instant::now();
    let handles = (0..tasks).map(|_| runtime.spawn(task())).collect::<Vec<_>>();
    let (mut succeeded, mut failed) = (0, Vec::<(String, u32)>::new());
    for handle in handles {
        let ended = runtime.block_on(handle).map_err(|error| format!("a task has ended: {error}"))?;
        let Err(code) = ended else {
            succeeded += 1;
            continue;
        };
        let code = format!("{code:?}");
        match failed.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => failed.push((code, 1)),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Outcome { succeeded, failed, seconds, grown_bytes: memory("VmHWM:")?.saturating_sub(before) })
}
