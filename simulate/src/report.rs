//! What a campaign prints: a table for a reader, or JSON.

use crate::campaign::Summary;
use crate::coverage::Kind;
use serde_json::{Value, json};

/// The command that replays a seed.
pub(crate) fn replay(seed: u64, mutant: Option<&str>) -> String {
    let mutant = mutant.map(|name| format!(" --mutant {name}")).unwrap_or_default();
    format!("cargo simulate --seed {seed}{mutant} --trace trace-{seed}.txt")
}

/// For a reader.
pub(crate) fn print(summary: &Summary) {
    let runs = summary.runs.max(1);
    println!(
        "{} runs in {:.1} s: {:.1} nodes, {} calls, {} faults and {} turns a run, {:.1} s simulated a run",
        summary.runs,
        summary.took.as_secs_f64(),
        summary.nodes as f64 / runs as f64,
        summary.calls / runs,
        summary.faults / runs,
        summary.turns / runs,
        summary.simulated.as_secs_f64() / runs as f64,
    );
    println!("{:<40} {:>12} {:>10}", "kind of event", "events", "of runs");
    for (kind, (events, with)) in Kind::ALL.iter().zip(&summary.kinds) {
        let share = *with as f64 * 100.0 / runs as f64;
        println!("{:<40} {events:>12} {share:>8.1} %", kind.name());
    }
}

/// For a program.
pub(crate) fn json(summary: &Summary) -> Value {
    let kinds = Kind::ALL.iter().zip(&summary.kinds);
    let kinds =
        kinds.map(|(kind, (events, with))| (kind.name().to_owned(), json!({"events": events, "runs": with})));
    let failures = summary.failures.iter();
    let failures = failures.map(|failure| json!({"seed": failure.seed, "why": failure.why}));
    json!({
        "runs": summary.runs,
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
