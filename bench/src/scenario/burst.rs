//! Many concurrent calls, each from a tokio task: their total time and their memory.
//!
//! The measurement has two parts: the calls, and the same number of tasks that wait for a timer. Each part runs in a
//! separate process, so that its memory can be measured separately.

use crate::calls::client::CallerKind;
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::session::Session;
use crate::meter::child::{Child, await_parent};
use crate::meter::failure::Failure;
use crate::meter::machine::memory;
use crate::scenario::{Output, Scenario};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use trunkline::{Bytes, CallOptions, Code};
use trunkline_testkit::output;

const PAYLOAD: &[u8] = &[0x5a; 64];
/// Duration of the timer that replaces a call.
const TIMER: Duration = Duration::from_secs(1);

/// Number and settings of the calls.
#[derive(Debug, Args)]
pub(crate) struct Burst {
    /// Number of calls made at once, with 64 bytes in each direction.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    calls: u32,
    /// Time limit of each call.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Path of the packets. With `process`, memory includes client and server.
    #[arg(long, value_enum, default_value_t = LinkFlag::Process)]
    link: LinkFlag,
    #[command(flatten)]
    output: Output,
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
    /// Numbers of failed calls, by name of the status.
    failed: Vec<(String, u32)>,
    seconds: f64,
    grown_bytes: u64,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if a part cannot be measured or the file cannot be written.
pub(crate) fn measure(burst: &Burst) -> Result<(), Failure> {
    let Some(part) = burst.part else { return both(burst) };
    thread::spawn(|| {
        await_parent();
        std::process::exit(2);
    });
    let outcome = match part {
        Part::Calls => calls(burst)?,
        Part::Timers => grow(burst.calls, || async {
            tokio::time::sleep(TIMER).await;
            Ok(())
        })?,
    };
    let text = serde_json::to_string(&outcome).map_err(|error| error.to_string())?;
    Ok(output::out(&text)?)
}

fn both(burst: &Burst) -> Result<(), Failure> {
    let scenario = Scenario::begin("burst", &burst.output, None)?;
    let mut parts = [("timers", None), ("calls", None)];
    scenario.sweep(
        1,
        &mut parts,
        |(part, _)| (*part).to_owned(),
        |(part, outcome)| {
            *outcome = Some(run(burst, part)?);
            Ok(())
        },
    )?;
    let [(_, Some(timers)), (_, Some(calls))] = parts else { return Ok(()) };
    let Outcome { succeeded, failed, seconds, grown_bytes } = calls;
    let per_s = f64::from(burst.calls) / seconds;
    #[expect(clippy::cast_precision_loss, reason = "printed with one digit after the point")]
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let mut lines = vec![
        format!("calls at once  {}, of which {succeeded} succeeded", burst.calls),
        format!("time           {seconds:.2} s, {per_s:.0} calls/s"),
        format!("memory         {:.1} MB more at its peak", mb(grown_bytes)),
        format!("timers instead {:.1} MB more", mb(timers.grown_bytes)),
    ];
    lines.extend(failed.iter().map(|(code, count)| format!("failed         {count}: {code}")));
    let results = json!({
        "calls": burst.calls,
        "succeeded": succeeded,
        "failed": burst.calls - succeeded,
        "seconds": seconds,
        "calls_per_s": per_s,
        "grown_bytes": grown_bytes,
        "timer_grown_bytes": timers.grown_bytes,
    });
    let what = format!("{succeeded} of {} calls succeeded", burst.calls);
    scenario.end(Ok(()), &lines.join("\n"), &results, &what)
}

/// Runs one part in a child process of this program.
fn run(burst: &Burst, part: &str) -> Result<Outcome, Failure> {
    let mut arguments = ["burst", "--part", part, "--link", burst.link.name()].map(str::to_owned).to_vec();
    let Nodes { pollers, address, peer_address, encrypted } = burst.nodes;
    for (option, value) in [
        ("--calls", Some(burst.calls.to_string())),
        ("--limit", Some(burst.limit.to_string())),
        ("--pollers", Some(pollers.to_string())),
        ("--address", address.map(|address| address.to_string())),
        ("--peer-address", peer_address.map(|address| address.to_string())),
    ] {
        arguments.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
    }
    arguments.extend(encrypted.then(|| "--encrypted".to_owned()));
    // If the child fails, it has already printed the reason.
    let line = Child::start(arguments)?.read_line().map_err(|why| format!("the part {part}: {why}"))?;
    Ok(serde_json::from_str(&line).map_err(|error| format!("the part {part} has no result: {error}"))?)
}

fn calls(burst: &Burst) -> Result<Outcome, Failure> {
    let session = Session::start(burst.link, &burst.nodes, CallerKind::Tokio, None)?;
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

/// Starts all tasks at the same time. Returns their outcomes, and the growth of the memory of the process.
fn grow<F>(tasks: u32, task: impl Fn() -> F) -> Result<Outcome, String>
where
    F: Future<Output = Result<(), Code>> + Send + 'static,
{
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let runtime = runtime.map_err(|error| format!("cannot start tokio: {error}"))?;
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
