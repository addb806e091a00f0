//! Selection of charts for a report from the contents of its files. The most important charts of a file come first.

use super::chart::{Chart, Line, Scale, Series};
use crate::meter::spread::Spread;
use crate::results::saved::{Saved, SavedPoint};
use crate::scenario::point::Summary;
use std::collections::{BTreeMap, BTreeSet};

const CALL_US: &str = "time of a call, µs";
/// Keys of rates, with their titles. The key of a floor's rate begins with `floor_`.
const RATES: [(&str, &str); 3] = [
    ("calls_per_s", "Calls per second"),
    ("bytes_per_s", "Bytes per second"),
    ("sessions_per_s", "Sessions per second"),
];

/// A point, preceded by its value of the swept setting.
type Swept<'a> = (f64, &'a SavedPoint);

pub(super) fn of_file(saved: &Saved) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (setting, by, x) in [
        ("size_bytes", "size", "size of a payload, bytes"),
        ("outstanding", "calls under way", "calls under way"),
        ("count", "", ""),
    ] {
        for (rest, points) in sweeps(&saved.points, setting) {
            // Points of `scale` contain the name of the varied dimension.
            let (by, x, rest) = match rest.strip_prefix("dimension ") {
                Some(counted) if setting == "count" => (counted, counted, ""),
                _ => (by, x, rest.as_str()),
            };
            if setting == "outstanding" {
                charts.extend(rate_against_time(rest, &points));
            } else {
                charts.extend(chart(
                    titled(&format!("Time by {by}"), rest),
                    Scale::Doubling,
                    x,
                    CALL_US,
                    times(&points),
                ));
            }
            for (key, unit) in RATES {
                if points.iter().any(|(_, point)| point.each_repetition.contains_key(key)) {
                    let title = titled(&format!("{unit} by {by}"), rest);
                    charts.extend(chart(title, Scale::Doubling, x, unit, rates(key, &points)));
                }
            }
        }
    }
    if saved.points.len() > 1 {
        // Split the points evenly, so that a chart has at most one series per colour.
        let parts = saved.points.len().div_ceil(8);
        for points in saved.points.chunks(saved.points.len().div_ceil(parts)) {
            let curves = points
                .iter()
                .filter_map(|point| Some(curve(&point.label(), Line::Calls, point.calls.as_ref()?)));
            charts.extend(distributions("Distribution of all points".to_owned(), curves.collect()));
        }
    }
    for point in &saved.points {
        let Some(calls) = &point.calls else { continue };
        let floors = point.floors.iter().map(|(name, floor)| curve(name, Line::Floor, floor));
        let curves = [curve("calls", Line::Calls, calls)].into_iter().chain(floors).collect();
        charts.extend(distributions(format!("Distribution, {}", point.label()), curves));
    }
    charts
}

/// Returns charts of the open loops in several files, which show latency by call rate.
pub(super) fn of_open_loops(files: &[Saved]) -> Vec<Chart> {
    let mut groups: BTreeMap<String, Vec<Swept<'_>>> = BTreeMap::new();
    for file in files {
        let Some(rate) = file.settings.get("arrivals_per_s").and_then(serde_json::Value::as_f64) else {
            continue;
        };
        let of = |key| file.settings.get(key).and_then(|value| value.as_str()).unwrap_or("unknown");
        for point in &file.points {
            let group = format!("{}, link {}, client {}", point.label(), of("link"), of("client"));
            groups.entry(group).or_default().push((rate, point));
        }
    }
    let of_group = |(group, points): (String, Vec<Swept<'_>>)| {
        let title = titled("Time by rate, open loop", &group);
        chart(title, Scale::Log, "calls due per second", "time since a call was due, µs", ours(&points))
    };
    sorted(groups).into_iter().filter_map(of_group).collect()
}

/// Groups points that differ in only one setting. Groups with fewer than two values are omitted.
fn sweeps<'a>(points: &'a [SavedPoint], setting: &str) -> Vec<(String, Vec<Swept<'a>>)> {
    let mut groups: BTreeMap<String, Vec<Swept<'_>>> = BTreeMap::new();
    for point in points {
        let Some(value) = point.settings.get(setting).and_then(serde_json::Value::as_f64) else { continue };
        let mut others = point.clone();
        others.settings.remove(setting);
        groups.entry(others.label()).or_default().push((value, point));
    }
    sorted(groups)
}

/// Sorts each group by its values, and keeps groups with at least two values.
fn sorted(groups: BTreeMap<String, Vec<Swept<'_>>>) -> Vec<(String, Vec<Swept<'_>>)> {
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.iter_mut().for_each(|(_, points)| points.sort_by(|one, other| one.0.total_cmp(&other.0)));
    groups.retain(|(_, points)| points.windows(2).any(|pair| pair[0].0 < pair[1].0));
    groups
}

/// Creates a chart, or returns `None` if no line has a point.
fn chart(title: String, scale: Scale, x: &str, y: &'static str, mut series: Vec<Series>) -> Option<Chart> {
    series.retain(|series| !series.points.is_empty());
    (!series.is_empty()).then(|| Chart { title, scale, x: x.to_owned(), y, series })
}

fn line(name: &str, line: Line, points: &[Swept<'_>], of: impl Fn(&SavedPoint) -> Option<Spread>) -> Series {
    let points = points.iter().filter_map(|(at, point)| Some((*at, of(point)?))).collect();
    Series { name: name.to_owned(), line, points, notes: Vec::new(), is_marked: true }
}

fn ours(points: &[Swept<'_>]) -> Vec<Series> {
    [("calls, p50", "rtt_p50_ns"), ("calls, p99", "rtt_p99_ns")]
        .map(|(name, key)| line(name, Line::Calls, points, |point| point.spread(key).map(in_us)))
        .to_vec()
}

/// Returns the times of Trunkline's calls, floors and other systems.
fn times(points: &[Swept<'_>]) -> Vec<Series> {
    let mut lines = ours(points);
    for name in names(points.iter().map(|(_, point)| &point.floors)) {
        lines.push(line(&name, Line::Floor, points, |point| Some(in_us(point.floors.get(&name)?.p50_ns))));
    }
    for name in names(points.iter().map(|(_, point)| &point.peers)) {
        lines.push(line(&name, Line::Peer, points, |point| point.peers.get(&name)?.middle_ns().map(in_us)));
    }
    lines
}

/// Returns the rates of Trunkline's calls, the link's floor and other systems.
fn rates(key: &str, points: &[Swept<'_>]) -> Vec<Series> {
    let floor = format!("floor_{key}");
    let mut lines = vec![
        line("calls", Line::Calls, points, |point| point.spread(key)),
        line("the link's floor", Line::Floor, points, |point| point.spread(&floor)),
    ];
    // Other systems report calls per second regardless of the payload.
    if key == "calls_per_s" {
        for name in names(points.iter().map(|(_, point)| &point.peers)) {
            lines.push(line(&name, Line::Peer, points, |point| point.peers.get(&name)?.per_s));
        }
    }
    lines
}

fn rate_against_time(rest: &str, points: &[Swept<'_>]) -> Option<Chart> {
    let measured = points
        .iter()
        .filter_map(|(under_way, point)| Some((*under_way, point.calls.as_ref()?.per_s.median, *point)));
    let (notes, points): (Vec<_>, Vec<_>) =
        measured.map(|(at, per_s, point)| (at.to_string(), (per_s, point))).unzip();
    let mut lines = ours(&points);
    "calls, p50, by calls under way".clone_into(&mut lines[0].name);
    lines[0].notes = notes;
    chart(titled("Rate against time", rest), Scale::Log, "calls per second", CALL_US, lines)
}

fn distributions(title: String, curves: Vec<Series>) -> Option<Chart> {
    chart(title, Scale::Percentiles, "percentile of calls", "time, µs", curves)
}

fn curve(name: &str, line: Line, timed: &Summary) -> Series {
    // The position of the longest time on this axis is infinite, so only the table contains it. Labels with more than six
    // digits would overlap.
    let finite = timed.distribution_ns.points().filter(|(quantile, _)| *quantile <= 0.999_999);
    let alone = |ns: f64| Spread { median: ns, min: ns, max: ns };
    let points = finite.map(|(quantile, ns)| (quantile, alone(ns / 1e3))).collect();
    Series { name: name.to_owned(), line, points, notes: Vec::new(), is_marked: false }
}

fn names<'a, T: 'a>(maps: impl Iterator<Item = &'a BTreeMap<String, T>>) -> BTreeSet<String> {
    maps.flat_map(|map| map.keys().cloned()).collect()
}

fn in_us(spread: Spread) -> Spread {
    Spread { median: spread.median / 1e3, min: spread.min / 1e3, max: spread.max / 1e3 }
}

fn titled(what: &str, rest: &str) -> String {
    if rest.is_empty() { what.to_owned() } else { format!("{what}, {rest}") }
}
