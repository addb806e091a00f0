//! A chart as SVG, with its legend as an HTML list, which the browser wraps.
//!
//! The style sheet defines all colours for light and dark pages. Values and text come from files, so text is escaped
//! here.

use crate::meter::spread::Spread;
use crate::sizes::written;
use std::fmt::Write as _;

/// Width and height of a drawing.
const SIZE: (f64, f64) = (620.0, 370.0);
/// Horizontal ends of the area within the axes.
const X: (f64, f64) = (72.0, 606.0);
/// Vertical ends of the area within the axes.
const Y: (f64, f64) = (312.0, 14.0);
/// Number of colours in the style sheet.
const COLOURS: usize = 8;
/// Marker shapes, which distinguish series with the same colour.
const SHAPES: [&str; 4] =
    ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "M0-6L6 4H-6Z", "M0-6L6 0L0 6L-6 0Z", "M0 6L6-4H-6Z"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Labels at round numbers.
    Log,
    /// Labels at powers of two, with units of 2^10 and 2^20, for sizes and counts.
    Doubling,
    /// Quantiles, placed by the fraction of values above them. The distances between 90 %, 99 % and 99.9 % are equal.
    Percentiles,
}

/// Kind of line for Trunkline's calls, a floor (dashed) or another system (thinner).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Calls,
    Floor,
    Peer,
}

#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) line: Line,
    /// Medians of the repetitions with their extremes.
    pub(super) points: Vec<(f64, Spread)>,
    /// Text below each point, or empty.
    pub(super) notes: Vec<String>,
    /// True if points are marked. Curves with many points have no markers.
    pub(super) is_marked: bool,
}

/// A chart with a logarithmic vertical axis.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) scale: Scale,
    /// Titles of the axes, with units.
    pub(super) x: String,
    pub(super) y: &'static str,
    pub(super) series: Vec<Series>,
}

/// Range of an axis in transformed values, and the coordinates of its ends in the drawing.
struct Axis {
    scale: Scale,
    range: (f64, f64),
    ends: (f64, f64),
}

impl Axis {
    fn over(scale: Scale, ends: (f64, f64), values: impl Iterator<Item = f64>) -> Self {
        let places = values.map(|value| scale.place(value)).filter(|place| place.is_finite());
        let (from, to) = places
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), place| (from.min(place), to.max(place)));
        let range = match scale {
            _ if from > to => (0.0, 1.0),
            Scale::Percentiles => (0.0, to.max(1.0)),
            // A wider margin puts a single value in the middle of the axis.
            Scale::Log | Scale::Doubling => {
                let margin = if to - from < 0.3 { 0.2 } else { (to - from) * 0.04 };
                (from - margin, to + margin)
            }
        };
        Self { scale, range, ends }
    }

    fn at(&self, value: f64) -> f64 {
        let ((from, to), (first, last)) = (self.range, self.ends);
        first + (self.scale.place(value).clamp(from, to) - from) / (to - from) * (last - first)
    }

    fn labels(&self) -> Vec<(f64, String)> {
        let (from, to) = self.range;
        let is_within = |value: &f64| (from - 1e-9..=to + 1e-9).contains(&self.scale.place(*value));
        let labels: Vec<(f64, String)> = match self.scale {
            Scale::Log => {
                let factors: &[f64] = match to - from {
                    span if span < 0.8 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
                    span if span < 2.2 => &[1.0, 2.0, 5.0],
                    span if span < 3.5 => &[1.0, 3.0],
                    _ => &[1.0],
                };
                let decade = |power| factors.iter().map(move |factor| factor * 10_f64.powi(power));
                (-12..=15).flat_map(decade).map(|value| (value, number(value))).collect()
            }
            Scale::Doubling => {
                let step = if to - from > 3.0 { 2 } else { 1 };
                let powers = (0..=26).step_by(step).map(|power| 1_u32 << power);
                let label = |size| (f64::from(size), written(usize::try_from(size).unwrap_or_default()));
                [0].into_iter().chain(powers).map(label).collect()
            }
            Scale::Percentiles => ["0", "90", "99", "99.9", "99.99", "99.999", "99.9999"]
                .iter()
                // There is room for six labels.
                .filter(|text| to < 5.5 || **text != "99.999")
                .map(|text| (text.parse::<f64>().unwrap_or_default() / 100.0, format!("{text}%")))
                .collect(),
        };
        labels
            .into_iter()
            .filter(|(value, _)| is_within(value))
            .map(|(value, text)| (self.at(value), text))
            .collect()
    }
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Log => value.log10(),
            // An empty payload is drawn to the left of one byte.
            Self::Doubling => value.max(0.5).log10(),
            Self::Percentiles => -(1.0 - value).log10(),
        }
    }
}

impl Chart {
    /// Returns the chart as the contents of a `figure` element.
    pub(super) fn html(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::over(self.scale, X, points().map(|point| point.0));
        let y = Axis::over(
            Scale::Log,
            Y,
            points().flat_map(|(_, spread)| [spread.median, spread.min, spread.max]),
        );
        let mut html = format!("<figcaption>{}</figcaption>\n", escaped(&self.title));
        // Writing to a string does not fail.
        let _ = writeln!(html, "<svg viewBox=\"0 0 {} {}\">", SIZE.0, SIZE.1);
        for (at, text) in x.labels() {
            let _ = writeln!(html, "<path class=\"grid\" d=\"M{at:.1} {}V{}\"/>", Y.0, Y.1);
            let _ = writeln!(html, "<text class=\"x\" x=\"{at:.1}\" y=\"{}\">{text}</text>", Y.0 + 20.0);
        }
        for (at, text) in y.labels() {
            let _ = writeln!(html, "<path class=\"grid\" d=\"M{} {at:.1}H{}\"/>", X.0, X.1);
            let _ =
                writeln!(html, "<text class=\"y\" x=\"{}\" y=\"{:.1}\">{text}</text>", X.0 - 6.0, at + 4.0);
        }
        let (middle, below) = (f64::midpoint(X.0, X.1), SIZE.1 - 12.0);
        let _ = writeln!(html, "<text class=\"x\" x=\"{middle}\" y=\"{below}\">{}</text>", escaped(&self.x));
        let middle = f64::midpoint(Y.0, Y.1);
        let _ = writeln!(
            html,
            "<text class=\"x\" transform=\"translate(14 {middle}) rotate(-90)\">{}</text>",
            self.y
        );
        for (at, series) in self.series.iter().enumerate() {
            let _ = writeln!(html, "<g class=\"{}\">", series.class(at));
            let mut path = String::new();
            for (value, spread) in &series.points {
                let (across, up) = (x.at(*value), y.at(spread.median));
                let _ = write!(path, "{}{across:.1} {up:.1}", if path.is_empty() { 'M' } else { 'L' });
                if spread.min < spread.max {
                    let (low, high) = (y.at(spread.min), y.at(spread.max));
                    let _ = writeln!(html, "<path class=\"range\" d=\"M{across:.1} {low:.1}V{high:.1}\"/>");
                }
                if series.is_marked {
                    let _ = writeln!(
                        html,
                        "<path d=\"{}\" transform=\"translate({across:.1} {up:.1})\"/>",
                        shape(at)
                    );
                }
            }
            for ((value, spread), note) in series.points.iter().zip(&series.notes) {
                let (across, up) = (x.at(*value) + 4.0, y.at(spread.median) + 16.0);
                let _ = writeln!(html, "<text x=\"{across:.1}\" y=\"{up:.1}\">{}</text>", escaped(note));
            }
            let _ = writeln!(html, "<path class=\"line\" d=\"{path}\"/></g>");
        }
        html.push_str("</svg>\n<ul class=\"legend\">\n");
        for (at, series) in self.series.iter().enumerate() {
            let mark = if series.is_marked { format!("<path d=\"{}\"/>", shape(at)) } else { String::new() };
            let sample = format!("<path class=\"line\" d=\"M-18 0H18\"/>{mark}");
            let (class, name) = (series.class(at), escaped(&series.name));
            let _ = writeln!(
                html,
                "<li><svg class=\"{class}\" viewBox=\"-18 -7 36 14\">{sample}</svg>{name}</li>"
            );
        }
        html.push_str("</ul>\n");
        html
    }
}

impl Series {
    fn class(&self, at: usize) -> String {
        let line = match self.line {
            Line::Calls => "calls",
            Line::Floor => "floor",
            Line::Peer => "peer",
        };
        format!("c{} {line}", at % COLOURS)
    }
}

fn shape(at: usize) -> &'static str {
    SHAPES[(at + at / COLOURS) % SHAPES.len()]
}

/// Formats a number in a short form, such as `0.05`, `20`, `50k` or `2M`.
pub(super) fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // The default format of a rounded number has no trailing zeros.
    let rounded = if value.abs() < 0.01 { value } else { (value * 1e3).round() / 1e3 };
    format!("{rounded}{unit}")
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        let axis = Axis::over(scale, X, values.iter().copied());
        let labels = axis.labels();
        assert!(labels.iter().all(|(at, _)| (X.0..=X.1).contains(at)), "{labels:?}");
        labels.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn each_scale_has_several_labels() {
        assert_eq!(labels(Scale::Log, &[0.9, 25.0]), ["1", "2", "5", "10", "20"]);
        assert_eq!(labels(Scale::Log, &[9.0, 2e6]), ["10", "100", "1000", "10k", "100k", "1M"]);
        assert_eq!(labels(Scale::Doubling, &[0.0, 8.0]), ["0", "1", "2", "4", "8"]);
        assert_eq!(labels(Scale::Percentiles, &[0.0, 0.9999]), ["0%", "90%", "99%", "99.9%", "99.99%"]);
        for values in [&[][..], &[5.0], &[1e-3, 1e12], &[7.0, 7.1], &[f64::NAN], &[350.0]] {
            assert!((1..=20).contains(&labels(Scale::Log, values).len()), "{values:?}");
        }
    }

    #[test]
    fn chart_numbers_are_abbreviated() {
        assert_eq!(
            [0.05, 20.0, 0.30000000000000004, 5e4, 2.5e6, 1e10].map(number),
            ["0.05", "20", "0.3", "50k", "2.5M", "10G"]
        );
    }
}
