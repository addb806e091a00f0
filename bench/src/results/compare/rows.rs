//! Rows of a comparison, one per value, and their table.

use super::noise::Change;
use super::{Outcome, is_floor};
use crate::results::table::Table;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    NoChange,
    Better,
    Worse,
    Undecided,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) point: String,
    /// Key of the value, or keys of the value and the floor.
    pub(super) key: String,
    /// Median of the earlier run.
    before: f64,
    /// Median of the later run.
    after: f64,
    change_percent: f64,
    /// Change of the value itself, if the row compares its ratio to a floor on the same machine.
    value_change_percent: f64,
    /// Larger of the two interquartile ranges of the repetitions, in percent of the median.
    range_percent: f64,
    chance: f64,
    pub(super) verdict: Verdict,
    /// True if the verdict is undecided because other programs used the machine.
    pub(super) is_disturbed: bool,
}

impl Row {
    /// Creates a row for a change. If `value` is given, the value itself must have changed in the same direction.
    pub(super) fn new(point: &str, key: &str, change: Change, value: Option<Change>, bound: f64) -> Self {
        let confirms = |value: Change| value.is_real(bound) && value.change * change.change > 0.0;
        let is_real = change.is_real(bound) && value.is_none_or(confirms);
        // Higher is better for rates; lower is better for times and memory.
        let is_better = (change.change > 0.0) == key.split(" / ").all(|part| part.ends_with("_per_s"));
        let verdict = match (change.is_decided, is_real) {
            (false, _) => Verdict::Undecided,
            (true, false) => Verdict::NoChange,
            (true, true) if is_better => Verdict::Better,
            (true, true) => Verdict::Worse,
        };
        Self {
            point: point.to_owned(),
            key: key.to_owned(),
            before: change.before,
            after: change.after,
            change_percent: change.change * 100.0,
            value_change_percent: value.unwrap_or(change).change * 100.0,
            range_percent: change.range * 100.0,
            chance: change.chance,
            verdict,
            is_disturbed: false,
        }
    }

    /// Marks a change as undecided because other programs used the machine during one of the runs.
    pub(super) fn disturb(&mut self) {
        if matches!(self.verdict, Verdict::Better | Verdict::Worse) {
            (self.verdict, self.is_disturbed) = (Verdict::Undecided, true);
        }
    }

    /// Returns true if the value became worse and is not a floor, because floors depend only on the machine.
    pub(super) fn is_regression(&self) -> bool {
        self.verdict == Verdict::Worse && !is_floor(&self.key)
    }

    fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::NoChange => "no change",
            Verdict::Better if is_floor(&self.key) => "a better floor",
            Verdict::Better => "better",
            Verdict::Worse if is_floor(&self.key) => "a worse floor",
            Verdict::Worse => "worse",
            Verdict::Undecided if self.is_disturbed => "undecided, busy machine",
            Verdict::Undecided => "too few repetitions",
        }
    }
}

impl Outcome {
    pub(super) fn table(&self) -> String {
        let mut table =
            Table::new(["<point", "<key", "before", "after", "change", "range", "itself", "<verdict"]);
        for row in &self.rows {
            table.row([
                row.point.clone(),
                row.key.clone(),
                digits(row.before),
                digits(row.after),
                format!("{:+.1}%", row.change_percent),
                format!("{:.1}%", row.range_percent),
                format!("{:+.1}%", row.value_change_percent),
                row.word().to_owned(),
            ]);
        }
        let mut text = format!("{}: {}, and then {}\n\n{}\n", self.of, self.before, self.after, table.text());
        for (names, file) in [(&self.only_before, &self.before), (&self.only_after, &self.after)] {
            for name in names {
                let _ = writeln!(text, "only in {file}: {name}");
            }
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        let of = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let _ = write!(
            text,
            "{} without a change, {} better, {} worse, {} undecided; changes count from {} % on, as {}",
            of(Verdict::NoChange),
            of(Verdict::Better),
            of(Verdict::Worse),
            of(Verdict::Undecided),
            self.bound_percent,
            if self.absolute { "absolute values" } else { "ratios to the floors" }
        );
        text
    }
}

/// Formats a number with four significant digits, or with all digits before the decimal point if there are more.
fn digits(value: f64) -> String {
    match value {
        _ if !(1e-4..1e15).contains(&value) => format!("{value:.3e}"),
        _ if value < 1.0 => format!("{value:.4}"),
        _ if value < 100.0 => format!("{value:.3}"),
        _ => format!("{value:.0}"),
    }
}
