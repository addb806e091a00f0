//! Distributions of times, as tables of quantiles.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times in nanoseconds, by quantile. A quantile is a string such as `0.99`. `0` is the shortest time, and `1` is the
/// longest.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Distribution(BTreeMap<String, f64>);

impl Distribution {
    /// Creates the distribution of times. Except for the longest time, omits quantiles with less than one time above
    /// them.
    pub(crate) fn of(times: &Histogram<u64>) -> Self {
        let low = ["0", "0.1", "0.25", "0.5", "0.75"].into_iter().map(str::to_owned);
        let digits = |nines: usize| ["", "5", "75"].map(|end| format!("0.{}{end}", "9".repeat(nines)));
        let mut quantiles = BTreeMap::new();
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
        let ns = |time: u64| time as f64;
        for text in low.chain((1..=9).flat_map(digits)) {
            // The quantiles are the constants above, so they parse.
            let quantile: f64 = text.parse().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
            let above = (1.0 - quantile) * times.len() as f64;
            if above >= 1.0 {
                quantiles.insert(text, ns(times.value_at_quantile(quantile)));
            }
        }
        quantiles.insert("1".to_owned(), ns(times.max()));
        Self(quantiles)
    }

    /// Returns the quantiles with their times, in ascending order.
    pub(crate) fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        let parsed = self.0.iter().filter_map(|(text, ns)| Some((text.parse().ok()?, *ns)));
        parsed.filter(|(quantile, _)| (0.0..=1.0).contains(quantile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_end_with_maximum() {
        let mut times = Histogram::new(3).unwrap();
        (1..=1000_u64).for_each(|time| times.record(time).unwrap());
        let Distribution(quantiles) = Distribution::of(&times);
        for (quantile, value) in
            [("0", 1.0), ("0.5", 500.0), ("0.99", 990.0), ("0.9975", 998.0), ("1", 1000.0)]
        {
            assert_eq!(quantiles[quantile], value, "{quantile}");
        }
        assert_eq!(quantiles.len(), 5 + 3 + 3 + 1 + 1, "{quantiles:?}");
        assert_eq!(Distribution::of(&Histogram::new(3).unwrap()).0.len(), 1);
    }
}
