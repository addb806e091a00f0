//! The page around the plots: date, machine and one table first, then contents, plots and tables of all figures.

use super::axis::number;
use super::figures;
use super::plot::{Plot, colours};
use crate::saved::{Saved, SavedPeer, SavedPoint, Timed};
use crate::spread::{Spread, digits};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// Maximum number of charts on a page.
const MOST_CHARTS: usize = 8;

/// Returns the whole page.
///
/// # Errors
/// Fails with the reason if a plot cannot be drawn.
pub(super) fn page(files: &[Saved]) -> Result<String, String> {
    let mut html = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.push_str("<title>trunkline-bench</title>\n<style>\n");
    html.push_str(include_str!("style.css"));
    html.push_str(&drawn_colours());
    html.push_str("</style>\n</head>\n<body>\n<h1>trunkline-bench</h1>\n");
    head(&mut html, files);
    overview(&mut html, files);
    html.push_str(concat!(
        "<p>A floor is the same exchange without any middleware, measured in the same run. ",
        "Quote times as multiples of a floor, because they depend on the machine and on its other load.</p>\n"
    ));
    let charts = Charts::chosen(files);
    charts.contents(&mut html, files);
    let mut next = 1;
    if !charts.open_loops.is_empty() {
        html.push_str("<h2>Open loops</h2>\n<p>The time of a call counts from when it was due.</p>\n");
        plots(&mut html, &charts.open_loops, &mut next)?;
    }
    for (file, charts) in files.iter().zip(&charts.of_files) {
        section(&mut html, file, charts, &mut next)?;
    }
    html.push_str("</body>\n</html>\n");
    Ok(html)
}

/// Appends date, version and machine: one line with the first and the last date, or a line per file if versions or machines
/// differ.
fn head(html: &mut String, files: &[Saved]) {
    let or_unknown = |text: &Option<String>| escaped(text.as_deref().unwrap_or("unknown"));
    let program =
        |file: &Saved| format!("trunkline-bench {}, on {}", or_unknown(&file.version), class(&file.machine));
    let programs: Vec<_> = files.iter().map(program).collect();
    let mut dates: Vec<_> = files.iter().map(|file| or_unknown(&file.date)).collect();
    // Writing to a string does not fail.
    if programs.windows(2).all(|pair| pair[0] == pair[1]) {
        dates.sort_unstable();
        dates.dedup();
        let dates = match &dates[..] {
            [first, .., last] => format!("{first} to {last}"),
            one => one.concat(),
        };
        for program in programs.iter().take(1) {
            let _ = writeln!(html, "<p class=\"run\">{dates}, {program}</p>");
        }
        return;
    }
    for ((file, program), date) in files.iter().zip(&programs).zip(&dates) {
        let _ = writeln!(html, "<p class=\"run\">{}: {date}, {program}</p>", escaped(&file.name));
    }
}

/// Returns short names of the runs: the file name without folder and extension, or the full name if two would be equal.
fn run_names(files: &[Saved]) -> Vec<String> {
    let stem = |file: &Saved| {
        let stem = Path::new(&file.name).file_stem();
        stem.map_or_else(|| file.name.clone(), |stem| stem.to_string_lossy().into_owned())
    };
    let stems: Vec<_> = files.iter().map(stem).collect();
    let is_unique = stems.iter().collect::<BTreeSet<_>>().len() == stems.len();
    let name = |(file, stem): (&Saved, String)| match stem {
        _ if !is_unique => format!("{}: {}", file.command, file.name),
        stem if stem.starts_with(&file.command) => stem,
        stem => format!("{}: {stem}", file.command),
    };
    files.iter().zip(stems).map(name).collect()
}

/// Returns the link of a run, in words.
fn link(file: &Saved) -> &str {
    match file.settings.get("link").and_then(Value::as_str).unwrap_or_default() {
        "shm" => "shared memory",
        "udp" => "UDP",
        "process" => "in process",
        other => other,
    }
}

/// Describes the machine in a few words, such as `AMD EPYC 7B13, 2 cores, virtual machine`.
fn class(machine: &Map<String, Value>) -> String {
    let processor = machine.get("processor").and_then(Value::as_str).unwrap_or("an unknown processor");
    let cores = machine.get("cores").and_then(Value::as_u64).map(|cores| format!(", {cores} cores"));
    let is_virtual = machine.get("is_virtual").and_then(Value::as_bool);
    let kind = is_virtual.map_or("", |is| if is { ", virtual machine" } else { ", no virtual machine" });
    format!("{}{}{kind}", escaped(processor), cores.unwrap_or_default())
}

/// Appends a table with a row for each point: Trunkline, the link's floor and other systems side by side.
fn overview(html: &mut String, files: &[Saved]) {
    if files.iter().flat_map(|file| &file.points).all(|point| point.calls.is_none()) {
        return;
    }
    let peers: BTreeSet<&str> = files
        .iter()
        .flat_map(|file| &file.points)
        .flat_map(|point| point.peers.keys().map(String::as_str))
        .collect();
    html.push_str("<div class=\"wide\"><table class=\"overview\">\n");
    html.push_str("<caption>Round trip in µs (median), and below it calls per second</caption>\n<thead><tr>");
    let run = (files.len() > 1).then_some("run");
    for title in run.into_iter().chain(["size"]) {
        let _ = write!(html, "<th class=\"name\">{title}</th>");
    }
    for title in ["Trunkline", "floor"].iter().chain(&peers) {
        // The kind of connection goes below the name, so that all systems fit in the width of a page.
        let title = escaped(title);
        let _ = match title.split_once(", ") {
            Some((system, way)) => write!(html, "<th>{system}<br><small>{way}</small></th>"),
            None => write!(html, "<th>{title}</th>"),
        };
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (file, run_name) in files.iter().zip(run_names(files)) {
        for (point, calls) in file.points.iter().filter_map(|point| Some((point, point.calls.as_ref()?))) {
            html.push_str("<tr>");
            if run.is_some() {
                let _ = write!(html, "<td class=\"name\">{}</td>", escaped(&run_name));
            }
            let ours = both(Some(calls.p50_ns), Some(calls.per_s.median), link(file));
            let _ = write!(
                html,
                "<td class=\"name\">{}</td><td class=\"calls\">{ours}</td>",
                escaped(&point.label())
            );
            let _ = write!(html, "<td>{}</td>", floor(point));
            for name in &peers {
                let peer = point.peers.get(*name);
                let mean = peer
                    .and_then(|peer| peer.mean_ns)
                    .filter(|_| peer.is_some_and(|peer| peer.p50_ns.is_none()));
                let (time, rate) =
                    (peer.and_then(|peer| peer.p50_ns).or(mean), peer.and_then(|peer| peer.per_s));
                let note = if mean.is_some() { "mean" } else { "" };
                let _ = write!(html, "<td>{}</td>", both(time, rate.map(|rate| rate.median), note));
            }
            html.push_str("</tr>\n");
        }
    }
    html.push_str("</tbody>\n</table></div>\n");
}

/// Formats the link's floor: its time, its measured or derived rate, and its name.
fn floor(point: &SavedPoint) -> String {
    let median = |key: &str| Spread::of(point.each_repetition.get(key)?);
    let time = median("floor_p50_ns");
    // Both are medians of the same values, so equality identifies the floor.
    let is_it = |floor: &Timed| time.is_some_and(|time| time.median.total_cmp(&floor.p50_ns.median).is_eq());
    let named = point.floors.iter().find(|(_, floor)| is_it(floor));
    let rate = median("floor_calls_per_s").map(|rate| rate.median);
    both(time, rate.or_else(|| Some(named?.1.per_s.median)), named.map_or("", |(name, _)| name))
}

/// Formats a time with a rate and a note below it.
fn both(time: Option<Spread>, per_s: Option<f64>, note: &str) -> String {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let (time, rate) = (time.map(|time| digits(time.median / 1e3)), per_s.map(rate));
    let note = if note.is_empty() { String::new() } else { format!("<br><small>{}</small>", escaped(note)) };
    format!("{}<br><small>{}</small>{note}", or_none(time), or_none(rate))
}

fn rate(per_s: f64) -> String {
    match per_s {
        value if value >= 1e6 => format!("{} M/s", digits(value / 1e6)),
        value if value >= 1e4 => format!("{} k/s", digits(value / 1e3)),
        value => format!("{value:.0}/s"),
    }
}

/// The charts of a page, at most [`MOST_CHARTS`] for all files together.
struct Charts {
    open_loops: Vec<Plot>,
    of_files: Vec<Vec<Plot>>,
    left_out: usize,
}

impl Charts {
    /// Chooses charts in turn from the open loops and from each file. A file's most telling charts come first.
    fn chosen(files: &[Saved]) -> Self {
        let mut lists = vec![figures::of_open_loops(files)];
        lists.extend(files.iter().map(figures::of_file));
        let all: usize = lists.iter().map(Vec::len).sum();
        let mut kept = vec![0; lists.len()];
        let mut room = all.min(MOST_CHARTS);
        while room > 0 {
            for (list, kept) in lists.iter().zip(&mut kept) {
                if room > 0 && *kept < list.len() {
                    *kept += 1;
                    room -= 1;
                }
            }
        }
        for (list, kept) in lists.iter_mut().zip(kept) {
            list.truncate(kept);
        }
        let open_loops = lists.remove(0);
        Self { open_loops, of_files: lists, left_out: all.saturating_sub(MOST_CHARTS) }
    }

    /// Appends the list of charts, with the run's name after each title if there are several runs.
    fn contents(&self, html: &mut String, files: &[Saved]) {
        let names = run_names(files);
        let of_files = self.of_files.iter().zip(&names);
        let of_files = of_files.flat_map(|(plots, name)| plots.iter().map(move |plot| (plot, name.as_str())));
        let plots: Vec<_> = self.open_loops.iter().map(|plot| (plot, "")).chain(of_files).collect();
        if plots.is_empty() {
            return;
        }
        html.push_str("<nav aria-label=\"Charts\"><h2>Charts</h2>\n<ul>\n");
        for (at, (plot, name)) in plots.into_iter().enumerate() {
            let title = escaped(&plot.title);
            let name =
                if files.len() > 1 { format!(" <small>{}</small>", escaped(name)) } else { String::new() };
            let _ = writeln!(html, "<li><a href=\"#chart-{}\">{title}</a>{name}</li>", at + 1);
        }
        html.push_str("</ul></nav>\n");
        if self.left_out > 0 {
            let _ = writeln!(
                html,
                "<p class=\"facts\">{} further charts are left out. All figures are in the tables; <code>report</code> of fewer files or \
                 points draws the others.</p>",
                self.left_out
            );
        }
        html.push_str(concat!(
            "<p class=\"facts\">Floors are dashed; lines of other systems are thin. Points are medians over the repetitions, ",
            "vertical lines their minimum and maximum. Times of floors and other systems are medians (p50), of a system that ",
            "reports no median its mean. Distributions are of all repetitions together.</p>\n"
        ));
    }
}

fn section(html: &mut String, file: &Saved, charts: &[Plot], next: &mut usize) -> Result<(), String> {
    // Writing to a string does not fail.
    let _ = writeln!(html, "<h2>{}: {}</h2>", escaped(&file.command), escaped(&file.name));
    if let Some(error) = &file.error {
        let _ = writeln!(html, "<p class=\"failed\">The run ended early: {}</p>", escaped(error));
    }
    let (settings, machine) = (facts(&file.settings), facts(&file.machine));
    // 0 also means unknown.
    let others = match file.others_cores {
        cores if cores > 0.0 => format!("; other programs used {} cores meanwhile", number(cores)),
        _ => String::new(),
    };
    let _ = writeln!(html, "<p class=\"facts\">Machine: {machine}{others}.<br>Settings: {settings}.</p>");
    plots(html, charts, next)?;
    table(html, file);
    Ok(())
}

/// Draws the charts, numbered from `next` as in the list of contents.
fn plots(html: &mut String, plots: &[Plot], next: &mut usize) -> Result<(), String> {
    if plots.is_empty() {
        return Ok(());
    }
    html.push_str("<div class=\"plots\">\n");
    for plot in plots {
        let _ = writeln!(
            html,
            "<figure id=\"chart-{next}\" role=\"img\" aria-label=\"{}\">\n{}</figure>",
            escaped(&plot.title),
            plot.svg()?
        );
        *next += 1;
    }
    html.push_str("</div>\n");
    Ok(())
}

fn table(html: &mut String, file: &Saved) {
    // Runs of `scale` have repetitions only.
    if file.points.iter().all(|point| point.calls.is_none()) {
        return;
    }
    let titles =
        ["point", "", "p50 µs", "min .. max", "p99 µs", "longest µs", "per second", "dropped", "drifted"];
    html.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for title in titles {
        let _ = write!(html, "<th>{title}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for point in &file.points {
        let calls = point.calls.iter().map(|calls| ("calls", calls));
        let floors = point.floors.iter().map(|(name, floor)| (name.as_str(), floor));
        for (name, timed) in calls.chain(floors) {
            row(html, &point.label(), name, timed);
        }
        for (name, peer) in &point.peers {
            peer_row(html, &point.label(), name, peer);
        }
    }
    html.push_str("</tbody>\n</table></div>\n");
    html.push_str(concat!(
        "<p class=\"facts\">Dropped: measurements that were repeated because the time of a cache line had changed meanwhile; ",
        "drifted: repetitions that count although it had changed each time.</p>\n"
    ));
}

fn row(html: &mut String, point: &str, name: &str, timed: &Timed) {
    let longest = timed.distribution_ns.last().map_or("-".to_owned(), |(_, ns)| us(*ns));
    let figures = [
        us(timed.p50_ns.median),
        range(timed.p50_ns),
        us(timed.p99_ns.median),
        longest,
        format!("{:.0}", timed.per_s.median),
        number(timed.dropped),
        number(timed.drifted),
    ];
    cells(html, name == "calls", [point, name], figures);
}

/// Appends the row of another system, with the values that it reports.
fn peer_row(html: &mut String, point: &str, name: &str, peer: &SavedPeer) {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mean = peer.mean_ns.map(|mean| format!("{} (mean)", us(mean.median)));
    let figures = [
        or_none(peer.p50_ns.map(|p50| us(p50.median)).or(mean)),
        or_none(peer.p50_ns.or(peer.mean_ns).map(range)),
        or_none(peer.p99_ns.map(|p99| us(p99.median))),
        or_none(None),
        or_none(peer.per_s.map(|per_s| format!("{:.0}", per_s.median))),
        or_none(None),
        or_none(None),
    ];
    cells(html, false, [point, name], figures);
}

fn cells(html: &mut String, is_ours: bool, names: [&str; 2], figures: [String; 7]) {
    html.push_str(if is_ours { "<tr class=\"calls\">" } else { "<tr>" });
    for cell in names.map(escaped).into_iter().chain(figures) {
        let _ = write!(html, "<td>{cell}</td>");
    }
    html.push_str("</tr>\n");
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

fn range(ns: Spread) -> String {
    format!("{} .. {}", us(ns.min), us(ns.max))
}

/// Formats keys and values in one line.
fn facts(all: &Map<String, Value>) -> String {
    let each = |(key, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{} {}", escaped(&key.replace('_', " ")), escaped(&text))
    };
    all.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// Returns the colours of drawings as CSS variables, and rules that replace the colours in the SVG by them.
fn drawn_colours() -> String {
    let (mut light, mut dark, mut rules) = (String::new(), String::new(), String::new());
    for (name, written, on_dark) in colours() {
        let _ = write!(light, "{name}: {written}; ");
        let _ = write!(dark, "{name}: {on_dark}; ");
        let _ = writeln!(rules, "svg [fill=\"{written}\"] {{ fill: var({name}); }}");
        let _ = writeln!(rules, "svg [stroke=\"{written}\"] {{ stroke: var({name}); }}");
    }
    format!(
        ":root {{ {light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{rules}"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
