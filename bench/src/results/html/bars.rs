//! Bar chart of the round-trip times in a `table` file, as one SVG for light and dark pages.
//!
//! Websites such as GitHub show an image without their style sheet and theme, so the image contains a style and a
//! background.

use super::chart::escaped;
use super::class;
use crate::meter::spread::Spread;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
/// Left and right end of the longest bar.
const X: (f64, f64) = (220.0, 690.0);
/// Position of the first bar.
const TOP: f64 = 46.0;
/// Height of a bar, including its gap.
const STEP: f64 = 27.0;

const STYLE: &str = "<style>
text { fill: #22262b; font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; }
.page { fill: #ffffff; }
.title, .ours { font-weight: 600; }
.system { text-anchor: end; }
.facts { fill: #5b636c; font-size: 12px; }
rect.ours { fill: #0055aa; }
rect.other { fill: #a9b2bc; }
rect.floor { fill: #ffffff; stroke: #7d8791; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaed; }
  .page { fill: #16191d; }
  .facts { fill: #a3abb5; }
  rect.ours { fill: #66bbff; }
  rect.other { fill: #616b76; }
  rect.floor { fill: #16191d; stroke: #919ba6; }
}
</style>
";

/// Contents of a file written by `table --json`.
#[derive(Debug, Deserialize)]
pub(super) struct Table {
    date: String,
    machine: Map<String, Value>,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    system: String,
    rtt_p50_ns: Option<Spread>,
}

impl Table {
    /// Returns the round-trip times as bars, the shortest first.
    pub(super) fn svg(&self) -> String {
        let timed = |row: &Row| Some((row.system.clone(), row.rtt_p50_ns?.median / 1e3));
        let mut bars: Vec<(String, f64)> = self.rows.iter().filter_map(timed).collect();
        bars.sort_by(|one, other| one.1.total_cmp(&other.1));
        let most = bars.last().map_or(1.0, |bar| bar.1);
        let mut below = TOP;
        let mut drawn = String::new();
        for (system, us) in bars {
            let class = match system.as_str() {
                ours if ours.starts_with("Trunkline") => "ours",
                floor if floor.starts_with("floor") => "floor",
                _ => "other",
            };
            let (length, system) = (us / most * (X.1 - X.0), escaped(&system));
            let (labels, line) = ((X.0 - 10.0, X.0 + length + 8.0), below + 15.0);
            // Writing to a string does not fail.
            let _ = writeln!(
                drawn,
                "<text class=\"system {class}\" x=\"{}\" y=\"{line}\">{system}</text>",
                labels.0
            );
            let _ = writeln!(
                drawn,
                "<rect class=\"{class}\" x=\"{}\" y=\"{below}\" width=\"{length:.1}\" height=\"{}\"/>",
                X.0,
                STEP - 7.0
            );
            let _ =
                writeln!(drawn, "<text class=\"{class}\" x=\"{:.1}\" y=\"{line}\">{us:.1}</text>", labels.1);
            below += STEP;
        }
        let facts = escaped(&format!(
            "Medians, {}, {}. Dashed: without middleware.",
            self.date,
            class(&self.machine)
        ));
        let height = below + 34.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
             <title>Round trip of 64 bytes by system</title>\n{STYLE}\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n\
             <text class=\"title\" x=\"16\" y=\"27\">Round trip of 64 B each way, µs (shorter is better)</text>\n{drawn}\
             <text class=\"facts\" x=\"16\" y=\"{}\">{facts}</text>\n</svg>\n",
            below + 18.0
        )
    }
}
