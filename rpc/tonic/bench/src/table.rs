//! The results as a Markdown table, and as JSON.

use crate::machine::{Machine, Stamp};
use crate::measure::Point;
use crate::recorder::{Sample, median};
use crate::transport::Transport;
use serde::Serialize;

/// The results of one measurement over one transport, with one value for each repetition.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    measurement: String,
    transport: Transport,
    /// Calls or items per second.
    per_s: Vec<f64>,
    /// Median times of a call, in microseconds; empty for items.
    time_us: Vec<f64>,
    #[serde(skip)]
    point: Point,
}

/// A run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    stamp: Stamp,
    machine: Machine,
    /// Seconds of each measurement.
    seconds: f64,
    /// Cores of the client and of the server.
    cores: Option<[usize; 2]>,
    series: Vec<Series>,
}

impl Report {
    pub(crate) fn new(seconds: f64, cores: Option<[usize; 2]>) -> Self {
        let points = Point::ALL.into_iter();
        let series = points.flat_map(|point| {
            Transport::ALL.map(|transport| Series {
                measurement: point.title(),
                transport,
                per_s: Vec::new(),
                time_us: Vec::new(),
                point,
            })
        });
        Self { stamp: Stamp::now(), machine: Machine::here(), seconds, cores, series: series.collect() }
    }

    /// Adds the result of one repetition.
    pub(crate) fn add(&mut self, point: Point, transport: Transport, sample: &Sample) {
        let series = self.series.iter_mut().find(|series| series.is(point, transport));
        let Some(series) = series else { return };
        series.per_s.push(sample.per_s);
        if point.has_times() {
            #[expect(clippy::cast_precision_loss, reason = "times stay far below 2^52 ns")]
            series.time_us.push(sample.times.value_at_quantile(0.5) as f64 / 1000.0);
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
        let mut lines = vec![
            format!(
                "{date}; {}; {place}; medians of {repetitions} repetitions of {seconds} s.",
                machine.class()
            ),
            String::new(),
            format!("| | {} |", Transport::ALL.map(Transport::title).join(" | ")),
            format!("|---|{}", "---:|".repeat(Transport::ALL.len())),
        ];
        for point in Point::ALL {
            if point.has_times() {
                lines.push(self.row(point, "µs", 1, |series| &series.time_us));
                lines.push(self.row(point, "calls/s", 0, |series| &series.per_s));
            } else {
                lines.push(self.row(point, "items/s", 0, |series| &series.per_s));
            }
        }
        lines.join("\n")
    }

    fn row(&self, point: Point, unit: &str, digits: usize, values: impl Fn(&Series) -> &Vec<f64>) -> String {
        let cells = Transport::ALL.map(|transport| {
            let series = self.series.iter().find(|series| series.is(point, transport));
            let middle = series.and_then(|series| median(values(series).clone()));
            middle.map_or_else(String::new, |value| with_commas(&format!("{value:.digits$}")))
        });
        format!("| {}, {unit} | {} |", point.title(), cells.join(" | "))
    }
}

impl Series {
    fn is(&self, point: Point, transport: Transport) -> bool {
        self.point == point && self.transport == transport
    }
}

/// Separates thousands.
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
    fn the_table_has_medians() {
        let mut report = Report::new(0.5, None);
        let point = Point::ALL[0];
        for (time_us, per_s) in [(30, 3000.0), (10, 1000.0), (20, 2000.0)] {
            let mut times = crate::recorder::histogram();
            times.record(time_us * 1000).unwrap();
            report.add(point, Transport::Tcp, &Sample { times, per_s });
        }
        let table = report.table();
        assert!(table.contains("not pinned; medians of 3 repetitions of 0.5 s."), "{table}");
        assert!(table.contains("1 outstanding, µs | 20.0 |"), "{table}");
        assert!(table.contains("1 outstanding, calls/s | 2,000 |"), "{table}");
    }
}
