//! A report on results as one self-contained HTML file without scripts or fonts.
//!
//! `figures` selects the charts, `chart` draws one of them, and `bars` draws a table as an image. `report` uses this
//! module, and so does `--html` after a measurement. Both pass the contents of a `--json` file. The page begins with
//! dates, the machine and an overview table, followed by charts and all figures.

mod bars;
mod chart;
mod figures;

use crate::meter::failure::Failure;
use crate::meter::spread::{Spread, digits};
use crate::results::saved::{self, Saved, SavedPoint};
use crate::results::table::{or_dash, us};
use crate::results::whole_file::{self, sum_up};
use crate::scenario::point::{OfPeer, Summary};
use chart::{Chart, escaped, number};
use clap::Args;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

const MOST_CHARTS: usize = 8;

/// One HTML page from the JSON files of several runs, or one image of a table.
///
/// It contains plots of distributions, sweeps over sizes and calls in flight, and tables, with the floors next to the calls.
/// Runs with --arrivals share a plot of time by call rate. The page needs no other file.
///
/// With --svg, the round-trip times in one file of `table` become a bar chart for light and dark pages.
///
/// Examples:
///   trunkline-bench latency --size 0..1M --json latency.json
///   trunkline-bench rate --outstanding 1..256 --json rate.json
///   trunkline-bench report latency.json rate.json --html report.html
///   trunkline-bench table --json table.json
///   trunkline-bench report table.json --svg round-trip.svg
///
/// Exit codes: 0 written; 1 the page or image cannot be written; 2 a file is not a result of this program.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Files {
    /// Files written by --json.
    #[arg(value_name = "RESULT.json", required = true)]
    results: Vec<PathBuf>,
    /// Output file for the page.
    #[arg(long, value_name = "FILE", required_unless_present = "svg")]
    html: Option<PathBuf>,
    /// Output file for the image. Takes one result, written by `table`.
    #[arg(long, value_name = "FILE", conflicts_with = "html")]
    svg: Option<PathBuf>,
}

/// Writes a page with the results in several files, or an image of one table.
///
/// # Errors
/// Returns an error if a file is not a result, or if the page or image cannot be written.
pub(crate) fn report(files: &Files) -> Result<(), Failure> {
    let began = Instant::now();
    if let Some(svg) = &files.svg {
        let [table] = files.results.as_slice() else {
            return Err("--svg takes one RESULT.json".to_owned().into());
        };
        let table: bars::Table = saved::read(table)?;
        whole_file::write(svg, table.svg().as_bytes()).map_err(Failure::Unwritten)?;
    }
    if let Some(html) = &files.html {
        let results = files.results.iter().map(|path| Saved::read(path)).collect::<Result<Vec<_>, _>>()?;
        write(&results, html).map_err(Failure::Unwritten)?;
    }
    let written = files.svg.iter().chain(&files.html).map(PathBuf::as_path);
    sum_up(false, &format!("report: {} files", files.results.len()), began, written)
}

/// Writes a page. An existing page is replaced when the new one is complete.
///
/// # Errors
/// Returns an error if the page cannot be written.
pub(crate) fn write(results: &[Saved], path: &Path) -> Result<(), String> {
    whole_file::write(path, page(results).as_bytes())
}

fn page(files: &[Saved]) -> String {
    let mut html = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.push_str(concat!("<title>trunkline-bench</title>\n<style>\n", include_str!("style.css")));
    html.push_str("</style>\n</head>\n<body>\n<h1>trunkline-bench</h1>\n");
    let mut runs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for file in files {
        let version = file.version.as_deref().unwrap_or("unknown");
        let run = format!("trunkline-bench {version}, on {}", class(&file.machine));
        runs.entry(run).or_default().push(file.date.as_deref().unwrap_or("unknown"));
    }
    // Writing to a string does not fail.
    for (run, mut dates) in runs {
        dates.sort_unstable();
        dates.dedup();
        let dates = dates.first().into_iter().chain(dates.iter().skip(1).last()).copied().collect::<Vec<_>>();
        let _ = writeln!(html, "<p class=\"run\">{}</p>", escaped(&format!("{}, {run}", dates.join(" to "))));
    }
    overview(&mut html, files);
    html.push_str(concat!(
        "<p>A floor is the same exchange without any middleware, measured in the same run. ",
        "Quote times as multiples of a floor, because they depend on the machine and on its other load.</p>\n"
    ));
    let (charts, left_out) = chosen(files);
    contents(&mut html, files, &charts, left_out);
    let mut numbers = 1..;
    let mut draw = |html: &mut String, charts: &[Chart]| {
        html.push_str("<div class=\"plots\">\n");
        for (chart, number) in charts.iter().zip(&mut numbers) {
            let _ = writeln!(html, "<figure id=\"chart-{number}\">\n{}</figure>", chart.html());
        }
        html.push_str("</div>\n");
    };
    if !charts[0].is_empty() {
        html.push_str("<h2>Open loops</h2>\n<p>The time of a call counts from when it was due.</p>\n");
        draw(&mut html, &charts[0]);
    }
    for (file, charts) in files.iter().zip(&charts[1..]) {
        let _ = writeln!(html, "<h2>{}: {}</h2>", escaped(&file.command), escaped(&file.name));
        if let Some(error) = &file.error {
            let _ = writeln!(html, "<p class=\"failed\">The run ended early: {}</p>", escaped(error));
        }
        let (settings, machine) = (facts(&file.settings), facts(&file.machine));
        // 0 can also mean that the value is unknown.
        let others = match file.others_cores {
            cores if cores > 0.0 => format!("; other programs used {} cores meanwhile", number(cores)),
            _ => String::new(),
        };
        let _ = writeln!(html, "<p class=\"facts\">Machine: {machine}{others}.<br>Settings: {settings}.</p>");
        draw(&mut html, charts);
        all_figures(&mut html, file);
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// Describes the machine in a few words, such as `AMD EPYC 7B13, 2 cores, virtual machine`.
fn class(machine: &Map<String, Value>) -> String {
    let processor = machine.get("processor").and_then(Value::as_str).map(str::to_owned);
    let cores = machine.get("cores").and_then(Value::as_u64).map(|cores| format!("{cores} cores"));
    let is_virtual = machine.get("is_virtual").and_then(Value::as_bool);
    let kind = is_virtual.map(|is| if is { "virtual machine" } else { "no virtual machine" }.to_owned());
    let known = [processor, cores, kind].into_iter().flatten().collect::<Vec<_>>();
    if known.is_empty() { "an unknown machine".to_owned() } else { known.join(", ") }
}

/// Formats keys and values as one line.
fn facts(all: &Map<String, Value>) -> String {
    let each = |(key, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        escaped(&format!("{} {text}", key.replace('_', " ")))
    };
    all.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// Appends a table whose cells are HTML. Rows with Trunkline's calls are bold.
fn table(html: &mut String, class: &str, titles: &[String], rows: impl Iterator<Item = (bool, Vec<String>)>) {
    let cells = |tag: &str, cells: &[String]| {
        cells.iter().map(|cell| format!("<{tag}>{cell}</{tag}>")).collect::<String>()
    };
    let _ = writeln!(html, "<div class=\"wide\"><table class=\"{class}\">");
    let _ = writeln!(html, "<thead><tr>{}</tr></thead>\n<tbody>", cells("th", titles));
    for (is_ours, row) in rows {
        let class = if is_ours { " class=\"calls\"" } else { "" };
        let _ = writeln!(html, "<tr{class}>{}</tr>", cells("td", &row));
    }
    html.push_str("</tbody>\n</table></div>\n");
}

/// Appends a table with one row per point, which shows Trunkline, the link's floor and other systems side by side.
fn overview(html: &mut String, files: &[Saved]) {
    let points = || files.iter().flat_map(|file| file.points.iter().map(move |point| (file, point)));
    let measured = points().filter_map(|(file, point)| Some((file, point, point.calls.as_ref()?)));
    if measured.clone().next().is_none() {
        return;
    }
    let peers: BTreeSet<&str> =
        points().flat_map(|(_, point)| point.peers.keys().map(String::as_str)).collect();
    // The kind of connection is placed below the name, so that all systems fit in the width of a page.
    let title = |name: &&str| match escaped(name).split_once(", ") {
        Some((system, way)) => format!("{system}<br><small>{way}</small>"),
        None => escaped(name),
    };
    let titles = ["run", "point", "Trunkline", "floor"].iter().chain(&peers).map(title).collect::<Vec<_>>();
    html.push_str("<p>Round trip in µs (median), and below it calls per second:</p>\n");
    let rows = measured.map(|(file, point, calls)| {
        let ours = both(Some(calls.p50_ns), Some(calls.per_s.median), link(file));
        let mut row = vec![escaped(&file.name), escaped(&point.label()), ours, floor(point)];
        row.extend(peers.iter().map(|name| match point.peers.get(*name) {
            Some(peer) => both(peer.middle_ns(), peer.per_s.map(|rate| rate.median), peer.note()),
            None => both(None, None, ""),
        }));
        (false, row)
    });
    table(html, "overview", &titles, rows);
}

/// Returns a description of the run's link.
fn link(file: &Saved) -> &str {
    match file.settings.get("link").and_then(Value::as_str).unwrap_or_default() {
        "shm" => "shared memory",
        "udp" => "UDP",
        "process" => "in process",
        other => other,
    }
}

/// Formats the floor of the link: its time, its measured or derived rate, and its name.
fn floor(point: &SavedPoint) -> String {
    let time = point.spread("floor_p50_ns");
    // The medians are computed from the same values, so equal medians identify the floor.
    let is_it =
        |floor: &Summary| time.is_some_and(|time| time.median.total_cmp(&floor.p50_ns.median).is_eq());
    let named = point.floors.iter().find(|(_, floor)| is_it(floor));
    let rate = point.spread("floor_calls_per_s").or_else(|| Some(named?.1.per_s));
    both(time, rate.map(|rate| rate.median), named.map_or("", |(name, _)| name))
}

/// Formats a time with a rate and a note below it.
fn both(time: Option<Spread>, per_s: Option<f64>, note: &str) -> String {
    let time = or_dash(time.map(|time| digits(time.median / 1e3)));
    let rate = or_dash(per_s.map(|value| match value {
        value if value >= 1e6 => format!("{} M/s", digits(value / 1e6)),
        value if value >= 1e4 => format!("{} k/s", digits(value / 1e3)),
        value => format!("{value:.0}/s"),
    }));
    let note = if note.is_empty() { String::new() } else { format!("<br><small>{}</small>", escaped(note)) };
    format!("{time}<br><small>{rate}</small>{note}")
}

/// Selects charts in turn from the open loops, which come first, and from each file. Also returns the number of omitted
/// charts.
fn chosen(files: &[Saved]) -> (Vec<Vec<Chart>>, usize) {
    let mut lists = vec![figures::of_open_loops(files)];
    lists.extend(files.iter().map(figures::of_file));
    let all: usize = lists.iter().map(Vec::len).sum();
    // Remove the last chart of the longest list, or of the last of several longest lists.
    while lists.iter().map(Vec::len).sum::<usize>() > MOST_CHARTS {
        let length = lists.iter().map(Vec::len).max();
        lists.iter_mut().rev().find(|list| Some(list.len()) == length).map(Vec::pop);
    }
    (lists, all.saturating_sub(MOST_CHARTS))
}

/// Appends the list of charts. If there are several runs, the name of the run follows each title.
fn contents(html: &mut String, files: &[Saved], charts: &[Vec<Chart>], left_out: usize) {
    if charts.iter().all(Vec::is_empty) {
        return;
    }
    html.push_str("<nav aria-label=\"Charts\"><h2>Charts</h2>\n<ul>\n");
    let names =
        [""].into_iter().chain(files.iter().map(|file| if files.len() > 1 { &file.name } else { "" }));
    let named =
        charts.iter().zip(names).flat_map(|(charts, name)| charts.iter().map(move |chart| (chart, name)));
    for ((chart, name), number) in named.zip(1..) {
        let (title, name) = (escaped(&chart.title), escaped(name));
        let _ = writeln!(html, "<li><a href=\"#chart-{number}\">{title}</a> <small>{name}</small></li>");
    }
    html.push_str("</ul></nav>\n");
    if left_out > 0 {
        let _ = writeln!(
            html,
            "<p class=\"facts\">{left_out} further charts are left out. All figures are in the tables; <code>report</code> of \
             fewer files or points draws the others.</p>"
        );
    }
    html.push_str(concat!(
        "<p class=\"facts\">Floors are dashed; lines of other systems are thin. Points are medians over the repetitions, ",
        "vertical lines their minimum and maximum. Times of floors and other systems are medians (p50), of a system that ",
        "reports no median its mean. Distributions are of all repetitions together.</p>\n"
    ));
}

/// Appends a table with all figures in a file.
fn all_figures(html: &mut String, file: &Saved) {
    // Runs of `scale` contain only the values of repetitions.
    if file.points.iter().all(|point| point.calls.is_none()) {
        return;
    }
    let titles =
        ["point", "", "p50 µs", "min .. max", "p99 µs", "longest µs", "per second", "dropped", "drifted"];
    let range = |ns: Spread| format!("{} .. {}", us(ns.min), us(ns.max));
    let timed = |point: &SavedPoint, name: &str, timed: &Summary| {
        vec![
            escaped(&point.label()),
            escaped(name),
            us(timed.p50_ns.median),
            range(timed.p50_ns),
            us(timed.p99_ns.median),
            or_dash(timed.distribution_ns.points().last().map(|(_, ns)| us(ns))),
            format!("{:.0}", timed.per_s.median),
            timed.dropped.to_string(),
            timed.drifted.to_string(),
        ]
    };
    let peer = |point: &SavedPoint, name: &str, peer: &OfPeer| {
        let note = if peer.note().is_empty() { "" } else { " (mean)" };
        vec![
            escaped(&point.label()),
            escaped(name),
            or_dash(peer.middle_ns().map(|middle| us(middle.median) + note)),
            or_dash(peer.middle_ns().map(range)),
            or_dash(peer.p99_ns.map(|p99| us(p99.median))),
            or_dash(None),
            or_dash(peer.per_s.map(|per_s| format!("{:.0}", per_s.median))),
            or_dash(None),
            or_dash(None),
        ]
    };
    let rows = file.points.iter().flat_map(|point| {
        let calls = point.calls.iter().map(move |calls| (true, timed(point, "calls", calls)));
        let floors = point.floors.iter().map(move |(name, floor)| (false, timed(point, name, floor)));
        calls.chain(floors).chain(point.peers.iter().map(move |(name, of)| (false, peer(point, name, of))))
    });
    table(html, "", &titles.map(str::to_owned), rows);
    html.push_str(concat!(
        "<p class=\"facts\">Dropped: measurements that were repeated because the time of a cache line had changed meanwhile; ",
        "drifted: repetitions that count although it had changed each time.</p>\n"
    ));
}

#[cfg(test)]
mod tests;
