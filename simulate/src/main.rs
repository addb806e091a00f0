//! Simulation of whole nodes in virtual time.
//!
//! | file | contents |
//! |---|---|
//! | `scheduler` | the order of all steps: machines, clients, bells and timers; the clock |
//! | `network` | hosts, datagrams with delays and faults, forged packets and requests, and rules for packets sent by nodes |
//! | `node` | a simulated node with its process, device and incarnations; several nodes may share a host's address |
//! | `identity` | certificates of nodes, and cryptography with seeded random numbers |
//! | `workload` | services of the nodes, and programs that call these services |
//! | `plan`, `run` | decisions drawn from the seed in advance, and their execution in phases |
//! | `oracle` | rules for every call, credits, slots, memory, budgets and half-open sessions |
//! | `trace` | a readable record of a run |
//! | `coverage`, `campaign` | many runs, with checks that they exercise enough and detect deliberate faults |
//! | `cli` | the command line |
//!
//! A run uses no threads, sockets, real time or unseeded random numbers, so the same seed gives the same trace. See `cargo
//! simulate --help` for the usage.

#![forbid(unsafe_code)]

mod campaign;
mod cli;
mod coverage;
mod identity;
mod network;
mod node;
mod oracle;
mod plan;
mod run;
mod scheduler;
mod trace;
mod workload;

use campaign::mutants::Mutant;
use campaign::{CampaignPlan, Failure, Interrupt, Summary, mutants, report};
use clap::Parser;
use cli::Cli;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trace::Trace;
use trunkline_testkit::output;
use trunkline_verbs::headroom;

/// Exit code: all runs passed.
const PASSED: u8 = 0;
/// Exit code: a run failed, or a campaign had too few events of some kind.
const FAILED: u8 = 1;
/// Exit code: wrong usage, or output cannot be written.
const WRONG: u8 = 2;
/// Base of the exit code after a signal. The number of the signal is added.
const SIGNAL: u8 = 128;

fn main() -> ExitCode {
    quiet_panics();
    headroom::return_large_blocks();
    let cli = Cli::parse();
    let code = act(&cli).unwrap_or_else(|error| {
        output::err(&format!("error: {error}"));
        WRONG
    });
    ExitCode::from(code)
}

fn act(cli: &Cli) -> Result<u8, String> {
    cli.check()?;
    match cli.mutant.as_deref() {
        Some("list") => list(cli),
        Some("all") => hunt(cli, mutants::ALL.iter()),
        Some("few") => hunt(cli, mutants::few()),
        _ => simulate(cli),
    }
}

fn list(cli: &Cli) -> Result<u8, String> {
    let all = mutants::ALL.iter();
    if cli.json {
        let all = all.map(|mutant| json!({"name": mutant.name, "what": mutant.what}));
        output::out(&json!({"mutants": all.collect::<Vec<_>>()}).to_string())?;
    } else {
        let lines = all.map(|mutant| format!("{:<32} {}\n", mutant.name, mutant.what));
        output::out(&lines.collect::<String>())?;
    }
    Ok(PASSED)
}

/// Suppresses the output of panics caused by the workload. All other panics are printed.
fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&workload::service::PANIC) {
            usual(panic);
        }
    }));
}

/// Returns the seed of the day. A campaign without an explicit seed is therefore repeatable, but uses new seeds each day.
#[expect(clippy::disallowed_methods, reason = "read before any run")]
fn seed_of_the_day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / 86_400 * 1_000_000
}

fn known_mutant(cli: &Cli) -> Result<Option<&str>, String> {
    let Some(name) = cli.mutant.as_deref() else { return Ok(None) };
    if !mutants::are_built_in() {
        return Err("this program has no deliberate faults in it; build it by `cargo simulate`".to_owned());
    }
    if mutants::ALL.iter().any(|mutant| mutant.name == name) {
        return Ok(Some(name));
    }
    Err(format!(
        "unknown deliberate fault {name:?}: expected a name that `cargo simulate --mutant list` prints"
    ))
}

/// Runs one seed, and writes its trace if requested. Returns the summary and the checksum.
fn run_one(cli: &Cli, seed: u64, mutant: Option<&str>) -> Result<(Summary, String), String> {
    mutants::choose(mutant);
    let trace = match &cli.trace {
        Some(path) => Trace::to_file(path)
            .map_err(|error| format!("cannot write the trace {}: {error}", path.display()))?,
        None => Trace::checksum_only(),
    };
    if let Some(name) = mutant {
        trace.line(trace::START, "about", format_args!("the deliberate fault {name} is on"));
    }
    #[expect(clippy::disallowed_methods, reason = "outside of the runs")]
    let began = Instant::now();
    let outcome = campaign::run_one(seed, cli.pollers, trace.clone());
    if let (Err(error), Some(path)) = (trace.close(), &cli.trace) {
        return Err(format!("cannot write the trace {}: {error}", path.display()));
    }
    let mut summary = Summary { first: seed, pollers: cli.pollers, ..Summary::default() };
    summary.add(&outcome);
    summary.took = began.elapsed();
    summary.failures.extend(outcome.broken.map(|why| Failure { seed, why }));
    Ok((summary, format!("{:08x}", outcome.checksum)))
}

/// Prints a human-readable line to standard output, or to standard error if standard output is JSON.
fn tell(cli: &Cli, line: &str) -> Result<(), String> {
    if cli.json {
        output::err(line);
        return Ok(());
    }
    output::out(line)
}

fn interrupt() -> Result<Interrupt, String> {
    Interrupt::on_signals().map_err(|error| format!("cannot wait for signals: {error}"))
}

/// Runs one seed or a campaign, and reports the result.
fn simulate(cli: &Cli) -> Result<u8, String> {
    let mutant = known_mutant(cli)?;
    let first = cli.seed.unwrap_or_else(seed_of_the_day);
    let is_one = cli.seed.is_some() && cli.runs() == 1;
    let (summary, checksum) = if is_one {
        run_one(cli, first, mutant).map(|(summary, checksum)| (summary, Some(checksum)))?
    } else {
        let plan = CampaignPlan {
            first,
            runs: cli.runs(),
            time: cli.time(),
            jobs: cli.jobs(),
            keep_going: cli.keep_going,
            pollers: cli.pollers,
            mutant,
            interrupt: interrupt()?,
        };
        (campaign::campaign(&plan), None)
    };
    if cli.json {
        let mut document = report::json(&summary);
        if let Some(checksum) = checksum {
            document["checksum"] = json!(checksum);
        }
        output::out(&document.to_string())?;
    } else {
        let checksum =
            checksum.map_or_else(String::new, |checksum| format!("checksum of the run: {checksum}"));
        output::out(&format!("{}{checksum}", report::table(&summary)))?;
    }
    for failure in &summary.failures {
        output::err(&format!("seed {} FAILED: {}", failure.seed, failure.why));
        if cli.trace.is_none() {
            output::err(&format!("replay it with: {}", report::replay(failure.seed, cli.pollers, mutant)));
        }
    }
    if let Some((number, signal)) = summary.interrupted {
        let seeds = match summary.runs {
            0 => "no seed ran".to_owned(),
            runs => format!("seeds {first} to {} ran", first + (runs - 1)),
        };
        output::err(&format!("ended by {signal}: {seeds}, {} failed", summary.failures.len()));
        return Ok(SIGNAL + number);
    }
    let runs = report::runs(summary.runs);
    if !summary.failures.is_empty() {
        if !is_one {
            output::err(&format!("{} of {runs} failed", summary.failures.len()));
        }
        return Ok(FAILED);
    }
    let shortfalls = summary.shortfalls();
    for shortfall in &shortfalls {
        output::err(&format!("the campaign exercised too little: {shortfall}"));
    }
    let passed = match mutant {
        Some(name) if is_one => format!("seed {first} passed: mutant {name} on, not noticed by this seed"),
        None if is_one => format!("seed {first} passed"),
        _ => format!("all {runs} passed"),
    };
    tell(cli, &passed)?;
    Ok(if shortfalls.is_empty() { PASSED } else { FAILED })
}

/// Checks that each deliberate fault is caught.
fn hunt(cli: &Cli, chosen: impl Iterator<Item = &'static Mutant>) -> Result<u8, String> {
    if !mutants::are_built_in() {
        return Err("this program has no deliberate faults in it; build it by `cargo simulate`".to_owned());
    }
    let interrupt = interrupt()?;
    let mut caught = 0;
    let mut hunts = Vec::new();
    let chosen: Vec<_> = chosen.collect();
    for mutant in &chosen {
        let summary = campaign::campaign(&CampaignPlan {
            first: cli.seed.unwrap_or(1),
            runs: mutants::MOST_RUNS,
            time: Duration::MAX,
            jobs: cli.jobs(),
            keep_going: false,
            pollers: cli.pollers,
            mutant: Some(mutant.name),
            interrupt: interrupt.clone(),
        });
        let (name, runs, failure) = (mutant.name, summary.runs, summary.failures.first());
        hunts.push(json!({
            "name": name,
            "what": mutant.what,
            "caught": failure.is_some(),
            "runs": runs,
            "seed": failure.map(|failure| failure.seed),
            "why": failure.map(|failure| &failure.why),
        }));
        match failure {
            Some(failure) => {
                caught += 1;
                tell(cli, &format!("caught {name:<32} after {runs:>3} runs: {}", failure.why))?;
            }
            None if summary.interrupted.is_some() => {
                hunts.pop();
                break;
            }
            None => tell(cli, &format!("MISSED {name:<32} in {runs} runs: {}", mutant.what))?,
        }
    }
    let of = chosen.len();
    let signal = interrupt.signal();
    if cli.json {
        let document = json!({"mutants": hunts, "caught": caught, "of": of, "interrupted": signal.is_some()});
        output::out(&document.to_string())?;
    }
    tell(cli, &format!("{caught} of {of} deliberate faults were caught"))?;
    if let Some((number, name)) = signal {
        output::err(&format!("ended by {name}: {} of {of} faults were tried", hunts.len()));
        return Ok(SIGNAL + number);
    }
    Ok(if caught == of { PASSED } else { FAILED })
}
