//! `table`: calls over both links beside other systems and the floors, as one table in Markdown.
//!
//! Times and rates over UDP and through shared memory are four runs. Each repetition measures all four, one after the
//! other, so that slow changes of the machine affect all rows alike.

use crate::cli::SideBySide;
use crate::failure::Failure;
use crate::floors::Floor;
use crate::machine::{Machine, Stamp};
use crate::nodes::LinkFlag;
use crate::others::{BUSY_CORES, Others};
use crate::pin::Cores;
use crate::point::{Measure, Results};
use crate::progress;
use crate::run::Run;
use crate::spread::{Spread, digits};
use crate::systems;
use crate::whole_file;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Instant;
use trunkline_testkit::output;

/// Payload bytes in each direction.
const SIZE: usize = 64;
/// Calls under way when rates are measured.
const OUTSTANDING: usize = 32;

/// Contents of the JSON file.
#[derive(Debug, Serialize)]
struct Table {
    command: &'static str,
    #[serde(flatten)]
    stamp: Stamp,
    machine: Machine,
    seconds: f64,
    repetitions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<[usize; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    others_cores: Option<f64>,
    rows: Vec<Row>,
    /// Reasons for missing figures, by system.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    peers_skipped: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The figures of one system.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    system: String,
    /// Medians of the repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_p50_ns: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_per_s: Option<Spread>,
    /// True if the rate counts messages in one direction.
    one_way: bool,
}

/// Times and rates over one link, if they were measured.
struct OfLink {
    latency: Option<Results>,
    rate: Option<Results>,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if it cannot be measured or the file cannot be written.
pub(crate) fn measure(wanted: &SideBySide) -> Result<(), Failure> {
    whole_file::check(&wanted.json)?;
    let began = Instant::now();
    // A pinned thread sees one core only, so the machine is described first.
    let machine = Machine::here();
    let (udp, shm) = (wanted.settings(LinkFlag::Udp), wanted.settings(LinkFlag::Shm));
    let plan = |measure, settings, outstanding| Run::new(measure, settings, &[SIZE], outstanding);
    let mut runs = [
        plan(Measure::Latency, &udp, 1)?,
        plan(Measure::Rate, &udp, OUTSTANDING)?,
        plan(Measure::Latency, &shm, 1)?,
        plan(Measure::Rate, &shm, OUTSTANDING)?,
    ];
    let cores = runs[0].cores;
    let bar = progress::bar(wanted.quiet, runs.iter().map(Run::steps).sum());
    let others = Others::watch();
    let measured = (1..=wanted.repetitions).try_for_each(|repetition| {
        if bar.is_hidden() && !wanted.quiet {
            output::err(&format!("repetition {repetition} of {}", wanted.repetitions));
        }
        runs.iter_mut().try_for_each(|run| run.repeat(&bar))
    });
    let others_cores = others.cores();
    bar.finish_and_clear();
    let [udp_latency, udp_rate, shm_latency, shm_rate] = runs.map(|run| run.points.first()?.results());
    let udp = OfLink { latency: udp_latency, rate: udp_rate };
    let shm = OfLink { latency: shm_latency, rate: shm_rate };
    let table = Table {
        command: "table",
        stamp: Stamp::now(),
        machine,
        seconds: wanted.seconds,
        repetitions: wanted.repetitions,
        cores: cores.map(|Cores { client, server }| [client, server]),
        others_cores,
        rows: rows(&udp, &shm),
        peers_skipped: udp.skipped(),
        error: measured.as_ref().err().map(ToString::to_string),
    };
    if !wanted.quiet {
        if !table.rows.is_empty() {
            output::out(&table.markdown())?;
        }
        table.remarks().iter().for_each(|remark| output::err(remark));
    }
    let written = wanted.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &table));
    measured.and(written.map_err(Failure::Unwritten))?;
    if !wanted.quiet {
        output::err(&format!("table: took {:.0} s", began.elapsed().as_secs_f64()));
    }
    Ok(())
}

impl OfLink {
    /// Returns the reasons for missing figures of other systems, reasons for missing times first.
    fn skipped(&self) -> BTreeMap<String, String> {
        let all = self.rate.iter().chain(&self.latency);
        all.flat_map(|results| results.peers_skipped.clone()).collect()
    }

    fn calls(&self, system: &str) -> Row {
        Row {
            system: system.to_owned(),
            rtt_p50_ns: self.latency.as_ref().map(|results| results.calls.p50_ns),
            calls_per_s: self.rate.as_ref().map(|results| results.calls.per_s),
            one_way: false,
        }
    }

    fn floor(&self, system: &str, latency: Floor, rate: Floor) -> Row {
        let of =
            |results: &Option<Results>, floor: Floor| results.as_ref()?.floors.get(floor.name()).cloned();
        Row {
            system: system.to_owned(),
            rtt_p50_ns: of(&self.latency, latency).map(|summary| summary.p50_ns),
            calls_per_s: of(&self.rate, rate).map(|summary| summary.per_s),
            one_way: false,
        }
    }

    /// Returns a row with both figures for each other system.
    fn peers(&self) -> Vec<Row> {
        let (Some(latency), Some(rate)) = (&self.latency, &self.rate) else { return Vec::new() };
        let names: BTreeSet<_> = latency.peers.keys().filter(|name| rate.peers.contains_key(*name)).collect();
        let row = |name: &String| Row {
            system: name.clone(),
            rtt_p50_ns: latency.peers[name].p50_ns,
            calls_per_s: rate.peers[name].per_s,
            one_way: systems::rate_is_one_way(name),
        };
        names.into_iter().map(row).collect()
    }
}

/// Returns the rows: calls, other systems by name, floors.
fn rows(udp: &OfLink, shm: &OfLink) -> Vec<Row> {
    let mut rows = vec![udp.calls("Trunkline, UDP"), shm.calls("Trunkline, shared memory")];
    rows.extend(udp.peers());
    rows.push(udp.floor("floor: raw UDP", Floor::Udp, Floor::UdpBatched));
    rows.push(udp.floor("floor: TCP", Floor::Tcp, Floor::Tcp));
    rows.push(shm.floor("floor: shared memory", Floor::Line, Floor::Ring));
    rows.retain(|row| row.rtt_p50_ns.is_some() || row.calls_per_s.is_some());
    rows
}

impl Table {
    /// Returns the table, and below it a line with date, version, machine and method.
    fn markdown(&self) -> String {
        let mut text = format!(
            "| system | round trip of {SIZE} B, µs | calls/s, {OUTSTANDING} outstanding |\n|---|---:|---:|\n"
        );
        let or_none = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
        for Row { system, rtt_p50_ns, calls_per_s, one_way } in &self.rows {
            let us = rtt_p50_ns.map(|ns| figure(ns, 1e3, ""));
            let rate = calls_per_s.map(|per_s| figure(per_s, 1e3, " k"));
            let mark = if *one_way && rate.is_some() { " *" } else { "" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {system} | {} | {}{mark} |", or_none(us), or_none(rate));
        }
        let (Stamp { version, date }, machine) = (&self.stamp, self.machine.class());
        let _ = write!(text, "\n{date}, trunkline-bench {version}, {machine}. ");
        let repetitions = match self.repetitions {
            1 => format!("One repetition of {} s", self.seconds),
            many => format!(
                "Medians of {many} interleaved repetitions of {} s, the lowest and the highest in parentheses",
                self.seconds
            ),
        };
        let cores = if self.cores.is_some() { "one core per side, all sides polling" } else { "not pinned" };
        let _ = write!(text, "{repetitions}; {cores}.");
        if self.rows.iter().any(|row| row.one_way) {
            text.push_str(" `*`: messages in one direction, without replies.");
        }
        text
    }

    /// Lists missing figures, and warns if the machine was busy.
    fn remarks(&self) -> Vec<String> {
        let skipped = self.peers_skipped.iter();
        let mut remarks =
            skipped.map(|(name, why)| format!("{name}: not measured: {why}")).collect::<Vec<_>>();
        if let Some(cores) = self.others_cores.filter(|cores| *cores > BUSY_CORES) {
            remarks.push(format!("other programs used {cores} cores meanwhile: measure again"));
        }
        remarks
    }
}

/// Formats the median in units of `unit`, with the extremes in parentheses if they differ.
fn figure(spread: Spread, unit: f64, name: &str) -> String {
    let [median, min, max] = [spread.median, spread.min, spread.max].map(|value| digits(value / unit));
    if min == max { format!("{median}{name}") } else { format!("{median}{name} ({min}–{max})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, rtt_p50_ns: Option<Spread>, calls_per_s: Option<Spread>) -> Row {
        Row { system: system.to_owned(), rtt_p50_ns, calls_per_s, one_way: system.contains("perftest") }
    }

    fn table(rows: Vec<Row>) -> Table {
        Table {
            command: "table",
            stamp: Stamp::now(),
            machine: Machine::here(),
            seconds: 0.5,
            repetitions: 3,
            cores: Some([0, 1]),
            others_cores: Some(0.0),
            rows,
            peers_skipped: BTreeMap::new(),
            error: None,
        }
    }

    #[test]
    fn figures_are_microseconds_and_thousands_with_their_spread() {
        let us = |median: f64, min: f64, max: f64| {
            Some(Spread { median: median * 1e3, min: min * 1e3, max: max * 1e3 })
        };
        let text = table(vec![
            row("Trunkline, UDP", us(35.62, 34.9, 140.4), us(422.0, 99.96, 431.2)),
            row("tarpc, TCP", us(24.5, 24.5, 24.5), None),
            row("ucx_perftest, TCP", None, us(1834.0, 1834.0, 1834.0)),
        ])
        .markdown();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..5],
            [
                "| system | round trip of 64 B, µs | calls/s, 32 outstanding |",
                "|---|---:|---:|",
                "| Trunkline, UDP | 35.6 (34.9–140) | 422 k (100.0–431) |",
                "| tarpc, TCP | 24.5 | - |",
                "| ucx_perftest, TCP | - | 1834 k * |",
            ]
        );
        let note = lines[6];
        for part in
            [" UTC, trunkline-bench ", " cores, ", "3 interleaved repetitions of 0.5 s", "one direction"]
        {
            assert!(note.contains(part), "{part}: {note}");
        }
    }

    #[test]
    fn a_busy_machine_and_missing_systems_are_remarked() {
        let mut table = table(Vec::new());
        assert!(table.remarks().is_empty());
        table.others_cores = Some(0.5);
        table.peers_skipped.insert("perftest".to_owned(), "it is not installed".to_owned());
        let remarks = table.remarks().join("\n");
        assert!(remarks.contains("perftest: not measured: it is not installed"), "{remarks}");
        assert!(remarks.contains("0.5 cores meanwhile"), "{remarks}");
    }
}
