//! One item of the contract, and running it.

use crate::check::Verdict;
use crate::{Bench, Deviation, Lab};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An item of the XRC verbs contract.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// Its number in the contract.
    pub id: &'static str,
    /// What holds, in one sentence.
    pub title: &'static str,
    /// Checks it.
    pub(crate) check: fn(&Lab) -> Result<(), Deviation>,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The device does what the item says.
    Held,
    /// It does something else.
    Failed(String),
    /// It could not be asked.
    Skipped(String),
}

/// Checks one item on a pair of devices of its own.
#[must_use]
pub fn run(bench: &dyn Bench, item: &Item) -> Outcome {
    judged(|| (item.check)(&Lab::new(bench)?))
}

/// The outcome of a check, a panic included.
pub(crate) fn judged(check: impl FnOnce() -> Verdict) -> Outcome {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) => Outcome::Held,
        Ok(Err(Deviation::Failed(why))) => Outcome::Failed(why),
        Ok(Err(Deviation::Skipped(why))) => Outcome::Skipped(why),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text");
            Outcome::Failed(format!("panicked: {text}"))
        }
    }
}
