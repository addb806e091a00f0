//! The page around the plots: what was measured, where and how, and tables of all figures.

use super::axis::number;
use super::figures;
use super::plot::{Plot, colours};
use crate::saved::{Saved, SavedPeer, Timed};
use crate::spread::Spread;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// The whole page.
///
/// # Errors
/// Why a plot cannot be drawn.
pub(super) fn page(files: &[Saved]) -> Result<String, String> {
    let mut html = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.push_str("<title>trunkline-bench</title>\n<style>\n");
    html.push_str(include_str!("style.css"));
    html.push_str(&drawn_colours());
    html.push_str("</style>\n</head>\n<body>\n<h1>Calls, next to what the machine allows</h1>\n");
    html.push_str(concat!(
        "<p>Measured by trunkline-bench. A floor is the same exchange without any middleware, measured in the same run; ",
        "floors are dashed, lines of other systems are thin. Quote times as multiples of a floor, because they depend on the machine and on what else it does. ",
        "Points are medians over the repetitions, vertical lines their minimum and maximum; ",
        "distributions are of all repetitions together.</p>\n"
    ));
    for file in files {
        section(&mut html, file)?;
    }
    let open_loops = figures::of_open_loops(files);
    if !open_loops.is_empty() {
        html.push_str("<h2>Open loops</h2>\n<p>The time of a call counts from when it was due.</p>\n");
        plots(&mut html, &open_loops)?;
    }
    html.push_str("</body>\n</html>\n");
    Ok(html)
}

fn section(html: &mut String, file: &Saved) -> Result<(), String> {
    // Writing to a string does not fail.
    let _ = writeln!(html, "<h2>{}: {}</h2>", escaped(&file.command), escaped(&file.name));
    if let Some(error) = &file.error {
        let _ = writeln!(html, "<p class=\"failed\">The run ended early: {}</p>", escaped(error));
    }
    let (settings, machine) = (facts(&file.settings), facts(&file.machine));
    // 0 is that it is not known, as well.
    let others = match file.others_cores {
        cores if cores > 0.0 => format!("; other programs used {} cores meanwhile", number(cores)),
        _ => String::new(),
    };
    let _ = writeln!(html, "<p class=\"facts\">Machine: {machine}{others}.<br>Settings: {settings}.</p>");
    plots(html, &figures::of_file(file))?;
    table(html, file);
    Ok(())
}

fn plots(html: &mut String, plots: &[Plot]) -> Result<(), String> {
    if plots.is_empty() {
        return Ok(());
    }
    html.push_str("<div class=\"plots\">\n");
    for plot in plots {
        let _ = writeln!(
            html,
            "<figure role=\"img\" aria-label=\"{}\">\n{}</figure>",
            escaped(&plot.title),
            plot.svg()?
        );
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

/// The same for another system, as far as it reports it.
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

/// Keys and values in one line.
fn facts(all: &Map<String, Value>) -> String {
    let each = |(key, value): (&String, &Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{} {}", escaped(&key.replace('_', " ")), escaped(&text))
    };
    all.iter().map(each).collect::<Vec<_>>().join(", ")
}

/// The colours of drawings as variables, and rules that put them in place of those written in the SVG.
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
