//! Output of a campaign, as a human-readable table or as JSON.
//!
//! Results go to standard output, and failures and progress to standard error. With `--json`, standard output consists of
//! one JSON document.

use crate::campaign::Summary;
use crate::coverage::EventKind;
use crate::oracle;
use crate::plan::Pollers;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Returns the command that replays a seed.
pub(crate) fn replay(seed: u64, pollers: Option<Pollers>, mutant: Option<&str>) -> String {
    let pollers = pollers.map(|pollers| format!(" --pollers {pollers}")).unwrap_or_default();
    let mutant = mutant.map(|name| format!(" --mutant {name}")).unwrap_or_default();
    format!("cargo simulate --seed {seed}{pollers}{mutant} --trace trace-{seed}.txt")
}

pub(crate) fn runs(count: u64) -> String {
    format!("{count} run{}", if count == 1 { "" } else { "s" })
}

pub(crate) fn table(summary: &Summary) -> String {
    let count = summary.runs.max(1);
    let mut text = format!(
        "{} in {:.1} s: {:.1} nodes, {} calls, {} faults and {} turns a run, {:.1} s simulated a run\n",
        runs(summary.runs),
        summary.took.as_secs_f64(),
        summary.nodes as f64 / count as f64,
        summary.calls / count,
        summary.faults / count,
        summary.turns / count,
        summary.simulated.as_secs_f64() / count as f64,
    );
    let _infallible = writeln!(text, "{:<40} {:>12} {:>10}", "kind of event", "events", "of runs");
    for (kind, (events, with)) in EventKind::ALL.iter().zip(&summary.kinds) {
        let share = *with as f64 * 100.0 / count as f64;
        let _infallible = writeln!(text, "{:<40} {events:>12} {share:>8.1} %", kind.name());
    }
    for (what, why) in oracle::NOT_JUDGED {
        let _infallible = writeln!(text, "not judged: {what}: {why}");
    }
    text
}

pub(crate) fn json(summary: &Summary) -> Value {
    let kinds = EventKind::ALL.iter().zip(&summary.kinds);
    let kinds =
        kinds.map(|(kind, (events, with))| (kind.name().to_owned(), json!({"events": events, "runs": with})));
    let failures = summary.failures.iter();
    let failures = failures.map(|failure| json!({"seed": failure.seed, "why": failure.why}));
    json!({
        "runs": summary.runs,
        "first_seed": summary.first,
        "interrupted": summary.interrupted.is_some(),
        "nodes": summary.nodes,
        "calls": summary.calls,
        "faults": summary.faults,
        "turns": summary.turns,
        "seconds": summary.took.as_secs_f64(),
        "simulated_seconds": summary.simulated.as_secs_f64(),
        "kinds": serde_json::Map::from_iter(kinds),
        "failures": failures.collect::<Vec<_>>(),
        "shortfalls": summary.shortfalls(),
    })
}
