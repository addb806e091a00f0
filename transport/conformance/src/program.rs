//! The suite as a program, with its arguments, its report and its exit status.
//!
//! Programs of the providers call it with their benches. It prints the report to standard output, and progress to standard
//! error.

use crate::{Bench, Outcome, ProcessBench, Report, clauses, run_all};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use trunkline_testkit::output;

/// The arguments of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    json: bool,
    items: Vec<String>,
}

impl Wanted {
    /// Parses `[--json] [ITEM...]`.
    ///
    /// # Errors
    /// Returns the first argument that is neither an option nor an item.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut wanted = Self { json: false, items: Vec::new() };
        for argument in arguments {
            if argument == "--json" {
                wanted.json = true;
            } else if clauses().any(|clause| clause.id.eq_ignore_ascii_case(&argument)) {
                wanted.items.push(argument);
            } else {
                return Err(argument);
            }
        }
        Ok(wanted)
    }
}

/// Runs the requested items and prints the report. The exit status is 1 if any item failed.
#[must_use]
pub fn run_program(
    wanted: &Wanted,
    benches: &[Arc<dyn Bench>],
    processes: &Arc<dyn ProcessBench>,
) -> ExitCode {
    let items = &wanted.items;
    let is_wanted = |id: &str| items.is_empty() || items.iter().any(|item| item.eq_ignore_ascii_case(id));
    let report = run_all(benches, processes, is_wanted, output::err);
    let text = if wanted.json { format!("{:#}", as_json(&report)) } else { report.to_string() };
    if let Err(error) = output::out(&text) {
        output::err(&error);
        return ExitCode::FAILURE;
    }
    if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn as_json(report: &Report) -> Value {
    let rows = report.rows.iter().map(|row| {
        let outcomes: serde_json::Map<String, Value> = report
            .columns
            .iter()
            .zip(&row.outcomes)
            .filter_map(|(column, outcome)| Some((column.clone(), outcome_as_json(outcome.as_ref()?))))
            .collect();
        let other_coverage: Vec<String> = row.other_coverage.iter().map(ToString::to_string).collect();
        json!({ "item": row.clause.id, "text": row.clause.text, "outcomes": outcomes, "elsewhere": other_coverage })
    });
    json!({ "holds": report.holds(), "items": rows.collect::<Vec<_>>() })
}

fn outcome_as_json(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Held => json!({ "outcome": "held" }),
        Outcome::Failed(why) => json!({ "outcome": "failed", "why": why }),
        Outcome::Skipped(why) => json!({ "outcome": "skipped", "why": why }),
    }
}
