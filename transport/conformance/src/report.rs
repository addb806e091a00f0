//! The outcome of the whole suite as a table.

use crate::{Bench, ITEMS, Item, Outcome, run};
use std::fmt;

/// Items down, benches across.
#[derive(Debug, Clone)]
pub struct Report {
    benches: Vec<String>,
    rows: Vec<(Item, Vec<Outcome>)>,
}

/// Runs every item on every bench.
#[must_use]
pub fn run_all(benches: &[&dyn Bench]) -> Report {
    Report {
        benches: benches.iter().map(|bench| format!("{}/{}", bench.provider(), bench.link())).collect(),
        rows: ITEMS
            .iter()
            .map(|item| (*item, benches.iter().map(|bench| run(*bench, item)).collect()))
            .collect(),
    }
}

impl Report {
    /// Whether no item failed. Skipped ones are in the table.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self
            .rows
            .iter()
            .any(|(_, outcomes)| outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed(_))))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<5}", "item")?;
        for bench in &self.benches {
            write!(f, "{bench:<24}")?;
        }
        writeln!(f, "what holds")?;
        for (item, outcomes) in &self.rows {
            write!(f, "{:<5}", item.id)?;
            for outcome in outcomes {
                let word = match outcome {
                    Outcome::Held => "held",
                    Outcome::Failed(_) => "FAILED",
                    Outcome::Skipped(_) => "skipped",
                };
                write!(f, "{word:<24}")?;
            }
            writeln!(f, "{}", item.title)?;
            for (bench, outcome) in self.benches.iter().zip(outcomes) {
                if let Outcome::Failed(why) | Outcome::Skipped(why) = outcome {
                    writeln!(f, "      {bench}: {why}")?;
                }
            }
        }
        Ok(())
    }
}
