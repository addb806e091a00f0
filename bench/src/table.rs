//! The results of a run as a table.

use crate::point::{Measure, OfPeer, Results, Summary};
use crate::sizes::with_unit;
use std::fmt::Write as _;

/// Returns a table for each point: the calls and each floor, with medians and extremes of the repetitions.
pub(crate) fn table(measure: Measure, points: &[Results]) -> String {
    let mut text = String::new();
    for point in points {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}: {}, {} under way",
            measure.name(),
            with_unit(point.size_bytes),
            point.outstanding
        );
        let _ = writeln!(
            text,
            "  {:<24} {:>10} {:>21} {:>10} {:>13}",
            "", "p50 us", "min .. max", "p99 us", "per second"
        );
        row(&mut text, "calls", &point.calls);
        for (name, floor) in &point.floors {
            row(&mut text, name, floor);
        }
        for (name, peer) in &point.peers {
            peer_row(&mut text, name, peer);
        }
        for (name, why) in &point.peers_skipped {
            let _ = writeln!(text, "  {name}: not measured: {why}");
        }
        let headline = |key: &str| point.headline.get(key).copied().unwrap_or_default();
        let ratio = |key: &str, floor: &str| headline(key) / headline(floor);
        let _ = match measure {
            Measure::Latency => writeln!(
                text,
                "  p50 is {:.2} times the link's floor ({:.2} us)\n",
                ratio("rtt_p50_ns", "floor_p50_ns"),
                headline("floor_p50_ns") / 1e3
            ),
            Measure::Rate => writeln!(
                text,
                "  {:.0} calls/s are {:.3} of the link's floor\n",
                headline("calls_per_s"),
                ratio("calls_per_s", "floor_calls_per_s")
            ),
            Measure::Bandwidth => writeln!(
                text,
                "  {:.1} MB/s are {:.3} of the link's floor ({:.1} MB/s)\n",
                headline("bytes_per_s") / 1e6,
                ratio("bytes_per_s", "floor_bytes_per_s"),
                headline("floor_bytes_per_s") / 1e6
            ),
        };
    }
    text
}

/// Returns one line with the first and the last point in short.
pub(crate) fn summary(measure: Measure, points: &[Results], repetitions: u32) -> String {
    let short = |point: &Results| {
        let headline = |key: &str| point.headline.get(key).copied().unwrap_or_default();
        let size = with_unit(point.size_bytes);
        match measure {
            Measure::Latency => format!("{size} in {:.2} us", headline("rtt_p50_ns") / 1e3),
            Measure::Rate => format!("{size} at {:.0} calls/s", headline("calls_per_s")),
            Measure::Bandwidth => format!("{size} at {:.1} MB/s", headline("bytes_per_s") / 1e6),
        }
    };
    let figures = match points {
        [] => String::new(),
        [point] => format!(": {}", short(point)),
        [first, .., last] => format!(": {} .. {}", short(first), short(last)),
    };
    format!("{}{figures}; points {}, repetitions {repetitions}", measure.name(), points.len())
}

fn row(text: &mut String, name: &str, summary: &Summary) {
    let p50 = summary.p50_ns;
    let range = format!("{:.2} .. {:.2}", p50.min / 1e3, p50.max / 1e3);
    let _ = writeln!(
        text,
        "  {name:<24} {:>10.2} {range:>21} {:>10.2} {:>13.0}",
        p50.median / 1e3,
        summary.p99_ns.median / 1e3,
        summary.per_s.median
    );
}

/// Returns the text, or `-` for a value that is not known.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Appends the row of another system. `-` stands for a value that it does not report; a mean replaces a missing median.
fn peer_row(text: &mut String, name: &str, peer: &OfPeer) {
    let us = |ns: f64| format!("{:.2}", ns / 1e3);
    let or_none = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    let mean = peer.mean_ns.filter(|_| peer.p50_ns.is_none());
    let middle = peer.p50_ns.or(mean);
    let _ = writeln!(
        text,
        "  {name:<24} {:>10} {:>21} {:>10} {:>13}{}",
        or_none(middle.map(|spread| us(spread.median))),
        or_none(middle.map(|spread| format!("{} .. {}", us(spread.min), us(spread.max)))),
        or_none(peer.p99_ns.map(|spread| us(spread.median))),
        or_none(peer.per_s.map(|spread| format!("{:.0}", spread.median))),
        if mean.is_some() { " (mean)" } else { "" }
    );
}
