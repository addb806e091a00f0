//! The XRC contract on the software device, item by item: what `cargo conformance` runs.
//!
//! ```text
//! cargo conformance [--json] [ITEM...]
//! ```
//!
//! Each item is asked in one process, over UDP on two addresses, and between processes on one
//! address where it needs them; this program is its own puppet there. The table goes to standard
//! output, what is being done to standard error. Exit status 1 when an item failed, 2 for
//! arguments that mean nothing.

#[path = "../tests/common/mod.rs"]
mod common;

use common::processes::{PUPPET, Soft};
use common::suite;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use trunkline_conformance::{Bench, Outcome, ProcessBench, Report, clauses, run_all};

fn main() -> ExitCode {
    if std::env::var_os(PUPPET).is_some() {
        return match common::processes::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("puppet: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let (options, items): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    let unknown = options
        .iter()
        .find(|option| *option != "--json")
        .or_else(|| items.iter().find(|item| !clauses().any(|clause| clause.id.eq_ignore_ascii_case(item))));
    if let Some(unknown) = unknown {
        eprintln!("conformance: {unknown} means nothing here; usage: cargo conformance [--json] [ITEM...]");
        return ExitCode::from(2);
    }
    let wanted = |id: &str| items.is_empty() || items.iter().any(|item| item.eq_ignore_ascii_case(id));
    let benches = suite::benches().map(|bench| Arc::new(bench) as Arc<dyn Bench>);
    let processes: Arc<dyn ProcessBench> = Arc::new(Soft::from_program());
    let report = run_all(&benches, &processes, wanted, |doing| eprintln!("{doing}"));
    if options.is_empty() {
        print!("{report}");
    } else {
        println!("{:#}", as_json(&report));
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
        let elsewhere: Vec<String> = row.elsewhere.iter().map(ToString::to_string).collect();
        json!({ "item": row.clause.id, "text": row.clause.text, "outcomes": outcomes, "elsewhere": elsewhere })
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
