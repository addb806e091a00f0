//! The results as a Markdown table and as JSON.

use crate::measure::Point;
use crate::meter::load::Load;
use crate::meter::machine::{Machine, Stamp};
use crate::meter::recorder::Sample;
use crate::meter::spread::Spread;
use crate::transport::{Runtime, Transport};
use serde::Serialize;
use std::time::SystemTime;
use trunkline_transport::utc;

/// The results of one measurement over one transport. The vectors contain one value per repetition.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    measurement: String,
    transport: Transport,
    /// Calls, items or bytes per second.
    per_s: Vec<f64>,
    /// Median call times, in microseconds; empty for items.
    time_us: Vec<f64>,
    /// 99th percentiles of the call times, in microseconds; empty for items.
    p99_us: Vec<f64>,
    #[serde(skip)]
    point: Point,
}

/// The results of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    stamp: Stamp,
    machine: Machine,
    /// Duration of each measurement, in seconds.
    seconds: f64,
    /// Cores of the client and of the server.
    pub(crate) cores: Option<[usize; 2]>,
    /// Number of busy loops that run during the measurement.
    neighbours: u32,
    /// CPU quota of each side, in cores.
    quota: Option<f64>,
    runtime: Runtime,
    series: Vec<Series>,
}

impl Report {
    pub(crate) fn new(seconds: f64, cores: Option<[usize; 2]>, load: Load, runtime: Runtime) -> Self {
        let points = Point::ALL.into_iter();
        let series = points.flat_map(|point| {
            Transport::ALL.map(|transport| Series {
                measurement: point.title(),
                transport,
                per_s: Vec::new(),
                time_us: Vec::new(),
                p99_us: Vec::new(),
                point,
            })
        });
        let Load { neighbours, quota } = load;
        let (stamp, machine, series) =
            (Stamp::at(&utc(SystemTime::now())), Machine::here(), series.collect());
        Self { stamp, machine, seconds, cores, neighbours, quota, runtime, series }
    }

    /// Adds the result of one repetition.
    pub(crate) fn add(&mut self, point: Point, transport: Transport, sample: &Sample) {
        let series = self.series.iter_mut().find(|series| series.is(point, transport));
        let Some(series) = series else { return };
        series.per_s.push(sample.per_s);
        if point.has_times() {
            #[expect(clippy::cast_precision_loss, reason = "times stay far below 2^52 ns")]
            let at = |quantile| sample.times.value_at_quantile(quantile) as f64 / 1000.0;
            series.time_us.push(at(0.5));
            series.p99_us.push(at(0.99));
        }
    }

    /// Returns the table of medians.
    pub(crate) fn table(&self) -> String {
        let Self { stamp, machine, seconds, .. } = self;
        let (repetitions, date) = (self.series.first().map_or(0, |series| series.per_s.len()), &stamp.date);
        let place = match self.cores {
            Some([client, server]) => format!("client on core {client}, server on core {server}"),
            None => "not pinned".to_owned(),
        };
        let neighbours = match self.neighbours {
            0 => String::new(),
            count => format!("; busy loops: {count}"),
        };
        let quota =
            self.quota.map(|cores| format!("; quota of each side: {cores} cores")).unwrap_or_default();
        let mut lines = vec![
            format!(
                "{date}; {}; {place}{neighbours}{quota}; medians of {repetitions} repetitions of {seconds} s.",
                machine.class()
            ),
            String::new(),
        ];
        lines.extend(self.rows(|value, _| Some(value)));
        lines.join("\n")
    }

    /// Returns the medians relative to tonic over TCP.
    pub(crate) fn ratios(&self) -> String {
        let mut lines = vec!["Relative to tonic over TCP:".to_owned(), String::new()];
        lines.extend(self.rows(|value, tcp| Some(value / tcp?)));
        lines.join("\n")
    }

    /// Returns the header and the rows of a table. The arguments of `cell` are the median of a transport and the median of
    /// tonic over TCP.
    fn rows(&self, cell: impl Fn(f64, Option<f64>) -> Option<f64>) -> Vec<String> {
        let mut lines = vec![
            format!("| | {} |", Transport::ALL.map(Transport::title).join(" | ")),
            format!("|---|{}", "---:|".repeat(Transport::ALL.len())),
        ];
        for point in Point::ALL {
            if point.has_times() {
                lines.push(self.row(point, "µs", |series| &series.time_us, &cell));
                lines.push(self.row(point, "p99, µs", |series| &series.p99_us, &cell));
            }
            lines.push(self.row(point, point.unit(), |series| &series.per_s, &cell));
        }
        lines
    }

    fn row(
        &self,
        point: Point,
        unit: &str,
        values: impl Fn(&Series) -> &Vec<f64>,
        cell: impl Fn(f64, Option<f64>) -> Option<f64>,
    ) -> String {
        let middle = |transport| {
            let series = self.series.iter().find(|series| series.is(point, transport))?;
            Spread::of(values(series)).map(|spread| spread.median)
        };
        let cells = Transport::ALL.map(|transport| {
            let value = middle(transport).and_then(|value| cell(value, middle(Transport::Tcp)));
            value.map_or_else(String::new, digits)
        });
        format!("| {}, {unit} | {} |", point.title(), cells.join(" | "))
    }
}

/// Formats a number with two decimals below 10, one below 1,000, and none above.
fn digits(value: f64) -> String {
    let digits = match value {
        ..10.0 => 2,
        ..1000.0 => 1,
        _ => 0,
    };
    with_commas(&format!("{value:.digits$}"))
}

impl Series {
    fn is(&self, point: Point, transport: Transport) -> bool {
        self.point == point && self.transport == transport
    }
}

/// Inserts commas between thousands.
fn with_commas(number: &str) -> String {
    let (whole, fraction) =
        number.split_once('.').map_or((number, None), |(whole, part)| (whole, Some(part)));
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    fraction.map_or(text.clone(), |fraction| format!("{text}.{fraction}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (number, text) in
            [("7", "7"), ("123.4", "123.4"), ("1234", "1,234"), ("1234567.8", "1,234,567.8")]
        {
            assert_eq!(with_commas(number), text);
        }
    }

    #[test]
    fn table_has_medians() {
        let load = Load { neighbours: 2, quota: None };
        let mut report = Report::new(0.5, None, load, Runtime::TwoWorkers);
        let point = Point::ALL[0];
        for (time_us, per_s) in [(30, 3000.0), (10, 1000.0), (20, 2000.0)] {
            let mut times = crate::meter::recorder::histogram();
            times.record(time_us * 1000).unwrap();
            report.add(point, Transport::Tcp, &Sample { times, per_s });
            let times = crate::meter::recorder::histogram();
            report.add(point, Transport::Unix, &Sample { times, per_s: per_s * 1.5 });
        }
        let table = report.table();
        assert!(table.contains("not pinned; busy loops: 2; medians of 3 repetitions of 0.5 s."), "{table}");
        assert!(table.contains("1 outstanding, µs | 20.0 |"), "{table}");
        assert!(table.contains("1 outstanding, calls/s | 2,000 | 3,000 |"), "{table}");
        let ratios = report.ratios();
        assert!(ratios.contains("1 outstanding, calls/s | 1.00 | 1.50 |"), "{ratios}");
    }
}
