//! Campaigns, which execute many runs on all CPUs and summarise them.

pub(crate) mod mutants;
pub(crate) mod report;

use crate::coverage::{Coverage, EventKind};
use crate::output;
use crate::plan::Pollers;
use crate::run::{Outcome, run};
use crate::trace::Trace;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Minimum number of runs for which the coverage of a campaign is checked.
const ENOUGH_RUNS: u64 = 200;
/// Minimum average numbers per run.
const LEAST: [(&str, f64); 3] = [("nodes", 2.0), ("calls", 300.0), ("faults", 10.0)];
/// Interval between progress lines, which are printed if there is no progress bar.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Minimum share of runs in which each kind of event must occur.
const LEAST_SHARE: f64 = 0.02;

/// A run that violated a rule.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) seed: u64,
    pub(crate) why: String,
}

#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// First seed. The other seeds follow consecutively.
    pub(crate) first: u64,
    /// Numbers of pollers that override the numbers drawn from the seeds.
    pub(crate) pollers: Option<Pollers>,
    /// Number and name of the signal that ended the campaign early.
    pub(crate) interrupted: Option<(u8, &'static str)>,
    pub(crate) runs: u64,
    pub(crate) nodes: u64,
    pub(crate) calls: u64,
    pub(crate) faults: u64,
    pub(crate) turns: u64,
    pub(crate) simulated: Duration,
    pub(crate) took: Duration,
    /// Number of events of each kind, and number of runs with at least one such event.
    pub(crate) kinds: Vec<(u64, u64)>,
    /// Failed runs in the order of their seeds.
    pub(crate) failures: Vec<Failure>,
}

impl Summary {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        self.kinds.resize(EventKind::ALL.len(), (0, 0));
        self.runs += 1;
        self.nodes += outcome.nodes as u64;
        self.calls += outcome.coverage.of(EventKind::CallMade);
        self.faults += outcome.coverage.faults();
        self.turns += outcome.turns;
        self.simulated += outcome.simulated;
        for (kind, (events, runs)) in EventKind::ALL.iter().zip(&mut self.kinds) {
            let count = outcome.coverage.of(*kind);
            *events += count;
            *runs += u64::from(count > 0);
        }
    }

    /// Returns the kinds of events that occurred too rarely.
    pub(crate) fn shortfalls(&self) -> Vec<String> {
        if self.runs < ENOUGH_RUNS {
            return Vec::new();
        }
        let runs = self.runs as f64;
        let means = [self.nodes, self.calls, self.faults].map(|sum| sum as f64 / runs);
        let mut all = Vec::new();
        for ((what, least), mean) in LEAST.iter().zip(means) {
            if mean < *least {
                all.push(format!("{mean:.1} {what} a run; at least {least} are needed"));
            }
        }
        let cannot =
            |kind| kind == EventKind::SeveralPollers && self.pollers.is_some_and(|all| !all.are_several());
        for (kind, (_, with)) in EventKind::ALL.iter().zip(&self.kinds).filter(|(kind, _)| !cannot(**kind)) {
            let share = *with as f64 / runs;
            if share < LEAST_SHARE {
                all.push(format!(
                    "\"{}\" occurs in {:.1} % of runs; in 2 % it must",
                    kind.name(),
                    share * 100.0
                ));
            }
        }
        all
    }
}

/// Runs one seed. A panic in this project's code is a failure.
pub(crate) fn run_one(seed: u64, pollers: Option<Pollers>, trace: Trace) -> Outcome {
    let kept = trace.clone();
    catch_unwind(AssertUnwindSafe(|| run(seed, pollers, trace))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of unknown kind");
        kept.verdict(format_args!("seed {seed} FAILED: a panic: {text}"));
        Outcome {
            broken: Some(format!("a panic: {text}")),
            coverage: Coverage::default().into(),
            nodes: 0,
            turns: 0,
            simulated: Duration::ZERO,
            checksum: 0,
        }
    })
}

/// Flag set by SIGINT and SIGTERM. Once it is set, the campaign starts no further runs and reports the finished ones. A
/// second signal ends the program immediately. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Creates a flag that both signals set.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let (number, again) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        for (signal, code) in [(SIGINT, 2_u8), (SIGTERM, 15)] {
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + i32::from(code),
                Arc::clone(&again),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&again))?;
            signal_hook::flag::register_usize(signal, Arc::clone(&number), usize::from(code))?;
        }
        Ok(Self(number))
    }

    /// Returns the number and name of the first signal, if one has arrived.
    pub(crate) fn signal(&self) -> Option<(u8, &'static str)> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            2 => Some((2, "SIGINT")),
            _ => Some((15, "SIGTERM")),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct CampaignPlan<'a> {
    pub(crate) first: u64,
    pub(crate) runs: u64,
    /// Time after which no further runs are started.
    pub(crate) time: Duration,
    /// Maximum number of concurrent runs.
    pub(crate) jobs: usize,
    /// If true, the campaign continues after a failed run.
    pub(crate) keep_going: bool,
    /// Numbers of pollers that override the numbers drawn from the seeds.
    pub(crate) pollers: Option<Pollers>,
    /// Deliberate fault to enable.
    pub(crate) mutant: Option<&'a str>,
    /// Flag that ends the campaign early.
    pub(crate) interrupt: Interrupt,
}

/// Runs consecutive seeds until the number of runs is reached, the time is over, or a run fails.
#[expect(clippy::disallowed_methods, reason = "the campaign is outside of its runs")]
pub(crate) fn campaign(plan: &CampaignPlan<'_>) -> Summary {
    let CampaignPlan { first, runs, time, jobs, keep_going, pollers, mutant, ref interrupt } = *plan;
    // The largest possible seed is `u64::MAX`.
    let runs = runs.min((u64::MAX - first).saturating_add(1));
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let summary = Mutex::new(Summary { first, pollers, ..Summary::default() });
    let bar = bar(runs, mutant);
    let said = Mutex::new(began);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                mutants::choose(mutant);
                loop {
                    if interrupt.signal().is_some() {
                        return;
                    }
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= runs || began.elapsed() >= time || failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let seed = first.wrapping_add(run);
                    let outcome = run_one(seed, pollers, Trace::checksum_only());
                    let mut summary = summary.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    summary.add(&outcome);
                    if let Some(why) = outcome.broken {
                        failed.store(!keep_going, Ordering::Relaxed);
                        summary.failures.push(Failure { seed, why });
                    }
                    bar.inc(1);
                    let done = summary.runs;
                    drop(summary);
                    if bar.is_hidden() {
                        say(&said, began, done, runs, mutant);
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut summary = summary.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    summary.interrupted = interrupt.signal();
    summary.took = began.elapsed();
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}

/// Prints a progress line at intervals, if there is no progress bar.
#[expect(clippy::disallowed_methods, reason = "outside of the runs")]
fn say(said: &Mutex<Instant>, began: Instant, done: u64, runs: u64, mutant: Option<&str>) {
    let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if said.elapsed() < SAY_EVERY {
        return;
    }
    *said = Instant::now();
    let of = if runs >= u64::MAX / 2 { String::new() } else { format!(" of {runs}") };
    let what = mutant.unwrap_or("simulating");
    output::err(&format!("{what}: {done}{of} runs in {} s", began.elapsed().as_secs()));
}

fn bar(runs: u64, mutant: Option<&str>) -> ProgressBar {
    let is_open = runs >= u64::MAX / 2;
    let bar = if is_open { ProgressBar::new_spinner() } else { ProgressBar::new(runs) };
    let text = if is_open {
        "{msg} {spinner} {pos} runs in {elapsed}"
    } else {
        "{msg} {wide_bar} {pos}/{len} runs, {eta} left"
    };
    let style = ProgressStyle::with_template(text);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(mutant.unwrap_or("simulating").to_owned());
    bar
}
