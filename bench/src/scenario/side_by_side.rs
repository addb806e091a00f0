//! The `table` subcommand: calls over both links, other systems and floors in one Markdown table.
//!
//! Times and rates over UDP and over shared memory are measured in four runs. Each repetition is part of all four runs,
//! one after the other, so that slow changes of the machine affect all rows alike.

use crate::calls::nodes::LinkFlag;
use crate::cli::SideBySide;
use crate::floors::Floor;
use crate::meter::failure::Failure;
use crate::meter::machine::Stamp;
use crate::meter::others::{BUSY_CORES, Others};
use crate::meter::pin::Cores;
use crate::meter::spread::{Spread, digits};
use crate::results::table::{Table, or_dash};
use crate::scenario::point::{Measure, Results};
use crate::scenario::run::Run;
use crate::scenario::{Scenario, Sweep};
use crate::systems;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::SystemTime;
use trunkline_testkit::output;
use trunkline_transport::utc;

/// Payload in each direction, in bytes.
const SIZE: usize = 64;
/// Number of calls in flight when rates are measured.
const OUTSTANDING: usize = 32;

/// Figures of one system.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    system: String,
    /// Median and extremes over the repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_p50_ns: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_per_s: Option<Spread>,
    /// True if the rate counts messages in one direction only.
    one_way: bool,
}

/// Times and rates over one link, as far as they were measured.
struct OfLink {
    latency: Option<Results>,
    rate: Option<Results>,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if the measurement fails or the file cannot be written.
pub(crate) fn measure(wanted: &SideBySide) -> Result<(), Failure> {
    let scenario = Scenario::begin("table", &wanted.output, None)?;
    let Sweep { seconds, repetitions, .. } = wanted.sweep;
    let (udp, shm) = (wanted.settings(LinkFlag::Udp), wanted.settings(LinkFlag::Shm));
    let plan = |measure, settings, outstanding| Run::new(measure, settings, &[SIZE], outstanding);
    let mut runs = [
        plan(Measure::Latency, &udp, 1)?,
        plan(Measure::Rate, &udp, OUTSTANDING)?,
        plan(Measure::Latency, &shm, 1)?,
        plan(Measure::Rate, &shm, OUTSTANDING)?,
    ];
    let cores = runs[0].cores.map(Cores::pair);
    scenario.bar.inc_length(runs.iter().map(Run::steps).sum());
    let measured = (1..=repetitions).try_for_each(|repetition| {
        if scenario.bar.is_hidden() && !wanted.output.quiet {
            output::err(&format!("repetition {repetition} of {repetitions}"));
        }
        runs.iter_mut().try_for_each(|run| run.repeat(&scenario.bar))
    });
    let [udp_latency, udp_rate, shm_latency, shm_rate] = runs.map(|run| run.points.first()?.results());
    let udp = OfLink { latency: udp_latency, rate: udp_rate };
    let shm = OfLink { latency: shm_latency, rate: shm_rate };
    let (rows, peers_skipped) = (rows(&udp, &shm), udp.skipped());
    let mut text = markdown(&rows);
    if !rows.is_empty() {
        let (date, machine) = (Stamp::at(&utc(SystemTime::now())).date, scenario.machine().class());
        let repetitions = match repetitions {
            1 => format!("One repetition of {seconds} s"),
            many => format!(
                "Medians of {many} interleaved repetitions of {seconds} s, the lowest and the highest in parentheses"
            ),
        };
        let cores = if cores.is_some() { "one core per side, all sides polling" } else { "not pinned" };
        let note = if rows.iter().any(|row| row.one_way) {
            " `*`: messages in one direction, without replies."
        } else {
            ""
        };
        let version = env!("CARGO_PKG_VERSION");
        // Writing to a string does not fail.
        let _ = write!(text, "\n{date}, trunkline-bench {version}, {machine}. {repetitions}; {cores}.{note}");
    }
    if !wanted.output.quiet {
        let others = scenario.others.as_ref().and_then(Others::cores);
        remarks(&peers_skipped, others).iter().for_each(|remark| output::err(remark));
    }
    let results = json!({
        "seconds": seconds,
        "repetitions": wanted.sweep.repetitions,
        "cores": cores,
        "rows": rows,
        "peers_skipped": peers_skipped,
    });
    scenario.end(measured, &text, &results, "")
}

impl OfLink {
    /// Returns the reasons for missing figures of other systems. Reasons for missing times take precedence.
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

    /// Returns one row per other system, with both figures.
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

/// Returns the rows in this order: calls, other systems by name, floors.
fn rows(udp: &OfLink, shm: &OfLink) -> Vec<Row> {
    let mut rows = vec![udp.calls("Trunkline, UDP"), shm.calls("Trunkline, shared memory")];
    rows.extend(udp.peers());
    rows.push(udp.floor("floor: raw UDP", Floor::Udp, Floor::UdpBatched));
    rows.push(udp.floor("floor: TCP", Floor::Tcp, Floor::Tcp));
    rows.push(shm.floor("floor: shared memory", Floor::Line, Floor::Ring));
    rows.retain(|row| row.rtt_p50_ns.is_some() || row.calls_per_s.is_some());
    rows
}

/// Returns the rows as Markdown, or nothing if there are no rows.
fn markdown(rows: &[Row]) -> String {
    let round_trip = format!("round trip of {SIZE} B, µs");
    let mut table = Table::new(["<system", &round_trip, &format!("calls/s, {OUTSTANDING} outstanding")]);
    for Row { system, rtt_p50_ns, calls_per_s, one_way } in rows {
        let us = or_dash(rtt_p50_ns.map(|ns| figure(ns, 1e3, "")));
        let rate = or_dash(calls_per_s.map(|per_s| figure(per_s, 1e3, " k")));
        let mark = if *one_way && calls_per_s.is_some() { " *" } else { "" };
        table.row([system.clone(), us, format!("{rate}{mark}")]);
    }
    if table.is_empty() { String::new() } else { table.markdown() }
}

/// Lists missing figures, and adds a warning if the machine was busy.
fn remarks(skipped: &BTreeMap<String, String>, others_cores: Option<f64>) -> Vec<String> {
    let busy = others_cores.filter(|cores| *cores > BUSY_CORES);
    let busy = busy.map(|cores| format!("other programs used {cores} cores meanwhile: measure again"));
    skipped.iter().map(|(name, why)| format!("{name}: not measured: {why}")).chain(busy).collect()
}

/// Formats the median in the given unit, with the extremes in parentheses if they differ from it.
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

    #[test]
    fn figures_are_printed_in_microseconds_and_thousands_with_spread() {
        let us = |median: f64, min: f64, max: f64| {
            Some(Spread { median: median * 1e3, min: min * 1e3, max: max * 1e3 })
        };
        let text = markdown(&[
            row("Trunkline, UDP", us(35.62, 34.9, 140.4), us(422.0, 99.96, 431.2)),
            row("tarpc, TCP", us(24.5, 24.5, 24.5), None),
            row("ucx_perftest, TCP", None, us(1834.0, 1834.0, 1834.0)),
        ]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "| system | round trip of 64 B, µs | calls/s, 32 outstanding |",
                "|---|---:|---:|",
                "| Trunkline, UDP | 35.6 (34.9–140) | 422 k (100.0–431) |",
                "| tarpc, TCP | 24.5 | - |",
                "| ucx_perftest, TCP | - | 1834 k * |",
            ]
        );
    }

    #[test]
    fn busy_machine_and_missing_systems_are_reported() {
        let missing = BTreeMap::from([("perftest".to_owned(), "it is not installed".to_owned())]);
        assert!(remarks(&BTreeMap::new(), Some(0.0)).is_empty());
        let remarks = remarks(&missing, Some(0.5)).join("\n");
        assert!(remarks.contains("perftest: not measured: it is not installed"), "{remarks}");
        assert!(remarks.contains("0.5 cores meanwhile"), "{remarks}");
    }
}
