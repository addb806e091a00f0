//! The outcomes of all items of the contract as a table.

use crate::contract::{Clause, clauses};
use crate::coverage::{OtherCoverage, other_coverage};
use crate::item::within;
use crate::processes::{PROCESS_ITEMS, ProcessBench, run_process_item};
use crate::{Bench, ITEMS, Outcome, run};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A table with one row per item and one column per bench. The last column shows the items that involve several processes.
#[derive(Debug, Clone)]
pub struct Report {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// One row per item.
    pub rows: Vec<Row>,
}

/// The outcomes of one item.
#[derive(Debug, Clone)]
pub struct Row {
    /// Number and text of the item.
    pub clause: Clause,
    /// Outcomes by column. `None` if the suite contains no check of this kind for the item.
    pub outcomes: Vec<Option<Outcome>>,
    /// Coverage of the item outside this suite, or the reason for the lack of coverage.
    pub other_coverage: &'static [OtherCoverage],
}

/// Time limit of an item. Only an item that hangs reaches it, even under emulation.
const ITEM_AT_MOST: Duration = Duration::from_secs(180);

/// Runs every item in `wanted` on every bench. Calls `progress` before each item. An item that hangs fails, and its thread
/// keeps the objects that it has created on the bench.
#[must_use]
pub fn run_all(
    benches: &[Arc<dyn Bench>],
    processes: &Arc<dyn ProcessBench>,
    wanted: impl Fn(&str) -> bool,
    mut progress: impl FnMut(&str),
) -> Report {
    let mut columns: Vec<String> = benches.iter().map(|bench| bench.link().to_owned()).collect();
    columns.push("processes".to_owned());
    let mut rows = Vec::new();
    for clause in clauses().filter(|clause| wanted(clause.id)) {
        let item = ITEMS.iter().find(|item| item.id == clause.id);
        let mut outcomes = Vec::new();
        for bench in benches {
            outcomes.push(item.map(|item| {
                progress(&format!("{} {}", clause.id, bench.link()));
                let bench = Arc::clone(bench);
                within(ITEM_AT_MOST, move || run(bench.as_ref(), item))
            }));
        }
        let item = PROCESS_ITEMS.iter().find(|item| item.id == clause.id);
        outcomes.push(item.map(|item| {
            progress(&format!("{} between processes", clause.id));
            let processes = Arc::clone(processes);
            within(ITEM_AT_MOST, move || run_process_item(processes.as_ref(), item))
        }));
        rows.push(Row { clause, outcomes, other_coverage: other_coverage(clause.id) });
    }
    Report { columns, rows }
}

impl Report {
    /// Returns true if no item failed. Skipped items are not failures.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.count(|outcome| matches!(outcome, Outcome::Failed(_))) == 0
    }

    fn count(&self, of: impl Fn(&Outcome) -> bool) -> usize {
        self.rows.iter().flat_map(|row| row.outcomes.iter().flatten()).filter(|outcome| of(outcome)).count()
    }
}

impl Outcome {
    /// Returns the outcome's word in the table.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Failed(_) => "FAILED",
            Self::Skipped(_) => "skipped",
        }
    }
}

impl fmt::Display for OtherCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Test(file, name) => write!(f, "test {name} in {file}"),
            Self::NotHeld(why) => write!(f, "not held: {why}"),
            Self::Fact(why) => write!(f, "no property of this device: {why}"),
            Self::Same(id) => write!(f, "covered by the tests of {id}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Each item with a check is also a test of the same number in the provider's own tests.")?;
        write!(f, "{:<6}", "item")?;
        for column in &self.columns {
            write!(f, "{column:<12}")?;
        }
        writeln!(f, "statement")?;
        for row in &self.rows {
            write!(f, "{:<6}", row.clause.id)?;
            for outcome in &row.outcomes {
                write!(f, "{:<12}", outcome.as_ref().map_or("-", Outcome::word))?;
            }
            writeln!(f, "{}", row.clause.text)?;
            for (column, outcome) in self.columns.iter().zip(&row.outcomes) {
                if let Some(Outcome::Failed(why) | Outcome::Skipped(why)) = outcome {
                    writeln!(f, "      {column}: {why}")?;
                }
            }
            for proof in row.other_coverage {
                writeln!(f, "      {proof}")?;
            }
        }
        let not_held =
            |row: &&Row| row.other_coverage.iter().any(|proof| matches!(proof, OtherCoverage::NotHeld(_)));
        writeln!(
            f,
            "{} items: {} checks held, {} failed, {} skipped; {} items are not held in whole or in part, for the reason given",
            self.rows.len(),
            self.count(|outcome| *outcome == Outcome::Held),
            self.count(|outcome| matches!(outcome, Outcome::Failed(_))),
            self.count(|outcome| matches!(outcome, Outcome::Skipped(_))),
            self.rows.iter().filter(not_held).count(),
        )
    }
}
