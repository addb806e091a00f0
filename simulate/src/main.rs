//! Whole nodes in virtual time.
//!
//! | file | what it is |
//! |---|---|
//! | `scheduler` | who runs next, and when: machines, clients, bells, timers, and the clock |
//! | `network` | the hosts, datagrams between them, and what happens to these on the way |
//! | `node` | a simulated node: process, device, incarnations; several may share a host's address |
//! | `service`, `client` | what nodes offer, and what programs do with it |
//! | `plan` | what the seed decides beforehand; `run` carries it out |
//! | `oracle` | what must be true of every call |
//! | `credits` | what must be true of credits, slots and memory |
//! | `trace`, `heading`, `packet` | what a reader can see of a run |
//! | `coverage`, `campaign`, `mutants` | many runs, whether they exercise enough, and whether they would notice |
//!
//! A run uses no thread, socket, real time or unseeded randomness: the same seed gives the same
//! trace. `cargo simulate --help` teaches the rest.

#![forbid(unsafe_code)]

mod campaign;
mod cli;
mod client;
mod coverage;
mod credits;
mod heading;
mod mutants;
mod network;
mod node;
mod oracle;
mod packet;
mod plan;
mod report;
mod run;
mod scheduler;
mod service;
mod switch;
mod tasks;
mod timers;
mod trace;

use campaign::CampaignPlan;
use clap::Parser;
use cli::Cli;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use trace::Trace;

fn main() -> ExitCode {
    quiet_panics();
    let cli = Cli::parse();
    let outcome = match cli.mutant.as_deref() {
        Some("list") => {
            for mutant in mutants::ALL {
                println!("{:<32} {}", mutant.name, mutant.what);
            }
            Ok(true)
        }
        Some("all") => Ok(hunt_all(&cli)),
        _ if cli.trace.is_some() || (cli.seed.is_some() && cli.runs() == 1) => trace_one(&cli),
        _ => Ok(simulate(&cli)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The panics that the workload provokes are no news; all others are printed.
fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&service::PANIC) {
            usual(panic);
        }
    }));
}

/// A seed of the day, so that a campaign without one is repeatable and yet tries new seeds.
fn seed_of_the_day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / 86_400 * 1_000_000
}

fn known_mutant(cli: &Cli) -> Result<Option<&str>, String> {
    let Some(name) = cli.mutant.as_deref() else { return Ok(None) };
    if !switch::are_built_in() {
        return Err("this program has no deliberate faults in it; build it by `cargo simulate`".to_owned());
    }
    if mutants::ALL.iter().any(|mutant| mutant.name == name) {
        return Ok(Some(name));
    }
    Err(format!("there is no deliberate fault {name:?}; `cargo simulate --mutant list` names them"))
}

/// One run, with its trace if that was asked for.
fn trace_one(cli: &Cli) -> Result<bool, String> {
    if cli.runs() != 1 {
        return Err("--trace is for one run; leave --runs and --minutes out".to_owned());
    }
    let mutant = known_mutant(cli)?;
    switch::choose(mutant);
    let seed = cli.seed.unwrap_or_else(seed_of_the_day);
    let trace = match &cli.trace {
        Some(path) => Trace::to_file(path)
            .map_err(|error| format!("cannot write the trace {}: {error}", path.display()))?,
        None => Trace::checksum_only(),
    };
    if let Some(name) = mutant {
        trace.line(trace::START, "about", format_args!("the deliberate fault {name} is on"));
    }
    let outcome = campaign::run_one(seed, trace.clone());
    if let (Err(error), Some(path)) = (trace.close(), &cli.trace) {
        return Err(format!("cannot write the trace {}: {error}", path.display()));
    }
    let mut summary = campaign::Summary::default();
    summary.add(&outcome);
    if cli.json {
        println!("{}", report::json(&summary));
    } else {
        report::print(&summary);
    }
    println!("checksum of the run: {:08x}", outcome.checksum);
    if let Some(why) = outcome.broken {
        println!("seed {seed} FAILED: {why}");
        if cli.trace.is_none() {
            println!("replay it with: {}", report::replay(seed, mutant));
        }
        return Ok(false);
    }
    Ok(true)
}

/// A campaign.
fn simulate(cli: &Cli) -> bool {
    let mutant = match known_mutant(cli) {
        Ok(mutant) => mutant,
        Err(error) => {
            eprintln!("error: {error}");
            return false;
        }
    };
    let first = cli.seed.unwrap_or_else(seed_of_the_day);
    let summary = campaign::campaign(&CampaignPlan {
        first,
        runs: cli.runs(),
        time: cli.time(),
        jobs: cli.jobs(),
        keep_going: cli.keep_going,
        mutant,
    });
    if cli.json {
        println!("{}", report::json(&summary));
    } else {
        report::print(&summary);
        println!(
            "not judged: {}",
            oracle::NOT_JUDGED.iter().map(|(what, _)| *what).collect::<Vec<_>>().join(", ")
        );
    }
    for failure in &summary.failures {
        eprintln!("seed {} FAILED: {}", failure.seed, failure.why);
        eprintln!("replay it with: {}", report::replay(failure.seed, mutant));
    }
    if !summary.failures.is_empty() {
        return false;
    }
    let shortfalls = summary.shortfalls();
    for shortfall in &shortfalls {
        eprintln!("the campaign exercised too little: {shortfall}");
    }
    shortfalls.is_empty()
}

/// Each deliberate fault must be caught.
fn hunt_all(cli: &Cli) -> bool {
    if !switch::are_built_in() {
        eprintln!("error: this program has no deliberate faults in it; build it by `cargo simulate`");
        return false;
    }
    let mut caught = 0;
    for mutant in mutants::ALL {
        let summary = mutants::hunt(*mutant, cli.seed.unwrap_or(1), cli.jobs());
        match summary.failures.first() {
            Some(failure) => {
                caught += 1;
                println!("caught {:<32} after {:>3} runs: {}", mutant.name, summary.runs, failure.why);
            }
            None => println!("MISSED {:<32} in {} runs: {}", mutant.name, summary.runs, mutant.what),
        }
    }
    println!("{caught} of {} deliberate faults were caught", mutants::ALL.len());
    caught == mutants::ALL.len()
}
