//! Distinguishes a change from the noise of repetitions.
//!
//! Two lists of repetitions differ if three conditions hold. With five repetitions, each condition alone gives too many
//! wrong verdicts:
//!
//! 1. The medians differ by more than the bound. Two runs of one program differ by some percent even if the repetitions
//!    within each run agree, because the load from other machines on the host varies.
//! 2. The medians differ by more than twice the interquartile range of the noisier side, so noisy values must change
//!    more.
//! 3. The repetitions of one side are above those of the other in a rank test (Mann-Whitney, one-sided, 0.5 %). With five
//!    repetitions on each side, all values of one side must be above all values of the other.

/// Minimum difference between the medians, in interquartile ranges.
const RANGES: f64 = 2.0;
/// Significance level of the rank test.
const CHANCE: f64 = 0.005;
/// Minimum number of repetitions per side. With four repetitions, even the clearest order has a p-value of 1 in C(8, 4) =
/// 70, which is above the significance level.
pub(crate) const FEWEST: usize = 5;
/// Maximum number of pairs for which the p-value is computed exactly.
const EXACT_PAIRS: usize = 900;

/// Difference between two lists of repetitions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Change {
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// Relative change of the median, which is negative if the median became smaller.
    pub(crate) change: f64,
    /// Larger of the two interquartile ranges, relative to the median.
    pub(crate) range: f64,
    pub(crate) chance: f64,
    /// True if both lists contain enough repetitions.
    pub(crate) is_decided: bool,
}

impl Change {
    pub(crate) fn between(before: &[f64], after: &[f64]) -> Self {
        let (from, to) = (Quartiles::of(before), Quartiles::of(after));
        Self {
            before: from.median,
            after: to.median,
            change: to.median / from.median - 1.0,
            range: from.range().max(to.range()),
            chance: chance(before, after),
            is_decided: before.len().min(after.len()) >= FEWEST,
        }
    }

    /// Returns true if the change exceeds the noise and `bound`, which is a fraction.
    pub(crate) fn is_real(&self, bound: f64) -> bool {
        // Halving counts as much as doubling.
        let size = self.change.max(-self.change / (1.0 + self.change));
        self.is_decided && size > bound && size > RANGES * self.range && self.chance <= CHANCE
    }
}

struct Quartiles {
    low: f64,
    median: f64,
    high: f64,
}

impl Quartiles {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Positions are in quarters of the distance between two adjacent values, to avoid rounding.
        let at = |quarter: usize| {
            let place = quarter * (sorted.len() - 1);
            let (low, high) = (sorted[place / 4], sorted[place.div_ceil(4)]);
            low + (high - low) * [0.0, 0.25, 0.5, 0.75][place % 4]
        };
        Self { low: at(1), median: at(2), high: at(3) }
    }

    fn range(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// Returns the p-value of the one-sided rank test, in the direction that the values suggest.
#[expect(clippy::cast_precision_loss, reason = "numbers of repetitions")]
fn chance(one: &[f64], other: &[f64]) -> f64 {
    let above = |a: &f64, b: &f64| u64::from(a > b) * 2 + u64::from(a == b);
    // Pairs count twice, so that equal pairs can count as half.
    let twice: u64 = one.iter().map(|a| other.iter().map(|b| above(a, b)).sum::<u64>()).sum();
    let pairs = one.len() * other.len();
    let fewer = twice.min(2 * pairs as u64 - twice) as f64 / 2.0;
    if pairs <= EXACT_PAIRS {
        return exact(one.len(), other.len(), fewer);
    }
    let (n, m) = (one.len() as f64, other.len() as f64);
    let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
    let score = (n * m / 2.0 - fewer - 0.5).max(0.0) / deviation;
    // This is an upper bound on the tail of the normal distribution. It is tight if the tail is small.
    (-score * score / 2.0).exp() / 2.0
}

/// Returns the fraction of all orders of `n` and `m` values that have at most `most` pairs in order.
fn exact(n: usize, m: usize, most: f64) -> f64 {
    // counts[j][u] is the number of orders of the values so far and j values of the other side that have u pairs in
    // order.
    let pairs = n * m;
    let mut counts = vec![vec![0.0_f64; pairs + 1]; m + 1];
    for row in &mut counts {
        row[0] = 1.0;
    }
    for _ in 0..n {
        // Add a value on this side. It is either above all j values of the other side or below the last of them.
        let mut next = vec![vec![0.0; pairs + 1]; m + 1];
        for j in 0..=m {
            for u in 0..=pairs {
                let last = if j == 0 { 0.0 } else { next[j - 1][u] };
                let above = if u >= j { counts[j][u - j] } else { 0.0 };
                next[j][u] = last + above;
            }
        }
        counts = next;
    }
    let all: f64 = counts[m].iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "at most EXACT_PAIRS")]
    let few: f64 =
        counts[m].iter().enumerate().filter(|(u, _)| *u as f64 <= most).map(|(_, count)| count).sum();
    few / all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, wanted: f64) {
        assert!((value - wanted).abs() < 1e-9, "{value} and not {wanted}");
    }

    #[test]
    fn quartiles_are_between_neighbours() {
        let all = Quartiles::of(&[5.0, 1.0, 2.0, 4.0, 3.0]);
        assert_eq!((all.low, all.median, all.high), (2.0, 3.0, 4.0));
        let even = Quartiles::of(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!((even.low, even.median, even.high), (1.75, 2.5, 3.25));
        assert_eq!(Quartiles::of(&[7.0]).range(), 0.0);
    }

    #[test]
    fn rank_test_matches_exact_probabilities() {
        // In one of 252 orders, all five values are above all five others. A single pair in the other order adds one
        // order.
        near(chance(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]), 1.0 / 252.0);
        near(chance(&[6.0, 7.0, 8.0, 9.0, 10.0], &[1.0, 2.0, 3.0, 4.0, 5.0]), 1.0 / 252.0);
        near(chance(&[1.0, 2.0, 3.0, 4.0, 6.0], &[5.0, 7.0, 8.0, 9.0, 10.0]), 2.0 / 252.0);
        // In 4 orders, at most 2 of 5 x 5 pairs are in order.
        near(exact(5, 5, 2.0), 4.0 / 252.0);
        near(exact(3, 4, 0.0), 1.0 / 35.0);
        assert!(chance(&[5.0; 8], &[5.0; 8]) > 0.5);
    }

    #[test]
    fn rank_test_handles_thousand_repetitions() {
        let many: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert!(chance(&many, &many) > 0.4);
        let higher: Vec<f64> = many.iter().map(|value| value + 100.0).collect();
        assert!(chance(&many, &higher) < 1e-6);
    }

    #[test]
    fn change_is_larger_than_bound_and_noise() {
        let quiet = [100.0, 101.0, 99.0, 100.0, 102.0];
        let times = |factor: f64| quiet.map(|value| value * factor);
        let change = |after: &[f64]| Change::between(&quiet, after);
        assert!(change(&times(1.2)).is_real(0.1));
        assert!(change(&times(0.8)).is_real(0.1));
        assert!(!change(&times(1.2)).is_real(0.25), "below the bound");
        assert!(!change(&quiet).is_real(0.0));
        let noisy = [100.0, 160.0, 130.0, 210.0, 125.0];
        assert!(change(&noisy).change > 0.25 && !change(&noisy).is_real(0.1), "noise");
        // Two outliers are not a change.
        assert!(!change(&[100.0, 300.0, 99.0, 300.0, 101.0]).is_real(0.1));
        assert!(!change(&[150.0, 151.0, 101.0, 150.0, 152.0]).is_real(0.1), "not all are above all");
        // Four repetitions are too few for a verdict.
        assert!(!Change::between(&[1.0; 4], &[2.0; 4]).is_real(0.1));
        // Halving is as large a change as doubling.
        assert!(change(&times(0.5)).is_real(0.9) && change(&times(2.0)).is_real(0.9));
    }
}
