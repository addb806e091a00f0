//! Median and extremes of repetitions, and formatting of numbers.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Median and extremes of a value over all repetitions.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub(crate) struct Spread {
    #[serde(deserialize_with = "positive")]
    pub(crate) median: f64,
    #[serde(deserialize_with = "positive")]
    pub(crate) min: f64,
    #[serde(deserialize_with = "positive")]
    pub(crate) max: f64,
}

impl Spread {
    /// Returns the spread of the values, or `None` if there are none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), min, max })
    }
}

/// Parses a number between 1e-100 and 1e100. The ratio of two such numbers is a normal number.
///
/// # Errors
/// Returns an error with the value if it is not such a number.
pub(crate) fn number(value: &Value) -> Result<f64, String> {
    let number = value.as_f64().filter(|number| (1e-100..=1e100).contains(number));
    number.ok_or_else(|| format!("{value} is not a number above 0"))
}

fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    number(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Formats a number with three significant digits, or with all digits before the decimal point if there are more.
pub(crate) fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_count_is_mean_of_middle_values() {
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of(&[5.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 5.0 }));
        assert_eq!(Spread::of(&[]), None);
    }
}
