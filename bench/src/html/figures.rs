//! Selection of a report's plots, from the contents of its files.

use super::axis::{Axis, Scale};
use super::plot::{Line, Plot, Series};
use crate::saved::{Saved, SavedPoint, Timed};
use crate::spread::Spread;
use std::collections::{BTreeMap, BTreeSet};

const CALL_US: &str = "time of a call, µs";

/// Returns the plots of one file.
pub(crate) fn of_file(saved: &Saved) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (rest, points) in sweeps(&saved.points, "size_bytes") {
        plots.extend(time_by_size(&rest, &points));
        for (key, floor, unit) in [
            ("calls_per_s", "floor_calls_per_s", "calls per second"),
            ("bytes_per_s", "floor_bytes_per_s", "bytes per second"),
        ] {
            let title = titled(&format!("{} by size", capital(unit)), &rest);
            let axes = (Scale::Doubling, "size of a payload, bytes", Scale::Log, unit);
            plots.extend(throughput(&title, axes, &points, [key, floor]));
        }
    }
    for (rest, points) in sweeps(&saved.points, "outstanding") {
        plots.extend(rate_against_time(&rest, &points));
        let title = titled("Rate by calls under way", &rest);
        for (key, floor, unit) in [
            ("calls_per_s", "floor_calls_per_s", "calls per second"),
            ("bytes_per_s", "floor_bytes_per_s", "bytes per second"),
        ] {
            let axes = (Scale::Doubling, "calls under way", Scale::Log, unit);
            plots.extend(throughput(&title, axes, &points, [key, floor]));
        }
    }
    for (rest, points) in sweeps(&saved.points, "count") {
        plots.extend(of_scale(&rest, &points));
    }
    if saved.points.len() > 1 {
        // Split evenly, with at most one series per colour in a plot.
        let parts = saved.points.len().div_ceil(8);
        plots.extend(saved.points.chunks(saved.points.len().div_ceil(parts)).filter_map(all_distributions));
    }
    plots.extend(saved.points.iter().filter_map(distribution));
    plots
}

/// Returns the plots of open loops of several files: time by the rate at which calls were due.
pub(crate) fn of_open_loops(files: &[Saved]) -> Vec<Plot> {
    let mut groups: BTreeMap<String, Vec<(f64, &Timed)>> = BTreeMap::new();
    for file in files {
        let Some(rate) = file.settings.get("arrivals_per_s").and_then(serde_json::Value::as_f64) else {
            continue;
        };
        let of = |key| file.settings.get(key).and_then(|value| value.as_str()).unwrap_or("unknown");
        for point in &file.points {
            let group = format!("{}, link {}, client {}", point.label(), of("link"), of("client"));
            groups.entry(group).or_default().extend(point.calls.as_ref().map(|calls| (rate, calls)));
        }
    }
    let plot = |(group, mut loops): (String, Vec<(f64, &Timed)>)| {
        loops.sort_by(|one, other| one.0.total_cmp(&other.0));
        let several = loops.windows(2).any(|pair| pair[0].0 < pair[1].0);
        let of = |name: &str, spread: fn(&Timed) -> Spread| {
            let values = loops.iter().map(|(rate, calls)| (*rate, in_us(spread(calls)))).collect::<Vec<_>>();
            series(name, Line::Calls, &values)
        };
        let lines = vec![of("calls, p50", |calls| calls.p50_ns), of("calls, p99", |calls| calls.p99_ns)];
        let axes = (Scale::Log, "calls due per second", Scale::Log, "time since a call was due, µs");
        several.then(|| plot(titled("Time by rate, open loop", &group), axes, lines)).flatten()
    };
    groups.into_iter().filter_map(plot).collect()
}

type Axes<'a> = (Scale, &'a str, Scale, &'a str);

/// Creates a plot. Returns `None` if no line has a point.
fn plot(title: String, (x, x_title, y, y_title): Axes<'_>, mut series: Vec<Series>) -> Option<Plot> {
    series.retain(|series| !series.points.is_empty());
    let xs = series.iter().flat_map(|series| series.points.iter().map(|point| point.0));
    let points = series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let ranges = series.iter().flat_map(|series| series.ranges.iter().flat_map(|range| [range.1, range.2]));
    let (x, y) = (Axis::over(x_title, x, xs), Axis::over(y_title, y, points.chain(ranges)));
    (!series.is_empty()).then_some(Plot { title, x, y, series })
}

/// Groups points that differ in one setting only, sorted by its value. Groups with fewer than two values are left out.
fn sweeps<'a>(points: &'a [SavedPoint], setting: &str) -> Vec<(String, Vec<(f64, &'a SavedPoint)>)> {
    let mut groups: BTreeMap<String, Vec<(f64, &SavedPoint)>> = BTreeMap::new();
    for point in points {
        let Some(value) = point.settings.get(setting).and_then(|text| text.parse().ok()) else { continue };
        let mut others = point.clone();
        others.settings.remove(setting);
        groups.entry(others.label()).or_default().push((value, point));
    }
    for group in groups.values_mut() {
        group.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    groups.retain(|_, group| group.windows(2).any(|pair| pair[0].0 < pair[1].0));
    groups.into_iter().collect()
}

fn time_by_size(rest: &str, points: &[(f64, &SavedPoint)]) -> Option<Plot> {
    let of = |spread: fn(&Timed) -> Spread| {
        let value = |(size, point): &(f64, &SavedPoint)| Some((*size, in_us(spread(point.calls.as_ref()?))));
        points.iter().filter_map(value).collect::<Vec<_>>()
    };
    let mut lines = vec![
        series("calls, p50", Line::Calls, &of(|calls| calls.p50_ns)),
        series("calls, p99", Line::Calls, &of(|calls| calls.p99_ns)),
    ];
    for name in names(points.iter().map(|(_, point)| &point.floors)) {
        let value =
            |(size, point): &(f64, &SavedPoint)| Some((*size, in_us(point.floors.get(&name)?.p50_ns)));
        let values: Vec<_> = points.iter().filter_map(value).collect();
        lines.push(series(&name, Line::Floor, &values));
    }
    for name in names(points.iter().map(|(_, point)| &point.peers)) {
        // Some systems report the mean only.
        let value = |(size, point): &(f64, &SavedPoint)| {
            let peer = point.peers.get(&name)?;
            Some((*size, in_us(peer.p50_ns.or(peer.mean_ns)?)))
        };
        let values: Vec<_> = points.iter().filter_map(value).collect();
        lines.push(series(&name, Line::Peer, &values));
    }
    plot(
        titled("Time by size", rest),
        (Scale::Doubling, "size of a payload, bytes", Scale::Log, CALL_US),
        lines,
    )
}

/// Plots rate and time by the dimension that `scale` has varied.
fn of_scale(varied: &str, points: &[(f64, &SavedPoint)]) -> Vec<Plot> {
    let count = varied.strip_prefix("dimension ").unwrap_or(varied);
    let rate = |key: &str, unit: &str| {
        let axes = (Scale::Doubling, count, Scale::Log, unit);
        throughput(&format!("{}, {count}", capital(unit)), axes, points, [key, &format!("floor_{key}")])
    };
    let of = |name: &str, key: &str| {
        let value = |(at, point): &(f64, &SavedPoint)| {
            Some((*at, in_us(Spread::of(point.each_repetition.get(key)?)?)))
        };
        series(name, Line::Calls, &points.iter().filter_map(value).collect::<Vec<_>>())
    };
    let times = vec![of("calls, p50", "rtt_p50_ns"), of("calls, p99", "rtt_p99_ns")];
    let axes = (Scale::Doubling, count, Scale::Log, CALL_US);
    let rates = [rate("calls_per_s", "calls per second"), rate("sessions_per_s", "sessions per second")];
    rates.into_iter().flatten().chain(plot(titled("Time of a call", count), axes, times)).collect()
}

/// Plots the throughput of the calls and of the floor.
fn throughput(title: &str, axes: Axes<'_>, points: &[(f64, &SavedPoint)], keys: [&str; 2]) -> Option<Plot> {
    let of = |key: &str| {
        let value =
            |(at, point): &(f64, &SavedPoint)| Some((*at, Spread::of(point.each_repetition.get(key)?)?));
        points.iter().filter_map(value).collect::<Vec<_>>()
    };
    let calls = series("calls", Line::Calls, &of(keys[0]));
    if calls.points.is_empty() {
        return None;
    }
    let mut lines = vec![calls, series("the link's floor", Line::Floor, &of(keys[1]))];
    // Other systems report calls per second regardless of the payload.
    let peers = if keys[0] == "calls_per_s" {
        names(points.iter().map(|(_, point)| &point.peers))
    } else {
        Vec::new()
    };
    for name in peers {
        let value = |(at, point): &(f64, &SavedPoint)| Some((*at, point.peers.get(&name)?.per_s?));
        lines.push(series(&name, Line::Peer, &points.iter().filter_map(value).collect::<Vec<_>>()));
    }
    plot(title.to_owned(), axes, lines)
}

fn rate_against_time(rest: &str, points: &[(f64, &SavedPoint)]) -> Option<Plot> {
    let of = |name: &str, spread: fn(&Timed) -> Spread| {
        let value = |(_, point): &(f64, &SavedPoint)| {
            let calls = point.calls.as_ref()?;
            Some((calls.per_s.median, in_us(spread(calls))))
        };
        series(name, Line::Calls, &points.iter().filter_map(value).collect::<Vec<_>>())
    };
    let mut median = of("calls, p50, by calls under way", |calls| calls.p50_ns);
    let measured = points.iter().filter(|(_, point)| point.calls.is_some());
    median.notes = measured.map(|(under_way, _)| under_way.to_string()).collect();
    let lines = vec![median, of("calls, p99", |calls| calls.p99_ns)];
    let axes = (Scale::Log, "calls per second", Scale::Log, CALL_US);
    plot(titled("Rate against time", rest), axes, lines)
}

/// Plots the distribution of a point's calls next to its floors.
fn distribution(point: &SavedPoint) -> Option<Plot> {
    let calls = curve("calls", Line::Calls, point.calls.as_ref()?);
    let floors = point.floors.iter().map(|(name, floor)| curve(name, Line::Floor, floor));
    distributions(&format!("Distribution, {}", point.label()), [calls].into_iter().chain(floors).collect())
}

/// Plots the distributions of the calls of several points.
fn all_distributions(points: &[SavedPoint]) -> Option<Plot> {
    let curves =
        points.iter().filter_map(|point| Some(curve(&point.label(), Line::Calls, point.calls.as_ref()?)));
    distributions("Distribution of all points", curves.collect())
}

fn distributions(title: &str, curves: Vec<Series>) -> Option<Plot> {
    plot(title.to_owned(), (Scale::Percentiles, "percentile of calls", Scale::Log, "time, µs"), curves)
}

fn curve(name: &str, line: Line, timed: &Timed) -> Series {
    // The longest time would be at infinity on this axis, so only the table shows it. Labels beyond six digits would overlap.
    let finite = timed.distribution_ns.iter().filter(|(quantile, _)| *quantile <= 0.999_999);
    let points = finite.map(|(quantile, ns)| (*quantile, ns / 1e3)).collect();
    Series { name: name.to_owned(), line, points, ranges: Vec::new(), notes: Vec::new(), is_marked: false }
}

fn series(name: &str, line: Line, values: &[(f64, Spread)]) -> Series {
    Series {
        name: name.to_owned(),
        line,
        points: values.iter().map(|(at, spread)| (*at, spread.median)).collect(),
        ranges: values.iter().map(|(at, spread)| (*at, spread.min, spread.max)).collect(),
        notes: Vec::new(),
        is_marked: true,
    }
}

fn names<'a, T: 'a>(maps: impl Iterator<Item = &'a BTreeMap<String, T>>) -> Vec<String> {
    let all: BTreeSet<_> = maps.flat_map(|map| map.keys().cloned()).collect();
    all.into_iter().collect()
}

fn in_us(spread: Spread) -> Spread {
    Spread { median: spread.median / 1e3, min: spread.min / 1e3, max: spread.max / 1e3 }
}

fn titled(what: &str, rest: &str) -> String {
    if rest.is_empty() { what.to_owned() } else { format!("{what}, {rest}") }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
