//! Common parts of all scenarios: options, the order of measurements, and the final table, files and last line.
//!
//! A scenario measures each of its points once per repetition, one after the other, so that slow changes of the machine
//! affect all points alike. If a measurement fails, the points keep their earlier measurements, and the scenario prints
//! and writes them.

pub(crate) mod across;
pub(crate) mod burst;
pub(crate) mod drift;
pub(crate) mod fair;
pub(crate) mod mixed;
pub(crate) mod point;
pub(crate) mod rest;
pub(crate) mod run;
pub(crate) mod scale;
pub(crate) mod sealed;
pub(crate) mod shared;
pub(crate) mod side_by_side;
pub(crate) mod streams;

use crate::meter::failure::Failure;
use crate::meter::machine::{Machine, Stamp};
use crate::meter::others::Others;
use crate::meter::pin::Pin;
use crate::results::html;
use crate::results::saved::Saved;
use crate::results::whole_file::{self, sum_up};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};
use trunkline_testkit::output;
use trunkline_transport::utc;

// Doc comments on these options would replace the descriptions of subcommands.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Output {
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct Sweep {
    /// Measured time of each repetition, after a warm-up of a quarter of that time. Floors take a fifth of it.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Number of repetitions of all measurements, in turn.
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Cores of client and server, such as `0,1`, or `off`. Default: the first two that the process may use.
    #[arg(long, value_name = "CORES")]
    #[serde(skip)]
    pub(crate) pin: Option<Pin>,
}

#[derive(Debug)]
pub(crate) struct Scenario<'a> {
    name: &'static str,
    output: &'a Output,
    html: Option<&'a Path>,
    began: Instant,
    machine: Machine,
    /// Load from other programs. `None` if the processes of the scenario are not descendants of this process.
    pub(crate) others: Option<Others>,
    pub(crate) bar: ProgressBar,
}

/// Contents of a JSON file: keys that all scenarios have, and keys of one scenario.
#[derive(Debug, Serialize)]
struct Contents<'a, T> {
    command: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    stamp: Stamp,
    machine: &'a Machine,
    /// Number of cores that other programs used during the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    others_cores: Option<f64>,
    #[serde(flatten)]
    results: &'a T,
}

impl<'a> Scenario<'a> {
    /// Begins a scenario. Checks that its files can be written, and describes the machine before any thread is pinned.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub(crate) fn begin(
        name: &'static str,
        output: &'a Output,
        html: Option<&'a PathBuf>,
    ) -> Result<Self, Failure> {
        whole_file::check(output.json.iter().chain(html))?;
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} eta {eta} {msg}");
        let target = if output.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(0), target)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let (began, machine, others) = (Instant::now(), Machine::here(), Some(Others::watch()));
        Ok(Self { name, output, html: html.map(PathBuf::as_path), began, machine, others, bar })
    }

    pub(crate) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Measures all points in each repetition, and shows the name of the current point in the progress bar.
    ///
    /// # Errors
    /// Returns the first failure, which ends the sweep.
    pub(crate) fn sweep<P>(
        &self,
        repetitions: u32,
        points: &mut [P],
        name: impl Fn(&P) -> String,
        mut measure: impl FnMut(&mut P) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.bar.inc_length(u64::from(repetitions) * points.len() as u64);
        (0..repetitions).try_for_each(|_| {
            points.iter_mut().try_for_each(|point| {
                self.bar.set_message(name(point));
                measure(point)?;
                self.bar.inc(1);
                Ok(())
            })
        })
    }

    /// Ends a scenario with the outcome `measured`. Prints the table and writes the files, even after a failure. If
    /// `what` is `None`, the last line on standard output is omitted.
    ///
    /// # Errors
    /// Returns the failure of the measurement, which determines the exit code, or an error if a file cannot be written.
    pub(crate) fn end(
        self,
        measured: Result<(), Failure>,
        table: &str,
        results: &impl Serialize,
        what: &str,
    ) -> Result<(), Failure> {
        let others_cores = self.others.as_ref().and_then(Others::cores);
        self.bar.finish_and_clear();
        if !self.output.quiet && !table.is_empty() {
            output::out(table)?;
        }
        let contents = Contents {
            command: self.name,
            error: measured.as_ref().err().map(ToString::to_string),
            stamp: Stamp::at(&utc(SystemTime::now())),
            machine: &self.machine,
            others_cores,
            results,
        };
        let json = self.output.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &contents));
        let html = self.html.map_or(Ok(()), |path| {
            let value = serde_json::to_value(&contents).map_err(|error| error.to_string())?;
            html::write(&[Saved::parse("this run", value)?], path)
        });
        let written = match (json, html) {
            (Err(one), Err(other)) => Err(format!("{one}; {other}")),
            (json, html) => json.and(html),
        };
        if let (Err(_), Err(why)) = (&measured, &written) {
            output::err(&format!("error: {why}"));
        }
        measured.and(written.map_err(Failure::Unwritten))?;
        if what.is_empty() {
            // Only the table goes to standard output.
            let took = format!("{}: took {:.0} s", self.name, self.began.elapsed().as_secs_f64());
            if !self.output.quiet {
                output::err(&took);
            }
            return Ok(());
        }
        let files = self.output.json.as_deref().into_iter().chain(self.html);
        sum_up(self.output.quiet, &format!("{}: {what}", self.name), self.began, files)
    }
}

/// Parses a duration in seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    positive(text, 3600.0).map_err(|why| format!("{why}; it is in seconds, such as 0.5"))
}

/// Parses a number of calls per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    positive(text, 1e8).map_err(|why| format!("{why}; it is in calls per second, such as 50000"))
}

fn positive(text: &str, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        Ok(value) => Err(format!("{value} is not above 0 and at most {most}")),
        Err(_) => Err(format!("`{text}` is not a number")),
    }
}
