//! The `compare` subcommand, which reports changes beyond noise between the files of two runs.
//!
//! Decides which values are compared and which changes are regressions. `noise` distinguishes changes from noise, and
//! `rows` prints them. Nothing is measured here.

mod noise;
mod rows;

use crate::meter::failure::Failure;
use crate::meter::others::BUSY_CORES;
use crate::results::saved::{Saved, SavedPoint};
use crate::results::whole_file::{self, sum_up};
use clap::Args;
use noise::Change;
use rows::{Row, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use trunkline_testkit::output;

/// Changes beyond noise between the JSON files of two runs of one subcommand.
///
/// Points are matched by their settings, such as the size. By default, each value is divided by the link's floor in the same
/// repetition, because a slower machine has slower floors; p99 is divided by the p50 of the floor. Floors are noisy, so if
/// both runs are from the same machine, the value itself must have changed in the same direction. --absolute compares the
/// values themselves and needs an otherwise idle machine.
///
/// A value is better or worse if three conditions hold: its median has changed by more than the bound, and by more than
/// twice the interquartile range of the repetitions, and the repetitions of one run are above those of the other (rank test,
/// 0.5 %). Otherwise it is unchanged. With fewer than 5 repetitions in either file, a value is undecided.
///
/// If other programs used more than 0.15 of a core during one of the runs, a changed value is undecided: measure again.
///
/// Examples:
///   trunkline-bench latency --json before.json      then change something, and measure again
///   trunkline-bench latency --json after.json
///   trunkline-bench compare before.json after.json
///   trunkline-bench compare before.json after.json --bound 5 --json changes.json
///
/// Exit codes: 0 no regression; 1 compared and printed, but a file cannot be written; 2 a file is not a result of
/// this program, or the files have nothing to compare, or other programs disturbed a changed value; 4 a regression.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Comparison {
    /// The earlier run.
    #[arg(value_name = "BEFORE.json")]
    before: PathBuf,
    /// The later run.
    #[arg(value_name = "AFTER.json")]
    after: PathBuf,
    /// Maximum change that does not count, in percent. For p99, the maximum is twice as large.
    #[arg(long, value_name = "PERCENT", default_value = "15", value_parser = percent)]
    bound: f64,
    /// Compare times and rates themselves, not their ratios to the floors.
    #[arg(long)]
    absolute: bool,
    /// Also write the comparison to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
}

/// Outcome of a comparison, which is printed and written as JSON.
#[derive(Debug, Serialize)]
struct Outcome {
    command: &'static str,
    /// Subcommand of both runs.
    of: String,
    before: String,
    after: String,
    bound_percent: f64,
    absolute: bool,
    /// Further differences between the runs.
    notes: Vec<String>,
    only_before: Vec<String>,
    only_after: Vec<String>,
    rows: Vec<Row>,
}

/// Compares two files, and prints and writes the outcome.
///
/// # Errors
/// Returns an error if a file is not a result of this program, if a value became worse, or if the outcome cannot be
/// written.
pub(crate) fn compare(files: &Comparison) -> Result<(), Failure> {
    let began = Instant::now();
    let (before, after) = (Saved::read(&files.before)?, Saved::read(&files.after)?);
    let outcome = Outcome::between(&before, &after, files.bound, files.absolute)?;
    if !files.quiet {
        output::out(&outcome.table())?;
    }
    let written = files.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &outcome));
    let what = format!("compare: {} values, none worse", outcome.rows.len());
    match (outcome.verdict(), written) {
        (Err(failure), Err(why)) => {
            output::err(&format!("error: {why}"));
            Err(failure)
        }
        (verdict, written) => {
            verdict.and(written.map_err(Failure::Unwritten))?;
            sum_up(files.quiet, &what, began, files.json.as_deref())
        }
    }
}

impl Outcome {
    fn between(before: &Saved, after: &Saved, bound_percent: f64, absolute: bool) -> Result<Self, String> {
        if before.command != after.command {
            return Err(format!(
                "{} is of `{}`, and {} is of `{}`; only runs of one subcommand can be compared",
                before.name, before.command, after.name, after.command
            ));
        }
        let mut others = numbered(&after.points);
        let (mut rows, mut only_before, mut only_after) = (Vec::new(), Vec::new(), Vec::new());
        let by = match () {
            () if absolute => By::Value,
            () if before.machine == after.machine => By::Both,
            () => By::Ratio,
        };
        // Points are listed in their order in the first file.
        for (label, point) in numbered(&before.points) {
            let Some(at) = others.iter().position(|(other, _)| *other == label) else {
                only_before.push(label);
                continue;
            };
            let (label, other) = others.remove(at);
            only_before.extend(missing(&label, point, other));
            only_after.extend(missing(&label, other, point));
            let both = point.each_repetition.iter().filter_map(|(key, list)| {
                let after = other.each_repetition.get(key)?;
                Some(Compared {
                    key,
                    values: [list, after],
                    floors: floor(key, point).zip(floor(key, other)),
                })
            });
            let counted = both.filter(|compared| absolute || !is_floor(compared.key));
            rows.extend(counted.map(|compared| compared.row(&label, bound_percent / 100.0, by)));
        }
        only_after.extend(others.into_iter().map(|(label, _)| label));
        if before.others_cores.max(after.others_cores) > BUSY_CORES {
            rows.iter_mut().for_each(Row::disturb);
        }
        Ok(Self {
            command: "compare",
            of: before.command.clone(),
            before: before.name.clone(),
            after: after.name.clone(),
            bound_percent,
            absolute,
            notes: notes(before, after),
            only_before,
            only_after,
            rows,
        })
    }

    fn verdict(&self) -> Result<(), Failure> {
        let number = |verdict| self.rows.iter().filter(|row| row.verdict == verdict).count();
        let worse = self.rows.iter().filter(|row| row.is_regression()).count();
        if worse > 0 {
            let (bound, of) = (self.bound_percent, self.rows.len());
            return Err(Failure::Worse(format!(
                "{worse} of {of} values became worse, by more than {bound} %"
            )));
        }
        if self.rows.is_empty() {
            return Err(Failure::Unmeasured("the files have no point in common".to_owned()));
        }
        let disturbed = self.rows.iter().filter(|row| row.is_disturbed).count();
        if disturbed > 0 {
            let why = "other programs used the machine meanwhile; measure again";
            return Err(Failure::Unmeasured(format!("{disturbed} values have changed, but {why}")));
        }
        if number(Verdict::Undecided) == self.rows.len() {
            let why = format!("fewer than {} repetitions cannot tell a change from noise", noise::FEWEST);
            return Err(Failure::Unmeasured(why));
        }
        Ok(())
    }
}

/// Returns the points with unique labels, in which points with equal settings are numbered.
fn numbered(points: &[SavedPoint]) -> Vec<(String, &SavedPoint)> {
    let mut seen = BTreeMap::new();
    let label = |point: &SavedPoint| {
        let label = point.label();
        let times: &mut u32 = seen.entry(label.clone()).or_default();
        *times += 1;
        if *times == 1 { label } else { format!("{label} (number {times})") }
    };
    points.iter().map(label).zip(points).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Value,
    Ratio,
    /// The value and its ratio, which must change in the same direction.
    Both,
}

type Named<'a> = (String, &'a [f64]);

/// Values of one key at one point in both files.
#[derive(Debug)]
struct Compared<'a> {
    key: &'a str,
    values: [&'a [f64]; 2],
    /// Key and values of the floor in each file.
    floors: Option<(Named<'a>, Named<'a>)>,
}

impl Compared<'_> {
    fn row(&self, point: &str, bound: f64, by: By) -> Row {
        let [before, after] = self.values;
        // p99 varies more between runs than the median does.
        let bound = if self.key.contains("p99") { 2.0 * bound } else { bound };
        let value = Change::between(before, after);
        let Some(((floor, one), (other, two))) = self.floors.as_ref().filter(|_| by != By::Value) else {
            return Row::new(point, self.key, value, None, bound);
        };
        // A run that ended early may contain one more measurement of the value or of the floor.
        let divided = |list: &[f64], floors: &[f64]| -> Vec<f64> {
            list.iter().zip(floors).map(|(value, floor)| value / floor).collect()
        };
        let ratio = Change::between(&divided(before, one), &divided(after, two));
        let name = if floor == other { floor.clone() } else { format!("{floor} and {other}") };
        let confirmed = (by == By::Both).then_some(value);
        Row::new(point, &format!("{} / {name}", self.key), ratio, confirmed, bound)
    }
}

/// Returns the floor by which a value is divided: the floor with the same key or, for times, the p50 of the floor.
fn floor<'a>(key: &str, point: &'a SavedPoint) -> Option<Named<'a>> {
    let own = format!("floor_{key}");
    let name = if !point.each_repetition.contains_key(&own) && key.ends_with("_ns") {
        "floor_p50_ns".to_owned()
    } else {
        own
    };
    let values = point.each_repetition.get(&name)?;
    Some((name, values))
}

fn is_floor(key: &str) -> bool {
    key.starts_with("floor_")
}

fn missing(label: &str, point: &SavedPoint, from: &SavedPoint) -> Vec<String> {
    let keys = point.each_repetition.keys().filter(|key| !from.each_repetition.contains_key(*key));
    keys.map(|key| format!("{label}: {key}")).collect()
}

/// Describes differences in settings and machines, and lists runs that ended early.
fn notes(before: &Saved, after: &Saved) -> Vec<String> {
    let mut notes = Vec::new();
    let parts =
        [("setting", &before.settings, &after.settings), ("machine", &before.machine, &after.machine)];
    for (part, one, two) in parts {
        let all: std::collections::BTreeSet<_> = one.keys().chain(two.keys()).collect();
        for key in all.into_iter().filter(|key| one.get(*key) != two.get(*key)) {
            let written =
                |value: Option<&serde_json::Value>| value.map_or("not given".to_owned(), ToString::to_string);
            notes.push(format!(
                "another {part}: {key}, {} and then {}",
                written(one.get(key)),
                written(two.get(key))
            ));
        }
    }
    for file in [before, after].into_iter().filter(|file| file.others_cores > BUSY_CORES) {
        let (cores, name) = (file.others_cores, &file.name);
        notes.push(format!("other programs used {cores} cores during the run of {name}"));
    }
    for file in [before, after] {
        notes.extend(
            file.error.as_ref().map(|error| format!("{} is of a run that ended early: {error}", file.name)),
        );
    }
    notes
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1000.0).contains(&value) => Ok(value),
        Ok(value) => Err(format!("{value} is not between 0 and 1000; it is in percent, such as 10")),
        Err(_) => Err(format!("`{text}` is not a number; it is in percent, such as 10")),
    }
}

#[cfg(test)]
mod tests;
