//! Distributions of times, as tables of quantiles.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// Times in nanoseconds by quantile. Quantiles are text such as `0.99`; `0` is the shortest time, `1` the longest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Distribution(BTreeMap<String, u64>);

impl Distribution {
    /// Creates the distribution of times. Omits quantiles with less than one time above them, except the longest time.
    pub(crate) fn of(times: &Histogram<u64>) -> Self {
        let low = ["0", "0.1", "0.25", "0.5", "0.75"].into_iter().map(str::to_owned);
        let digits = |nines: usize| ["", "5", "75"].map(|end| format!("0.{}{end}", "9".repeat(nines)));
        let mut quantiles = BTreeMap::new();
        for text in low.chain((1..=9).flat_map(digits)) {
            // The quantiles are the constants above, so they parse.
            let quantile: f64 = text.parse().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
            let above = (1.0 - quantile) * times.len() as f64;
            if above >= 1.0 {
                quantiles.insert(text, times.value_at_quantile(quantile));
            }
        }
        quantiles.insert("1".to_owned(), times.max());
        Self(quantiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_end_where_no_times_are_above() {
        let mut times = Histogram::new(3).unwrap();
        (1..=1000_u64).for_each(|time| times.record(time).unwrap());
        let Distribution(quantiles) = Distribution::of(&times);
        for (quantile, value) in [("0", 1), ("0.5", 500), ("0.99", 990), ("0.9975", 998), ("1", 1000)] {
            assert_eq!(quantiles[quantile], value, "{quantile}");
        }
        assert_eq!(quantiles.len(), 5 + 3 + 3 + 1 + 1, "{quantiles:?}");
        assert_eq!(Distribution::of(&Histogram::new(3).unwrap()).0.len(), 1);
    }
}
