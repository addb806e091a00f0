//! The axes of a plot: their ranges and the positions of their labels.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Placement of values on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Equal ratios are equally far apart; labels at 1, 2 and 5 times the powers of ten.
    Log,
    /// Logarithmic, with labels at powers of two and units of 2^10 and 2^20, for sizes and calls under way.
    Doubling,
    /// Quantiles by the fraction of values above them: 90 %, 99 % and 99.9 % are equally far apart.
    Percentiles,
}

/// An axis with its range.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    /// Title, with the unit.
    pub(crate) title: String,
    scale: Scale,
    /// Ends of the range, as places.
    from: f64,
    to: f64,
    /// Places of the labels, and their text.
    pub(crate) labels: Vec<(f64, String)>,
}

impl Axis {
    /// Creates an axis that covers all these values.
    pub(crate) fn over(title: &str, scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let places = values.map(|value| place(scale, value)).filter(|place| place.is_finite());
        let (mut from, mut to) = places
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), place| (from.min(place), to.max(place)));
        if from > to {
            (from, to) = (0.0, 1.0);
        }
        match scale {
            // One value alone is in the middle of a decade.
            Scale::Log | Scale::Doubling if to - from < 0.3 => (from, to) = (from - 0.2, to + 0.2),
            Scale::Log | Scale::Doubling => (from, to) = (from - (to - from) * 0.04, to + (to - from) * 0.04),
            Scale::Percentiles => (from, to) = (0.0, to.max(1.0)),
        }
        let labels = labels(scale, from, to);
        Self { title: title.to_owned(), scale, from, to, labels }
    }

    /// Returns the place of a value.
    pub(crate) fn place(&self, value: f64) -> f64 {
        place(self.scale, value).clamp(self.from, self.to)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (place - self.from) / (self.to - self.from);
        #[expect(clippy::cast_possible_truncation, reason = "between the two ends, which are i32")]
        let offset = (share.clamp(0.0, 1.0) * f64::from(last - first)).round() as i32;
        first + offset
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Every line of the grid has a label.
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.labels.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        let near = |(at, _): &&(f64, String)| (at - place).abs() < 1e-9;
        self.labels.iter().find(near).map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

fn place(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Log => value.log10(),
        // An empty payload is left of one byte.
        Scale::Doubling => value.max(0.5).log10(),
        Scale::Percentiles => -(1.0 - value).log10(),
    }
}

fn labels(scale: Scale, from: f64, to: f64) -> Vec<(f64, String)> {
    let all: Vec<(f64, String)> = match scale {
        Scale::Log => {
            let factors: &[f64] = match to - from {
                span if span < 0.8 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
                span if span < 2.2 => &[1.0, 2.0, 5.0],
                span if span < 3.5 => &[1.0, 3.0],
                _ => &[1.0],
            };
            let decade = |exponent: i32| factors.iter().map(move |factor| factor * 10_f64.powi(exponent));
            (-12..=15).flat_map(decade).map(|value| (value.log10(), number(value))).collect()
        }
        Scale::Doubling => {
            let few = if to - from > 3.0 { 2 } else { 1 };
            let powers = (0..=26).step_by(few).map(|power| 1_usize << power);
            let label = |size: usize| (place(scale, as_f64(size)), crate::sizes::written(size));
            [(place(scale, 0.0), "0".to_owned())].into_iter().chain(powers.map(label)).collect()
        }
        // There is space for six labels.
        Scale::Percentiles => (0..=6)
            .filter(|nines| to < 5.5 || *nines != 5)
            .map(|nines: i32| {
                let text = match nines {
                    0 => "0%".to_owned(),
                    1 => "90%".to_owned(),
                    2 => "99%".to_owned(),
                    _ => format!("99.{}%", "9".repeat(usize::try_from(nines).unwrap_or_default() - 2)),
                };
                (f64::from(nines), text)
            })
            .collect(),
    };
    all.into_iter().filter(|(place, _)| (from - 1e-9..=to + 1e-9).contains(place)).collect()
}

/// Formats a number as briefly as possible: `0.05`, `20`, `50k`, `2M`.
pub(crate) fn number(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // The default format of a rounded number has no trailing zeros.
    let scale = 1000.0;
    let rounded = if value.abs() < 0.01 { value } else { (value * scale).round() / scale };
    format!("{rounded}{unit}")
}

#[expect(clippy::cast_precision_loss, reason = "sizes are at most 2^26")]
pub(crate) const fn as_f64(size: usize) -> f64 {
    size as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: Scale, values: &[f64]) -> Vec<String> {
        let axis = Axis::over("a title", scale, values.iter().copied());
        axis.labels.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn each_scale_has_several_labels() {
        assert_eq!(texts(Scale::Log, &[0.9, 25.0]), ["1", "2", "5", "10", "20"]);
        assert_eq!(texts(Scale::Log, &[9.0, 2e6]), ["10", "100", "1000", "10k", "100k", "1M"]);
        assert_eq!(texts(Scale::Doubling, &[0.0, 8.0]), ["0", "1", "2", "4", "8"]);
        assert_eq!(texts(Scale::Percentiles, &[0.0, 0.9999]), ["0%", "90%", "99%", "99.9%", "99.99%"]);
    }

    #[test]
    fn any_values_have_an_axis_with_labels() {
        for scale in [Scale::Log, Scale::Doubling] {
            for values in [&[][..], &[5.0], &[1e-3, 1e12], &[7.0, 7.1], &[f64::NAN], &[350.0]] {
                let axis = Axis::over("a title", scale, values.iter().copied());
                assert!(axis.from < axis.to, "{scale:?} {values:?}");
                let places: Vec<_> = values.iter().map(|value| axis.place(*value)).collect();
                assert!(places.iter().all(|at| at.is_nan() || (axis.from..=axis.to).contains(at)));
                let labelled = axis.labels.len();
                assert!((1..=20).contains(&labelled), "{scale:?} {values:?}: {labelled}");
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.05, 20.0, 0.30000000000000004, 5e4, 2.5e6, 1e10].map(number),
            ["0.05", "20", "0.3", "50k", "2.5M", "10G"]
        );
    }
}
